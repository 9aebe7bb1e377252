//! The test executable.

use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use libtest_mimic::{Arguments, Completion, Failed, FormatSetting, Trial};
use tokio::time::Instant;

use crate::cases;
use crate::context::child;
use crate::runner::case::Case;
use crate::runner::expected::Extent;
use crate::runner::level::Level;
use crate::runner::report::{CaseResult, Outcome, Report};
use crate::runner::{self, Ended, MARK, expected, junit, panics};
use crate::{Harness, Time};

/// Runs the suite as a test executable: understands the arguments of `cargo test`, prints a
/// summary, and acts as its own child for the cases that need a second process.
pub fn main(harness: impl Harness) -> ExitCode {
    let harness: Arc<dyn Harness> = Arc::new(harness);
    if let Some(uri) = child::uri_for_child() {
        return child::serve(&*harness, &uri);
    }
    if let Err(defect) = cases::verify() {
        eprintln!("the suite itself is broken: {defect}");
        return ExitCode::FAILURE;
    }
    let level = match Level::asked() {
        Ok(level) => level,
        Err(wrong) => {
            eprintln!("{wrong}");
            return ExitCode::FAILURE;
        }
    };
    let mut arguments = Arguments::from_args();
    if arguments.test_threads.is_none() {
        arguments.test_threads = threads(harness.time());
    }
    let seen = Arc::new(Mutex::new(Vec::new()));
    let trials: Vec<_> = cases::all().map(|case| trial(&harness, *case, level, &seen)).collect();
    let listing = arguments.list;
    let conclusion = libtest_mimic::run(&arguments, trials);
    let seen = std::mem::take(&mut *seen.lock().unwrap_or_else(PoisonError::into_inner));
    if listing {
        return conclusion.exit_code();
    }
    let filtered = usize::try_from(conclusion.num_filtered_out).unwrap_or(usize::MAX);
    let lost = cases::all().count().saturating_sub(seen.len()).saturating_sub(filtered);
    let (slowest, unavailable) = (slowest(&seen), unavailable(&seen));
    let for_people = arguments.format != Some(FormatSetting::Json);
    let say = |line: &str| if for_people { println!("{line}") } else { eprintln!("{line}") };
    let judged: Vec<_> = seen.into_iter().map(|one| (one.result, one.took)).collect();
    if let Err(why) = junit::written(harness.name(), &judged) {
        eprintln!("{why}");
        return ExitCode::FAILURE;
    }
    let results: Vec<_> = judged.into_iter().map(|(result, _)| result).collect();
    let compared = match level {
        Level::Whole => {
            let extent = if filtered == 0 { Extent::Whole } else { Extent::Part };
            let is_required = runner::is_required(harness.name());
            expected::compared(harness.expected().as_deref(), &results, (extent, is_required))
        }
        _ => Ok(None),
    };
    say(&format!("{}: {}\n{slowest}", harness.name(), Report { results }));
    let is_as_expected = compared.is_ok();
    for line in compared.map_or_else(unexpected, Vec::from_iter) {
        say(&line);
    }
    say("");
    if lost > 0 {
        eprintln!("{lost} cases were neither run nor filtered out");
        return ExitCode::FAILURE;
    }
    let panics = panics::elsewhere();
    for panic in &panics {
        eprintln!("{MARK}a thread that outlives the cases ended by a panic: {panic}");
    }
    if !is_as_expected || !panics.is_empty() {
        return ExitCode::FAILURE;
    }
    if let Some(why) = unavailable {
        say(&format!("unavailable: {why}"));
        return ExitCode::from(UNAVAILABLE);
    }
    conclusion.exit_code()
}

fn unexpected(different: Vec<String>) -> Vec<String> {
    different.into_iter().map(|what| format!("unexpected: {what}")).collect()
}

/// The status of a program that could not start its store for any of its cases, and so has judged
/// nothing: `EX_UNAVAILABLE` of `sysexits.h`.
const UNAVAILABLE: u8 = 69;

/// What became of a case.
struct Seen {
    result: CaseResult,
    took: Duration,
    is_unavailable: bool,
}

/// Why the store could not be started, if it was so for all cases.
fn unavailable(all: &[Seen]) -> Option<String> {
    if !all.iter().all(|one| one.is_unavailable) {
        return None;
    }
    match &all.first()?.result.outcome {
        Outcome::Failed(told) => told.lines().find_map(|line| line.strip_prefix("seen: ")),
        _ => None,
    }
    .map(str::to_owned)
}

/// How many cases run at a time: as many as are asked for, as of any test program; otherwise, in real time, more than
/// there are processors, since they mostly sleep.
fn threads(time: Time) -> Option<usize> {
    let asked = std::env::var("RUST_TEST_THREADS").ok().and_then(|threads| threads.parse().ok());
    asked.or((time == Time::Real).then_some(16))
}

fn trial(
    harness: &Arc<dyn Harness>,
    case: Case,
    level: Level,
    all: &Arc<Mutex<Vec<Seen>>>,
) -> Trial {
    let (harness, all) = (Arc::clone(harness), Arc::clone(all));
    Trial::ignorable_test(case.id, move || {
        let begun = Instant::now();
        let ended = match Level::of(&case) {
            above if above > level => Ended::As(Outcome::Ignored(above.left_out())),
            _ => runner::run_case(&harness, case),
        };
        let (took, is_unavailable, outcome) =
            (begun.elapsed(), ended.is_unavailable(), ended.outcome());
        let result = CaseResult { id: case.id, outcome: outcome.clone() };
        let seen = Seen { result, took, is_unavailable };
        all.lock().unwrap_or_else(PoisonError::into_inner).push(seen);
        match outcome {
            Outcome::Passed => Ok(Completion::Completed),
            Outcome::Ignored(reason) => Ok(Completion::ignored_with(reason)),
            Outcome::Failed(seen) => Err(Failed::from(seen)),
        }
    })
}

/// The slowest cases: no full run takes less time.
fn slowest(all: &[Seen]) -> String {
    let mut times: Vec<_> = all.iter().map(|one| (one.took, one.result.id)).collect();
    times.sort_unstable();
    let slowest = times.iter().rev().take(3).map(|(took, id)| format!("{id} {took:.0?}"));
    let all: Duration = times.iter().map(|(took, _)| *took).sum();
    format!("slowest: {}; all cases: {all:.0?}", slowest.collect::<Vec<_>>().join(", "))
}
