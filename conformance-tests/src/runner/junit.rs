//! The results in the form that CI servers read.

use std::fmt::Write as _;
use std::path::PathBuf;

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
    let failed = |error| format!("{JUNIT}={}: {error}", path.display());
    std::fs::write(&path, report(suite, all)).map_err(failed)
}

fn report(suite: &str, all: &[Seen]) -> String {
    let count = |is: fn(&Outcome) -> bool| all.iter().filter(|one| is(&one.result.outcome)).count();
    let counts = format!(
        "tests=\"{}\" failures=\"{}\" skipped=\"{}\"",
        all.len(),
        count(|outcome| matches!(outcome, Outcome::Failed(_))),
        count(|outcome| matches!(outcome, Outcome::Ignored(_))),
    );
    let cases: String = all.iter().map(case).collect();
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites {counts}>\n\
         <testsuite name=\"{}\" {counts}>\n{cases}</testsuite>\n</testsuites>\n",
        escaped(suite)
    )
}

fn case(seen: &Seen) -> String {
    let (name, time) = (seen.result.id, seen.took.as_secs_f64());
    let told = match &seen.result.outcome {
        Outcome::Passed => String::new(),
        Outcome::Ignored(why) => format!("<skipped message=\"{}\"/>", escaped(why)),
        Outcome::Failed(told) => {
            let what = told.lines().next().unwrap_or_default();
            format!("<failure message=\"{}\">{}</failure>", escaped(what), escaped(told))
        }
    };
    format!("<testcase name=\"{name}\" time=\"{time:.3}\">{told}</testcase>\n")
}

/// Also without what XML cannot have.
fn escaped(text: &str) -> String {
    text.chars().fold(String::new(), |mut all, c| {
        match c {
            '&' => all += "&amp;",
            '<' => all += "&lt;",
            '>' => all += "&gt;",
            '"' => all += "&quot;",
            '\n' | '\t' => all.push(c),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => {
                let _ = write!(all, "\\u{{{:x}}}", u32::from(c));
            }
            c => all.push(c),
        }
        all
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::runner::report::CaseResult;

    #[test]
    fn what_was_seen_is_escaped() {
        let told = "C3 broken: one holder\nseen: <\"a\" & \u{1}>".to_owned();
        let outcomes =
            [Outcome::Passed, Outcome::Ignored("no \"queue\"".into()), Outcome::Failed(told)];
        let all = outcomes.map(|outcome| {
            let result = CaseResult { id: "c03_x", outcome };
            Seen { result, took: Duration::from_millis(1500), is_unavailable: false }
        });
        let text = report("a-store", &all);
        for part in [
            "<testsuite name=\"a-store\" tests=\"3\" failures=\"1\" skipped=\"1\">",
            "<testcase name=\"c03_x\" time=\"1.500\"></testcase>",
            "<skipped message=\"no &quot;queue&quot;\"/>",
            "<failure message=\"C3 broken: one holder\">C3 broken: one holder\nseen: &lt;&quot;a&quot; &amp; \\u{1}&gt;</failure>",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
