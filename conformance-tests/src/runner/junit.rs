//! The results in the form that CI servers read.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use crate::runner::report::{CaseResult, Outcome};

/// The variable that names the file.
const JUNIT: &str = "LOCK_TEST_JUNIT";

/// Writes the file, if one is asked for.
///
/// # Errors
///
/// Why it could not be written.
pub(super) fn written(store: &str, judged: &[(CaseResult, Duration)]) -> Result<(), String> {
    let Some(path) = std::env::var_os(JUNIT).map(PathBuf::from) else { return Ok(()) };
    let failed = |error| format!("{JUNIT}={}: {error}", path.display());
    std::fs::write(&path, junit(store, store, judged) + "\n").map_err(failed)
}

/// The results as most build servers read them: a document of one suite with this name, in which each case of the
/// store has the time that it took, in seconds.
pub fn junit(suite: &str, store: &str, judged: &[(CaseResult, Duration)]) -> String {
    let count =
        |is: fn(&Outcome) -> bool| judged.iter().filter(|(result, _)| is(&result.outcome)).count();
    let failed = count(|outcome| matches!(outcome, Outcome::Failed(_)));
    let skipped = count(|outcome| matches!(outcome, Outcome::Ignored(_)));
    let (suite, store) = (xml_text(suite), xml_text(store));
    let mut xml = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    let _ = writeln!(
        xml,
        "<testsuite name=\"{suite}\" tests=\"{}\" failures=\"{failed}\" errors=\"0\" skipped=\"{skipped}\">",
        judged.len()
    );
    for (result, took) in judged {
        let (name, time) = (result.id, took.as_secs_f64());
        let begin = format!("  <testcase classname=\"{store}\" name=\"{name}\" time=\"{time:.3}\"");
        let _ = match &result.outcome {
            Outcome::Passed => writeln!(xml, "{begin}/>"),
            Outcome::Ignored(why) => {
                writeln!(xml, "{begin}><skipped message=\"{}\"/></testcase>", xml_text(why))
            }
            Outcome::Failed(seen) => {
                let first = xml_text(seen.lines().next().unwrap_or_default());
                let seen = xml_text(seen);
                writeln!(xml, "{begin}><failure message=\"{first}\">{seen}</failure></testcase>")
            }
        };
    }
    xml.push_str("</testsuite>");
    xml
}

/// Text that is safe in an attribute and between tags. XML 1.0 has no place for most control
/// characters, not even escaped.
fn xml_text(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '&' => safe.push_str("&amp;"),
            '"' => safe.push_str("&quot;"),
            '\n' => safe.push_str("&#10;"),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => {
                safe.extend(c.escape_default());
            }
            c => safe.push(c),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_seen_is_escaped() {
        let told = "C3 broken: one holder\nseen: <\"a\" & \u{1}>".to_owned();
        let outcomes =
            [Outcome::Passed, Outcome::Ignored("no \"queue\"".into()), Outcome::Failed(told)];
        let judged = outcomes
            .map(|outcome| (CaseResult { id: "c03_x", outcome }, Duration::from_millis(1500)));
        let text = junit("a-suite", "a-store", &judged);
        for part in [
            "<testsuite name=\"a-suite\" tests=\"3\" failures=\"1\" errors=\"0\" skipped=\"1\">",
            "<testcase classname=\"a-store\" name=\"c03_x\" time=\"1.500\"/>",
            "<skipped message=\"no &quot;queue&quot;\"/>",
            "<failure message=\"C3 broken: one holder\">C3 broken: one holder&#10;seen: &lt;&quot;a&quot; &amp; \\u{1}&gt;</failure>",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
