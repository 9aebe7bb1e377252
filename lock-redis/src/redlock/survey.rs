//! Asking all nodes about a hold.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{ClockInstant, Error};

use super::answer::Answer;
use super::ask::Renew;
use super::claim::{RedlockClaim, SHORT_WAIT};
use super::fanout::Fanout;
use super::rule::{self, Standing};
use super::tally::Tally;
use super::wrong::Wrong;

impl RedlockClaim {
    /// Asks all nodes about a hold: with a ttl of zero without prolonging it, and without a fence
    /// (where the outcome of the tries is unknown) for whatever stands there for the owner.
    pub(super) async fn survey(&self, ttl: Duration) -> (Standing, Vec<Option<Answer>>) {
        let started = self.now();
        let fence = self.token.filter(|_| !self.quorum.is_wrong(Wrong::RenewsAnyFence));
        let ask = Renew { fence, adopt: None, ttl };
        let mut fanout = Fanout::default();
        for node in 0..self.quorum.len() {
            let (quorum, target) = (Arc::clone(&self.quorum), Arc::clone(&self.target));
            fanout.push(node, quorum.renew(node, target, ask, self.limit));
        }
        let mut answers: Vec<Option<Answer>> = (0..self.quorum.len()).map(|_| None).collect();
        let mut close_at = None;
        loop {
            let held = answers.iter().flatten().filter(|answer| answer.counter().is_some()).count();
            let voted = answers.iter().flatten().filter(|answer| answer.is_vote()).count();
            let standing =
                rule::standing(self.quorum.len(), self.quorum.needed(), held, voted - held);
            let now = self.now();
            if standing != Standing::Unknown && close_at.is_none() {
                close_at = Some(now + SHORT_WAIT.max(now.since(started) * 3));
            }
            if fanout.is_empty() || close_at.is_some_and(|at| now >= at) {
                return (standing, answers);
            }
            tokio::select! {
                biased;
                (node, answer) = fanout.next() => answers[node] = Some(answer),
                () = self.quorum.clock().sleep_until(close_at.unwrap_or(ClockInstant::FAR_FUTURE)),
                    if close_at.is_some() => {}
            }
        }
    }

    pub(super) fn survey_error(&self, answers: Vec<Option<Answer>>) -> Error {
        if answers.iter().flatten().any(|answer| matches!(answer, Answer::NotAdmitted(_))) {
            self.admission.tend();
        }
        let mut tally = Tally::new(self.quorum.len(), self.quorum.needed(), None);
        for (node, answer) in answers.into_iter().enumerate() {
            if let Some(answer) = answer {
                tally.set(node, answer);
            }
        }
        self.describe(&tally).with_unknown_effect()
    }
}
