//! Which nodes may begin to vote, and when. Pure: no I/O, and no time other than the nodes' own.

use std::borrow::Cow;
use std::time::Duration;

use lock_core::ClockInstant;

use super::rules;

/// What a node reports about itself.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodeReport {
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
    /// Whether it began in the future: the node's clock has been set back since.
    pub(crate) is_ahead: bool,
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

impl NodeReport {
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
pub(crate) struct AdmissionTerms {
    /// What each node knows the quorum by.
    pub(crate) fingerprints: Vec<String>,
    /// How long older locks may last, including the clock drift.
    pub(crate) wait: Duration,
    /// Whether other servers take the places of nodes: then no time for which one is up proves anything.
    pub(crate) moves: bool,
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
pub(crate) enum AdmissionStep {
    Begin { node: usize, state: &'static str, boot: String },
    Admit { node: usize, seed: u64, min_age: Duration, boot: String },
}

impl AdmissionStep {
    pub(crate) fn node(&self) -> usize {
        let (Self::Begin { node, .. } | Self::Admit { node, .. }) = self;
        *node
    }
}

/// What to do now, and what to wait for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AdmissionPlan {
    pub(crate) steps: Vec<AdmissionStep>,
    /// When it is worth checking again.
    pub(crate) wait: Option<Duration>,
    /// Why nodes do not vote yet, for people; empty only if every node has said that it votes.
    pub(crate) why: Vec<NonVoter>,
    /// Whether every node that answers votes.
    pub(crate) all_vote: bool,
    /// What is wrong with a node that is left out.
    pub(crate) wrong: Option<String>,
}

/// Says what follows from the reports of all nodes (`None` for one that did not answer). One that belongs to
/// a quorum with a different configuration counts for nothing, and keeps no other one out.
pub(crate) fn plan(reports: &[Option<NodeReport>], terms: &AdmissionTerms) -> AdmissionPlan {
    let is_strange = |node: usize, report: &NodeReport| {
        report.marker() != Marker::None && report.quorum != terms.fingerprints[node]
    };
    let ours = reports
        .iter()
        .enumerate()
        .map(|(node, report)| report.as_ref().filter(|report| !is_strange(node, report)));
    let ours: Vec<_> = ours.collect();
    let mut plan = plan_of_ours(&ours, terms);
    for (node, report) in reports.iter().enumerate() {
        if let Some(report) = report.as_ref().filter(|report| is_strange(node, report)) {
            plan.leave_out(
                node,
                format!(
                    "belongs to the quorum {:?}, and this client is configured for {:?}: give all clients the same nodes and the same lock_max_ttl. To change them, stop all clients, wait the longer lock_max_ttl, and delete the key \"distlock\\x1equorum\" on every node",
                    report.quorum, terms.fingerprints[node]
                ),
            );
        }
    }
    plan
}

fn plan_of_ours(reports: &[Option<&NodeReport>], terms: &AdmissionTerms) -> AdmissionPlan {
    let known: Vec<_> = reports.iter().copied().flatten().collect();
    let admitted: Vec<_> =
        known.iter().copied().filter(|report| report.marker() == Marker::Admitted).collect();
    let recovers = known.len() >= terms.recovers_with;
    let all_answer = known.len() == reports.len();
    let is_new = |report: &&NodeReport| match report.marker() {
        Marker::None | Marker::Boot => true,
        // Another server of the group may have voted with it since.
        Marker::Stale => report.state == "boot" && !terms.moves,
        Marker::Quarantine | Marker::Admitted => false,
    };
    if let Some(first) = admitted.first() {
        readmit(reports, &admitted, &first.boot, (terms, recovers))
    } else if all_answer && known.iter().all(is_new) {
        bootstrap(reports, terms)
    } else if all_answer || recovers {
        readmit(reports, &[], &terms.boot, (terms, recovers))
    } else {
        let mut plan =
            AdmissionPlan { wait: Some(Duration::from_millis(500)), ..AdmissionPlan::default() };
        plan.why.push(NonVoter::all(
            "no node is admitted, and the quorum begins to vote only when all its nodes answer",
        ));
        plan.name_the_silent(reports);
        plan
    }
}

/// Lets the nodes of a new quorum vote, all of which answer.
fn bootstrap(reports: &[Option<&NodeReport>], terms: &AdmissionTerms) -> AdmissionPlan {
    let known: Vec<_> = reports.iter().copied().flatten().collect();
    // Several clients may begin at once: they agree on the least id before anybody admits.
    let booting = known.iter().filter(|report| report.marker() == Marker::Boot);
    let boot = booting.map(|report| &report.boot).min().unwrap_or(&terms.boot).clone();
    let steps: Vec<_> = known
        .iter()
        .enumerate()
        .filter(|(_, report)| {
            report.marker() != Marker::Boot || report.boot != boot || report.is_ahead
        })
        .map(|(node, _)| AdmissionStep::Begin { node, state: "boot", boot: boot.clone() })
        .collect();
    let begins =
        || vec![NonVoter::all("the quorum is new, and its nodes are just beginning to vote")];
    if !steps.is_empty() {
        return AdmissionPlan {
            steps,
            wait: Some(Duration::ZERO),
            why: begins(),
            ..AdmissionPlan::default()
        };
    }
    // The user has asserted that no client can hold a lock on these nodes. That cannot be true if
    // they have voted or were flushed.
    let flushed = known.iter().any(|report| report.flushes != "0");
    let at_once = terms.boot_now && !terms.used && !flushed;
    let left = known.iter().map(|report| {
        let remembers = report.remembers(terms.wait) && !terms.used && !terms.moves;
        if at_once || remembers { Duration::ZERO } else { terms.wait.saturating_sub(report.age) }
    });
    let left = left.max().unwrap_or_default();
    if !left.is_zero() {
        let why = if terms.used || flushed {
            "all nodes of the quorum have lost their data, or one was flushed, so a forgotten lock may still be held, and lock_bootstrap=now does not shorten the wait: it begins to vote"
        } else if terms.moves {
            "it is new here, or it is a new master that has seen nothing of the locks of the old one (if these servers were never used before, lock_bootstrap=now begins at once): it grants locks"
        } else {
            "the quorum is new, and a node was started less than lock_max_ttl ago, so it may have forgotten a lock (if these nodes were never used before, lock_bootstrap=now begins at once): it begins to vote"
        };
        return AdmissionPlan {
            wait: Some(left),
            why: vec![NonVoter::all(why).left(left)],
            ..AdmissionPlan::default()
        };
    }
    let seed = seed_of_clocks(reports);
    let admit =
        |node| AdmissionStep::Admit { node, seed, min_age: Duration::ZERO, boot: boot.clone() };
    let steps = (0..known.len()).map(admit).collect();
    AdmissionPlan { steps, wait: Some(Duration::ZERO), why: begins(), ..AdmissionPlan::default() }
}

/// Brings nodes back that were restarted or lost their data: seeded by those that are admitted, or, if
/// they are too few, by whatever any node knows and by the clocks.
fn readmit(
    reports: &[Option<&NodeReport>],
    admitted: &[&NodeReport],
    boot: &str,
    (terms, recovers): (&AdmissionTerms, bool),
) -> AdmissionPlan {
    let all_vote = reports.iter().flatten().count() == admitted.len();
    let mut plan = AdmissionPlan { all_vote, ..AdmissionPlan::default() };
    plan.name_the_silent(reports);
    let seeds = rules::seeds_needed(reports.len(), rules::quorum_of(reports.len()));
    let enough = admitted.len() >= seeds;
    let seed = if enough {
        admitted.iter().map(|report| report.mark).max().unwrap_or(0)
    } else {
        seed_of_clocks(reports)
    };
    for (node, report) in reports.iter().enumerate() {
        let Some(report) = report else { continue };
        match report.marker() {
            Marker::Admitted => {}
            // It has never voted, so it cannot have forgotten anything.
            Marker::Boot if report.boot == boot => {
                let (seed, boot) = (seed_of_clocks(reports), boot.to_owned());
                plan.bring_back(AdmissionStep::Admit { node, seed, min_age: Duration::ZERO, boot });
            }
            // By its clock the wait would last as much longer as that was set back.
            marker
                if (marker != Marker::Quarantine && (!admitted.is_empty() || recovers))
                    || (marker == Marker::Quarantine && report.is_ahead) =>
            {
                let (state, boot) = ("quarantine", boot.to_owned());
                plan.bring_back(AdmissionStep::Begin { node, state, boot });
            }
            Marker::Quarantine if enough || recovers => {
                let left = terms.wait.saturating_sub(report.age);
                if left.is_zero() {
                    let (min_age, boot) = (terms.wait, boot.to_owned());
                    plan.bring_back(AdmissionStep::Admit { node, seed, min_age, boot });
                } else {
                    let what = match terms.moves {
                        true => {
                            "is new or was restarted, and grants locks when all those of the old one have ended"
                        }
                        false => {
                            "was restarted or lost its data, and votes again when every lock that it may have forgotten has ended"
                        }
                    };
                    plan.why.push(NonVoter::node(node, what).left(left));
                    plan.look_after(left);
                }
            }
            Marker::None | Marker::Stale | Marker::Boot | Marker::Quarantine => {
                let do_now = admitted.len();
                let or = or_else(terms.recovers_with <= reports.len());
                let what = format!(
                    "was restarted or lost its data, and waits until {seeds} others vote ({do_now} do now), {or}"
                );
                plan.why.push(NonVoter::node(node, what));
                plan.look_after(Duration::from_secs(1));
            }
        }
    }
    plan
}

/// What else ends the wait for others that vote.
fn or_else(recovers_alone: bool) -> &'static str {
    if recovers_alone {
        "or until all nodes answer"
    } else {
        "or until an operator calls RedlockBackend::recover, since lock_recover=manual"
    }
}

/// Where fences begin when nobody knows how far they had come: at the greatest mark and the greatest clock of
/// the nodes.
fn seed_of_clocks(reports: &[Option<&NodeReport>]) -> u64 {
    reports.iter().flatten().map(|report| rules::seed(report.mark, report.now)).max().unwrap_or(0)
}

impl AdmissionPlan {
    /// Says why this node, whose report does not count, is left out.
    pub(crate) fn leave_out(&mut self, node: usize, what: String) {
        self.why.retain(|why| why.node != Some(node));
        self.wrong = Some(what.clone());
        self.why.push(NonVoter::node(node, what));
    }

    fn bring_back(&mut self, step: AdmissionStep) {
        let begins = "was restarted or lost its data, and is just being brought back";
        self.why.push(NonVoter::node(step.node(), begins));
        self.steps.push(step);
        self.look_after(Duration::ZERO);
    }

    fn name_the_silent(&mut self, reports: &[Option<&NodeReport>]) {
        for (node, report) in reports.iter().enumerate() {
            if report.is_none() {
                self.why.push(NonVoter::node(
                    node,
                    "does not answer, so it is not known whether it votes",
                ));
                self.look_after(Duration::from_secs(2));
            }
        }
    }

    fn look_after(&mut self, wait: Duration) {
        self.wait = Some(self.wait.map_or(wait, |other| other.min(wait)));
    }
}

/// What one node waits for, or with `node: None` all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NonVoter {
    pub(crate) node: Option<usize>,
    what: Cow<'static, str>,
    /// For how much longer, where that is known.
    pub(crate) left: Option<Duration>,
}

impl NonVoter {
    pub(crate) fn all(what: impl Into<Cow<'static, str>>) -> Self {
        Self { node: None, what: what.into(), left: None }
    }

    pub(crate) fn node(node: usize, what: impl Into<Cow<'static, str>>) -> Self {
        Self { node: Some(node), what: what.into(), left: None }
    }

    pub(crate) fn left(self, left: Duration) -> Self {
        Self { left: Some(left), ..self }
    }

    pub(crate) fn text<'a>(&self, endpoint: impl Fn(usize) -> &'a str, passed: Duration) -> String {
        let mut text = match self.node {
            Some(node) => format!("{} {}", endpoint(node), self.what),
            None => self.what.to_string(),
        };
        if let Some(left) = self.left {
            text.push_str(&format!(", in {:.1?}", left.saturating_sub(passed)));
        }
        text
    }
}

/// The known reasons, and when they were noted.
#[derive(Debug, Default)]
pub(crate) struct NonVoters {
    list: Vec<NonVoter>,
    noted: Option<ClockInstant>,
    /// The nodes, or all of them together, of which the log has it.
    warned: Vec<Option<usize>>,
}

impl NonVoters {
    /// Notes what nodes wait for, and says whether to log it: not while the work is under way, and
    /// only once for each node, until it waits no more.
    pub(crate) fn note(
        &mut self,
        list: &[NonVoter],
        is_under_way: bool,
        now: ClockInstant,
    ) -> bool {
        self.list = list.to_vec();
        self.noted = Some(now);
        if is_under_way {
            return false;
        }
        let nodes: Vec<_> = list.iter().map(|why| why.node).collect();
        let warn = nodes.iter().any(|node| !self.warned.contains(node));
        self.warned = nodes;
        warn
    }

    /// In words, with the times as they are now; `None` if there is nothing to report.
    pub(crate) fn text<'a>(
        &self,
        endpoint: impl Fn(usize) -> &'a str,
        now: ClockInstant,
    ) -> Option<String> {
        let passed = self.noted.map(|noted| now.since(noted)).unwrap_or_default();
        let lines: Vec<_> = self.list.iter().map(|why| why.text(&endpoint, passed)).collect();
        (!lines.is_empty()).then(|| lines.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAIT: Duration = Duration::from_secs(30);

    fn terms(boot_now: bool) -> AdmissionTerms {
        AdmissionTerms {
            fingerprints: vec!["q".into(); 5],
            wait: WAIT,
            moves: false,
            boot_now,
            recovers_with: usize::MAX,
            used: false,
            boot: "b5".into(),
        }
    }

    fn report(state: &str, age: u64) -> Option<NodeReport> {
        Some(NodeReport {
            run_id: "r1".into(),
            flushes: "0".into(),
            now: 1_000_000_000,
            marker_run_id: "r1".into(),
            state: state.into(),
            quorum: if state.is_empty() { String::new() } else { "q".into() },
            age: Duration::from_secs(age),
            boot: if state.is_empty() { String::new() } else { "b3".into() },
            mark: 7,
            ..NodeReport::default()
        })
    }

    /// What people are told.
    fn told(plan: &AdmissionPlan) -> String {
        let mut non_voters = NonVoters::default();
        let now = ClockInstant::from_nanos(1);
        non_voters.note(&plan.why, false, now);
        non_voters.text(|node| ["h0", "h1", "h2"][node], now).unwrap_or_default()
    }

    fn with(
        report: Option<NodeReport>,
        change: impl FnOnce(&mut NodeReport),
    ) -> Option<NodeReport> {
        report.map(|mut report| {
            change(&mut report);
            report
        })
    }

    #[test]
    fn a_new_quorum_begins_in_two_phases() {
        let new = || report("", 0);
        let first = plan(&[new(), new(), new()], &terms(true));
        assert_eq!(first.steps.len(), 3);
        assert!(
            matches!(&first.steps[0], AdmissionStep::Begin { state: "boot", boot, .. } if boot == "b5")
        );
        // Another client has died after the first of three markers: anybody goes on with its id.
        let second = plan(&[report("boot", 0), new(), new()], &terms(true));
        assert_eq!(second.steps.len(), 2);
        assert!(
            matches!(&second.steps[0], AdmissionStep::Begin { node: 1, boot, .. } if boot == "b3")
        );
        let boot = || report("boot", 0);
        let last = plan(&[boot(), boot(), boot()], &terms(true));
        // From the clocks: what else may have been there is not known.
        let seeded =
            |step: &AdmissionStep| matches!(step, AdmissionStep::Admit { seed: 1_000_000_000, .. });
        assert!(last.steps.iter().all(seeded), "{last:?}");
        assert_eq!(last.steps.len(), 3);
        // It died after admitting one of them.
        let rest = plan(&[report("admitted", 0), boot(), boot()], &terms(false));
        assert!(rest.steps.iter().all(seeded), "{rest:?}");
        assert_eq!(rest.steps.len(), 2);
    }

    #[test]
    fn a_new_quorum_waits_unless_no_node_can_have_forgotten_anything() {
        let boot = |age| report("boot", age);
        let all = |age| [boot(age), boot(age), boot(age)];
        let waits = plan(&all(10), &terms(false));
        assert_eq!((waits.steps.len(), waits.wait), (0, Some(Duration::from_secs(20))));
        assert!(told(&waits).contains("lock_bootstrap=now"));
        assert_eq!(plan(&all(30), &terms(false)).steps.len(), 3);
        let old = || with(boot(0), |report| report.uptime = WAIT * 2);
        assert_eq!(plan(&[old(), old(), old()], &terms(false)).steps.len(), 3);
        let flushed = with(old(), |report| report.flushes = "1".into());
        let waits = plan(&[old(), old(), flushed], &terms(false));
        assert_eq!((waits.steps.len(), waits.wait), (0, Some(WAIT)));
        // All must answer.
        assert!(plan(&[old(), old(), None], &terms(true)).steps.is_empty());
    }

    #[test]
    fn a_new_master_waits_however_long_it_is_up() {
        let terms = |boot_now| AdmissionTerms { moves: true, recovers_with: 1, ..terms(boot_now) };
        let old = |state, age| with(report(state, age), |report| report.uptime = WAIT * 2);
        for boot_now in [false, true] {
            for state in ["boot", "quarantine", "admitted"] {
                let promoted = with(old(state, 100), |report| report.run_id = "r2".into());
                let begins = plan(&[promoted], &terms(boot_now));
                assert!(
                    matches!(
                        &begins.steps[..],
                        [AdmissionStep::Begin { node: 0, state: "quarantine", .. }]
                    ),
                    "{state}: {begins:?}"
                );
            }
            let waits = plan(&[old("quarantine", 29)], &terms(boot_now));
            assert_eq!((waits.steps.len(), waits.wait), (0, Some(Duration::from_secs(1))));
            assert!(told(&waits).contains("grants locks when all those of the old one have ended"));
            assert_eq!(plan(&[old("quarantine", 30)], &terms(boot_now)).steps.len(), 1);
        }
        let new = plan(&[old("boot", 10)], &terms(false));
        assert_eq!((new.steps.len(), new.wait), (0, Some(Duration::from_secs(20))));
        assert!(told(&new).contains("lock_bootstrap=now"));
        assert_eq!(plan(&[old("boot", 0)], &terms(true)).steps.len(), 1);
    }

    #[test]
    fn the_word_of_the_user_does_not_hide_a_loss() {
        let boot = |age| report("boot", age);
        let all = |age| [boot(age), boot(age), boot(age)];
        // All were flushed: this is what a loss of everything looks like.
        let flushed = || with(boot(10), |report| report.flushes = "1".into());
        let waits = plan(&[boot(10), flushed(), boot(10)], &terms(true));
        assert_eq!((waits.steps.len(), waits.wait), (0, Some(Duration::from_secs(20))));
        // This client has seen them vote: so they have lost everything, however long they are up.
        let used = AdmissionTerms { used: true, ..terms(true) };
        let waits = plan(&all(10), &used);
        assert_eq!((waits.steps.len(), waits.wait), (0, Some(Duration::from_secs(20))));
        assert!(told(&waits).contains("lost their data"));
        let old = || with(boot(10), |report| report.uptime = WAIT * 2);
        assert!(plan(&[old(), old(), old()], &used).steps.is_empty());
        assert_eq!(plan(&all(30), &used).steps.len(), 3);
    }

    #[test]
    fn only_a_vote_of_every_node_is_nothing_to_report() {
        let admitted = || report("admitted", 100);
        let all = plan(&[admitted(), admitted(), admitted()], &terms(false));
        assert_eq!((all.why, all.wait), (Vec::new(), None));
        for other in ["", "boot", "quarantine"] {
            for age in [0, 29, 31] {
                let plan = plan(&[admitted(), report(other, age), admitted()], &terms(true));
                assert!(!plan.why.is_empty(), "{other:?} for {age} s");
            }
        }
        let silent = plan(&[admitted(), None, admitted()], &terms(false));
        assert!(told(&silent).contains("h1 does not answer"));
        let new = plan(&[report("", 0), report("", 0), report("", 0)], &terms(true));
        assert!(!new.why.is_empty());
    }

    #[test]
    fn a_node_that_lost_its_data_waits_and_is_seeded_by_enough_others() {
        let admitted = || report("admitted", 100);
        let begins = plan(&[admitted(), admitted(), report("", 0)], &terms(true));
        assert!(matches!(
            &begins.steps[..],
            [AdmissionStep::Begin { node: 2, state: "quarantine", .. }]
        ));
        let restarted = with(admitted(), |report| report.run_id = "r2".into());
        let begins = plan(&[restarted, admitted(), admitted()], &terms(true));
        assert!(matches!(
            &begins.steps[..],
            [AdmissionStep::Begin { node: 0, state: "quarantine", .. }]
        ));
        // `lock_bootstrap=now` never applies once a node is admitted.
        let waits = plan(&[admitted(), admitted(), report("quarantine", 29)], &terms(true));
        assert_eq!((waits.steps.len(), waits.wait), (0, Some(Duration::from_secs(1))));
        let other = with(admitted(), |report| report.mark = 9);
        let seeded = plan(&[admitted(), other, report("quarantine", 30)], &terms(false));
        let [AdmissionStep::Admit { node: 2, seed: 9, min_age: WAIT, .. }] = &seeded.steps[..]
        else {
            panic!("{seeded:?}");
        };
        let alone = plan(&[admitted(), None, report("quarantine", 30)], &terms(false));
        assert!(alone.steps.is_empty());
        assert!(
            told(&alone)
                .contains("h2 was restarted or lost its data, and waits until 2 others vote")
        );
    }

    #[test]
    fn when_all_nodes_answer_the_quorum_recovers_without_an_operator() {
        let recovers = AdmissionTerms { recovers_with: 3, ..terms(false) };
        let restarted = || with(report("admitted", 99), |report| report.run_id = "r2".into());
        let begins = plan(&[restarted(), restarted(), report("", 0)], &recovers);
        assert_eq!(begins.steps.len(), 3, "{begins:?}");
        let quarantine =
            |step: &AdmissionStep| matches!(step, AdmissionStep::Begin { state: "quarantine", .. });
        assert!(begins.steps.iter().all(quarantine), "{begins:?}");
        let waiting = |age| report("quarantine", age);
        let waits = plan(&[waiting(29), waiting(30), waiting(31)], &recovers);
        // Node by node: one that has waited long enough need not wait for the others.
        let admitted: Vec<_> = waits.steps.iter().map(AdmissionStep::node).collect();
        assert_eq!(admitted, [1, 2], "{waits:?}");
        assert!(told(&waits).contains("h0 was restarted"), "{}", told(&waits));
        assert!(told(&waits).contains("in 1.0s"), "{}", told(&waits));
        // From the greatest mark and the greatest clock, and no further.
        let marked = with(waiting(30), |report| report.mark = 5_000_000_000);
        let seeded = plan(&[waiting(30), marked, waiting(30)], &recovers);
        let seeds: Vec<_> = seeded.steps.iter().map(seed_of).collect();
        assert_eq!(seeds, [5_000_000_000; 3]);
        let ahead = with(waiting(30), |report| report.now = 1_000_000_009);
        let seeded = plan(&[waiting(30), ahead, waiting(30)], &recovers);
        let seeds: Vec<_> = seeded.steps.iter().map(seed_of).collect();
        assert_eq!(seeds, [1_000_000_009; 3]);
        // One node that still votes cannot seed the others alone.
        let one = plan(&[report("admitted", 99), waiting(30), waiting(30)], &recovers);
        let seeds: Vec<_> = one.steps.iter().map(seed_of).collect();
        assert_eq!(seeds, [1_000_000_000; 2]);
        // All must answer, or one that is away may know more.
        for admitted in ["admitted", "quarantine"] {
            let away = plan(&[report(admitted, 99), waiting(99), None], &recovers);
            assert!(away.steps.is_empty(), "{away:?}");
            assert!(told(&away).contains("h2 does not answer"), "{}", told(&away));
        }
    }

    /// It counts as one that does not answer, with its own reason.
    #[test]
    fn a_node_of_another_quorum_keeps_no_other_one_out() {
        let admitted = || report("admitted", 100);
        let strange = || with(admitted(), |report| report.quorum = "z".into());
        let waiting = report("quarantine", 30);
        let five = [admitted(), admitted(), admitted(), strange(), waiting.clone()];
        let plan_of_five = plan(&five, &terms(false));
        assert!(
            matches!(&plan_of_five.steps[..], [AdmissionStep::Admit { node: 4, .. }]),
            "{plan_of_five:?}"
        );
        let three = plan(&[admitted(), strange(), waiting], &terms(false));
        assert!(three.steps.is_empty(), "two must seed it: {three:?}");
        let wrong = three.wrong.clone().unwrap_or_default();
        assert!(wrong.contains("\"z\"") && wrong.contains("\"q\""), "{wrong}");
        assert!(told(&three).contains("h1 belongs to the quorum \"z\""), "{}", told(&three));
        assert!(!told(&three).contains("h1 does not answer"), "{}", told(&three));
        let new = plan(&[report("", 0), strange(), report("", 0)], &terms(true));
        assert!(new.steps.is_empty(), "a new quorum needs all its nodes: {new:?}");
    }

    #[test]
    fn a_wait_that_began_in_the_future_begins_again() {
        let admitted = || report("admitted", 100);
        let ahead = |state: &str| with(report(state, 0), |report| report.is_ahead = true);
        let again = plan(&[admitted(), admitted(), ahead("quarantine")], &terms(false));
        let AdmissionStep::Begin { node: 2, state: "quarantine", .. } = &again.steps[0] else {
            panic!("{again:?}");
        };
        let boot = || report("boot", 10);
        let again = plan(&[boot(), ahead("boot"), boot()], &terms(false));
        assert!(
            matches!(&again.steps[..], [AdmissionStep::Begin { node: 1, state: "boot", .. }]),
            "{again:?}"
        );
        assert!(plan(&[admitted(), admitted(), ahead("admitted")], &terms(false)).all_vote);
    }

    /// One second more than a lock can have lasted: the server rounds its uptime down.
    #[test]
    fn a_node_remembers_only_what_is_certain() {
        let up = |uptime| with(report("boot", 0), |report| report.uptime = uptime);
        let second = Duration::from_secs(1);
        let just = WAIT + second;
        let waits = plan(&[up(just), up(just), up(just)], &terms(false));
        assert_eq!((waits.steps.len(), waits.wait), (0, Some(WAIT)));
        let longer = just + Duration::from_millis(1);
        assert_eq!(plan(&[up(longer), up(longer), up(longer)], &terms(false)).steps.len(), 3);
    }

    #[test]
    fn clients_that_begin_at_once_agree_on_the_least_id() {
        let boot = |id: &str| with(report("boot", 0), |report| report.boot = id.into());
        let again = plan(&[boot("b3"), boot("b4"), boot("b3")], &terms(true));
        assert!(
            matches!(&again.steps[..], [AdmissionStep::Begin { node: 1, state: "boot", boot }] if boot == "b3")
        );
        // One that is of another beginning than those that vote may have voted in it.
        let admitted = || report("admitted", 99);
        let other = plan(&[admitted(), boot("b9"), admitted()], &terms(true));
        assert!(matches!(
            &other.steps[..],
            [AdmissionStep::Begin { node: 1, state: "quarantine", .. }]
        ));
        assert!(!other.all_vote);
        assert!(plan(&[admitted(), admitted(), None], &terms(true)).all_vote);
    }

    #[test]
    fn without_enough_that_vote_the_others_wait_for_all_nodes_or_for_an_operator() {
        let restarted = || with(report("admitted", 99), |report| report.run_id = "r2".into());
        let waits = plan(&[restarted(), restarted(), restarted()], &terms(true));
        assert!(waits.steps.is_empty(), "{waits:?}");
        assert!(told(&waits).contains("until an operator calls"), "{}", told(&waits));
        let recovers = AdmissionTerms { recovers_with: 3, ..terms(false) };
        let away = plan(&[report("admitted", 99), report("quarantine", 99), None], &recovers);
        assert!(told(&away).contains("or until all nodes answer"), "{}", told(&away));
    }

    fn seed_of(step: &AdmissionStep) -> u64 {
        match step {
            AdmissionStep::Admit { seed, min_age: WAIT, .. } => *seed,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn each_node_is_named_with_what_it_waits_for_and_until_when() {
        let start = ClockInstant::from_nanos(1);
        let endpoint = |node| ["a:1", "b:2"][node];
        let mut non_voters = NonVoters::default();
        let list = [
            NonVoter::node(1, "was restarted").left(Duration::from_secs(9)),
            NonVoter::all("it waits"),
        ];
        assert!(!non_voters.note(&list, true, start), "it may be over in a moment");
        assert!(non_voters.note(&list, false, start));
        assert!(!non_voters.note(&list, false, start), "the log has it");
        let later = start + Duration::from_millis(2500);
        let text = non_voters.text(endpoint, later).unwrap();
        assert_eq!(text, "b:2 was restarted, in 6.5s; it waits");
        assert!(!non_voters.note(&[], false, start));
        assert_eq!(non_voters.text(endpoint, later), None);
        assert!(non_voters.note(&list, false, start));
    }

    /// One that is dead for weeks hides none of the others.
    #[test]
    fn each_node_that_comes_to_wait_is_logged() {
        let start = ClockInstant::from_nanos(1);
        let [a, b] = [0, 1].map(|node| NonVoter::node(node, "is away"));
        let mut non_voters = NonVoters::default();
        let both = [a.clone(), b];
        let one = [a];
        for (list, is_under_way, warn) in [
            (&one[..], false, true),
            (&one, false, false),
            (&both, true, false),
            (&both, false, true),
            (&one, true, false),
            (&both, false, false),
            (&one, false, false),
            (&both, false, true),
        ] {
            let warned = non_voters.note(list, is_under_way, start);
            assert_eq!(warned, warn, "{list:?}, {is_under_way}");
        }
    }
}
