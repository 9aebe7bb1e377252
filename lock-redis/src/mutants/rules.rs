//! The rules of Redlock, with a known mistake where the environment names one: so the tests show that they
//! would notice it.

use std::time::Duration;

use lock_core::testing::Mutant;

#[path = "../redlock/rules.rs"]
mod right;

pub(crate) use self::right::*;

/// The mistakes, and the scenario that notices each.
pub const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "quorum_of_the_reachable",
        what: "more than half of the nodes that can be reached decide",
        killed_by: "a_minority_grants_nothing",
    },
    Mutant {
        name: "maximum_without_agreement",
        what: "the greatest answer of a quorum is the fence, whether or not they agree",
        killed_by: "a_fence_stands_on_a_quorum",
    },
    Mutant {
        name: "keeps_partial_votes",
        what: "a failed try keeps the votes that it got",
        killed_by: "partial_votes_are_given_back",
    },
    Mutant {
        name: "forgets_the_unanswered",
        what: "what was not answered is not given back",
        killed_by: "a_late_vote_is_given_back",
    },
    Mutant {
        name: "forgets_the_unanswered_release",
        what: "a release is not repeated, whatever may arrive behind it",
        killed_by: "an_unanswered_node_is_released",
    },
    Mutant {
        name: "validity_from_the_reply",
        what: "the validity of a grant counts from the answer",
        killed_by: "a_grant_that_is_over_is_given_back",
    },
    Mutant {
        name: "renewal_believed_from_its_answer",
        what: "the validity of a renewal counts from the answer",
        killed_by: "a_renewal_is_believed_from_its_own_request",
    },
    Mutant {
        name: "renews_any_fence",
        what: "a renewal counts every node that has something of the owner, whatever its fence",
        killed_by: "a_hold_that_was_interrupted_is_not_renewed",
    },
    Mutant {
        name: "takes_an_error_for_a_loss",
        what: "a node that has failed to renew a batch has none of its locks",
        killed_by: "nodes_that_fail_lose_nothing",
    },
    Mutant {
        name: "rejoins_at_once",
        what: "a node that was restarted without its data votes at once",
        killed_by: "a_restarted_node_gives_no_vote",
    },
    Mutant {
        name: "rejoins_at_once_when_flushed",
        what: "a node that was flushed votes at once",
        killed_by: "a_flushed_node_gives_no_vote",
    },
    Mutant {
        name: "seeds_ahead_of_the_clocks",
        what: "nodes that were all restarted begin two minutes ahead of their clocks",
        killed_by: "fences_rise_over_a_loss",
    },
    Mutant {
        name: "a_look_at_the_reachable",
        what: "a look believes the nodes that it reaches, however few they are",
        killed_by: "a_minority_shows_nothing",
    },
    Mutant {
        name: "floor_one_too_few",
        what: "the floor of a free lock is one below the last fence",
        killed_by: "a_floor_parts_fences_on_a_quorum",
    },
    Mutant {
        name: "floor_of_one_node",
        what: "the floor of a free lock is what one node has counted",
        killed_by: "a_floor_parts_fences_on_a_quorum",
    },
    Mutant {
        name: "floor_of_the_greatest_mark",
        what: "the floor of a free lock is the greatest that any node has counted",
        killed_by: "a_floor_parts_fences_on_a_quorum",
    },
];

/// Mistakes that are the same one here are noticed in two ways.
fn is_wanted(names: &[&str]) -> bool {
    names.iter().any(|name| Mutant::is_wanted(name))
}

pub(crate) fn needed(nodes: usize, voting: usize, pending: usize) -> usize {
    let is_wrong = is_wanted(&["quorum_of_the_reachable"]) && pending == 0;
    right::needed(if is_wrong { voting } else { nodes }, voting, pending)
}

pub(crate) fn judge(
    quorum: usize,
    votes: &[Option<u64>],
    kept: Option<FenceBlock>,
    pending: usize,
) -> FenceVerdict {
    match right::judge(quorum, votes, kept, pending) {
        FenceVerdict::Raise(highest) if is_wanted(&["maximum_without_agreement"]) => {
            FenceVerdict::Established(highest)
        }
        verdict => verdict,
    }
}

pub(crate) fn gives_back(has_voted: bool, may_land: bool) -> bool {
    right::gives_back(has_voted, may_land)
        && !is_wanted(&["keeps_partial_votes"])
        && !(is_wanted(&["forgets_the_unanswered"]) && may_land)
}

pub(crate) fn is_settled(open: OpenAtNode, freed: Option<bool>) -> bool {
    is_wanted(&["forgets_the_unanswered_release"]) || right::is_settled(open, freed)
}

pub(crate) fn valid_for(valid: Duration, took: Duration) -> Duration {
    let is_late = is_wanted(&["validity_from_the_reply", "renewal_believed_from_its_answer"]);
    right::valid_for(valid, took) + if is_late { took } else { Duration::ZERO }
}

pub(crate) fn shows_hold(answer: AnswerBrief) -> bool {
    let is_its_own = matches!(answer, AnswerBrief::Unproven { .. });
    right::shows_hold(answer) || (is_its_own && is_wanted(&["renews_any_fence"]))
}

pub(crate) fn look_needs(nodes: usize) -> usize {
    if is_wanted(&["a_look_at_the_reachable"]) { 1 } else { right::look_needs(nodes) }
}

pub(crate) fn given<O>(nodes: usize, views: &[NodeView<O>]) -> u64 {
    let is_wrong = is_wanted(&["a_look_at_the_reachable"]);
    right::given(if is_wrong { views.len() } else { nodes }, views)
}

pub(crate) fn sight<O: Clone + PartialEq>(
    nodes: usize,
    given: u64,
    views: &[NodeView<O>],
) -> Sight<O> {
    let is_wrong = is_wanted(&["a_look_at_the_reachable"]);
    let marks = || views.iter().map(|view| view.mark);
    match right::sight(if is_wrong { views.len() } else { nodes }, given, views) {
        Sight::Free { floor } if is_wanted(&["floor_one_too_few"]) => {
            Sight::Free { floor: floor.saturating_sub(1) }
        }
        Sight::Free { .. } if is_wanted(&["floor_of_one_node"]) => {
            Sight::Free { floor: marks().next().unwrap_or(0) }
        }
        Sight::Free { .. } if is_wanted(&["floor_of_the_greatest_mark"]) => {
            Sight::Free { floor: marks().max().unwrap_or(0) }
        }
        sight => sight,
    }
}

pub(crate) fn of_error(has_unknown_effect: bool) -> AnswerBrief {
    if is_wanted(&["takes_an_error_for_a_loss"]) {
        AnswerBrief::NotMine
    } else {
        right::of_error(has_unknown_effect)
    }
}

pub(crate) fn quarantine(max_ttl: Duration, drift: f64) -> Duration {
    if is_wanted(&["rejoins_at_once", "rejoins_at_once_when_flushed"]) {
        Duration::ZERO
    } else {
        right::quarantine(max_ttl, drift)
    }
}

pub(crate) fn seed(mark: u64, clock: u64) -> u64 {
    let ahead = if is_wanted(&["seeds_ahead_of_the_clocks"]) { 120_000_000 } else { 0 };
    right::seed(mark, clock) + ahead
}
