//! Many seeds, the runs that once failed, and the wrong variants. `./test.sh` has 100 000 seeds, with
//! `.ci/simulation.toml`, which optimises the core.
//!
//! Runs with more than a thousand waiters have a test of their own, and one seed where the others have 5 000.
//!
//! `LOCK_SIMULATION_SEEDS` says how many seeds, `LOCK_TEST_SEED` with which to begin. A run that fails is
//! shrunk and written to `regressions/`, where it is replayed from then on: commit it with the mend.

#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{SystemTime, UNIX_EPOCH};

use lock_simulation::{
    Choices, Counts, Decisions, Outcome, Property, Scenario, Variant, narrate, shrink, simulate,
};

/// How many seeds a wrong variant may take to be found: the rarest shows in one of 3 000.
const SEEDS_FOR_A_VARIANT: u64 = 20_000;

fn from_environment(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|value| value.parse().expect(variable))
}

fn regressions() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("regressions")
}

/// Shrinks a run that failed, keeps it, and says how to see it again.
fn keep(seed: u64, failed: Outcome) -> String {
    let violation = failed.violation.unwrap();
    let short = shrink(failed.decisions, None, violation.property);
    let again = simulate(Choices::given(short.clone()), None).violation;
    let file = regressions().join(format!("{:?}-{seed:016x}.hex", violation.property));
    fs::write(&file, format!("{short}\n")).unwrap();
    format!(
        "LOCK_TEST_SEED={seed}: {violation}\nshrunk to {} decisions, in {}: {again:?}",
        short.bytes.len(),
        file.display()
    )
}

/// What has happened in all the runs of some seeds.
#[derive(Default)]
struct Sums {
    grants: AtomicUsize,
    shares: AtomicUsize,
    passes: AtomicUsize,
    after_being_alone: AtomicUsize,
    observations: AtomicUsize,
    long: AtomicUsize,
    steps: AtomicUsize,
}

impl Sums {
    fn add(&self, outcome: &Outcome) {
        let Counts { grants, shares, passes, after_being_alone, observations } = outcome.counts;
        self.grants.fetch_add(grants, Relaxed);
        self.shares.fetch_add(shares, Relaxed);
        self.passes.fetch_add(passes, Relaxed);
        self.after_being_alone.fetch_add(after_being_alone, Relaxed);
        self.observations.fetch_add(observations, Relaxed);
        let is_long = outcome.decisions.scenario.has(Scenario::LONG_TTL);
        self.long.fetch_add(usize::from(is_long), Relaxed);
        self.steps.fetch_add(outcome.steps, Relaxed);
    }

    fn read(self) -> [usize; 7] {
        let Self { grants, shares, passes, after_being_alone, observations, long, steps } = self;
        [grants, shares, passes, after_being_alone, observations, long, steps]
            .map(AtomicUsize::into_inner)
    }
}

/// Runs so many seeds on all processors, until one `fails`.
fn run_all(
    seeds: u64,
    choices: fn(u64) -> Choices,
    fails: impl Fn(u64, Outcome) -> String + Sync,
) -> Sums {
    let begin = from_environment("LOCK_TEST_SEED").unwrap_or_else(|| {
        u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros()).unwrap()
    });
    println!("{seeds} seeds from LOCK_TEST_SEED={begin}");
    let (failed, sums) = (AtomicBool::new(false), Sums::default());
    let parts = std::thread::available_parallelism().map_or(1, usize::from);
    let run = |part: usize| {
        for seed in (begin..begin + seeds).skip(part).step_by(parts) {
            if failed.load(Relaxed) {
                return;
            }
            let outcome = simulate(choices(seed), None);
            sums.add(&outcome);
            if outcome.violation.is_some() {
                failed.store(true, Relaxed);
                panic!("{}", fails(seed, outcome));
            }
        }
    };
    std::thread::scope(|scope| {
        for part in 0..parts {
            let run = &run;
            scope.spawn(move || run(part));
        }
    });
    sums
}

#[test]
fn no_seed_breaks_a_promise() {
    let seeds = from_environment("LOCK_SIMULATION_SEEDS").unwrap_or(2_000);
    let [grants, shares, passes, after_being_alone, observations, long, steps] =
        run_all(seeds, Choices::seeded, keep).read();
    println!(
        "{grants} grants in {steps} steps: {passes} passed on, {after_being_alone} after being alone; {shares} permits, reads and writes; {observations} observations of leaders; {long} runs with long leases"
    );
    assert!(grants as u64 > seeds, "the runs hardly do anything: {grants} grants");
    // A few seeds may have none of these.
    if seeds >= 1_000 {
        let all = [passes, after_being_alone, shares, observations, long];
        assert!(all.iter().all(|count| *count as u64 > seeds / 20), "some of that hardly happens");
    }
}

/// Each run takes as long as many others: there are few, and one that fails is named by its seed.
#[test]
fn a_thousand_waiters_have_their_turns() {
    let seeds = from_environment("LOCK_SIMULATION_SEEDS").unwrap_or(2_000).div_ceil(5_000);
    let tell = |seed, outcome: Outcome| {
        let story = narrate(Choices::of_a_crowd(seed), None);
        let end = story[story.len().saturating_sub(40)..].join("\n");
        format!("LOCK_TEST_SEED={seed}: {}\n{end}", outcome.violation.unwrap())
    };
    let [grants, _, passes, .., steps] = run_all(seeds, Choices::of_a_crowd, tell).read();
    println!("{grants} grants in {steps} steps: {passes} passed on");
    assert!(grants as u64 > 1_000 * seeds, "there was no crowd: {grants} grants");
}

#[test]
fn what_failed_once_holds_now() {
    let files: Vec<_> =
        fs::read_dir(regressions()).unwrap().map(|file| file.unwrap().path()).collect();
    assert!(!files.is_empty(), "the corpus is not here");
    for file in files {
        let decisions: Decisions = fs::read_to_string(&file).unwrap().parse().unwrap();
        let outcome = simulate(Choices::given(decisions), None);
        if outcome.violation.is_some() {
            let story = narrate(Choices::given(outcome.decisions), None);
            panic!("{}:\n{}", file.display(), story.join("\n"));
        }
    }
}

#[test]
fn a_run_depends_on_its_decisions_alone() {
    for seed in 0..200 {
        let first = simulate(Choices::seeded(seed), None);
        let again = simulate(Choices::given(first.decisions.clone()), None);
        assert_eq!(first.decisions, again.decisions, "seed {seed}");
        assert_eq!((first.steps, first.counts), (again.steps, again.counts), "seed {seed}");
    }
}

#[test]
fn each_wrong_variant_is_found_and_shrunk() {
    are_found_and_shrunk(&Variant::ALL);
}

#[cfg(distlock_mutants)]
#[test]
fn each_mistake_of_the_core_is_found_and_shrunk() {
    are_found_and_shrunk(&Variant::MISTAKES);
}

#[cfg(not(distlock_mutants))]
#[test]
#[ignore = "not built with --cfg distlock_mutants"]
fn each_mistake_of_the_core_is_found_and_shrunk() {}

fn are_found_and_shrunk(variants: &[(Variant, Scenario, &[Property])]) {
    let mut survivors = Vec::new();
    for (variant, scenario, properties) in variants {
        let found = (0..SEEDS_FOR_A_VARIANT).find_map(|seed| {
            let choices = Choices::seeded_in(*scenario, seed);
            let outcome = simulate(choices, Some(*variant));
            let property = outcome.violation.as_ref()?.property;
            properties.contains(&property).then_some((seed, property, outcome.decisions))
        });
        let Some((seed, property, decisions)) = found else {
            survivors.push(format!("{variant:?} breaks none of {properties:?}"));
            continue;
        };
        let whole = decisions.bytes.len();
        let short = shrink(decisions, Some(*variant), property).bytes;
        assert!(short.len() < whole, "{variant:?}: nothing could be left out");
        println!(
            "{variant:?} breaks {property:?}: seed {seed}, {} decisions of {whole}",
            short.len()
        );
    }
    assert!(survivors.is_empty(), "in {SEEDS_FOR_A_VARIANT} seeds: {survivors:#?}");
}
