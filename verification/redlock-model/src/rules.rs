//! The rules of a client: the product's, and known wrong ones.

use std::cell::Cell;
use std::time::Duration;

#[path = "../../../lock-redis/src/redlock/rules.rs"]
mod right;

pub(crate) use self::right::*;

/// The rules that the clients follow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Variant {
    /// The product's.
    #[default]
    Real,
    /// Wrong: the maximum of the first quorum's answers is the fence, at once.
    FirstMaximum,
    /// Wrong: one node decides, since it is the only one that can be reached.
    QuorumOfOne,
    /// Wrong: a grant is used although its ttl was over when the answers came.
    LateGrant,
    /// Wrong: a renewal counts every node that is the owner's, whatever its fence.
    RenewsAnyFence,
    /// Wrong: a second try gives the old fence back as soon as a quorum is the owner's.
    OldFenceOfAnyQuorum,
    /// Wrong: another block of the same claim may have fences of the earlier one.
    OverlapsItsOwn,
    /// Wrong: only what has voted is given back, and no release is repeated.
    ForgetsTheUnanswered,
    /// Wrong: every answer to a release proves that nothing is left.
    BelievesEveryRelease,
    /// Wrong: a release that has freed something proves that nothing is left, whatever it was.
    BelievesWhatWasFreed,
    /// Wrong: a look believes the nodes that have answered, however few they are.
    LooksAtTheReachable,
    /// Wrong: a look counts silent nodes as free.
    SilentIsFree,
    /// Wrong: the floor of a free lock is one below what was given.
    FloorOneTooFew,
    /// Wrong: the floor of a free lock is what one node has counted.
    FloorOfOneNode,
    /// Wrong: the floor of a free lock is the greatest that any node has counted.
    FloorOfTheGreatestMark,
    /// Wrong: the floor of a free lock is what was given, whatever an attempt under way may get.
    FloorBesideAnAttempt,
}

thread_local! {
    /// The variant that this thread explores: the contender calls the rules as it does in the product, without
    /// saying on whose behalf.
    static EXPLORED: Cell<Variant> = const { Cell::new(Variant::Real) };
}

impl Variant {
    /// From now on, this thread follows these rules.
    pub(crate) fn follow(self) {
        EXPLORED.set(self);
    }

    fn is_followed(self) -> bool {
        EXPLORED.get() == self
    }
}

pub(crate) fn needed(nodes: usize, voting: usize, pending: usize) -> usize {
    if Variant::QuorumOfOne.is_followed() { 1 } else { right::needed(nodes, voting, pending) }
}

pub(crate) fn judge(
    quorum: usize,
    votes: &[Option<u64>],
    kept: Option<FenceBlock>,
    pending: usize,
) -> FenceVerdict {
    let verdict = |kept| right::judge(quorum, votes, kept, pending);
    match (EXPLORED.get(), kept) {
        (Variant::FirstMaximum, _) => match verdict(kept) {
            FenceVerdict::Raise(highest) => FenceVerdict::Established(highest),
            verdict => verdict,
        },
        (Variant::OldFenceOfAnyQuorum, Some(kept)) if votes.iter().flatten().count() >= quorum => {
            FenceVerdict::Established(kept.last)
        }
        // A block of one never overlaps another one.
        (Variant::OverlapsItsOwn, Some(kept)) => verdict(Some(FenceBlock { fences: 1, ..kept })),
        _ => verdict(kept),
    }
}

pub(crate) fn valid_for(valid: Duration, took: Duration) -> Duration {
    let is_late = Variant::LateGrant.is_followed();
    right::valid_for(valid, took) + if is_late { took } else { Duration::ZERO }
}

pub(crate) fn shows_hold(answer: AnswerBrief) -> bool {
    let is_its_own = matches!(answer, AnswerBrief::Unproven { .. });
    right::shows_hold(answer) || (is_its_own && Variant::RenewsAnyFence.is_followed())
}

pub(crate) fn gives_back(has_voted: bool, may_land: bool) -> bool {
    let forgets = Variant::ForgetsTheUnanswered.is_followed();
    right::gives_back(has_voted, may_land) && !(forgets && may_land)
}

pub(crate) fn is_settled(open: OpenAtNode, freed: Option<bool>) -> bool {
    match (EXPLORED.get(), freed) {
        (Variant::ForgetsTheUnanswered, _) | (Variant::BelievesEveryRelease, Some(_)) => true,
        (Variant::BelievesWhatWasFreed, Some(freed)) => freed || open.owed == 0,
        _ => right::is_settled(open, freed),
    }
}

pub(crate) fn look_needs(nodes: usize) -> usize {
    let is_wrong = Variant::LooksAtTheReachable.is_followed();
    if is_wrong { 1 } else { right::look_needs(nodes) }
}

pub(crate) fn given<O>(nodes: usize, views: &[NodeView<O>]) -> u64 {
    let is_wrong = Variant::LooksAtTheReachable.is_followed();
    right::given(if is_wrong { views.len() } else { nodes }, views)
}

pub(crate) fn sight<O: Clone + PartialEq>(
    nodes: usize,
    given: u64,
    views: &[NodeView<O>],
) -> Sight<O> {
    let marks = || views.iter().map(|view| view.mark);
    let votes = views.iter().filter(|view| view.vote.is_some()).count();
    match (EXPLORED.get(), right::sight(nodes, given, views)) {
        (Variant::LooksAtTheReachable, _) => right::sight(views.len(), given, views),
        (Variant::SilentIsFree, Sight::MayBeHeld { .. }) if votes < quorum_of(nodes) => {
            Sight::Free { floor: given }
        }
        (Variant::FloorOneTooFew, Sight::Free { floor }) => {
            Sight::Free { floor: floor.saturating_sub(1) }
        }
        (Variant::FloorOfOneNode, Sight::Free { .. }) => {
            Sight::Free { floor: marks().next().unwrap_or(0) }
        }
        (Variant::FloorOfTheGreatestMark, Sight::Free { .. } | Sight::NoFloor) => {
            Sight::Free { floor: marks().max().unwrap_or(0) }
        }
        (Variant::FloorBesideAnAttempt, Sight::MayBeHeld { owner: None, .. })
            if views.len() == nodes =>
        {
            Sight::Free { floor: given }
        }
        (_, sight) => sight,
    }
}
