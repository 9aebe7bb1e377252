//! How a test program of the suite ends: this one runs itself as such a program.

#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use async_trait::async_trait;
use conformance_tests::{Client, Fault, Faults, Harness, MemoryHarness, Store, Time, Unavailable};
use libtest_mimic::{Arguments, Trial};

/// Which program this is to be.
const PROGRAM: &str = "LOCK_TEST_PROGRAM";
/// The file of its expected outcomes.
const EXPECTED: &str = "LOCK_TEST_PROGRAM_EXPECTED";

/// A link whose faults never come, which it counts.
#[derive(Debug)]
struct Spared;

#[async_trait]
impl Faults for Spared {
    async fn inject(&self, _: Fault) -> Result<(), Unavailable> {
        Ok(())
    }

    fn struck(&self) -> Option<u64> {
        Some(0)
    }
}

#[derive(Debug)]
struct SparedStore(Box<dyn Store>);

#[async_trait]
impl Store for SparedStore {
    async fn client(&self) -> lock_core::Result<Client> {
        Ok(self.0.client().await?.with_faults(Spared))
    }
}

/// Memory stores that start never, or only once, or have no faults, if so wanted.
#[derive(Debug)]
struct Fickle {
    inner: MemoryHarness,
    starts: &'static str,
    has_started: AtomicBool,
}

#[async_trait]
impl Harness for Fickle {
    fn name(&self) -> &str {
        "fickle"
    }

    fn time(&self) -> Time {
        Time::Virtual
    }

    async fn start(&self) -> Result<Box<dyn Store>, Unavailable> {
        match self.starts {
            "never" => Err(Unavailable::broken("no room")),
            "spared" => Ok(Box::new(SparedStore(self.inner.start().await?))),
            "once" if self.has_started.swap(true, Relaxed) => Err(Unavailable::broken("no room")),
            _ => self.inner.start().await,
        }
    }

    fn expected(&self) -> Option<PathBuf> {
        Some(std::env::var_os(EXPECTED)?.into())
    }
}

fn main() -> ExitCode {
    let program = std::env::var(PROGRAM).unwrap_or_default();
    let fickle = |inner, starts| {
        conformance_tests::main(Arc::new(Fickle {
            inner,
            starts,
            has_started: AtomicBool::new(false),
        }))
    };
    match program.as_str() {
        "never" => fickle(MemoryHarness::poll_only(), "never"),
        "once" => fickle(MemoryHarness::poll_only(), "once"),
        "spared" => fickle(MemoryHarness::poll_only(), "spared"),
        "poll" => fickle(MemoryHarness::poll_only(), "always"),
        "queued" => fickle(MemoryHarness::queued(), "always"),
        _ => {
            let trials = [
                Trial::test("a_store_that_never_starts_is_unavailable", || {
                    never_starts();
                    Ok(())
                }),
                Trial::test("a_case_that_is_run_again_is_told", || {
                    is_told();
                    Ok(())
                }),
                Trial::test("what_runs_is_compared_with_a_file", || {
                    is_compared();
                    Ok(())
                }),
                Trial::test("a_level_leaves_cases_out", || {
                    has_levels();
                    Ok(())
                }),
                Trial::test("machines_can_read_the_results", || {
                    tells_machines();
                    Ok(())
                }),
            ];
            libtest_mimic::run(&Arguments::from_args(), trials.into()).exit_code()
        }
    }
}

/// The status of a program and what it has printed.
fn run(program: &str, set_up: impl FnOnce(&mut Command)) -> (Option<i32>, String) {
    let output = output(program, set_up);
    (output.status.code(), String::from_utf8(output.stdout).unwrap())
}

fn output(program: &str, set_up: impl FnOnce(&mut Command)) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env(PROGRAM, program);
    for variable in ["LOCK_TEST_EXPECT_WRITE", "LOCK_TEST_LEVEL", "LOCK_TEST_JUNIT"] {
        command.env_remove(variable);
    }
    set_up(&mut command);
    command.output().unwrap()
}

fn is_told() {
    let case = "c09_fences_rise_over_unknown_outcomes";
    let output = output("spared", |command| {
        command.arg(case);
    });
    assert_eq!(output.status.code(), Some(101));
    let told = String::from_utf8(output.stderr).unwrap();
    let again: Vec<_> = told.lines().filter(|line| line.starts_with("once more: ")).collect();
    let line = format!(
        "once more: {case}: C9 not judged: the token rises over tries with an unknown outcome seen: the fault \
         LoseNextReply did not come upon the call that it was meant for"
    );
    assert_eq!(again, [&line, &line]);
}

fn never_starts() {
    let only = |cases: &'static str| {
        move |command: &mut Command| {
            command.args(["--test-threads=1", cases]);
        }
    };
    let (status, told) = run("never", only("s06_busy"));
    assert_eq!(status, Some(69), "{told}");
    assert_eq!(told.lines().last(), Some("unavailable: no room"), "{told}");
    // One case has been judged, so the others are judged one by one.
    let (status, told) = run("once", only("s06"));
    assert_eq!(status, Some(101), "{told}");
    assert!(!told.contains("unavailable: "), "{told}");
}

fn has_levels() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("fickle.txt");
    std::fs::write(&path, "# It says nothing of any case.\n").unwrap();
    let at = |level: &'static str| {
        run("poll", |command| {
            command.env(EXPECTED, &path).env("LOCK_TEST_LEVEL", level);
        })
    };
    let ignored = |told: &str| {
        let summary = told.lines().find(|line| line.starts_with("fickle: ")).unwrap();
        let words = summary.split_whitespace().rev().nth(1).unwrap();
        words.parse::<u32>().unwrap()
    };
    let (status, first) = at("1");
    assert_eq!(status, Some(0), "a part is not compared with the file: {first}");
    assert!(
        first.contains(" ignored: it is of level 2, which LOCK_TEST_LEVEL leaves out"),
        "{first}"
    );
    let (status, second) = at("2");
    assert_eq!(status, Some(0), "{second}");
    assert!(ignored(&second) < ignored(&first), "{second}");
    let (status, whole) = at("3");
    assert_eq!(status, Some(1), "it is compared: {whole}");
    let (status, told) = at("4");
    assert_eq!((status, told.as_str()), (Some(1), ""));
}

fn tells_machines() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("results.xml");
    let (status, told) = run("poll", |command| {
        command.args(["--format=json", "s06_busy"]).env("LOCK_TEST_JUNIT", &path);
    });
    assert_eq!(status, Some(0), "{told}");
    assert!(told.lines().count() >= 3, "{told}");
    for line in told.lines() {
        assert!(serde_json::from_str::<serde_json::Value>(line).is_ok(), "{line}");
    }
    let results = std::fs::read_to_string(&path).unwrap();
    for part in [
        "<testsuite name=\"fickle\"",
        "<testcase classname=\"fickle\" name=\"s06_busy_is_not_an_error\"",
        "failures=\"0\"",
    ] {
        assert!(results.contains(part), "{part}: {results}");
    }
    run("never", |command| {
        command.arg("s06_busy").env("LOCK_TEST_JUNIT", &path);
    });
    let results = std::fs::read_to_string(&path).unwrap();
    assert!(results.contains("seen: no room</failure>"), "{results}");
    let (status, told) = run("poll", |command| {
        command.arg("s06_busy").env("LOCK_TEST_JUNIT", folder.path());
    });
    assert_eq!(status, Some(1), "a folder is no file: {told}");
}

fn is_compared() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tests/fickle.txt");
    let with = |path: &Path, write: bool| {
        let path = path.to_owned();
        move |command: &mut Command| {
            command.env(EXPECTED, path);
            if write {
                command.env("LOCK_TEST_EXPECT_WRITE", "1");
            }
        }
    };
    let (status, told) = run("poll", with(&path, false));
    assert_eq!(status, Some(0), "without a file nothing is compared: {told}");
    let line = format!("\nnot compared: there is no {}; LOCK_TEST_EXPECT_WRITE=1", path.display());
    assert!(told.contains(&line), "{told}");
    let (status, told) = run("poll", with(&path, true));
    assert!(status == Some(0) && told.contains("\nwritten: "), "{told}");
    let (status, told) = run("poll", with(&path, false));
    assert!(status == Some(0) && told.contains("\nas expected: "), "{told}");

    let (status, told) = run("queued", with(&path, false));
    assert_eq!(status, Some(1), "{told}");
    let line = "\nunexpected: l03_waiters_are_served_in_order: ran, and the file says ignored: \
                the store does not declare `fair`\n";
    assert!(told.contains(line), "{told}");
    // A part of the suite says nothing about the rest.
    let part = |kind| {
        run(kind, |command| {
            with(&path, false)(command);
            command.arg("l03_waiters_are_served_in_order");
        })
    };
    let (status, told) = part("poll");
    assert!(status == Some(0) && !told.contains("expected: "), "{told}");
    let (status, told) = part("queued");
    assert!(status == Some(1) && told.contains(line), "{told}");
}
