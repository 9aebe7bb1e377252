//! The results as text, JSON or JUnit's XML.

use std::fmt::Write as _;

use conformance_tests::{Outcome, Report};
use serde_json::{Value, json};

use super::Judged;
use crate::output::{self, escape, millis};

pub(super) fn text(backend: &str, judged: &[Judged]) -> String {
    let results = judged.iter().map(|judged| judged.result.clone()).collect();
    let summary = Report { results }.to_string();
    format!("{backend}: {}", summary.lines().map(escape).collect::<Vec<_>>().join("\n"))
}

pub(super) fn json(backend: &str, judged: &[Judged]) -> String {
    let cases: Vec<_> = judged.iter().map(case_json).collect();
    output::rendered(true, json!({ "backend": backend, "cases": cases }), "")
}

fn case_json(judged: &Judged) -> Value {
    let (outcome, why) = match &judged.result.outcome {
        Outcome::Passed => ("passed", None),
        Outcome::Ignored(reason) => ("ignored", Some(reason)),
        Outcome::Failed(seen) => ("failed", Some(seen)),
    };
    let took = millis(judged.took);
    json!({ "name": judged.result.id, "outcome": outcome, "why": why, "took_ms": took })
}

/// As most build servers read it: one suite, with each case's time in seconds.
pub(super) fn junit(backend: &str, judged: &[Judged]) -> String {
    let count = |is: fn(&Outcome) -> bool| judged.iter().filter(|j| is(&j.result.outcome)).count();
    let failed = count(|outcome| matches!(outcome, Outcome::Failed(_)));
    let skipped = count(|outcome| matches!(outcome, Outcome::Ignored(_)));
    let mut xml = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    let _ = writeln!(
        xml,
        "<testsuite name=\"distlock conformance on {backend}\" tests=\"{}\" failures=\"{failed}\" errors=\"0\" skipped=\"{skipped}\">",
        judged.len()
    );
    for Judged { result, took } in judged {
        let (name, time) = (result.id, took.as_secs_f64());
        let begin =
            format!("  <testcase classname=\"{backend}\" name=\"{name}\" time=\"{time:.3}\"");
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
    use std::time::Duration;

    use conformance_tests::CaseResult;

    use super::*;

    fn judged(id: &'static str, outcome: Outcome) -> Judged {
        Judged { result: CaseResult { id, outcome }, took: Duration::from_millis(1500) }
    }

    fn three() -> [Judged; 3] {
        [
            judged("c01_a", Outcome::Passed),
            judged("c02_b", Outcome::Ignored("the store cannot push".to_owned())),
            judged("c03_c", Outcome::Failed("two <holders> & \"more\"\u{1b}\nseen".to_owned())),
        ]
    }

    #[test]
    fn junit_counts_and_escapes() {
        let xml = junit("redis", &three());
        for part in [
            "tests=\"3\" failures=\"1\" errors=\"0\" skipped=\"1\"",
            "<testcase classname=\"redis\" name=\"c01_a\" time=\"1.500\"/>",
            "<skipped message=\"the store cannot push\"/>",
            "<failure message=\"two &lt;holders&gt; &amp; &quot;more&quot;\\u{1b}\">",
        ] {
            assert!(xml.contains(part), "{part}: {xml}");
        }
        assert!(!xml.contains('\u{1b}') && xml.ends_with("</testsuite>"), "{xml}");
    }

    #[test]
    fn json_has_every_case() {
        let value: Value = serde_json::from_str(&json("redis", &three())).unwrap();
        let outcomes: Vec<_> =
            value["cases"].as_array().unwrap().iter().map(|case| case["outcome"].clone()).collect();
        assert_eq!(outcomes, ["passed", "ignored", "failed"]);
        assert_eq!(
            (value["schema"].as_i64(), value["cases"][0]["took_ms"].as_i64()),
            (Some(1), Some(1500))
        );
    }
}
