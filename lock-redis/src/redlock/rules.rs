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
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
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

/// What one node shows of one name to a look: the greatest fence that it has counted for any name, and whose its vote
/// is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct NodeView<O> {
    pub(crate) mark: u64,
    pub(crate) vote: Option<VoteView<O>>,
}

/// A vote, as a look sees it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct VoteView<O> {
    pub(crate) owner: O,
    /// What the node has counted, and the last fence at which a renewal has adopted it; nothing for a client of another
    /// kind.
    pub(crate) counted: Option<(FenceBlock, Option<u64>)>,
}

impl<O> NodeView<O> {
    /// The greatest fence that it may have counted for this name.
    fn last(&self) -> u64 {
        let counted = self.vote.as_ref().and_then(|vote| vote.counted);
        counted.map_or(self.mark, |(block, _)| block.last)
    }

    /// The least fence that a grant can have which this node takes part in after it was looked at.
    fn next(&self) -> u64 {
        let counted = self.vote.as_ref().and_then(|vote| vote.counted);
        counted.map_or(self.mark + 1, |(block, _)| block.first())
    }
}

/// What the nodes that have answered a look show together of one name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sight<O> {
    /// A quorum shows this owner, and this first fence if the owner has any.
    Held { owner: O, first: Option<u64> },
    /// Somebody may have it, or be about to get it: if so, then this owner, where only one is possible. Which fence it
    /// has is not known: an attempt under way may end with a greater one.
    MayBeHeld { owner: Option<O> },
    /// Nobody has it.
    Free { floor: u64 },
    /// Nobody has it, and no number is known to part the fences that were given from those to come.
    NoFloor,
}

/// How many of the `nodes` must have answered a look: a quorum shares a node with that of each grant.
pub(crate) fn look_needs(nodes: usize) -> usize {
    quorum_of(nodes)
}

/// No fence of the name is greater that was established before these nodes were asked: each node of its quorum has
/// counted to it, and so many of them have answered as cannot be among the silent. A node that has lost its data goes on
/// from the greatest mark of so many others that one of that quorum was among them.
pub(crate) fn given<O>(nodes: usize, views: &[NodeView<O>]) -> u64 {
    let silent = nodes - views.len();
    reached_by(quorum_of(nodes).saturating_sub(silent), views.iter().map(NodeView::last))
}

/// What at least so many of the `values` reach.
fn reached_by(number: usize, values: impl Iterator<Item = u64>) -> u64 {
    let mut values: Vec<_> = values.collect();
    values.sort_unstable_by(|a, b| b.cmp(a));
    match number.checked_sub(1) {
        None => u64::MAX,
        Some(at) => values.get(at).copied().unwrap_or(0),
    }
}

/// Judges what the nodes show of one name that have answered a look, at least as many as it
/// [needs](look_needs). No fence above `given` was established before the look began.
///
/// *Held.* Whoever was granted the lock before the look began, and believes in it to its end, has the votes of a
/// quorum throughout: each of its nodes shows them, with the fence as what it has counted or was adopted at, or does not
/// answer, as one that has lost its data. So an owner that has fewer votes than that, with those that are silent, has
/// no lock, and a fence that fewer show is not that of the hold.
///
/// *Free.* The floor is what was `given`. It is told only if a quorum would take part in a grant with nothing but
/// greater fences, since any other quorum shares a node with that one: those which show no vote count above their
/// marks, and a grant that the others take part in is above what they have counted for it. A grant that was carried
/// out during the look is then either greater, and comes after what the look saw, or over.
pub(crate) fn sight<O: Clone + PartialEq>(
    nodes: usize,
    given: u64,
    views: &[NodeView<O>],
) -> Sight<O> {
    let (needed, silent) = (quorum_of(nodes), nodes - views.len());
    let votes = || views.iter().filter_map(|view| view.vote.as_ref());
    let of = |owner: &O| votes().filter(|vote| vote.owner == *owner).count();
    let mut owners: Vec<&O> = Vec::new();
    for vote in votes() {
        if of(&vote.owner) + silent >= needed && !owners.contains(&&vote.owner) {
            owners.push(&vote.owner);
        }
    }
    match owners[..] {
        [] if given < reached_by(needed, views.iter().map(NodeView::next)) => {
            Sight::Free { floor: given }
        }
        [] if votes().next().is_none() => Sight::NoFloor,
        [owner] => {
            let (first, is_certain) = shown_fence(needed, silent, votes(), owner);
            let owner = owner.clone();
            if is_certain {
                Sight::Held { owner, first }
            } else {
                Sight::MayBeHeld { owner: Some(owner) }
            }
        }
        _ => Sight::MayBeHeld { owner: None },
    }
}

/// The first fence of this owner if only one is possible, and whether a quorum shows just that.
fn shown_fence<'v, O: PartialEq + 'v>(
    needed: usize,
    silent: usize,
    votes: impl Iterator<Item = &'v VoteView<O>>,
    owner: &O,
) -> (Option<u64>, bool) {
    let votes: Vec<_> = votes.filter(|vote| vote.owner == *owner).collect();
    let counted = || votes.iter().filter_map(|vote| vote.counted);
    if counted().next().is_none() {
        return (None, votes.len() >= needed);
    }
    let showing = |last: u64| {
        counted().filter(|(block, adopted)| block.last == last || *adopted == Some(last)).count()
    };
    let mut blocks: Vec<_> = counted()
        .flat_map(|(block, adopted)| {
            adopted.map(|last| FenceBlock { last, ..block }).into_iter().chain([block])
        })
        .filter(|block| showing(block.last) + silent >= needed)
        .collect();
    blocks.sort_unstable_by_key(|block| block.last);
    blocks.dedup_by_key(|block| block.last);
    match blocks[..] {
        [block] => (Some(block.first()), showing(block.last) >= needed),
        _ => (None, false),
    }
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

    fn free(mark: u64) -> NodeView<char> {
        NodeView { mark, vote: None }
    }

    /// A vote for a block of two with this last fence, on a node that has counted `mark`.
    fn voted(mark: u64, owner: char, last: u64, adopted: Option<u64>) -> NodeView<char> {
        let counted = Some((FenceBlock { last, fences: 2 }, adopted));
        NodeView { mark, vote: Some(VoteView { owner, counted }) }
    }

    fn foreign(mark: u64, owner: char) -> NodeView<char> {
        NodeView { mark, vote: Some(VoteView { owner, counted: None }) }
    }

    /// What so many nodes show, where only some of them have answered.
    fn seen(nodes: usize, views: &[NodeView<char>]) -> Sight<char> {
        sight(nodes, given(nodes, views), views)
    }

    #[test]
    fn a_look_tells_a_holder_from_who_may_be_one() {
        let held = |owner, first| Sight::Held { owner, first };
        let maybe = |owner| Sight::MayBeHeld { owner };
        let a = |last| voted(20, 'a', last, None);
        for (views, sight) in [
            (vec![a(10), a(10)], held('a', Some(9))),
            (vec![a(10), a(10), a(12)], held('a', Some(9))),
            (vec![a(10), a(10), foreign(20, 'x')], held('a', Some(9))),
            (vec![foreign(20, 'x'), foreign(20, 'x'), free(20)], held('x', None)),
            // The third one may show either.
            (vec![a(10), a(12)], maybe(Some('a'))),
            (vec![a(10), a(12), free(20)], maybe(Some('a'))),
            (vec![a(10), free(20)], maybe(Some('a'))),
            (vec![a(10), foreign(20, 'x')], maybe(None)),
            (vec![foreign(20, 'x'), free(20)], maybe(Some('x'))),
            // Those that joined late count where a renewal has adopted them.
            (vec![a(10), voted(20, 'a', 12, Some(10))], maybe(Some('a'))),
            (vec![a(10), voted(20, 'a', 12, Some(10)), free(20)], held('a', Some(9))),
        ] {
            assert_eq!(seen(3, &views), sight, "{views:?}");
        }
        let three = [a(10), a(10), a(10)];
        assert_eq!(seen(5, &three), held('a', Some(9)));
        assert_eq!(seen(5, &[a(10), a(10), free(20)]), maybe(Some('a')));
        assert_eq!(
            seen(5, &[a(10), a(10), free(20), free(20), free(20)]),
            Sight::Free { floor: 20 }
        );
    }

    #[test]
    fn a_floor_is_told_only_where_it_parts_fences() {
        let floor = |floor| Sight::Free { floor };
        let a = |mark, last| voted(mark, 'a', last, None);
        for (views, sight) in [
            (vec![free(0), free(0)], floor(0)),
            (vec![free(7), free(7)], floor(7)),
            // The third one may have counted to 9, or to 0.
            (vec![free(7), free(9)], Sight::NoFloor),
            (vec![free(7), free(9), free(0)], floor(7)),
            (vec![free(7), free(9), free(20)], floor(9)),
            // What is left of a hold that is over: no other quorum counts less.
            (vec![free(10), free(10), a(10, 10)], floor(10)),
            // The same, or an attempt that the first node may still vote for.
            (vec![free(3), free(12), a(10, 10)], Sight::MayBeHeld { owner: None }),
            (vec![free(3), free(4), a(10, 10)], floor(4)),
            (vec![free(11), free(12), a(12, 10)], floor(11)),
            (vec![free(3), free(12), foreign(10, 'x')], floor(10)),
        ] {
            assert_eq!(seen(3, &views), sight, "{views:?}");
        }
        // An earlier round has told that less was given.
        assert_eq!(sight(3, 7, &[free(8), free(9)]), floor(7));
        // Four nodes: three of them count for the next fence, and after a loss, too.
        assert_eq!(seen(4, &[free(1), free(5), free(7), free(9)]), floor(5));
        assert_eq!(seen(4, &[free(5), free(7), free(7)]), Sight::NoFloor);
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
