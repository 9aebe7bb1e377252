//! Which nodes may begin to vote, and when. Pure: no I/O, no time but the nodes' own.

use std::time::Duration;

use lock_core::{Error, Result};

use super::rule;

/// What a node says of itself.
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
    pub(crate) since: u64,
    /// For how long its wait has lasted by the clock of this client, if that has seen it before.
    pub(crate) watched: Option<Duration>,
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

    /// How long ago the quarantine or the bootstrap began: by the node's own clock, or by this
    /// client's where that says less.
    pub(crate) fn age(&self) -> Duration {
        let own = Duration::from_micros(self.now.saturating_sub(self.since));
        self.watched.map_or(own, |watched| own.min(watched))
    }

    /// Whether the node cannot have forgotten a lock that may still be held.
    fn remembers(&self, wait: Duration) -> bool {
        self.uptime > wait + Duration::from_secs(1) && self.flushes == "0"
    }
}

/// What the client goes by.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    pub(crate) fingerprint: String,
    /// How long older locks may last, with what clocks may disagree by.
    pub(crate) wait: Duration,
    /// Whether a new quorum begins without waiting, by the word of the user.
    pub(crate) boot_now: bool,
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
    /// When it is worth while to look again.
    pub(crate) wait: Option<Duration>,
    /// Why nodes do not vote yet, for people; `None` only if every node has said that it votes.
    pub(crate) why: Option<String>,
}

/// Says what follows from the reports of all nodes (`None` for one that did not answer).
///
/// # Errors
///
/// `Config` if a node belongs to a quorum that is configured otherwise.
pub(crate) fn plan(reports: &[Option<Report>], terms: &Terms) -> Result<Plan> {
    for report in reports.iter().flatten() {
        if report.marker() != Marker::None && report.quorum != terms.fingerprint {
            return Err(Error::config(format!(
                "a node belongs to the quorum {:?}, and this client is configured for {:?}: give all clients the same nodes and the same lock_max_ttl. To change them, stop all clients, wait the longer lock_max_ttl, and delete the key \"distlock\\x1equorum\" on every node",
                report.quorum, terms.fingerprint
            )));
        }
    }
    let admitted: Vec<_> =
        reports.iter().flatten().filter(|report| report.marker() == Marker::Admitted).collect();
    match admitted.first() {
        None => Ok(bootstrap(reports, terms)),
        Some(first) => Ok(readmit(reports, &admitted, &first.boot, terms)),
    }
}

fn bootstrap(reports: &[Option<Report>], terms: &Terms) -> Plan {
    let known: Vec<_> = reports.iter().flatten().collect();
    if known.len() < reports.len() {
        return Plan {
            wait: Some(Duration::from_millis(500)),
            why: Some(format!(
                "no node is admitted, and a new quorum begins only when all its nodes answer: {} of {} do",
                known.len(),
                reports.len()
            )),
            ..Plan::default()
        };
    }
    let is_new = |report: &&Report| match report.marker() {
        Marker::None | Marker::Boot => true,
        Marker::Stale => report.state == "boot",
        Marker::Quarantine | Marker::Admitted => false,
    };
    if !known.iter().all(is_new) {
        return Plan {
            wait: Some(Duration::from_secs(1)),
            why: Some(
                "no node is admitted any more, since too many were restarted or lost their data: nobody can tell which locks and fences they knew. An operator calls RedlockBackend::recover, and once more when lock_max_ttl has passed; then the quorum votes again".to_owned(),
            ),
            ..Plan::default()
        };
    }
    // Several clients may begin at once: they agree on the least id before anybody admits.
    let booting = known.iter().filter(|report| report.marker() == Marker::Boot);
    let boot = booting.map(|report| &report.boot).min().unwrap_or(&terms.boot).clone();
    let steps: Vec<_> = known
        .iter()
        .enumerate()
        .filter(|(_, report)| report.marker() != Marker::Boot || report.boot != boot)
        .map(|(node, _)| Step::Begin { node, state: "boot", boot: boot.clone() })
        .collect();
    let begins = || Some("the quorum is new, and its nodes are just beginning to vote".to_owned());
    if !steps.is_empty() {
        return Plan { steps, wait: Some(Duration::ZERO), why: begins() };
    }
    // The user has said that nobody can hold a lock on these nodes. That cannot be so where they
    // have voted or were flushed.
    let flushed = known.iter().any(|report| report.flushes != "0");
    let at_once = terms.boot_now && !terms.used && !flushed;
    let left = known.iter().map(|report| {
        if at_once || (report.remembers(terms.wait) && !terms.used) {
            Duration::ZERO
        } else {
            terms.wait.saturating_sub(report.age())
        }
    });
    let left = left.max().unwrap_or_default();
    if !left.is_zero() {
        let why = if terms.used || flushed {
            format!(
                "all nodes of the quorum have lost their data, or one was flushed, so that a lock that was forgotten may still be held: it begins to vote in {left:.1?}, and lock_bootstrap=now does not shorten that"
            )
        } else {
            format!(
                "the quorum is new, and a node was started less than lock_max_ttl ago, so that it may have forgotten a lock: it begins to vote in {left:.1?}. If nobody has used these nodes before, lock_bootstrap=now begins at once"
            )
        };
        return Plan { steps: Vec::new(), wait: Some(left), why: Some(why) };
    }
    let admit = |node| Step::Admit { node, seed: 0, min_age: Duration::ZERO, boot: boot.clone() };
    let steps = (0..known.len()).map(admit).collect();
    Plan { steps, wait: Some(Duration::ZERO), why: begins() }
}

fn readmit(reports: &[Option<Report>], admitted: &[&Report], boot: &str, terms: &Terms) -> Plan {
    let nodes = reports.len();
    let seeds = rule::seeds_needed(nodes, rule::quorum_of(nodes));
    let seed = admitted.iter().map(|report| report.mark).max().unwrap_or(0);
    let mut plan = Plan::default();
    let silent = reports.iter().filter(|report| report.is_none()).count();
    if silent > 0 {
        plan.why = Some(format!(
            "{silent} of {nodes} nodes did not answer, so it is not known whether they vote"
        ));
        plan.look_after(Duration::from_secs(2));
    }
    for (node, report) in reports.iter().enumerate() {
        let Some(report) = report else { continue };
        let begins = "a node was restarted or lost its data, and is just being brought back";
        match report.marker() {
            Marker::Admitted => {}
            // It has never voted, so there is nothing that it could have forgotten.
            Marker::Boot if report.boot == boot => {
                let boot = boot.to_owned();
                plan.steps.push(Step::Admit { node, seed: 0, min_age: Duration::ZERO, boot });
                plan.why = Some(begins.to_owned());
                plan.look_after(Duration::ZERO);
            }
            Marker::None | Marker::Stale | Marker::Boot => {
                plan.steps.push(Step::Begin { node, state: "quarantine", boot: boot.to_owned() });
                plan.why = Some(begins.to_owned());
                plan.look_after(Duration::ZERO);
            }
            Marker::Quarantine => {
                let left = terms.wait.saturating_sub(report.age());
                if !left.is_zero() {
                    plan.why = Some(format!(
                        "a node was restarted or lost its data, and votes again in {left:.1?}, when every lock that it may have forgotten has ended"
                    ));
                    plan.look_after(left);
                } else if admitted.len() >= seeds {
                    let (min_age, boot) = (terms.wait, boot.to_owned());
                    plan.steps.push(Step::Admit { node, seed, min_age, boot });
                    plan.why = Some(begins.to_owned());
                    plan.look_after(Duration::ZERO);
                } else {
                    plan.why = Some(format!(
                        "a node that lost its data needs the marks of {seeds} admitted others, and {} can be reached: start the others, or let an operator call RedlockBackend::recover",
                        admitted.len()
                    ));
                    plan.look_after(Duration::from_secs(1));
                }
            }
        }
    }
    plan
}

impl Plan {
    /// What [`Wrong::RejoinsAtOnce`](super::wrong::Wrong::RejoinsAtOnce) does.
    pub(crate) fn admit_at_once(&mut self, reports: &[Option<Report>]) {
        for (node, report) in reports.iter().enumerate() {
            if let Some(report) = report.as_ref().filter(|r| r.marker() == Marker::Quarantine) {
                let boot = report.boot.clone();
                self.steps.push(Step::Admit { node, seed: 0, min_age: Duration::ZERO, boot });
                self.look_after(Duration::ZERO);
            }
        }
    }

    fn look_after(&mut self, wait: Duration) {
        self.wait = Some(self.wait.map_or(wait, |other| other.min(wait)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAIT: Duration = Duration::from_secs(30);

    fn terms(boot_now: bool) -> Terms {
        Terms { fingerprint: "q".into(), wait: WAIT, boot_now, used: false, boot: "b5".into() }
    }

    fn report(state: &str, age: u64) -> Option<Report> {
        Some(Report {
            run_id: "r1".into(),
            flushes: "0".into(),
            now: 1_000_000_000,
            marker_run_id: "r1".into(),
            state: state.into(),
            quorum: if state.is_empty() { String::new() } else { "q".into() },
            since: 1_000_000_000 - age * 1_000_000,
            boot: if state.is_empty() { String::new() } else { "b3".into() },
            mark: 7,
            ..Report::default()
        })
    }

    fn with(report: Option<Report>, change: impl FnOnce(&mut Report)) -> Option<Report> {
        report.map(|mut report| {
            change(&mut report);
            report
        })
    }

    #[test]
    fn a_new_quorum_begins_in_two_phases() {
        let new = || report("", 0);
        let first = plan(&[new(), new(), new()], &terms(true)).unwrap();
        assert_eq!(first.steps.len(), 3);
        assert!(matches!(&first.steps[0], Step::Begin { state: "boot", boot, .. } if boot == "b5"));
        // Another client has died after the first of three markers: anybody goes on with its id.
        let second = plan(&[report("boot", 0), new(), new()], &terms(true)).unwrap();
        assert_eq!(second.steps.len(), 2);
        assert!(matches!(&second.steps[0], Step::Begin { node: 1, boot, .. } if boot == "b3"));
        let boot = || report("boot", 0);
        let last = plan(&[boot(), boot(), boot()], &terms(true)).unwrap();
        assert!(last.steps.iter().all(|step| matches!(step, Step::Admit { seed: 0, .. })));
        assert_eq!(last.steps.len(), 3);
        // It died after admitting one of them.
        let rest = plan(&[report("admitted", 0), boot(), boot()], &terms(false)).unwrap();
        assert!(rest.steps.iter().all(|step| matches!(step, Step::Admit { seed: 0, .. })));
        assert_eq!(rest.steps.len(), 2);
    }

    #[test]
    fn clients_that_begin_together_agree_on_one_id() {
        let other = with(report("boot", 0), |report| report.boot = "b1".into());
        let plan = plan(&[report("boot", 0), other, report("boot", 0)], &terms(true)).unwrap();
        assert_eq!(plan.steps.len(), 2);
        for step in &plan.steps {
            assert!(matches!(step, Step::Begin { node: 0 | 2, boot, .. } if boot == "b1"));
        }
    }

    #[test]
    fn a_new_quorum_waits_unless_no_node_can_have_forgotten_anything() {
        let boot = |age| report("boot", age);
        let all = |age| [boot(age), boot(age), boot(age)];
        let waits = plan(&all(10), &terms(false)).unwrap();
        assert_eq!((waits.steps.len(), waits.wait), (0, Some(Duration::from_secs(20))));
        assert!(waits.why.unwrap().contains("lock_bootstrap=now"));
        assert_eq!(plan(&all(30), &terms(false)).unwrap().steps.len(), 3);
        let old = || with(boot(0), |report| report.uptime = WAIT * 2);
        assert_eq!(plan(&[old(), old(), old()], &terms(false)).unwrap().steps.len(), 3);
        let flushed = with(old(), |report| report.flushes = "1".into());
        let waits = plan(&[old(), old(), flushed], &terms(false)).unwrap();
        assert_eq!((waits.steps.len(), waits.wait), (0, Some(WAIT)));
        // All must answer.
        assert!(plan(&[old(), old(), None], &terms(true)).unwrap().steps.is_empty());
    }

    #[test]
    fn the_word_of_the_user_does_not_hide_a_loss() {
        let boot = |age| report("boot", age);
        let all = |age| [boot(age), boot(age), boot(age)];
        // All were flushed: this is what a loss of everything looks like.
        let flushed = || with(boot(10), |report| report.flushes = "1".into());
        let waits = plan(&[boot(10), flushed(), boot(10)], &terms(true)).unwrap();
        assert_eq!((waits.steps.len(), waits.wait), (0, Some(Duration::from_secs(20))));
        // This client has seen them vote: so they have lost everything, however long they are up.
        let used = Terms { used: true, ..terms(true) };
        let waits = plan(&all(10), &used).unwrap();
        assert_eq!((waits.steps.len(), waits.wait), (0, Some(Duration::from_secs(20))));
        assert!(waits.why.unwrap().contains("lost their data"));
        let old = || with(boot(10), |report| report.uptime = WAIT * 2);
        assert!(plan(&[old(), old(), old()], &used).unwrap().steps.is_empty());
        assert_eq!(plan(&all(30), &used).unwrap().steps.len(), 3);
    }

    #[test]
    fn only_a_vote_of_every_node_is_nothing_to_report() {
        let admitted = || report("admitted", 100);
        let all = plan(&[admitted(), admitted(), admitted()], &terms(false)).unwrap();
        assert_eq!((all.why, all.wait), (None, None));
        for other in ["", "boot", "quarantine"] {
            for age in [0, 29, 31] {
                let plan = plan(&[admitted(), report(other, age), admitted()], &terms(true));
                assert!(plan.unwrap().why.is_some(), "{other:?} for {age} s");
            }
        }
        let silent = plan(&[admitted(), None, admitted()], &terms(false)).unwrap();
        assert!(silent.why.unwrap().contains("1 of 3 nodes did not answer"));
        let new = plan(&[report("", 0), report("", 0), report("", 0)], &terms(true)).unwrap();
        assert!(new.why.is_some());
    }

    #[test]
    fn a_node_that_lost_its_data_waits_and_is_seeded_by_enough_others() {
        let admitted = || report("admitted", 100);
        let begins = plan(&[admitted(), admitted(), report("", 0)], &terms(true)).unwrap();
        assert!(matches!(&begins.steps[..], [Step::Begin { node: 2, state: "quarantine", .. }]));
        let restarted = with(admitted(), |report| report.run_id = "r2".into());
        let begins = plan(&[restarted, admitted(), admitted()], &terms(true)).unwrap();
        assert!(matches!(&begins.steps[..], [Step::Begin { node: 0, state: "quarantine", .. }]));
        // `lock_bootstrap=now` never applies once a node is admitted.
        let waits =
            plan(&[admitted(), admitted(), report("quarantine", 29)], &terms(true)).unwrap();
        assert_eq!((waits.steps.len(), waits.wait), (0, Some(Duration::from_secs(1))));
        let other = with(admitted(), |report| report.mark = 9);
        let seeded = plan(&[admitted(), other, report("quarantine", 30)], &terms(false)).unwrap();
        let [Step::Admit { node: 2, seed: 9, min_age: WAIT, .. }] = &seeded.steps[..] else {
            panic!("{seeded:?}");
        };
        let alone = plan(&[admitted(), None, report("quarantine", 30)], &terms(false)).unwrap();
        assert!(alone.steps.is_empty());
        assert!(alone.why.unwrap().contains("marks of 2 admitted others"));
    }

    #[test]
    fn when_nobody_is_admitted_any_more_an_operator_decides() {
        let lost = plan(&[report("quarantine", 99), report("", 0), report("", 0)], &terms(true));
        let lost = lost.unwrap();
        assert!(lost.steps.is_empty());
        assert!(lost.why.unwrap().contains("recover"));
    }

    #[test]
    fn a_client_that_is_configured_otherwise_is_refused() {
        let other = with(report("admitted", 0), |report| report.quorum = "r".into());
        let error = plan(&[report("admitted", 0), other, None], &terms(true)).unwrap_err();
        assert_eq!(error.kind(), lock_core::ErrorKind::Config);
    }
}
