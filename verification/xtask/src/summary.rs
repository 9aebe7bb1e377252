//! What is said at the end: how often what has run, what has failed, and what took longest.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::sizes::{MOST_JUDGED_AGAIN, MOST_ONCE_MORE, ROWS};

/// What took time.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) took: Duration,
    /// Seconds of processor, where they are known.
    pub(crate) processor: Option<f64>,
}

/// The slowest first.
pub(crate) fn table(mut rows: Vec<Row>) -> String {
    rows.sort_by_key(|row| std::cmp::Reverse(row.took));
    let line = |row: &Row| {
        let processor = row.processor.map(|it| format!(", {it:.0}s of processor"));
        format!("{:>7}s  {}{}\n", row.took.as_secs(), row.name, processor.unwrap_or_default())
    };
    rows.iter().take(ROWS).map(line).collect()
}

/// Counted in the outputs of all programs.
#[derive(Debug, Default)]
pub(crate) struct Summary {
    lines: Vec<String>,
    ignored: BTreeMap<String, usize>,
    /// Passed, failed, skipped.
    tests: [usize; 3],
    conformance_programs: usize,
    compared: usize,
    /// Killed, and all, of each program.
    mutants: Vec<(usize, usize)>,
    /// Programs that were built without the mistakes that they have to find.
    without_mutants: usize,
    /// Tests, programs without their stores, and set-ups of the soak.
    pub(crate) judged_again: usize,
    /// Cases for which an answer came too late, and which their program has run once more when no other ran.
    once_more: usize,
}

impl Summary {
    /// Counts what a program has said.
    pub(crate) fn read(&mut self, output: &str) {
        for line in output.lines() {
            if is_of_a_suite(line) {
                self.conformance_programs += 1;
            }
            if line.starts_with("as expected: ") {
                self.compared += 1;
            }
            if line.starts_with("once more: ") {
                self.once_more += 1;
            }
            if let Some(numbers) = line.strip_prefix("test result: ") {
                let number = |part: usize| numbers.split(' ').nth(part)?.parse().ok();
                for (sum, part) in self.tests.iter_mut().zip([1, 3, 5]) {
                    *sum += number(part).unwrap_or(0);
                }
            }
            self.mutants.extend(mutants(line));
            self.without_mutants += usize::from(line.starts_with("mutants: ignored"));
            if is_of_a_suite(line)
                || line.starts_with("mutants: ")
                || line.starts_with("repeated: ")
            {
                self.lines.push(line.to_owned());
            }
            if let Some(why) = ignored(line) {
                *self.ignored.entry(why.to_owned()).or_default() += 1;
            }
        }
    }

    /// Adds what the soak has shown.
    pub(crate) fn read_soak(&mut self, shown: &str) {
        let is_wanted = |line: &&str| {
            line.starts_with("repeated: ")
                || (line.starts_with("soak: ") && line.contains(" faults, "))
        };
        self.lines.extend(shown.lines().filter(is_wanted).map(str::to_owned));
        self.judged_again +=
            shown.lines().filter(|line| line.starts_with("repeated: soak: ")).count();
    }

    /// `before` says how often tests were judged again in the runs before.
    pub(crate) fn text(&self, before: &str) -> String {
        let mut text: String = self.lines.iter().map(|line| format!("{line}\n")).collect();
        text += "ignored, and why:\n";
        for (why, times) in &self.ignored {
            text += &format!("{times:>7} {why}\n");
        }
        let [passed, failed, skipped] = self.tests;
        let again = self.judged_again;
        text += &format!("judged again: {again} (of at most {MOST_JUDGED_AGAIN}); {before}\n");
        text += &format!(
            "cases that were run once more by their program: {} (of at most {MOST_ONCE_MORE})\n",
            self.once_more
        );
        text + &format!(
            "tests: {passed} passed, {failed} failed beside others, {skipped} skipped\n"
        )
    }

    /// What is wrong with the run as a whole.
    pub(crate) fn failures(&self) -> Vec<String> {
        let mut failures = Vec::new();
        if self.judged_again > MOST_JUDGED_AGAIN {
            failures.push(format!("too many repeats: {}", self.judged_again));
        }
        if self.once_more > MOST_ONCE_MORE {
            failures.push(format!("too many cases were run once more: {}", self.once_more));
        }
        if self.without_mutants > 0 {
            let programs = self.without_mutants;
            failures.push(format!("{programs} programs were built without mutants"));
        }
        if self.tests[0] == 0 {
            failures.push("no test was run".to_owned());
        }
        if self.conformance_programs == 0 {
            failures.push("no conformance case was run".to_owned());
        }
        // Each of them has a file that says which cases run.
        if self.conformance_programs != self.compared {
            failures.push(format!(
                "{} of {} conformance programs were compared with what is expected of them",
                self.compared, self.conformance_programs
            ));
        }
        if self.mutants.is_empty() {
            failures.push("no mutant was run".to_owned());
        }
        let alive = self.mutants.iter().filter(|(killed, all)| killed != all);
        failures
            .extend(alive.map(|(killed, all)| format!("{killed} of {all} mutants were killed")));
        failures
    }
}

/// `NAME: N ran, …`
fn is_of_a_suite(line: &str) -> bool {
    let is_of_a_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    line.split_once(": ").is_some_and(|(name, rest)| {
        let number = rest.split_once(" ran, ").map_or("", |(number, _)| number);
        !name.is_empty() && name.chars().all(is_of_a_name) && number.parse::<usize>().is_ok()
    })
}

/// Why so many cases are ignored.
fn ignored(line: &str) -> Option<&str> {
    let (number, why) = line.strip_prefix(' ')?.trim_start().split_once(" ignored: ")?;
    number.parse::<usize>().ok().map(|_| why)
}

/// `mutants: KILLED of ALL killed`
fn mutants(line: &str) -> Option<(usize, usize)> {
    let (killed, all) =
        line.strip_prefix("mutants: ")?.strip_suffix(" killed")?.split_once(" of ")?;
    Some((killed.parse().ok()?, all.parse().ok()?))
}

/// The output of a program whose doubtful tests have all passed alone: the wrong variants that could not be judged are
/// dead now.
pub(crate) fn mended(output: &str) -> String {
    let mend = |line: &str| match mutants(line) {
        Some((_, all)) => format!("mutants: {all} of {all} killed\n"),
        None => format!("{line}\n"),
    };
    output.lines().map(mend).collect()
}

/// What is shown of a program as soon as it ends.
pub(crate) fn highlights(output: &str, has_failed: bool) -> String {
    let marks =
        ["test result: ", "slowest: ", "mutants: ", "repeated: ", "as expected: ", "written: "];
    let is_shown = |line: &&str| match has_failed {
        true => !(line.starts_with("test ") && line.ends_with(" ... ok")),
        false => is_of_a_suite(line) || marks.iter().any(|mark| line.starts_with(mark)),
    };
    output.lines().filter(is_shown).map(|line| format!("{line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUITE: &str = "redis-one: 3 ran, 2 ignored\n  2 ignored: no queue\nas expected: x\n\
                         test result: ok. 3 passed; 0 failed; 2 ignored; 0 measured\n";
    const MUTANTS: &str = "y: killed by x\nmutants: 7 of 7 killed\n";

    fn summary(outputs: &[&str]) -> Summary {
        let mut summary = Summary::default();
        outputs.iter().for_each(|output| summary.read(output));
        summary
    }

    #[test]
    fn a_run_that_has_tested_everything_has_no_failure() {
        let mut summary =
            summary(&[SUITE, MUTANTS, "repeated: c01_x: y\nonce more: c01_y: z\n", SUITE]);
        summary.read_soak("x\nrepeated: soak: redis\nsoak: 9 faults, 8 grants\n");
        assert_eq!(summary.judged_again, 1);
        summary.judged_again = MOST_JUDGED_AGAIN;
        assert_eq!(summary.failures(), Vec::<String>::new());
        let text = "redis-one: 3 ran, 2 ignored\nmutants: 7 of 7 killed\nrepeated: c01_x: y\n\
                    redis-one: 3 ran, 2 ignored\nrepeated: soak: redis\nsoak: 9 faults, 8 grants\n\
                    ignored, and why:\n      2 no queue\njudged again: 6 (of at most 6); before: 3\ncases that were run once more by their program: 1 (of at most 15)\n\
                    tests: 6 passed, 0 failed beside others, 4 skipped\n";
        assert_eq!(summary.text("before: 3"), text);
    }

    #[test]
    fn what_a_run_has_left_out_is_a_failure() {
        let none = ["no test was run", "no conformance case was run", "no mutant was run"];
        assert_eq!(summary(&[]).failures(), none);
        let uncompared = SUITE.replace("as expected", "written");
        let why = "1 of 2 conformance programs were compared with what is expected of them";
        assert_eq!(summary(&[SUITE, &uncompared, MUTANTS]).failures(), [why]);
        let alive = summary(&[SUITE, MUTANTS, "mutants: 6 of 7 killed\n"]);
        assert_eq!(alive.failures(), ["6 of 7 mutants were killed"]);
        let mut often = summary(&[SUITE, MUTANTS]);
        often.judged_again = 7;
        assert_eq!(often.failures(), ["too many repeats: 7"]);
        let once_more = "once more: c01_y: z\n".repeat(MOST_ONCE_MORE + 1);
        let why = "too many cases were run once more: 16";
        assert_eq!(summary(&[SUITE, MUTANTS, &once_more]).failures(), [why]);
        let ignored = summary(&[SUITE, MUTANTS, "mutants: ignored: built without x\n"]);
        assert_eq!(ignored.failures(), ["1 programs were built without mutants"]);
    }

    #[test]
    fn mutants_that_were_killed_alone_are_counted() {
        let mended = mended("y: not judged: z\nmutants: 6 of 7 killed\n");
        assert_eq!(mended, "y: not judged: z\nmutants: 7 of 7 killed\n");
    }

    #[test]
    fn a_program_that_passed_is_shown_in_short() {
        let said = format!("test a ... ok\nnoise\n{SUITE}");
        let short: String = SUITE.replace("  2 ignored: no queue\n", "");
        assert_eq!(highlights(&said, false), short);
        assert_eq!(highlights(&said, true), format!("noise\n{SUITE}"));
    }

    #[test]
    fn the_slowest_are_listed_first() {
        let row = |seconds| Row {
            name: format!("p{seconds}"),
            took: Duration::from_secs(seconds),
            processor: (seconds == 19).then_some(4.2),
        };
        let table = table((0..20).map(row).collect());
        let lines: Vec<_> = table.lines().collect();
        assert_eq!(lines[..2], ["     19s  p19, 4s of processor", "     18s  p18"]);
        assert_eq!(lines.len(), ROWS);
    }
}
