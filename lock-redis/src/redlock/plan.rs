//! Which nodes may begin to vote, and when. Pure: no I/O, and no time other than the nodes' own.

use std::time::Duration;

use lock_core::{Error, Result};

use super::contender::rule;
use super::why::Why;

/// What a node reports about itself.
#[derive(Clone, Debug, Default)]
pub(crate) struct Report {
    pub(crate) run_id: String,
    pub(crate) uptime: Duration,
    /// How often it was flushed since it was started.
    pub(crate) flushes: String,
    /// Its clock, in µs.
    pub(crate) now: u64,
    pub(crate) marker_run_id: String,
    pub(crate) state: String,
    pub(crate) quorum: String,
    pub(crate) nonce: String,
    /// How long ago the quarantine or the bootstrap began: by the node's own clock, or by this
    /// client's if that is less.
    pub(crate) age: Duration,
    pub(crate) boot: String,
    pub(crate) mark: u64,
    pub(crate) policy: String,
}

/// The marker of a node, as far as it counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Marker {
    /// There is none: the node is new, or was flushed, or restarted without its data.
    None,
    /// One of an earlier process: the node was restarted, and may have lost its last writes.
    Stale,
    Boot,
    Quarantine,
    Admitted,
}

impl Report {
    pub(crate) fn marker(&self) -> Marker {
        match self.state.as_str() {
            "" => Marker::None,
            _ if self.marker_run_id != self.run_id => Marker::Stale,
            "boot" => Marker::Boot,
            "admitted" => Marker::Admitted,
            _ => Marker::Quarantine,
        }
    }

    /// Whether the node cannot have forgotten a lock that may still be held.
    fn remembers(&self, wait: Duration) -> bool {
        self.uptime > wait + Duration::from_secs(1) && self.flushes == "0"
    }
}

/// The client's terms.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    pub(crate) fingerprint: String,
    /// How long older locks may last, including the clock drift.
    pub(crate) wait: Duration,
    /// Whether a new quorum begins without waiting, as the user has asserted.
    pub(crate) boot_now: bool,
    /// How many nodes must answer for them to vote again where too few are admitted to seed the others.
    pub(crate) recovers_with: usize,
    /// Whether this client has seen the quorum vote: it is not new, whatever the nodes say.
    pub(crate) used: bool,
    /// The id of the bootstrap, if this client begins one.
    pub(crate) boot: String,
}

/// A request to one node. Each names what was seen, and does nothing if that has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Begin { node: usize, state: &'static str, boot: String },
    Admit { node: usize, seed: u64, min_age: Duration, boot: String },
}

/// What to do now, and what to wait for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) steps: Vec<Step>,
    /// When it is worth checking again.
    pub(crate) wait: Option<Duration>,
    /// Why nodes do not vote yet, for people; empty only if every node has said that it votes.
    pub(crate) why: Vec<Why>,
    /// Whether every node that answers votes.
    pub(crate) all_vote: bool,
}

/// Says what follows from the reports of all nodes (`None` for one that did not answer).
///
/// # Errors
///
/// `Config` if a node belongs to a quorum with a different configuration.
pub(crate) fn plan(reports: &[Option<Report>], terms: &Terms) -> Result<Plan> {
    for report in reports.iter().flatten() {
        if report.marker() != Marker::None && report.quorum != terms.fingerprint {
            return Err(Error::config(format!(
                "a node belongs to the quorum {:?}, and this client is configured for {:?}: give all clients the same nodes and the same lock_max_ttl. To change them, stop all clients, wait the longer lock_max_ttl, and delete the key \"distlock\\x1equorum\" on every node",
                report.quorum, terms.fingerprint
            )));
        }
    }
    let known: Vec<_> = reports.iter().flatten().collect();
    let admitted: Vec<_> =
        known.iter().copied().filter(|report| report.marker() == Marker::Admitted).collect();
    let recovers = known.len() >= terms.recovers_with;
    let all_answer = known.len() == reports.len();
    let is_new = |report: &&Report| match report.marker() {
        Marker::None | Marker::Boot => true,
        Marker::Stale => report.state == "boot",
        Marker::Quarantine | Marker::Admitted => false,
    };
    Ok(if let Some(first) = admitted.first() {
        readmit(reports, &admitted, &first.boot, (terms, recovers))
    } else if all_answer && known.iter().all(is_new) {
        bootstrap(&known, terms)
    } else if all_answer || recovers {
        readmit(reports, &[], &terms.boot, (terms, recovers))
    } else {
        let mut plan = Plan { wait: Some(Duration::from_millis(500)), ..Plan::default() };
        plan.why.push(Why::all(
            "no node is admitted, and the quorum begins to vote only when all its nodes answer",
        ));
        plan.name_the_silent(reports);
        plan
    })
}

/// Lets the nodes of a new quorum vote, all of which answer.
fn bootstrap(known: &[&Report], terms: &Terms) -> Plan {
    // Several clients may begin at once: they agree on the least id before anybody admits.
    let booting = known.iter().filter(|report| report.marker() == Marker::Boot);
    let boot = booting.map(|report| &report.boot).min().unwrap_or(&terms.boot).clone();
    let steps: Vec<_> = known
        .iter()
        .enumerate()
        .filter(|(_, report)| report.marker() != Marker::Boot || report.boot != boot)
        .map(|(node, _)| Step::Begin { node, state: "boot", boot: boot.clone() })
        .collect();
    let begins = || vec![Why::all("the quorum is new, and its nodes are just beginning to vote")];
    if !steps.is_empty() {
        return Plan { steps, wait: Some(Duration::ZERO), why: begins(), all_vote: false };
    }
    // The user has asserted that no client can hold a lock on these nodes. That cannot be true if
    // they have voted or were flushed.
    let flushed = known.iter().any(|report| report.flushes != "0");
    let at_once = terms.boot_now && !terms.used && !flushed;
    let left = known.iter().map(|report| {
        if at_once || (report.remembers(terms.wait) && !terms.used) {
            Duration::ZERO
        } else {
            terms.wait.saturating_sub(report.age)
        }
    });
    let left = left.max().unwrap_or_default();
    if !left.is_zero() {
        let why = if terms.used || flushed {
            "all nodes of the quorum have lost their data, or one was flushed, so a forgotten lock may still be held, and lock_bootstrap=now does not shorten the wait: it begins to vote"
        } else {
            "the quorum is new, and a node was started less than lock_max_ttl ago, so it may have forgotten a lock (if these nodes were never used before, lock_bootstrap=now begins at once): it begins to vote"
        };
        return Plan { wait: Some(left), why: vec![Why::all(why).left(left)], ..Plan::default() };
    }
    let admit = |node| Step::Admit { node, seed: 0, min_age: Duration::ZERO, boot: boot.clone() };
    let steps = (0..known.len()).map(admit).collect();
    Plan { steps, wait: Some(Duration::ZERO), why: begins(), all_vote: false }
}

/// Brings nodes back that were restarted or lost their data: seeded by those that are admitted, or, if
/// they are too few, above whatever any node knows and above every clock.
fn readmit(
    reports: &[Option<Report>],
    admitted: &[&Report],
    boot: &str,
    (terms, recovers): (&Terms, bool),
) -> Plan {
    let all_vote = reports.iter().flatten().count() == admitted.len();
    let mut plan = Plan { all_vote, ..Plan::default() };
    plan.name_the_silent(reports);
    let seeds = rule::seeds_needed(reports.len(), rule::quorum_of(reports.len()));
    let enough = admitted.len() >= seeds;
    let seed = if enough {
        admitted.iter().map(|report| report.mark).max().unwrap_or(0)
    } else {
        seed_of_recovery(reports)
    };
    for (node, report) in reports.iter().enumerate() {
        let Some(report) = report else { continue };
        let begins = "was restarted or lost its data, and is just being brought back";
        match report.marker() {
            Marker::Admitted => {}
            // It has never voted, so it cannot have forgotten anything.
            Marker::Boot if report.boot == boot => {
                let boot = boot.to_owned();
                plan.steps.push(Step::Admit { node, seed: 0, min_age: Duration::ZERO, boot });
                plan.why.push(Why::node(node, begins));
                plan.look_after(Duration::ZERO);
            }
            Marker::None | Marker::Stale | Marker::Boot if !admitted.is_empty() || recovers => {
                plan.steps.push(Step::Begin { node, state: "quarantine", boot: boot.to_owned() });
                plan.why.push(Why::node(node, begins));
                plan.look_after(Duration::ZERO);
            }
            Marker::Quarantine if enough || recovers => {
                let left = terms.wait.saturating_sub(report.age);
                if left.is_zero() {
                    let (min_age, boot) = (terms.wait, boot.to_owned());
                    plan.steps.push(Step::Admit { node, seed, min_age, boot });
                    plan.why.push(Why::node(node, begins));
                    plan.look_after(Duration::ZERO);
                } else {
                    let what = "was restarted or lost its data, and votes again when every lock that it may have forgotten has ended";
                    plan.why.push(Why::node(node, what).left(left));
                    plan.look_after(left);
                }
            }
            Marker::None | Marker::Stale | Marker::Boot | Marker::Quarantine => {
                let or = if terms.recovers_with <= reports.len() {
                    "or until all nodes answer"
                } else {
                    "or until an operator calls RedlockBackend::recover, since lock_recover=manual"
                };
                plan.why.push(Why::node(
                    node,
                    format!(
                        "was restarted or lost its data, and waits until {seeds} others vote ({} do now), {or}",
                        admitted.len()
                    ),
                ));
                plan.look_after(Duration::from_secs(1));
            }
        }
    }
    plan
}

/// How far ahead of a node's clock a proposal may be, see `acquire.lua`.
const CLAMP: Duration = Duration::from_secs(60);

/// Above every mark that any of the nodes knows, and above what any node can have counted by its clock.
fn seed_of_recovery(reports: &[Option<Report>]) -> u64 {
    let known = || reports.iter().flatten();
    let now = known().map(|report| report.now).max().unwrap_or(0);
    let slack = u64::try_from(CLAMP.as_micros() * 2).unwrap_or(u64::MAX);
    let marks = known().map(|report| report.mark).max().unwrap_or(0);
    marks.max(now.saturating_add(slack))
}

impl Plan {
    fn name_the_silent(&mut self, reports: &[Option<Report>]) {
        for (node, report) in reports.iter().enumerate() {
            if report.is_none() {
                self.why
                    .push(Why::node(node, "does not answer, so it is not known whether it votes"));
                self.look_after(Duration::from_secs(2));
            }
        }
    }

    fn look_after(&mut self, wait: Duration) {
        self.wait = Some(self.wait.map_or(wait, |other| other.min(wait)));
    }
}

#[cfg(test)]
mod tests;
