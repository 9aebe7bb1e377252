//! What the status and the output of a test program say.

use crate::sizes::LONGEST_PROGRAM;

/// The status of a program that could not start its store: `EX_UNAVAILABLE` of `sysexits.h`.
const UNAVAILABLE: i32 = 69;

/// The status with which timeout(1) says that it has ended a program.
const TIMED_OUT: i32 = 124;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    Passed,
    /// No second run can excuse it, since it is no matter of time, or nobody could say which test has to pass.
    Failed(String),
    Doubtful(Doubt),
}

/// What has to be judged again, alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Doubt {
    /// The program could not even start its store, and so has judged nothing.
    Whole,
    /// The tests that failed or were excused for a standstill, and the wrong variants that could not be judged.
    Tests(Vec<String>),
}

impl Verdict {
    /// A status above 128 is a signal, as a shell has it.
    pub(crate) fn new(status: i32, text: &str) -> Self {
        if let Some(why) = never_excused(status, text) {
            return Self::Failed(why);
        }
        if status == UNAVAILABLE && begins(text, "unavailable: ").is_some() {
            return Self::Doubtful(Doubt::Whole);
        }
        if let Some(line) = begins(text, "unexpected: ") {
            return Self::Failed(format!("not the expected cases have run: {line}"));
        }
        if begins(text, "test result: ").or(begins(text, "mutants: ")).is_none() {
            return Self::Failed(format!("it broke off with status {status}"));
        }
        if status == 0 && begins(text, "repeated: ").is_none() {
            return Self::Passed;
        }
        match doubtful(text) {
            tests if tests.is_empty() => Self::Failed("it names no test that failed".to_owned()),
            tests => Self::Doubtful(Doubt::Tests(tests)),
        }
    }
}

fn begins<'a>(text: &'a str, mark: &str) -> Option<&'a str> {
    text.lines().find(|line| line.starts_with(mark))
}

fn never_excused(status: i32, text: &str) -> Option<String> {
    if status > 128 {
        return Some(format!("it ended by signal {}", status - 128));
    }
    if status == TIMED_OUT {
        return Some(format!("it has not ended within {LONGEST_PROGRAM} s"));
    }
    // Before it, an assert, an `expect` or a scene of a store may say what they are.
    let is_violated = |line: &str| {
        let line = line.trim_start_matches(' ');
        let marks = ["` failed: ", "on an `Err` value: "];
        let wrapped = marks.iter().filter_map(|mark| line.split_once(mark)).map(|(_, what)| what);
        let mut whats = wrapped.chain([line, line.strip_prefix("seen: ").unwrap_or_default()]);
        whats.any(|what| what.trim_start_matches('"').starts_with("violated: "))
    };
    if status != 0 && text.lines().any(is_violated) {
        return Some("two holders, a falling fence or a panic".to_owned());
    }
    let survived: Vec<_> =
        text.lines().filter_map(|line| word_before(line, ": SURVIVED ")).collect();
    (status != 0 && !survived.is_empty())
        .then(|| format!("what is wrong survived: {}", survived.join(", ")))
}

/// The word with which the line begins, if `mark` follows it.
fn word_before<'a>(line: &'a str, mark: &str) -> Option<&'a str> {
    let (word, _) = line.split_once(mark)?;
    (!word.is_empty() && !word.contains(' ')).then_some(word)
}

fn doubtful(text: &str) -> Vec<String> {
    let named = |line| {
        let failed = || {
            let test = str::strip_prefix(line, "test ")?.strip_suffix("... FAILED")?.trim_end();
            (!test.is_empty() && !test.contains(' ')).then_some(test)
        };
        let repeated = || word_before(str::strip_prefix(line, "repeated: ")?, ": ");
        failed().or_else(repeated).or_else(|| word_before(line, ": not judged: "))
    };
    let mut tests: Vec<_> = text.lines().filter_map(named).map(str::to_owned).collect();
    tests.sort_unstable();
    tests.dedup();
    tests
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATE: &str =
        "test c03_x ... FAILED\ntest result: FAILED. 1 passed; 1 failed; 0 ignored\n";
    const OK: &str = "test result: ok. 1 passed; 0 failed; 0 ignored\n";

    fn failed(status: i32, text: &str) -> String {
        match Verdict::new(status, text) {
            Verdict::Failed(why) => why,
            other => panic!("{status}, {text}: {other:?}"),
        }
    }

    fn tests(status: i32, text: &str) -> Vec<String> {
        match Verdict::new(status, text) {
            Verdict::Doubtful(Doubt::Tests(tests)) => tests,
            other => panic!("{status}, {text}: {other:?}"),
        }
    }

    #[test]
    fn a_program_that_passes_is_passed() {
        assert_eq!(Verdict::new(0, OK), Verdict::Passed);
        assert_eq!(Verdict::new(0, "x: killed\nmutants: 2 of 2 killed\n"), Verdict::Passed);
        // What a test quotes of another one.
        let quoted = format!("  test c03_x ... FAILED\nhere: violated: no\n{OK}");
        assert_eq!(Verdict::new(0, &quoted), Verdict::Passed);
    }

    #[test]
    fn what_no_second_run_excuses_is_final() {
        assert_eq!(failed(139, LATE), "it ended by signal 11");
        assert_eq!(failed(137, OK), "it ended by signal 9");
        assert_eq!(failed(124, LATE), "it has not ended within 1200 s");
        let holders = "two holders, a falling fence or a panic";
        assert_eq!(failed(101, &format!("violated: two holders\n{LATE}")), holders);
        assert_eq!(failed(101, &format!("    violated: two holders\n{LATE}")), holders);
        for value in ["\"violated: x\"", "violated: x"] {
            let unwrapped = format!("called `Result::unwrap()` on an `Err` value: {value}\n{LATE}");
            assert_eq!(failed(101, &unwrapped), holders);
        }
        for said in ["seen: violated: x", "assertion `left == right` failed: violated: x"] {
            assert_eq!(failed(101, &format!("{said}\n{LATE}")), holders);
        }
        let survived = "y: SURVIVED c03_x: z\nx: not judged: z\nmutants: 6 of 7 killed\n";
        assert_eq!(failed(1, survived), "what is wrong survived: y");
        let unexpected = format!("{LATE}unexpected: c03_x: ignored: y\n");
        let why = "not the expected cases have run: unexpected: c03_x: ignored: y";
        assert_eq!(failed(1, &unexpected), why);
    }

    #[test]
    fn what_names_no_test_is_final() {
        let unnamed = "it names no test that failed";
        assert_eq!(failed(1, OK), unnamed);
        assert_eq!(failed(1, "mutants: 6 of 7 killed\n"), unnamed);
        assert_eq!(
            failed(0, &format!("repeated: nobody knows what: it stood still\n{OK}")),
            unnamed
        );
        assert_eq!(failed(101, "test c03_x ... FAILED\n"), "it broke off with status 101");
        assert_eq!(failed(0, "test c03_x ... ok\n"), "it broke off with status 0");
        assert_eq!(failed(1, ""), "it broke off with status 1");
        // The status alone says nothing of a store.
        assert_eq!(failed(69, "test c01_x ... FAILED\n"), "it broke off with status 69");
    }

    #[test]
    fn what_could_not_start_its_store_is_doubtful_as_a_whole() {
        let whole = Verdict::Doubtful(Doubt::Whole);
        assert_eq!(Verdict::new(69, &format!("{LATE}unavailable: no room\n")), whole);
        assert_eq!(Verdict::new(69, "unavailable: no room\n"), whole);
        assert_eq!(tests(101, &format!("{LATE}unavailable: no room\n")), ["c03_x"]);
        // Two holders are, whatever the status says.
        failed(69, &format!("violated: two holders\n{LATE}unavailable: no room\n"));
    }

    #[test]
    fn what_may_have_been_late_is_doubtful_by_its_name() {
        assert_eq!(tests(101, LATE), ["c03_x"]);
        assert_eq!(
            tests(101, &format!("test a::b    ... FAILED\n{LATE}{LATE}")),
            ["a::b", "c03_x"]
        );
        assert_eq!(tests(0, &format!("repeated: c01_x: it stood still: C1\n{OK}")), ["c01_x"]);
        assert_eq!(tests(1, "y: not judged: it broke off\nmutants: 6 of 7 killed\n"), ["y"]);
    }
}
