//! What may only have been late is judged again on an otherwise idle machine: each test that failed beside others or was
//! excused for a standstill, and each wrong variant that could not be judged. It has to pass several times in a row,
//! without any excuse. A program that could not start its store is first run again as a whole.

use std::io;

use crate::job::Ended;
use crate::sizes::RUNS_ALONE;
use crate::verdict::{Doubt, Verdict};

#[derive(Debug, Default)]
pub(crate) struct Judged {
    /// `repeated: …` or `FAILED: …` for each test.
    pub(crate) verdicts: Vec<String>,
    pub(crate) is_failed: bool,
    /// All that the failures have said.
    pub(crate) said: String,
    /// What the program says now, if it was run again as a whole.
    pub(crate) whole: Option<String>,
}

/// What a test says that is run alone.
enum Alone {
    Passed,
    /// It says why it is not for its store, as is expected of it: its program compares that. It had failed since the store
    /// could not be reached: that is no verdict on it, and is listed as what it is.
    Ignored(String),
    Failed,
}

impl Alone {
    fn new(ended: &Ended) -> Self {
        let begins = |mark: &str| ended.text.lines().any(|line| line.starts_with(mark));
        // A name that matches no test would pass without running one.
        let has_run = begins("test result: ok. 1 passed; ")
            || ended.text.lines().any(|line| line == "mutants: 1 of 1 killed");
        if ended.status == 0 && has_run && !begins("repeated: ") {
            return Self::Passed;
        }
        let reason = || {
            ended
                .text
                .lines()
                .find_map(|line| line.strip_prefix(' ')?.trim_start().strip_prefix("1 ignored: "))
        };
        match reason() {
            // Not as expected, and it does not end well.
            Some(why)
                if ended.status == 0
                    && begins("test result: ok. 0 passed; 0 failed; 1 ignored; ") =>
            {
                Self::Ignored(why.to_owned())
            }
            _ => Self::Failed,
        }
    }
}

/// `run` runs the program alone: one test of it, or the whole.
pub(crate) fn judge(
    name: &str,
    doubt: &Doubt,
    mut run: impl FnMut(Option<&str>) -> io::Result<Ended>,
) -> io::Result<Judged> {
    let mut judged = Judged::default();
    let tests = match doubt {
        Doubt::Tests(tests) => tests.clone(),
        Doubt::Whole => judged.tests_of_whole(name, run(None)?),
    };
    for test in tests {
        judged.judge_test(name, &test, || run(Some(&test)))?;
    }
    Ok(judged)
}

impl Judged {
    /// Those that are in doubt after the second run of a program.
    fn tests_of_whole(&mut self, name: &str, ended: Ended) -> Vec<String> {
        let tests = match Verdict::new(ended.status, &ended.text) {
            Verdict::Passed => Ok(Vec::new()),
            Verdict::Doubtful(Doubt::Tests(tests)) => Ok(tests),
            Verdict::Doubtful(Doubt::Whole) => Err("its store could not be started".to_owned()),
            Verdict::Failed(why) => Err(why),
        };
        match &tests {
            Ok(_) => {
                let how = "its store could not be started; run again as a whole, alone";
                self.verdicts.push(format!("repeated: {name}: {how}"));
            }
            Err(why) => self.fail(format!("FAILED: {name}, alone too: {why}"), &ended.text),
        }
        self.whole = Some(ended.text);
        tests.unwrap_or_default()
    }

    fn judge_test(
        &mut self,
        name: &str,
        test: &str,
        mut run: impl FnMut() -> io::Result<Ended>,
    ) -> io::Result<()> {
        let again = format!("repeated: {test} of {name}: judged again, alone, and");
        for _ in 0..RUNS_ALONE {
            let ended = run()?;
            match Alone::new(&ended) {
                Alone::Passed => {}
                Alone::Ignored(why) => {
                    self.verdicts.push(format!("{again} ignored: {why}"));
                    return Ok(());
                }
                Alone::Failed => {
                    self.fail(format!("FAILED: {test} of {name}, alone too"), &ended.text);
                    return Ok(());
                }
            }
        }
        self.verdicts.push(format!("{again} passed {RUNS_ALONE} times of {RUNS_ALONE}"));
        Ok(())
    }

    fn fail(&mut self, verdict: String, said: &str) {
        self.is_failed = true;
        self.verdicts.push(verdict);
        self.said += said;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OK: (i32, &str) = (0, "test result: ok. 1 passed; 0 failed; \n");
    const LATE: (i32, &str) = (101, "test c03_x ... FAILED\ntest result: FAILED. \n");
    const NO_STORE: (i32, &str) = (69, "test result: FAILED. \nunavailable: no room\n");

    /// The verdicts, if these are the ends of the next runs, the last of them for good.
    fn judged(doubt: &Doubt, ends: &[(i32, &str)]) -> (bool, Vec<String>, usize) {
        let mut runs = 0;
        let judged = judge("p", doubt, |test| {
            assert_eq!(test.is_none(), *doubt == Doubt::Whole && runs == 0);
            let (status, text) = ends[runs.min(ends.len() - 1)];
            runs += 1;
            Ok(Ended { status, text: text.to_owned(), ..Ended::default() })
        });
        let judged = judged.expect("runs");
        (!judged.is_failed, judged.verdicts, runs)
    }

    fn of_test(ends: &[(i32, &str)]) -> (bool, String, usize) {
        let (passed, verdicts, runs) = judged(&Doubt::Tests(vec!["c03_x".to_owned()]), ends);
        (passed, verdicts.join("\n"), runs)
    }

    #[test]
    fn a_test_has_to_pass_three_times() {
        let passed = "repeated: c03_x of p: judged again, alone, and passed 3 times of 3";
        assert_eq!(of_test(&[OK]), (true, passed.to_owned(), 3));
        let variant = (0, "mutants: 1 of 1 killed\n");
        assert_eq!(of_test(&[variant]), (true, passed.to_owned(), 3));
        let failed = "FAILED: c03_x of p, alone too".to_owned();
        for (ends, runs) in [(&[LATE][..], 1), (&[OK, LATE], 2), (&[OK, OK, LATE], 3)] {
            assert_eq!(of_test(ends), (false, failed.clone(), runs));
        }
    }

    #[test]
    fn nothing_else_is_a_pass() {
        for end in [
            (101, OK.1),
            (0, "test result: ok. 0 passed; 0 failed; \n"),
            (0, "mutants: 0 of 1 killed\n"),
            (0, "repeated: c03_x: it stood still\ntest result: ok. 1 passed; 0 failed; \n"),
            (0, "test result: ok. 0 passed; 0 failed; 1 ignored; \n"),
        ] {
            assert!(!of_test(&[end]).0, "{end:?}");
        }
        let ignored =
            (0, "test result: ok. 0 passed; 0 failed; 1 ignored; \n  1 ignored: no queue\n");
        let why = "repeated: c03_x of p: judged again, alone, and ignored: no queue";
        assert_eq!(of_test(&[ignored]), (true, why.to_owned(), 1));
        assert!(!of_test(&[(1, ignored.1)]).0);
    }

    #[test]
    fn a_program_without_its_store_is_run_again_as_a_whole() {
        for (ends, passed, runs) in [
            (&[OK][..], true, 1),
            (&[NO_STORE], false, 1),
            (&[(139, OK.1)], false, 1),
            (&[(101, "violated: two holders\ntest result: FAILED. \n")], false, 1),
            // One more test may be late.
            (&[LATE, OK], true, 4),
            (&[LATE, LATE], false, 2),
        ] {
            let (is_passed, verdicts, has_run) = judged(&Doubt::Whole, ends);
            assert_eq!((is_passed, has_run), (passed, runs), "{ends:?}: {verdicts:?}");
            assert_eq!(verdicts.iter().any(|line| line.starts_with("FAILED: ")), !passed);
        }
    }
}
