//! What the answers to one call say, and which answers a try still waits for.

use super::rules::{self, AnswerBrief, FenceBlock, FenceVerdict};
use super::{CallOutcome, ContenderTerms, Time};

/// The answers to one call, node by node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Ballot(pub(crate) Vec<Paper>);

/// What one node has answered to the call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Paper {
    /// `None` while the first answer is under way.
    pub(crate) reply: Option<AnswerBrief>,
    /// A raise is under way, so the value that the node has shown does not count.
    raising: bool,
    /// The node has voted, whatever it said later.
    pub(crate) voted: bool,
}

impl Paper {
    /// Whether the request may still reach the node, or may have, so that it votes.
    pub(crate) fn may_land(&self) -> bool {
        matches!(self.reply, None | Some(AnswerBrief::Unknown))
    }

    fn counter(&self) -> Option<u64> {
        self.reply.and_then(AnswerBrief::counter)
    }
}

impl Ballot {
    pub(crate) fn new(nodes: usize) -> Self {
        Self(vec![Paper::default(); nodes])
    }

    pub(crate) fn clear(&mut self) {
        self.0.fill(Paper::default());
    }

    pub(crate) fn set(&mut self, node: usize, reply: AnswerBrief) {
        let paper = &mut self.0[node];
        paper.raising = false;
        paper.voted |= reply.counter().is_some();
        paper.reply = Some(match (paper.reply, reply) {
            // What is released stays so, whatever the next release finds.
            (Some(AnswerBrief::Freed(before)), now) => {
                AnswerBrief::Freed(before || now == AnswerBrief::Freed(true))
            }
            (_, now) => now,
        });
    }

    fn replies(&self) -> impl Iterator<Item = AnswerBrief> {
        self.0.iter().filter_map(|paper| paper.reply)
    }

    pub(crate) fn pending(&self) -> usize {
        self.0.iter().filter(|paper| paper.reply.is_none()).count()
    }

    fn voting(&self) -> usize {
        self.replies().filter(|reply| reply.is_vote()).count()
    }

    /// How many nodes have voted for this claim.
    fn granted(&self) -> usize {
        self.0.iter().filter(|paper| paper.counter().is_some()).count()
    }

    fn needed(&self) -> usize {
        rules::needed(self.0.len(), self.voting(), self.pending())
    }

    /// The nodes that have answered less than `value`, which are to be raised; they count again when
    /// they have answered.
    pub(crate) fn raise_to(&mut self, value: u64) -> Vec<usize> {
        let is_low = |paper: &Paper| {
            !paper.raising && paper.counter().is_some_and(|counter| counter < value)
        };
        let low: Vec<_> = (0..self.0.len()).filter(|node| is_low(&self.0[*node])).collect();
        low.iter().for_each(|node| self.0[*node].raising = true);
        low
    }

    /// What the votes say of the fence. `kept` has the fences of an earlier grant to the same claim.
    fn judge(&self, kept: Option<FenceBlock>) -> FenceVerdict {
        let vote = |paper: &Paper| paper.counter().filter(|_| !paper.raising);
        let votes: Vec<_> = self.0.iter().map(vote).collect();
        rules::judge(self.needed(), &votes, kept, self.pending())
    }

    /// Whether so many nodes give no vote that no client can have a quorum.
    fn is_hopeless(&self) -> bool {
        self.0.len() - self.pending() - self.voting() > self.0.len() - self.needed()
    }

    /// Whether other clients have so many votes that a quorum is out of reach.
    fn is_outvoted(&self) -> bool {
        self.granted() + self.pending() < self.needed() && self.voting() >= self.needed()
    }

    /// Whether this claim has a vote, and another client has one.
    fn is_contended(&self) -> bool {
        self.granted() > 0 && self.replies().any(|reply| reply == AnswerBrief::NotMine)
    }

    /// What the answers to a renewal say.
    ///
    /// A node is held if it shows just the fence, or if it was adopted: a renewal that was answered
    /// [`Held`](CallOutcome::Held) without it has found it to be this owner's, and it has not let go since. Nothing
    /// else may adopt a node that joined late, since another client may have held the lock in between.
    pub(crate) fn standing(&self) -> CallOutcome {
        let (nodes, needed) = (self.0.len(), rules::quorum_of(self.0.len()));
        let held = self.replies().filter(|reply| rules::shows_hold(*reply)).count();
        let gone = self.voting() - held;
        if held >= needed {
            CallOutcome::Held
        } else if nodes - gone < needed {
            CallOutcome::Lost
        } else {
            CallOutcome::Unknown
        }
    }

    /// What the answers to a release say.
    pub(crate) fn released(&self) -> CallOutcome {
        let is_freed = |reply| matches!(reply, AnswerBrief::Freed(_));
        let answered = self.replies().filter(|reply| is_freed(*reply)).count();
        if answered < rules::quorum_of(self.0.len()) {
            return CallOutcome::Unknown;
        }
        CallOutcome::Released(self.replies().any(|reply| reply == AnswerBrief::Freed(true)))
    }
}

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
pub(crate) enum TryStep {
    Wait,
    /// The nodes that have shown less are raised to this value.
    Raise(u64),
    /// The try is over.
    End(CallOutcome),
}

impl Trying {
    pub(crate) fn new(called: Time, started: Time) -> Self {
        Self { called, started, raise_at: None, fail_at: None }
    }

    /// `kept` is the last fence of an earlier grant to the same claim.
    pub(crate) fn step(
        &mut self,
        terms: &ContenderTerms,
        now: Time,
        ballot: &Ballot,
        kept: Option<u64>,
    ) -> TryStep {
        let took = now - self.started;
        let is_over = |at: Time| ballot.pending() == 0 || now >= at;
        let kept = kept.map(|last| FenceBlock { last, fences: terms.fences });
        match ballot.judge(kept) {
            FenceVerdict::Established(last) => TryStep::End(self.grant(terms, now, last)),
            // The answers that are still to come may make a quorum agree without a second round, so
            // they get a moment.
            FenceVerdict::Raise(highest) => {
                let wait = terms.short_wait.max(took * 2);
                let raise_at = *self.raise_at.get_or_insert(now + wait);
                if is_over(raise_at) { TryStep::Raise(highest) } else { TryStep::Wait }
            }
            // The error is to name each node's answer, so the last ones get a moment.
            FenceVerdict::Short if ballot.is_hopeless() => {
                let grace = terms.listing.max(took * 2).min(terms.slow_after);
                let fail_at = *self.fail_at.get_or_insert(now + grace);
                if is_over(fail_at) { TryStep::End(CallOutcome::Failed) } else { TryStep::Wait }
            }
            FenceVerdict::Short if ballot.is_outvoted() => TryStep::End(CallOutcome::Busy),
            // Under contention, votes are not withheld from others to wait for a slow node.
            _ if took >= terms.slow_after && ballot.is_contended() => {
                let has_quorum = ballot.voting() >= ballot.needed();
                TryStep::End(if has_quorum { CallOutcome::Busy } else { CallOutcome::Failed })
            }
            FenceVerdict::Wait | FenceVerdict::Short => TryStep::Wait,
        }
    }

    fn grant(&self, terms: &ContenderTerms, now: Time, last: u64) -> CallOutcome {
        let took = now - self.called;
        let valid_for = rules::valid_for(terms.valid, took);
        if took + terms.margin >= valid_for {
            return CallOutcome::TooLate;
        }
        let fence = FenceBlock { last, fences: terms.fences }.first();
        CallOutcome::Granted { fence, valid_for }
    }

    pub(crate) fn wake_at(&self, terms: &ContenderTerms, now: Time) -> Option<Time> {
        let at = [self.raise_at, self.fail_at, Some(self.started + terms.slow_after)];
        at.into_iter().flatten().filter(|at| *at > now).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hold_is_lost_only_when_so_many_said_so_that_no_quorum_is_left() {
        let standing = |held, gone| {
            let mut ballot = Ballot::new(3);
            (0..held).for_each(|node| ballot.set(node, AnswerBrief::Mine { counter: 7 }));
            (held..held + gone).for_each(|node| ballot.set(node, AnswerBrief::NotMine));
            ballot.standing()
        };
        assert_eq!(standing(2, 1), CallOutcome::Held);
        assert_eq!(standing(1, 1), CallOutcome::Unknown);
        assert_eq!(standing(1, 2), CallOutcome::Lost);
        assert_eq!(standing(0, 0), CallOutcome::Unknown);
    }

    #[test]
    fn a_node_that_is_released_twice_counts_once() {
        let mut ballot = Ballot::new(3);
        for freed in [true, false] {
            ballot.set(0, AnswerBrief::Freed(freed));
            assert_eq!(ballot.released(), CallOutcome::Unknown);
        }
        ballot.set(1, AnswerBrief::Freed(false));
        ballot.set(0, AnswerBrief::Unknown);
        assert_eq!(ballot.released(), CallOutcome::Released(true));
    }
}
