//! Known mistakes, so that the tests can show that they would notice them.

use std::time::Duration;

use super::contender::rule::{self, Verdict};
use super::plan::{Marker, Plan, Report, Step, Terms, plan};
use super::reply::NodeReply;
use super::rules::Rules;

/// One mistake: a rule that is replaced by a wrong one.
#[derive(Clone, Copy, Debug)]
pub struct Mutant {
    /// What the tests call it.
    pub name: &'static str,
    /// What is wrong.
    pub what: &'static str,
    /// The scenarios that notice it.
    pub killed_by: &'static [&'static str],
    pub(crate) replace: fn(&mut Rules),
}

/// All of them.
pub const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "quorum_of_the_reachable",
        what: "more than half of the nodes that can be reached decide",
        killed_by: &["a_minority_grants_nothing"],
        replace: |rules| {
            rules.contender.needed =
                |nodes, voted, pending| rule::quorum_of(if pending == 0 { voted } else { nodes });
        },
    },
    Mutant {
        name: "maximum_without_agreement",
        what: "the greatest answer of a quorum is the fence, whether or not they agree",
        killed_by: &["a_fence_stands_on_a_quorum"],
        replace: |rules| {
            rules.contender.judge =
                |needed, votes, kept, pending| match rule::judge(needed, votes, kept, pending) {
                    Verdict::Raise(highest) => Verdict::Established(highest),
                    verdict => verdict,
                };
        },
    },
    Mutant {
        name: "keeps_partial_votes",
        what: "a failed try keeps the votes that it got",
        killed_by: &["partial_votes_are_given_back"],
        replace: |rules| rules.contender.gives_back = |_| false,
    },
    Mutant {
        name: "forgets_the_unanswered",
        what: "what was not answered is not given back",
        killed_by: &["a_late_vote_is_given_back", "an_unanswered_node_is_released"],
        replace: |rules| rules.contender.gives_back = |voted| voted,
    },
    Mutant {
        name: "validity_from_the_reply",
        what: "validity counts from the answer",
        killed_by: &[
            "a_grant_that_is_over_is_given_back",
            "a_renewal_is_believed_from_its_own_request",
        ],
        replace: |rules| rules.contender.valid_from = |_, now| now,
    },
    Mutant {
        name: "renews_any_fence",
        what: "a renewal counts every node that has something of the owner, whatever its fence",
        killed_by: &["a_hold_that_was_interrupted_is_not_renewed"],
        replace: |rules| rules.contender.renews = |_| None,
    },
    Mutant {
        name: "takes_an_error_for_a_loss",
        what: "a node that has failed to renew a batch has none of its locks",
        killed_by: &["nodes_that_fail_lose_nothing"],
        replace: |rules| rules.failed = |_| NodeReply::NotMine { left: None, who: String::new() },
    },
    Mutant {
        name: "rejoins_at_once",
        what: "a node that lost its data votes at once",
        killed_by: &["a_restarted_node_gives_no_vote", "a_flushed_node_gives_no_vote"],
        replace: |rules| rules.plan = admit_at_once,
    },
];

fn admit_at_once(reports: &[Option<Report>], terms: &Terms) -> lock_core::Result<Plan> {
    let mut plan = plan(reports, terms)?;
    for (node, report) in reports.iter().enumerate() {
        if let Some(report) = report.as_ref().filter(|r| r.marker() == Marker::Quarantine) {
            let boot = report.boot.clone();
            plan.steps.push(Step::Admit { node, seed: 0, min_age: Duration::ZERO, boot });
            plan.wait = Some(Duration::ZERO);
        }
    }
    Ok(plan)
}
