//! What a try waits for, and what it does next.

use super::ballot::{Ballot, Count};
use super::message::{Outcome, Time};
use super::rule::Block;
use super::rules::Terms;

/// A try under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Trying {
    /// The grant is valid from here on.
    called: Time,
    started: Time,
    /// Until when further answers are waited for before nodes are raised.
    raise_at: Option<Time>,
    /// Until when further answers are waited for, so that the error can name them.
    fail_at: Option<Time>,
}

/// What follows from the answers so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Wait,
    /// The nodes that have shown less are raised to this value.
    Raise(u64),
    /// The try is over.
    End(Outcome),
}

impl Trying {
    pub(crate) fn new(called: Time, started: Time) -> Self {
        Self { called, started, raise_at: None, fail_at: None }
    }

    /// `kept` is the last fence of an earlier grant to the same claim.
    pub(crate) fn step(
        &mut self,
        terms: &Terms,
        now: Time,
        ballot: &Ballot,
        kept: Option<u64>,
    ) -> Step {
        let took = now - self.started;
        let is_complete = ballot.pending() == 0;
        let kept = kept.map(|last| Block { last, fences: terms.fences });
        match ballot.count(&terms.rules, kept) {
            // Under contention, votes are not withheld from others to wait for a slow node.
            Count::Open if took >= terms.slow_after && ballot.is_contended() => {
                Step::End(ballot.without_the_slow(&terms.rules))
            }
            Count::Open => Step::Wait,
            // The error is to name each node's answer, so the last ones get a moment.
            Count::Decided(Outcome::Failed) => {
                let grace = terms.listing.max(took * 2).min(terms.slow_after);
                let fail_at = *self.fail_at.get_or_insert(now + grace);
                if is_complete || now >= fail_at {
                    return Step::End(Outcome::Failed);
                }
                Step::Wait
            }
            Count::Decided(outcome) => Step::End(outcome),
            // The answers that are still to come may make a quorum agree without a second round, so
            // they get a moment.
            Count::Differ(highest) => {
                let wait = terms.short_wait.max(took * 2);
                let raise_at = *self.raise_at.get_or_insert(now + wait);
                if is_complete || now >= raise_at { Step::Raise(highest) } else { Step::Wait }
            }
            Count::Granted(last) => Step::End(self.grant(terms, now, last)),
        }
    }

    fn grant(&self, terms: &Terms, now: Time, last: u64) -> Outcome {
        let valid_for = terms.believed(self.called, now);
        if now - self.called + terms.margin >= valid_for {
            return Outcome::TooLate;
        }
        let fence = Block { last, fences: terms.fences }.first();
        Outcome::Granted { fence, valid_for }
    }

    pub(crate) fn wake_at(&self, terms: &Terms, now: Time) -> Option<Time> {
        let at = [self.raise_at, self.fail_at, Some(self.started + terms.slow_after)];
        at.into_iter().flatten().filter(|at| *at > now).min()
    }
}
