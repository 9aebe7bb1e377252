//! What the end of a test program means for a run of `./test.sh`: programs that end in each way, given to
//! `.ci/run-test` and `.ci/judge-again`.

use std::fs;
use std::path::Path;
use std::process::Command;

/// The verdict on a program that is this script: at its first run, and when it is judged again.
#[derive(Debug, PartialEq, Eq)]
enum Judged {
    Passed,
    Failed,
    Again { passed: bool },
}

fn script(name: &str, folder: &Path, job: &Path) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join(".ci").join(name);
    let run = Command::new(script).arg(job).env("DISTLOCK_JOBS", folder).output().expect("a shell");
    let told = String::from_utf8_lossy(&run.stdout);
    assert!(told.contains("-- fake-tests "), "{}", String::from_utf8_lossy(&run.stderr));
}

/// `$RUN` in the script is the number of the run.
fn judged(program: &str) -> Judged {
    let folder = tempfile::tempdir().expect("a folder");
    let job = folder.path().join("fake-tests.abcdef.job");
    let count = "cd \"$DISTLOCK_JOBS\"; echo >>runs; export RUN=$(wc -l <runs)";
    fs::write(&job, format!("{count}\nexec bash program \"$@\"\n")).expect("a job");
    fs::write(folder.path().join("program"), program).expect("a program");
    script("run-test", folder.path(), &job);
    let is_there = |name: &str| folder.path().join(name).exists();
    if is_there("failed") {
        assert!(!is_there("again"));
        return Judged::Failed;
    }
    if !is_there("again") {
        return Judged::Passed;
    }
    script("judge-again", folder.path(), &job);
    Judged::Again { passed: !is_there("failed") }
}

#[test]
fn a_program_that_passes_is_passed_and_an_excused_one_is_judged_again() {
    let passed = "echo 'test result: ok. 1 passed; 0 failed; 0 ignored; '";
    assert_eq!(judged(passed), Judged::Passed);
    let excused = format!("echo 'repeated: c01_x: it stood still: C1 broken'; {passed}");
    assert_eq!(judged(&excused), Judged::Again { passed: false }, "not without an excuse");
    let excused = format!("[ $RUN -gt 1 ] || echo 'repeated: c01_x: it stood still'; {passed}");
    assert_eq!(judged(&excused), Judged::Again { passed: true });
}

/// Whatever happens to such a program when it runs again, its first end is final.
#[test]
fn what_no_second_run_excuses_fails_at_once() {
    for first in [
        "echo 'test c03_x ... FAILED'; kill -SEGV $$",
        "echo 'test c03_x ... FAILED'; kill -ABRT $$",
        "exit 137",
        "echo 'test c03_x ... FAILED'; echo '    violated: two holders'; echo 'test result: FAILED. '; exit 101",
        "echo 'test c03_x ... FAILED'; echo 'called `Result::unwrap()` on an `Err` value: \"violated: two holders\"'; echo 'test result: FAILED. '; exit 101",
        "printf 'y: SURVIVED Case(c03_x)\\nx: not judged: z\\nmutants: 6 of 7 killed\\n'; exit 1",
        // Whatever else has failed.
        "echo 'test c01_x ... FAILED'; echo 'test result: FAILED. '; echo 'unexpected: c03_x: ignored: y'; exit 1",
        // Nobody knows what would have to pass.
        "echo 'test result: ok. 1 passed; '; exit 1",
        "echo 'mutants: 6 of 7 killed'; exit 1",
        "echo 'test c03_x ... FAILED'; exit 1",
        "exit 1",
    ] {
        let passes = "echo 'test result: ok. 1 passed; 0 failed; '";
        let program = format!("[ $RUN -gt 1 ] || {{ {first}; }}; {passes}");
        assert_eq!(judged(&program), Judged::Failed, "{first}");
    }
}

/// What could not start its store has judged nothing: the whole program gets one more run, alone.
#[test]
fn a_program_without_its_store_is_run_again_as_a_whole() {
    let no_store = "echo 'test c01_x ... FAILED'; echo 'test c03_x ... FAILED'; \
                    echo 'test result: FAILED. '; echo 'unavailable: no room'; exit 69";
    let passes = "echo 'test result: ok. 2 passed; 0 failed; '";
    let late = "echo 'test c03_x ... FAILED'; echo 'test result: FAILED. '; exit 101";
    let alone = "echo 'test result: ok. 1 passed; 0 failed; '";
    for (second, later, passed) in [
        (passes, alone, true),
        (no_store, alone, false),
        ("exit 69", alone, false),
        ("kill -SEGV $$", alone, false),
        // One more test may be late.
        (late, alone, true),
        (late, late, false),
        // Two holders are final in this run, too.
        ("echo '    violated: two holders'; echo 'test result: FAILED. '; exit 101", alone, false),
    ] {
        let program = format!(
            "case $RUN in 1) {no_store};; 2) [ $# = 0 ] && {{ {second}; }};; *) {later};; esac"
        );
        assert_eq!(judged(&program), Judged::Again { passed }, "{second}, then {later}");
    }
    // The status alone says nothing.
    assert_eq!(judged("echo 'test c01_x ... FAILED'; exit 69"), Judged::Failed);
}

/// A failed test, and a wrong variant that could not be judged, have to pass three times.
#[test]
fn what_may_have_been_late_is_judged_again_by_its_name() {
    let failed = "echo 'test c03_x ... FAILED'; echo 'test result: FAILED. '; exit 101";
    let passes = "echo 'test result: ok. 1 passed; 0 failed; '";
    for (runs, passed) in [("1", true), ("1 2", false), ("1 3", false), ("1 4", false)] {
        let program = format!(
            "case ' {runs} ' in *\" $RUN \"*) {failed};; esac; [ \"$1$2\" = --exactc03_x ] && {passes}"
        );
        assert_eq!(judged(&program), Judged::Again { passed }, "it fails in {runs}");
    }
    let unjudged = "echo 'y: not judged: it broke off'; echo 'mutants: 6 of 7 killed'; exit 1";
    for (again, passed) in [("1 of 1", true), ("0 of 1", false)] {
        let program = format!(
            "[ $RUN -gt 1 ] || {{ {unjudged}; }}; [ \"$1$2\" = --exacty ] && echo 'mutants: {again} killed'"
        );
        assert_eq!(judged(&program), Judged::Again { passed }, "{again}");
    }
}
