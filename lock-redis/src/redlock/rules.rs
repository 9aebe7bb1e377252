//! The rules of Redlock, as plain functions: what a client of a quorum concludes from the answers of the nodes,
//! and how nodes come back.
//!
//! A build for the tests puts known mistakes in their place, and so does the model check.

use std::time::Duration;

/// What one node has answered, as far as it matters for what is done next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum AnswerBrief {
    /// The lock is this owner's there, with this counter: the last fence that the node has given it.
    Mine { counter: u64 },
    /// It is this owner's there, but not with the fence of the claim: it joined later.
    Unproven { counter: u64 },
    /// It is not this owner's.
    NotMine,
    /// The node gives no vote, and the request has no effect.
    NoVote,
    /// There is no answer, and the request may have an effect, now or later.
    Unknown,
    /// The release is carried out, and there was something to release.
    Freed(bool),
}

impl AnswerBrief {
    pub(crate) fn counter(self) -> Option<u64> {
        match self {
            Self::Mine { counter } => Some(counter),
            _ => None,
        }
    }

    /// Whether the node takes part: it has voted, for this claim or for another client.
    pub(crate) fn is_vote(self) -> bool {
        matches!(self, Self::Mine { .. } | Self::Unproven { .. } | Self::NotMine)
    }
}

/// The fences of a hold, in a row: the counters of the nodes stand for the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FenceBlock {
    pub(crate) last: u64,
    pub(crate) fences: u32,
}

impl FenceBlock {
    pub(crate) fn from_first(first: u64, fences: u32) -> Self {
        Self { last: first.saturating_add(u64::from(fences).saturating_sub(1)), fences }
    }

    pub(crate) fn first(self) -> u64 {
        self.last.saturating_sub(u64::from(self.fences).saturating_sub(1))
    }

    /// The last fence of a block of the same length that has to be above this one, and should have `last`.
    /// The same block is no other one.
    fn apart(self, last: u64) -> u64 {
        let next = self.last.saturating_add(self.fences.into());
        if (self.last + 1..next).contains(&last) { next } else { last }
    }
}

/// What follows from the votes for the fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FenceVerdict {
    /// A quorum has answered exactly this value: it is the fence, or the last one of the block.
    Established(u64),
    /// A quorum has voted, with different values: raise the nodes that have answered less to this
    /// one, and look again.
    Raise(u64),
    /// The fence of an earlier grant to the same claim is still possible: the missing answers are
    /// waited for before any node is raised.
    Wait,
    /// Fewer than a quorum have voted.
    Short,
}

/// Judges the votes of all nodes: what each has last answered while it held this claim's owner id, the value of
/// its counter; `None` if it has given no vote. Of the nodes `quorum` decide and so many are `pending`. `kept` has the
/// fences of an earlier grant to the same claim.
///
/// *A fence F is established only by a quorum of nodes that each answered exactly F while they held
/// this claim's owner id.* A node's counter rises with every grant, and only the present holder may
/// raise it, so the values that a node shows in different periods of holding are disjoint, and
/// ordered as the periods are. Two established fences share a node, and there they belong to
/// different periods: they differ, and are ordered as at that node. No clock is needed.
///
/// With blocks of fences, a counter stands for the last fence of one, and a grant of n moves it by n at
/// least. So in the later period it stands n above the last fence of the earlier block, at least, and the
/// first fence of the later one is above it, too.
///
/// If several values have a quorum (which needs answers from different times), the greatest counts.
///
/// A claim that tries again gets the token that it had, if a quorum shows it: others may have held the
/// lock since. Otherwise it gets a block that has no fence in common with the earlier one.
pub(crate) fn judge(
    quorum: usize,
    votes: &[Option<u64>],
    kept: Option<FenceBlock>,
    pending: usize,
) -> FenceVerdict {
    let voted = || votes.iter().copied().flatten();
    let showing = |value: u64| voted().filter(|vote| *vote == value).count();
    let apart = |last: u64| kept.map_or(last, |kept| kept.apart(last));
    if let Some(last) = voted().filter(|value| showing(*value) >= quorum).max() {
        let apart = apart(last);
        return if apart == last {
            FenceVerdict::Established(last)
        } else {
            FenceVerdict::Raise(apart)
        };
    }
    if kept.is_some_and(|kept| showing(kept.last) + pending >= quorum) {
        return FenceVerdict::Wait;
    }
    match voted().max() {
        Some(highest) if voted().count() >= quorum => FenceVerdict::Raise(apart(highest)),
        _ => FenceVerdict::Short,
    }
}

/// The least number of nodes any two of which share one: more than half of all `nodes`, and never of
/// those that happen to be reachable.
pub(crate) const fn quorum_of(nodes: usize) -> usize {
    nodes / 2 + 1
}

/// From how many *other* admitted nodes a node that lost its data must take the greatest mark before
/// it may vote again: so many that one of them was in every quorum that this node was in.
pub(crate) const fn seeds_needed(nodes: usize, quorum: usize) -> usize {
    nodes - quorum + 1
}

/// How many of so many `nodes` decide a try: a quorum of all, however many have voted or are still silent.
pub(crate) fn needed(nodes: usize, _voting: usize, _pending: usize) -> usize {
    quorum_of(nodes)
}

/// Whether what a node has answered to a renewal shows the hold there.
pub(crate) fn shows_hold(answer: AnswerBrief) -> bool {
    answer.counter().is_some()
}

/// For how long, from its call on, an answer is believed: however long it took, since a node may
/// count from the moment at which it was asked.
pub(crate) fn valid_for(valid: Duration, _took: Duration) -> Duration {
    valid
}

/// Whether a failed try gives the vote of a node back: one that it has, or may yet get.
pub(crate) fn gives_back(has_voted: bool, may_land: bool) -> bool {
    has_voted || may_land
}

/// What was open at a node when a release was sent there. Only this shows what its answer proves: a
/// request that is answered before it may have been carried out after the release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct OpenAtNode {
    /// How many acquire requests had no answer.
    pub(crate) owed: usize,
    /// Whether the node had granted the lock to this claim, or may have to an earlier process.
    pub(crate) granted: bool,
}

/// Whether nothing can be left at a node, and nothing can arrive there any more, where a release has `freed`
/// something or not; `None` if there is no answer.
pub(crate) fn is_settled(open: OpenAtNode, freed: Option<bool>) -> bool {
    let OpenAtNode { owed, granted } = open;
    match freed {
        // The claim has never got anything at the node: there is nothing to release, and a node that is down need
        // not be asked again for each lock.
        None => owed == 0 && !granted,
        // What was freed is all that was.
        Some(true) => owed == 0 || (owed == 1 && !granted),
        Some(false) => owed == 0,
    }
}

/// What an error of a node comes down to. It is never a vote.
pub(crate) fn of_error(has_unknown_effect: bool) -> AnswerBrief {
    if has_unknown_effect { AnswerBrief::Unknown } else { AnswerBrief::NoVote }
}

/// How long a node that has lost its data gives no vote: until every lock that it may have forgotten has ended,
/// by clocks that differ by this part.
pub(crate) fn quarantine(max_ttl: Duration, drift: f64) -> Duration {
    max_ttl + max_ttl.mul_f64(drift.max(0.01)) + Duration::from_millis(50)
}

/// Where the fences of a node go on that has shown this mark and this clock, when nobody knows how far they
/// had come.
///
/// What was lost had been counted before the wait, a little ahead of a clock (see [`lead`]), and the
/// wait is longer. Nothing is added: fences that are ahead of the clocks would fall if everything was lost once
/// more.
pub(crate) fn seed(mark: u64, clock: u64) -> u64 {
    mark.max(clock)
}

/// How far ahead of its own clock a node follows a proposal: by less than any node waits before it votes
/// again, of which half is kept for clocks that are set back.
pub(crate) fn lead(max_ttl: Duration) -> Duration {
    (max_ttl / 2).min(Duration::from_secs(60))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_fence_is_waited_for_as_long_as_it_can_be_had() {
        let votes = [Some(3), Some(8), None];
        let kept = Some(FenceBlock { last: 3, fences: 1 });
        assert_eq!(judge(2, &votes, kept, 1), FenceVerdict::Wait);
        assert_eq!(judge(2, &votes, kept, 0), FenceVerdict::Raise(8));
        assert_eq!(judge(2, &[Some(9), Some(8), None], kept, 1), FenceVerdict::Raise(9));
    }

    #[test]
    fn a_later_block_of_the_same_claim_has_other_fences() {
        let kept = Some(FenceBlock::from_first(4, 5));
        let agreed = |last| judge(2, &[Some(last), Some(last), None], kept, 0);
        assert_eq!(agreed(8), FenceVerdict::Established(8));
        assert_eq!(agreed(9), FenceVerdict::Raise(13));
        assert_eq!(agreed(13), FenceVerdict::Established(13));
        assert_eq!(judge(2, &[Some(8), Some(12), None], kept, 0), FenceVerdict::Raise(13));
        assert_eq!(judge(2, &[Some(8), Some(14), None], kept, 0), FenceVerdict::Raise(14));
    }

    #[test]
    fn a_block_is_named_by_its_first_fence() {
        assert_eq!(FenceBlock::from_first(4, 1), FenceBlock { last: 4, fences: 1 });
        assert_eq!(FenceBlock::from_first(4, 5), FenceBlock { last: 8, fences: 5 });
        assert_eq!(FenceBlock::from_first(4, 5).first(), 4);
        assert_eq!(FenceBlock::from_first(u64::MAX, 5).last, u64::MAX);
    }

    #[test]
    fn a_quorum_is_a_majority_of_all() {
        let quorums: Vec<_> = (1..=7).map(quorum_of).collect();
        assert_eq!(quorums, [1, 2, 2, 3, 3, 4, 4]);
        assert_eq!(seeds_needed(3, 2), 2);
        assert_eq!(seeds_needed(5, 3), 3);
        assert_eq!(seeds_needed(5, 4), 2);
    }

    /// Or a loss of everything could make fences fall.
    #[test]
    fn a_node_runs_less_ahead_of_its_clock_than_it_waits() {
        for (max_ttl, led) in [(1, 500), (30, 15_000), (86_400, 60_000)] {
            let max_ttl = Duration::from_secs(max_ttl);
            assert_eq!(lead(max_ttl), Duration::from_millis(led));
            assert!(lead(max_ttl) < max_ttl);
        }
    }
}
