//! The results in the form that CI servers read.

use std::path::PathBuf;

use quick_junit::{NonSuccessKind, Report, TestCase, TestCaseStatus, TestSuite};

use crate::runner::main_fn::Seen;
use crate::runner::report::Outcome;

/// The variable that names the file.
const JUNIT: &str = "LOCK_TEST_JUNIT";

/// Writes the file, if one is asked for.
///
/// # Errors
///
/// Why it could not be written.
pub(super) fn written(suite: &str, all: &[Seen]) -> Result<(), String> {
    let Some(path) = std::env::var_os(JUNIT).map(PathBuf::from) else { return Ok(()) };
    let failed = |error: std::io::Error| format!("{JUNIT}={}: {error}", path.display());
    let text = report(suite, all).to_string().map_err(|error| format!("{JUNIT}: {error}"))?;
    std::fs::write(&path, text).map_err(failed)
}

fn report(suite: &str, all: &[Seen]) -> Report {
    let mut cases = TestSuite::new(suite);
    cases.add_test_cases(all.iter().map(case));
    let mut report = Report::new("distlock conformance tests");
    report.add_test_suite(cases);
    report
}

fn case(seen: &Seen) -> TestCase {
    let status = match &seen.result.outcome {
        Outcome::Passed => TestCaseStatus::success(),
        Outcome::Ignored(why) => {
            let mut status = TestCaseStatus::skipped();
            status.set_message(why.as_str());
            status
        }
        Outcome::Failed(told) => {
            let mut status = TestCaseStatus::non_success(NonSuccessKind::Failure);
            status.set_message(told.lines().next().unwrap_or_default());
            status.set_description(told.as_str());
            status
        }
    };
    let mut case = TestCase::new(seen.result.id, status);
    case.set_time(seen.took);
    case
}
