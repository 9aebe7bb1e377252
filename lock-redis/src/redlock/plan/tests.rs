use super::*;

const WAIT: Duration = Duration::from_secs(30);

fn terms(boot_now: bool) -> Terms {
    Terms {
        fingerprint: "q".into(),
        wait: WAIT,
        boot_now,
        recovers_with: usize::MAX,
        used: false,
        boot: "b5".into(),
    }
}

fn report(state: &str, age: u64) -> Option<Report> {
    Some(Report {
        run_id: "r1".into(),
        flushes: "0".into(),
        now: 1_000_000_000,
        marker_run_id: "r1".into(),
        state: state.into(),
        quorum: if state.is_empty() { String::new() } else { "q".into() },
        age: Duration::from_secs(age),
        boot: if state.is_empty() { String::new() } else { "b3".into() },
        mark: 7,
        ..Report::default()
    })
}

/// What people are told.
fn told(plan: &Plan) -> String {
    let mut whys = crate::redlock::why::Whys::default();
    let now = lock_core::ClockInstant::from_nanos(1);
    whys.note(&plan.why, false, now);
    whys.text(|node| ["h0", "h1", "h2"][node], now).unwrap_or_default()
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
fn a_new_quorum_waits_unless_no_node_can_have_forgotten_anything() {
    let boot = |age| report("boot", age);
    let all = |age| [boot(age), boot(age), boot(age)];
    let waits = plan(&all(10), &terms(false)).unwrap();
    assert_eq!((waits.steps.len(), waits.wait), (0, Some(Duration::from_secs(20))));
    assert!(told(&waits).contains("lock_bootstrap=now"));
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
    assert!(told(&waits).contains("lost their data"));
    let old = || with(boot(10), |report| report.uptime = WAIT * 2);
    assert!(plan(&[old(), old(), old()], &used).unwrap().steps.is_empty());
    assert_eq!(plan(&all(30), &used).unwrap().steps.len(), 3);
}

#[test]
fn only_a_vote_of_every_node_is_nothing_to_report() {
    let admitted = || report("admitted", 100);
    let all = plan(&[admitted(), admitted(), admitted()], &terms(false)).unwrap();
    assert_eq!((all.why, all.wait), (Vec::new(), None));
    for other in ["", "boot", "quarantine"] {
        for age in [0, 29, 31] {
            let plan = plan(&[admitted(), report(other, age), admitted()], &terms(true));
            assert!(!plan.unwrap().why.is_empty(), "{other:?} for {age} s");
        }
    }
    let silent = plan(&[admitted(), None, admitted()], &terms(false)).unwrap();
    assert!(told(&silent).contains("h1 does not answer"));
    let new = plan(&[report("", 0), report("", 0), report("", 0)], &terms(true)).unwrap();
    assert!(!new.why.is_empty());
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
    let waits = plan(&[admitted(), admitted(), report("quarantine", 29)], &terms(true)).unwrap();
    assert_eq!((waits.steps.len(), waits.wait), (0, Some(Duration::from_secs(1))));
    let other = with(admitted(), |report| report.mark = 9);
    let seeded = plan(&[admitted(), other, report("quarantine", 30)], &terms(false)).unwrap();
    let [Step::Admit { node: 2, seed: 9, min_age: WAIT, .. }] = &seeded.steps[..] else {
        panic!("{seeded:?}");
    };
    let alone = plan(&[admitted(), None, report("quarantine", 30)], &terms(false)).unwrap();
    assert!(alone.steps.is_empty());
    assert!(
        told(&alone).contains("h2 was restarted or lost its data, and waits until 2 others vote")
    );
}

#[test]
fn when_all_nodes_answer_the_quorum_recovers_without_an_operator() {
    let recovers = Terms { recovers_with: 3, ..terms(false) };
    let restarted = || with(report("admitted", 99), |report| report.run_id = "r2".into());
    let begins = plan(&[restarted(), restarted(), report("", 0)], &recovers).unwrap();
    assert_eq!(begins.steps.len(), 3, "{begins:?}");
    let quarantine = |step: &Step| matches!(step, Step::Begin { state: "quarantine", .. });
    assert!(begins.steps.iter().all(quarantine), "{begins:?}");
    let waiting = |age| report("quarantine", age);
    let waits = plan(&[waiting(29), waiting(30), waiting(31)], &recovers).unwrap();
    // Node by node: one that has waited long enough need not wait for the others.
    let admitted: Vec<_> = waits.steps.iter().map(node_of).collect();
    assert_eq!(admitted, [1, 2], "{waits:?}");
    assert!(told(&waits).contains("h0 was restarted"), "{}", told(&waits));
    assert!(told(&waits).contains("in 1.0s"), "{}", told(&waits));
    // Above every mark and every clock, with what a clock may be ahead.
    let marked = with(waiting(30), |report| report.mark = 5_000_000_000);
    let seeded = plan(&[waiting(30), marked, waiting(30)], &recovers).unwrap();
    let seeds: Vec<_> = seeded.steps.iter().map(seed_of).collect();
    assert_eq!(seeds, [5_000_000_000; 3]);
    let seeded = plan(&[waiting(30), waiting(30), waiting(30)], &recovers).unwrap();
    let seeds: Vec<_> = seeded.steps.iter().map(seed_of).collect();
    assert_eq!(seeds, [1_120_000_000; 3]);
    // One node that still votes cannot seed the others alone.
    let one = plan(&[report("admitted", 99), waiting(30), waiting(30)], &recovers).unwrap();
    let seeds: Vec<_> = one.steps.iter().map(seed_of).collect();
    assert_eq!(seeds, [1_120_000_000; 2]);
    // All must answer, or one that is away may know more.
    for admitted in ["admitted", "quarantine"] {
        let away = plan(&[report(admitted, 99), waiting(99), None], &recovers).unwrap();
        assert!(away.steps.is_empty(), "{away:?}");
        assert!(told(&away).contains("h2 does not answer"), "{}", told(&away));
    }
}

/// One second more than a lock can have lasted: the server rounds its uptime down.
#[test]
fn a_node_remembers_only_what_is_certain() {
    let up = |uptime| with(report("boot", 0), |report| report.uptime = uptime);
    let second = Duration::from_secs(1);
    let just = WAIT + second;
    let waits = plan(&[up(just), up(just), up(just)], &terms(false)).unwrap();
    assert_eq!((waits.steps.len(), waits.wait), (0, Some(WAIT)));
    let longer = just + Duration::from_millis(1);
    assert_eq!(plan(&[up(longer), up(longer), up(longer)], &terms(false)).unwrap().steps.len(), 3);
}

#[test]
fn clients_that_begin_at_once_agree_on_the_least_id() {
    let boot = |id: &str| with(report("boot", 0), |report| report.boot = id.into());
    let again = plan(&[boot("b3"), boot("b4"), boot("b3")], &terms(true)).unwrap();
    assert!(
        matches!(&again.steps[..], [Step::Begin { node: 1, state: "boot", boot }] if boot == "b3")
    );
    // One that is of another beginning than those that vote may have voted in it.
    let admitted = || report("admitted", 99);
    let other = plan(&[admitted(), boot("b9"), admitted()], &terms(true)).unwrap();
    assert!(matches!(&other.steps[..], [Step::Begin { node: 1, state: "quarantine", .. }]));
    assert!(!other.all_vote);
    assert!(plan(&[admitted(), admitted(), None], &terms(true)).unwrap().all_vote);
}

#[test]
fn without_enough_that_vote_the_others_wait_for_all_nodes_or_for_an_operator() {
    let restarted = || with(report("admitted", 99), |report| report.run_id = "r2".into());
    let waits = plan(&[restarted(), restarted(), restarted()], &terms(true)).unwrap();
    assert!(waits.steps.is_empty(), "{waits:?}");
    assert!(told(&waits).contains("until an operator calls"), "{}", told(&waits));
    let recovers = Terms { recovers_with: 3, ..terms(false) };
    let away = plan(&[report("admitted", 99), report("quarantine", 99), None], &recovers).unwrap();
    assert!(told(&away).contains("or until all nodes answer"), "{}", told(&away));
}

fn node_of(step: &Step) -> usize {
    let (Step::Begin { node, .. } | Step::Admit { node, .. }) = step;
    *node
}

fn seed_of(step: &Step) -> u64 {
    match step {
        Step::Admit { seed, min_age: WAIT, .. } => *seed,
        other => panic!("{other:?}"),
    }
}
