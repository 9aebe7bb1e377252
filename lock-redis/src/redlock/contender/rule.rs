//! What a client of a quorum concludes from the answers of the nodes.

/// The fences of a hold, in a row: the counters of the nodes stand for the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    pub(crate) last: u64,
    pub(crate) fences: u32,
}

impl Block {
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

/// What one node last answered while it held this claim's owner id: the value of its counter.
///
/// `None` if it has given no vote: it has not answered, another client has the lock there, or it is
/// not admitted.
pub(crate) type Vote = Option<u64>;

/// What follows from the votes for the fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
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

/// Judges the votes of all nodes, of which `quorum` decide and so many are `pending`. `kept` has the
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
pub(crate) fn judge(quorum: usize, votes: &[Vote], kept: Option<Block>, pending: usize) -> Verdict {
    let voted = || votes.iter().copied().flatten();
    let showing = |value: u64| voted().filter(|vote| *vote == value).count();
    let apart = |last: u64| kept.map_or(last, |kept| kept.apart(last));
    if let Some(last) = voted().filter(|value| showing(*value) >= quorum).max() {
        let apart = apart(last);
        return if apart == last { Verdict::Established(last) } else { Verdict::Raise(apart) };
    }
    if kept.is_some_and(|kept| showing(kept.last) + pending >= quorum) {
        return Verdict::Wait;
    }
    match voted().max() {
        Some(highest) if voted().count() >= quorum => Verdict::Raise(apart(highest)),
        _ => Verdict::Short,
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

/// What a round of renewals says, given how many nodes are still `held` with the claim's fence, and
/// how many have answered that they are not (`gone`). The others have not answered.
///
/// A node is held if it shows just the fence, or if it was adopted: a renewal that was answered
/// [`Held`](Self::Held) without it has found it to be this owner's, and it has not let go since. Nothing
/// else may adopt a node that joined late, since another client may have held the lock in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// A quorum holds with the claim's fence.
    Held,
    /// So many have said no that no quorum can be left.
    Lost,
    /// Not enough answers to tell.
    Unknown,
}

/// Judges a round of renewals of a quorum of `nodes`.
pub(crate) fn standing(nodes: usize, quorum: usize, held: usize, gone: usize) -> Standing {
    if held >= quorum {
        Standing::Held
    } else if nodes.saturating_sub(gone) < quorum {
        Standing::Lost
    } else {
        Standing::Unknown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_fence_is_waited_for_as_long_as_it_can_be_had() {
        let votes = [Some(3), Some(8), None];
        let kept = Some(Block { last: 3, fences: 1 });
        assert_eq!(judge(2, &votes, kept, 1), Verdict::Wait);
        assert_eq!(judge(2, &votes, kept, 0), Verdict::Raise(8));
        assert_eq!(judge(2, &[Some(9), Some(8), None], kept, 1), Verdict::Raise(9));
    }

    #[test]
    fn a_later_block_of_the_same_claim_has_other_fences() {
        let kept = Some(Block::from_first(4, 5));
        let agreed = |last| judge(2, &[Some(last), Some(last), None], kept, 0);
        assert_eq!(agreed(8), Verdict::Established(8));
        assert_eq!(agreed(9), Verdict::Raise(13));
        assert_eq!(agreed(13), Verdict::Established(13));
        assert_eq!(judge(2, &[Some(8), Some(12), None], kept, 0), Verdict::Raise(13));
        assert_eq!(judge(2, &[Some(8), Some(14), None], kept, 0), Verdict::Raise(14));
    }

    #[test]
    fn a_block_is_named_by_its_first_fence() {
        assert_eq!(Block::from_first(4, 1), Block { last: 4, fences: 1 });
        assert_eq!(Block::from_first(4, 5), Block { last: 8, fences: 5 });
        assert_eq!(Block::from_first(4, 5).first(), 4);
        assert_eq!(Block::from_first(u64::MAX, 5).last, u64::MAX);
    }

    #[test]
    fn a_quorum_is_a_majority_of_all() {
        let quorums: Vec<_> = (1..=7).map(quorum_of).collect();
        assert_eq!(quorums, [1, 2, 2, 3, 3, 4, 4]);
        assert_eq!(seeds_needed(3, 2), 2);
        assert_eq!(seeds_needed(5, 3), 3);
        assert_eq!(seeds_needed(5, 4), 2);
    }

    #[test]
    fn a_hold_is_lost_only_when_so_many_said_so_that_no_quorum_is_left() {
        assert_eq!(standing(3, 2, 2, 1), Standing::Held);
        assert_eq!(standing(3, 2, 1, 1), Standing::Unknown);
        assert_eq!(standing(3, 2, 1, 2), Standing::Lost);
        assert_eq!(standing(3, 2, 0, 0), Standing::Unknown);
    }
}
