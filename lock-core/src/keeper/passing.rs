//! Whether a hold that was given up goes to the next task of this process.

use super::holding::Holding;
use super::plan::Plan;
use crate::mutants::rules;
use crate::{ClockInstant, LockState};

impl Holding {
    /// Ends the cohort when its time is over, or the hold is lost.
    pub(super) fn end_cohort(&mut self, state: LockState, now: ClockInstant) {
        let given_up = rules().is_given_up;
        let is_lost = matches!(state, LockState::Lost(reason) if !given_up(reason));
        self.cohort.take_if(|cohort| is_lost || now >= cohort.until);
    }

    /// Whether the store is not known, or about to be known, to have ended the hold, and its holder
    /// has given it up.
    async fn may_be_passed_on(&mut self) -> bool {
        let LockState::Lost(reason) = self.held.state() else { return false };
        let no_push = tokio::select! {
            biased;
            _ = self.keeper.claim.changed() => false,
            () = std::future::ready(()) => true,
        };
        let Plan { failures, check_at, is_unsettled, .. } = self.plan;
        let is_quiet = no_push && failures == 0 && check_at == ClockInstant::FAR_FUTURE;
        (rules().is_given_up)(reason)
            && (rules().is_quiet)(is_quiet)
            && !is_unsettled
            && !self.keeper.client.closing.is_cancelled()
    }

    /// Passes the hold on to the next task of this process; otherwise returns what is to be released.
    /// The next one is let go to the store before that: then it queues behind those who wait there.
    pub(super) async fn pass_on(mut self) -> Option<Self> {
        let Some(cohort) = self.cohort.take() else { return Some(self) };
        if !self.may_be_passed_on().await {
            return Some(self);
        }
        let keeper = cohort.pass(self.keeper, self.held.lease_end())?;
        Some(Self { keeper, ..self })
    }
}
