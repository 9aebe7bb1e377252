//! What an operator should know about a quorum and each of its nodes.

use std::time::Duration;

use lock_core::{Error, Finding, Result};

use super::backend::RedlockBackend;
use super::plan::{Marker, Plan, Report};
use super::quorum::Quorum;
use super::why::Why;

/// The limit for one request to one node.
const LIMIT: Duration = Duration::from_secs(2);

/// What the nodes have reported, and what follows from it.
struct Standing {
    reports: Vec<Option<Report>>,
    plan: Plan,
}

impl Standing {
    fn voting(&self) -> usize {
        let votes = |report: &&Report| report.marker() == Marker::Admitted;
        self.reports.iter().flatten().filter(votes).count()
    }
}

pub(super) async fn diagnose(backend: &RedlockBackend) -> Result<Vec<Finding>> {
    let quorum = &backend.quorum;
    let (reports, plan) = backend.admission.look().await?;
    let standing = Standing { reports, plan };
    let mut findings = vec![vote(quorum, &standing)];
    findings.extend(standing.plan.why.iter().filter_map(|why| quorum_waits(quorum, why)));
    let mut round = quorum.all(|node| async move { node.diagnose(|_, _| Vec::new(), LIMIT).await });
    while let Some((number, found)) = round.next().await {
        let endpoint = quorum.node(number).endpoint();
        match found {
            Ok(found) => findings.extend(found),
            Err(error) => findings.push(silent(endpoint, &error)),
        }
        findings.extend(node_state(endpoint, number, &standing));
    }
    Ok(findings)
}

/// Whether a lock can be taken.
fn vote(quorum: &Quorum, standing: &Standing) -> Finding {
    let (voting, all, needed) = (standing.voting(), quorum.len(), quorum.needed());
    let what = format!("{voting} of {all} nodes vote, and {needed} must");
    if voting >= needed {
        return Finding::fact(what);
    }
    let remedy = match standing.plan.why.iter().find_map(Why::time_left) {
        Some(left) => format!("wait for {left:.0?}"),
        None => "start the nodes that do not answer; if the data of all of them are lost and it is certain that those that answer are the right ones, `distlock recover` lets them vote again".to_owned(),
    };
    Finding::critical(format!("{what}: no lock can be taken"), remedy)
}

/// What the quorum as a whole waits for.
fn quorum_waits(quorum: &Quorum, why: &Why) -> Option<Finding> {
    if !why.is_of_all() {
        return None;
    }
    let what = why.text(|node| quorum.node(node).endpoint(), Duration::ZERO);
    Some(Finding::warning(
        what,
        "wait until then; if it says no time, start the nodes that do not answer",
    ))
}

fn silent(endpoint: &str, error: &Error) -> Finding {
    Finding::warning(
        format!("the node {endpoint} cannot be used: {error}"),
        "start it, or mend the way to it: while it is away, one more failure can stop all locks",
    )
}

/// What a node that answers does, or waits for.
fn node_state(endpoint: &str, number: usize, standing: &Standing) -> Option<Finding> {
    let report = standing.reports[number].as_ref()?;
    if report.marker() == Marker::Admitted {
        return Some(Finding::fact(format!("the node {endpoint} votes")));
    }
    let waits = standing.plan.why.iter().find(|why| why.is_of(number));
    let state = match waits {
        Some(why) => why.text(|_| endpoint, Duration::ZERO),
        None => format!("{endpoint} is not admitted"),
    };
    Some(Finding::warning(
        format!("the node {endpoint} does not vote: {state}"),
        "nothing needs to be done if it says in how long it votes; else start the other nodes, or, when it is certain that those that answer are the right ones, call `distlock recover`",
    ))
}
