//! The test executable.

use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use tokio::time::Instant;

use crate::context::child;
use crate::runner::report::{CaseResult, Outcome, Report};
use crate::runner::{self, case};
use crate::{Harness, Time};

/// Runs the suite as a test executable: understands the arguments of `cargo test`, prints a
/// summary, and acts as its own child for the cases that need a second process.
pub fn main(harness: impl Harness) -> ExitCode {
    let harness: Arc<dyn Harness> = Arc::new(harness);
    if let Some(uri) = child::uri_for_child() {
        return child::serve(&*harness, &uri);
    }
    if let Err(defect) = case::verify() {
        eprintln!("the suite itself is broken: {defect}");
        return ExitCode::FAILURE;
    }
    let mut arguments = Arguments::from_args();
    if harness.time() == Time::Real && arguments.test_threads.is_none() {
        // Cases in real time mostly sleep.
        arguments.test_threads = Some(16);
    }
    let results = Arc::new(Mutex::new(Vec::new()));
    let trials: Vec<_> = case::all().map(|case| trial(&harness, *case, &results)).collect();
    let listing = arguments.list;
    let conclusion = libtest_mimic::run(&arguments, trials);
    let results = std::mem::take(&mut *results.lock().unwrap_or_else(PoisonError::into_inner));
    if listing {
        return conclusion.exit_code();
    }
    let filtered = usize::try_from(conclusion.num_filtered_out).unwrap_or(usize::MAX);
    let lost = case::all().count().saturating_sub(results.len()).saturating_sub(filtered);
    let slowest = slowest(&results);
    let results = results.into_iter().map(|(result, _)| result).collect();
    println!("{}: {}\n{slowest}\n", harness.name(), Report { results });
    if lost > 0 {
        eprintln!("{lost} cases were neither run nor filtered out");
        return ExitCode::FAILURE;
    }
    conclusion.exit_code()
}

fn trial(
    harness: &Arc<dyn Harness>,
    case: case::Case,
    results: &Arc<Mutex<Vec<(CaseResult, Duration)>>>,
) -> Trial {
    let (harness, results) = (Arc::clone(harness), Arc::clone(results));
    Trial::ignorable_test(case.id, move || {
        let begun = Instant::now();
        let outcome = runner::run_case(&harness, case);
        let result = CaseResult { id: case.id, outcome: outcome.clone() };
        results.lock().unwrap_or_else(PoisonError::into_inner).push((result, begun.elapsed()));
        match outcome {
            Outcome::Passed => Ok(Completion::Completed),
            Outcome::Ignored(reason) => Ok(Completion::ignored_with(reason)),
            Outcome::Failed(seen) => Err(Failed::from(seen)),
        }
    })
}

/// The slowest cases: no full run takes less time.
fn slowest(results: &[(CaseResult, Duration)]) -> String {
    let mut times: Vec<_> = results.iter().map(|(result, took)| (*took, result.id)).collect();
    times.sort_unstable();
    let slowest = times.iter().rev().take(3).map(|(took, id)| format!("{id} {took:.0?}"));
    let all: Duration = times.iter().map(|(took, _)| *took).sum();
    format!("slowest: {}; all cases: {all:.0?}", slowest.collect::<Vec<_>>().join(", "))
}
