//! Many seeds, the runs that once failed, and the wrong variants. `./test.sh` has 100 000 seeds, in the
//! profile `simulation`, which is optimised.
//!
//! `LOCK_SIMULATION_SEEDS` says how many seeds, `LOCK_TEST_SEED` with which to begin. A run that fails is
//! shrunk and written to `regressions/`, where it is replayed from then on: commit it with the mend.

#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{SystemTime, UNIX_EPOCH};

use lock_simulation::{Choices, Outcome, Variant, narrate, shrink, simulate};

/// How many seeds a wrong variant may take to be found.
const SEEDS_FOR_A_VARIANT: u64 = 3_000;

fn from_environment(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|value| value.parse().expect(variable))
}

fn regressions() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("regressions")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes(hex: &str) -> Vec<u8> {
    let digits = hex.trim().as_bytes().chunks(2);
    digits.map(|pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

/// Shrinks a run that failed, keeps it, and says how to see it again.
fn keep(seed: u64, failed: Outcome) -> String {
    let violation = failed.violation.unwrap();
    let short = shrink(failed.choices, None, violation.property);
    let again = simulate(Choices::given(short.clone()), None).violation;
    let file = regressions().join(format!("{:?}-{seed:016x}.hex", violation.property));
    fs::write(&file, hex(&short) + "\n").unwrap();
    format!(
        "LOCK_TEST_SEED={seed}: {violation}\nshrunk to {} decisions, in {}: {again:?}",
        short.len(),
        file.display()
    )
}

#[test]
fn no_seed_breaks_a_promise() {
    let seeds = from_environment("LOCK_SIMULATION_SEEDS").unwrap_or(2_000);
    let begin = from_environment("LOCK_TEST_SEED").unwrap_or_else(|| {
        u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros()).unwrap()
    });
    println!("{seeds} seeds from LOCK_TEST_SEED={begin}");
    let (failed, grants, steps) =
        (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));
    let parts = std::thread::available_parallelism().map_or(1, usize::from);
    let run = |part: usize| {
        for seed in (begin..begin + seeds).skip(part).step_by(parts) {
            if failed.load(Relaxed) {
                return;
            }
            let outcome = simulate(Choices::seeded(seed), None);
            grants.fetch_add(outcome.grants, Relaxed);
            steps.fetch_add(outcome.steps, Relaxed);
            if outcome.violation.is_some() {
                failed.store(true, Relaxed);
                panic!("{}", keep(seed, outcome));
            }
        }
    };
    std::thread::scope(|scope| {
        for part in 0..parts {
            scope.spawn(move || run(part));
        }
    });
    let (grants, steps) = (grants.into_inner(), steps.into_inner());
    println!("{grants} grants in {steps} steps");
    assert!(grants as u64 > seeds, "the runs hardly do anything: {grants} grants");
}

#[test]
fn what_failed_once_holds_now() {
    let files: Vec<_> =
        fs::read_dir(regressions()).unwrap().map(|file| file.unwrap().path()).collect();
    assert!(!files.is_empty(), "the corpus is not here");
    for file in files {
        let outcome = simulate(Choices::given(bytes(&fs::read_to_string(&file).unwrap())), None);
        if outcome.violation.is_some() {
            let story = narrate(Choices::given(outcome.choices), None);
            panic!("{}:\n{}", file.display(), story.join("\n"));
        }
    }
}

#[test]
fn a_run_depends_on_its_decisions_alone() {
    for seed in 0..200 {
        let first = simulate(Choices::seeded(seed), None);
        let again = simulate(Choices::given(first.choices.clone()), None);
        assert_eq!(first.choices, again.choices, "seed {seed}");
        assert_eq!((first.steps, first.grants), (again.steps, again.grants), "seed {seed}");
    }
}

#[test]
fn each_wrong_variant_is_found_and_shrunk() {
    for (variant, properties) in Variant::ALL {
        let found = (0..SEEDS_FOR_A_VARIANT).find_map(|seed| {
            let outcome = simulate(Choices::seeded(seed), Some(variant));
            let property = outcome.violation.as_ref()?.property;
            properties.contains(&property).then_some((seed, property, outcome.choices))
        });
        let Some((seed, property, choices)) = found else {
            panic!("{variant:?} breaks none of {properties:?} in {SEEDS_FOR_A_VARIANT} seeds");
        };
        let whole = choices.len();
        let short = shrink(choices, Some(variant), property);
        assert!(short.len() < whole, "{variant:?}: nothing could be left out");
        println!(
            "{variant:?} breaks {property:?}: seed {seed}, {} decisions of {whole}",
            short.len()
        );
    }
}
