//! Whole runs of `xtask`, with a cargo that builds nothing and records scripts as test programs.

#![allow(clippy::disallowed_methods, reason = "it waits for processes, and has no runtime")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// The folder is named only where the tests are recorded.
const CARGO: &str = "#!/bin/bash
if [[ -n $DISTLOCK_JOBS ]]; then cp jobs/*.job \"$DISTLOCK_JOBS\"; exit; fi
[[ $1 = doc ]] && . ./doc
echo 'test result: ok. 1 passed; 0 failed; 0 ignored; '
";
const PASSES: &str = "echo 'test result: ok. 1 passed; 0 failed; 0 ignored; '";
const LATE: &str = "echo 'test c03_x ... FAILED'; echo 'test result: FAILED. 0 passed; 1 failed; 0 ignored; '; exit 101";
const SUITE: &str =
    "echo 'redis-one: 1 ran, 1 ignored'; echo ' 1 ignored: no queue'; echo 'as expected: x'";
const SOAK: &str = "#!/bin/bash
echo 'soak: seed 4'
[[ $* == *'--seed 4 --setup etcd' ]] || { echo 'to be judged again: etcd'; exit 1; }
echo 'soak: 9 faults, 8 grants'
";

/// A repository of the files that a run needs, with these test programs; `$RUN` is the number of the program's run.
struct Fake(TempDir);

impl Fake {
    fn new(jobs: &[(&str, &str)]) -> Self {
        let fake = Self(tempfile::tempdir().expect("a folder"));
        let always = [
            ("lock-redis-conformance-0a", format!("{SUITE}; {PASSES}")),
            ("lock-redis-mutants-0a", "echo 'mutants: 2 of 2 killed'".to_owned()),
            ("redlock-model-check-0a", PASSES.to_owned()),
            ("kinds-model-check-0a", PASSES.to_owned()),
            ("a-lib-a-0a", PASSES.to_owned()),
            ("distlock-fuzz-0a", PASSES.to_owned()),
        ];
        let given = jobs.iter().map(|(name, script)| (*name, (*script).to_owned()));
        for (name, script) in always.into_iter().chain(given) {
            let count = "echo >>\"$0.runs\"; RUN=$(wc -l <\"$0.runs\")";
            fake.write(&format!("jobs/{name}.abcdef.job"), &format!("{count}\n{script}\n"));
        }
        fake.write("bin/cargo", CARGO);
        fake.write("bin/rustup", "#!/bin/sh\n");
        fake.write("doc", "");
        fake.write("Cargo.toml", "[features]\nredis = []\n");
        fake.write("target/debug/distlock-soak", SOAK);
        for script in [".ci/lint-packages", ".ci/public-api"] {
            fake.write(script, "#!/bin/sh\n");
        }
        fake.write(".ci/explored", "#!/bin/sh\nexec bash \"$1\"\n");
        fs::create_dir(fake.path("run")).expect("a folder");
        fake
    }

    fn path(&self, file: &str) -> PathBuf {
        self.0.path().join(file)
    }

    fn write(&self, file: &str, text: &str) {
        let path = self.path(file);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(&path, text).expect("a file");
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("a program");
    }

    fn command(&self, mode: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
        command.arg("test").arg(self.path("run")).args([mode, "7"]).current_dir(self.0.path());
        let path = std::env::var("PATH").expect("a path");
        command.env("PATH", format!("{}:{path}", self.path("bin").display()));
        command.env("CARGO_TARGET_DIR", self.path("target")).env("TMPDIR", self.0.path());
        command.env_remove("DISTLOCK_SOAK_OUT").env_remove("RUST_TEST_THREADS");
        // This test is recorded, too.
        command.env_remove("DISTLOCK_JOBS");
        command
    }

    fn run(&self, mode: &str) -> Output {
        self.command(mode).output().expect("xtask")
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// For a test that fails: the run that judges it is not to take a verdict of a fake run for its own.
fn quoted(said: &str) -> String {
    said.lines().map(|line| format!("\n| {line}")).collect()
}

#[test]
fn a_run_passes_in_which_all_that_was_late_passes_alone() {
    let no_store =
        format!("[ $RUN -gt 1 ] || {{ echo 'unavailable: no room'; exit 69; }}; {PASSES}");
    let late = format!("[ $RUN -gt 1 ] || {{ {LATE}; }}; [ \"$1$2\" = --exactc03_x ] && {PASSES}");
    let unjudged = "[ $RUN -gt 1 ] && { echo 'mutants: 1 of 1 killed'; exit; }
        echo 'y: not judged: z'; echo 'mutants: 6 of 7 killed'; exit 1";
    let fake = Fake::new(&[("a-it-0a", &late), ("b-it-0a", &no_store), ("c-mutants-0a", unjudged)]);
    let ended = fake.run("full");
    let (said, errors) = (text(&ended.stdout), text(&ended.stderr));
    assert_eq!((ended.status.code(), errors.as_str()), (Some(0), ""), "{}", quoted(&said));
    let (before, summary) = said.split_once("== summary").expect("a summary");
    for shown in [
        "-- clippy -p distlock --features redis --lib (",
        "-- redlock-model-check-0a (",
        "-- kinds-model-check-0a (",
        "-- fuzzing, 5s for each target (",
        "not run: no Rust 1.94 here",
        "repeated: soak: etcd, alone, for the first time",
    ] {
        assert!(before.contains(shown), "{shown}: {}", quoted(before));
    }
    for shown in [
        "redis-one: 1 ran, 1 ignored\n",
        "repeated: c03_x of a-it-0a: judged again, alone, and passed 3 times of 3\n",
        "repeated: b-it-0a: its store could not be started; run again as a whole, alone\n",
        "mutants: 7 of 7 killed\nrepeated: ",
        "soak: 9 faults, 8 grants\n",
        "      1 no queue\n",
        "judged again: 4 (of at most 6); no run before it here\n",
        "      7s  == before the tests are built\n",
    ] {
        assert!(summary.contains(shown), "{shown}: {}", quoted(summary));
    }
}

#[test]
fn a_run_fails_and_names_each_that_failed() {
    let fake = Fake::new(&[
        ("a-it-0a", LATE),
        ("b-it-0a", "kill -SEGV $$"),
        ("c-it-0a", "echo 'violated: two holders'; echo 'test result: FAILED. '; exit 101"),
        ("d-mutants-0a", "echo 'y: SURVIVED c03_x: z'; echo 'mutants: 6 of 7 killed'; exit 1"),
        ("e-it-0a", "exit 1"),
        ("redlock-model-it-0a", "echo 'the model'; exit 1"),
    ]);
    fake.write("doc", "exit 1");
    fake.write("target/debug/distlock-soak", "#!/bin/sh\necho 'violated: x'; exit 1");
    let ended = fake.run("full");
    let said = text(&ended.stdout);
    assert_eq!(ended.status.code(), Some(1), "{}", quoted(&said));
    let failures = "FAILED:\n6 of 7 mutants were killed\na-it-0a\nb-it-0a: it ended by signal 11\n\
        c-it-0a: two holders, a falling fence or a panic\nd-mutants-0a: what is wrong survived: y\ndocs\n\
        e-it-0a: it broke off with status 1\nredlock-model-it-0a\nthe soak: violated: x\n";
    let told = text(&ended.stderr);
    assert_eq!(told, failures, "{}", quoted(&said));
    // What has failed is told in full.
    assert!(
        said.contains("\nthe model\n") && said.contains("\nviolated: x\n"),
        "{}",
        quoted(&said)
    );
}

/// Neither checks run beside a quick run, nor the soak.
#[test]
fn a_quick_run_leaves_out_what_needs_servers_and_fails_by_too_many_repeats() {
    let failures: String = (10..23).map(|it| format!("echo 'test t{it} ... FAILED';")).collect();
    let late = format!("[ $RUN -gt 1 ] || {{ {failures} {LATE}; }}; {PASSES}");
    let mutants = "echo 'mutants: 2 of 2 killed'";
    let fake = Fake::new(&[
        ("lock-core-it-0a", &late),
        ("conformance-tests-mutants-0a", mutants),
        ("lock-zk-it-0a", "exit 1"),
    ]);
    let ended = fake.run("quick");
    let said = text(&ended.stdout);
    assert_eq!(text(&ended.stderr), "FAILED:\ntoo many repeats: 14\n", "{}", quoted(&said));
    assert_eq!(ended.status.code(), Some(1));
    assert!(!said.contains("soak") && !said.contains("beside the tests"), "{}", quoted(&said));
}

#[test]
fn tests_that_do_not_build_fail_the_run() {
    let fake = Fake::new(&[]);
    fake.write("bin/cargo", "#!/bin/sh\necho 'error: x' >&2; exit 101\n");
    let ended = fake.run("full");
    assert_eq!(ended.status.code(), Some(1));
    assert_eq!(text(&ended.stderr), "FAILED: the tests do not build\n");
    assert!(text(&ended.stdout).ends_with("error: x\n"));
}

#[test]
fn what_runs_beside_the_tests_ends_with_the_run() {
    let fake = Fake::new(&[("a-it-0a", "sleep 1000")]);
    fake.write("doc", "echo $$ >new; mv new doc.pid; sleep 1000");
    let mut run = fake.command("full");
    let mut run = run.stdout(std::process::Stdio::null()).spawn().expect("xtask");
    let pid = wait_for(|| fs::read_to_string(fake.path("doc.pid")).ok());
    let process = Path::new("/proc").join(pid.trim());
    assert!(process.exists());
    // Not even this can keep it from ending them. The program itself is not ended, since no terminal interrupts it.
    let programs = children(run.id());
    run.kill().expect("a running xtask");
    run.wait().expect("an end");
    let is_over = || {
        let status = fs::read_to_string(process.join("status")).unwrap_or_default();
        (!status.contains("State:") || status.contains("State:\tZ")).then_some(())
    };
    wait_for(is_over);
    for program in programs {
        let _ = Command::new("kill").arg(program).status();
    }
}

/// All processes below this one that are not beside the tests.
fn children(process: u32) -> Vec<String> {
    let of = |process: &str| {
        let list = format!("/proc/{process}/task/{process}/children");
        let list = fs::read_to_string(list).unwrap_or_default();
        list.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    let is_beside = |process: &String| {
        fs::read_to_string(format!("/proc/{process}/cmdline"))
            .is_ok_and(|words| words.contains("\0beside\0"))
    };
    let threads = fs::read_dir(format!("/proc/{process}/task")).expect("threads");
    let mut all = Vec::new();
    for thread in threads {
        let list = thread.expect("a thread").path().join("children");
        let list = fs::read_to_string(list).unwrap_or_default();
        all.extend(list.split_whitespace().map(str::to_owned).filter(|it| !is_beside(it)));
    }
    let mut place = 0;
    while place < all.len() {
        all.extend(of(&all[place]));
        place += 1;
    }
    all
}

fn wait_for<T>(mut seen: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(seen) = seen() {
            return seen;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "it takes too long");
        std::thread::sleep(Duration::from_millis(20));
    }
}
