//! Every exit code, and that bad input is reported and does no harm.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::Duration;

use crate::bench::{Bench, Done, SOON, finish};

/// Refused: one or two lines, each starting with the program's name, no panic, and nothing ran.
#[track_caller]
fn refused(done: Done, code: i32, word: &str) {
    let done = done.is(code).printing("").saying([word]);
    let lines: Vec<_> = done.stderr.lines().collect();
    assert!((1..=2).contains(&lines.len()), "{done:?}");
    assert!(lines.iter().all(|line| line.starts_with("distlock: ")), "{done:?}");
}

#[test]
fn the_command_decides_when_it_ran() {
    let bench = Bench::new();
    for code in [0, 1, 7, 64, 79, 255] {
        let done = bench.done(["run", "a", "--", "sh", "-c", &format!("exit {code}")]).is(code);
        assert_eq!(done.stderr, "");
    }
    for (signal, code) in [("TERM", 143), ("KILL", 137), ("SEGV", 139)] {
        bench.done(["run", "a", "--", "sh", "-c", &format!("kill -{signal} $$")]).is(code);
    }
    assert!(bench.held().is_empty());
}

#[test]
fn a_command_that_cannot_start_is_126_or_127() {
    let bench = Bench::new();
    let plain = bench.path("plain");
    fs::write(&plain, "#!/bin/sh\necho ran\n").unwrap();
    let plain = plain.to_str().unwrap();
    refused(bench.done(["run", "a", "--", "no-such-command-here"]), 127, "no-such-command-here");
    refused(bench.done(["run", "a", "--", "/no/such/command"]), 127, "not found");
    refused(bench.done(["run", "a", "--", plain]), 126, "cannot be executed");
    refused(bench.done(["run", "a", "--", "/"]), 126, "cannot be executed");
    fs::set_permissions(plain, fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(bench.done(["run", "a", "--", plain]).stdout, "ran\n");
    assert!(bench.held().is_empty(), "a command that did not start holds no lock");
}

#[test]
fn bad_names_are_64() {
    let bench = Bench::new();
    let long = "x".repeat(513);
    for (name, word) in [
        ("", "empty"),
        (long.as_str(), "513 bytes"),
        ("a\nb", "control character"),
        ("a\u{1b}[2J", "control character"),
    ] {
        refused(bench.done(["run", name, "--", "echo", "ran"]), 64, word);
        refused(bench.done(["status", name]), 64, word);
        refused(bench.done(["release", name, "--force", "--yes"]), 64, word);
    }
    refused(bench.done(["list", "a\tb"]), 64, "control character");
    let longest = "x".repeat(512);
    bench.done(["run", &longest, "--", "true"]).is(0);
    let not_text =
        [OsStr::new("run"), OsStr::from_bytes(b"\xff"), OsStr::new("--"), OsStr::new("true")];
    bench.done(not_text).is(64);
}

#[test]
fn wrong_usage_is_64() {
    let bench = Bench::new();
    let cases: [&[&str]; 14] = [
        &[],
        &["no-such-subcommand"],
        &["run"],
        &["run", "a"],
        &["run", "a", "--"],
        &["run", "a", "echo", "ran"],
        &["run", "a", "--no-such-option", "--", "echo", "ran"],
        &["run", "a", "--nonblock", "--wait", "1s", "--", "echo", "ran"],
        &["run", "a", "--wait", "10", "--", "echo", "ran"],
        &["run", "a", "--ttl", "soon", "--", "echo", "ran"],
        &["run", "a", "--signal", "STOP", "--", "echo", "ran"],
        &["run", "a", "-E", "256", "--", "echo", "ran"],
        &["release", "a", "--force", "--owner", "nobody"],
        &["status"],
    ];
    for args in cases {
        let done = bench.done(args).is(64);
        assert!(!done.stderr.is_empty() && done.stdout.is_empty(), "{args:?}: {done:?}");
    }
    for ttl in ["0s", "0", "9ms", "367d"] {
        refused(bench.done(["run", "a", "--ttl", ttl, "--", "echo", "ran"]), 64, "10ms");
    }
    refused(bench.done(["run", "a", "--max-hold", "0s", "--", "echo", "ran"]), 64, "--max-hold");
    refused(bench.done(["run", "a", "--label", "a\u{1b}[2J", "--", "echo", "ran"]), 64, "label");
    refused(bench.done(["release", "a"]), 64, "--force");
    let forgotten = bench.done(["run", "a", "./job.sh"]).is(64).printing("");
    forgotten.saying(["tip: the command comes after `--`: distlock run NAME -- COMMAND"]);
    // As `sh -c LINE ARGUMENT` has it: here it would be a lock.
    for args in [["a", "-c", "echo ran", "b"], ["-c", "echo ran", "a", "b"]] {
        refused(bench.done([&["run"], &args[..]].concat()), 64, "another lock");
    }
    for args in [&["a", "b", "-c", "echo ran"][..], &["-c", "echo ran", "a"]] {
        bench.done([&["run"], args].concat()).is(0).printing("ran\n");
    }
}

#[test]
fn help_and_version_are_0() {
    let bench = Bench::new();
    for (args, word) in [
        (&["--help"][..], "Exit codes"),
        (&["run", "--help"], "--kill-after"),
        (&["--version"], "distlock "),
    ] {
        let done = bench.done(args);
        assert_eq!((done.code, done.stderr.as_str()), (Some(0), ""), "{done:?}");
        assert!(done.stdout.contains(word) && !done.stdout.contains("supervise"), "{done:?}");
    }
}

#[test]
fn a_wrong_store_is_78() {
    let bench = Bench::new();
    let file = bench.path("file");
    fs::write(&file, "text").unwrap();
    let folder = bench.path("");
    for (url, word) in [
        ("nonsense".to_owned(), "scheme"),
        ("foo://host/x".to_owned(), "foo"),
        ("sqlite:///x.db?colour=blue".to_owned(), "colour"),
        // The known parameters are listed, including those common to all stores.
        ("sqlite:///x.db?colour=blue".to_owned(), "lock_ttl"),
        ("memory://?lock_ttl=soon".to_owned(), "lock_ttl"),
        // Errors in a path that show up whichever user runs the test.
        (format!("sqlite://{}/missing/locks.db", folder.display()), "does not exist"),
        (format!("sqlite://{}/locks.db", file.display()), "not a folder"),
        (format!("sqlite://{}", folder.display()), "directory"),
    ] {
        let done = bench.done(["run", "a", "--store", &url, "--", "echo", "ran"]);
        // It says where the store's URL comes from.
        refused(done.saying(["--store"]), 78, word);
    }
    let mut command = bench.distlock(["status", "a"]);
    command.env("DISTLOCK_STORE", "foo://host/x");
    refused(finish(command.spawn().unwrap(), SOON), 78, "$DISTLOCK_STORE");
}

#[test]
fn a_store_that_refuses_is_69() {
    let bench = Bench::new();
    let text = bench.path("text.db");
    fs::write(
        &text,
        "this is no database, but a text that is long enough to be looked at".repeat(20),
    )
    .unwrap();
    let url = format!("sqlite://{}", text.display());
    refused(
        bench.done(["run", "a", "--store", &url, "--", "echo", "ran"]),
        69,
        "not an SQLite database",
    );
    refused(bench.done(["list", "--store", &url]), 69, "not an SQLite database");
    // For root every ordinary file is writable; in these file systems even root cannot create
    // files.
    let unwritable = ["/sys/kernel/locks.db", "/proc/self/task/locks.db"];
    for path in unwritable {
        let url = format!("sqlite://{path}");
        refused(bench.done(["run", "a", "--store", &url, "--", "echo", "ran"]), 69, path);
    }
}

#[test]
fn a_state_folder_that_cannot_be_made_is_69() {
    let bench = Bench::new();
    let file = bench.path("file");
    fs::write(&file, "").unwrap();
    let mut command = bench.distlock(["run", "a", "--", "echo", "ran"]);
    command.env_remove("DISTLOCK_STORE").env("XDG_STATE_HOME", &file);
    refused(finish(command.spawn().unwrap(), SOON), 69, "default store");
    let mut command = bench.distlock(["run", "a", "--", "echo", "ran"]);
    command.env_remove("DISTLOCK_STORE").env_remove("XDG_STATE_HOME").env_remove("HOME");
    refused(finish(command.spawn().unwrap(), SOON), 78, "DISTLOCK_STORE");
}

#[test]
fn a_supervisor_without_its_parent_does_nothing() {
    let bench = Bench::new();
    let supervise = |parent: u32| {
        let args =
            ["supervise", "--parent", &parent.to_string(), "--socket", "nobody-listens-here"];
        let options = ["--signal", "15", "--kill-after-ns", "0", "--", "echo", "ran"];
        bench.done([&args[..], &options].concat())
    };
    // Started by its parent, which does not listen: an internal error.
    refused(supervise(std::process::id()), 70, "supervisor");
    // Started by another process: its parent has died.
    supervise(1).is(0).printing("");
}

#[test]
fn no_credential_is_printed() {
    let bench = Bench::new();
    for (url, code) in [
        // Nothing listens on that port.
        ("redis://user:s3cret@127.0.0.1:1/0", if cfg!(feature = "redis") { 69 } else { 78 }),
        ("s3cret-without-a-scheme", 78),
        ("postgres://user:s3cret@host/db?x=s3cret", 78),
        ("sqlite:///tmp/x.db?password=s3cret", 78),
        ("memory://?token=s3cret", 78),
    ] {
        for extra in [None, Some("--json")] {
            let args = ["run", "a", "-v", "--store", url]
                .into_iter()
                .chain(extra)
                .chain(["--", "echo", "ran"]);
            let done = bench.done(args).is(code);
            assert!(!done.stderr.contains("s3cret"), "{done:?}");
        }
    }
}

#[test]
fn a_memory_store_is_refused_since_it_excludes_nobody() {
    let bench = Bench::new();
    let memory = ["--store", "memory://"];
    for args in [&["run", "a"][..], &["acquire", "a"], &["status", "a"], &["list"]] {
        let args = [args, &memory].concat();
        let command = if args[0] == "run" { &["--", "echo", "ran"][..] } else { &[] };
        refused(bench.done([&args[..], command].concat()), 78, "exclude no other process");
    }
    bench.done([&["doctor"], &memory[..]].concat()).is(0);
}

#[test]
fn a_closed_standard_output_is_no_panic() {
    let bench = Bench::new();
    let mut command = bench.distlock(["status", "a"]);
    let mut child = command.spawn().unwrap();
    drop(child.stdout.take());
    finish(child, Duration::from_secs(5)).is(0);
}

#[test]
fn the_command_line_describes_itself() {
    let bench = Bench::new();
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let text = bench.done(["completions", shell]).is(0).stdout;
        assert!(text.contains("kill-after") && !text.contains("supervise"), "{shell}: {text}");
    }
    // Bash understands them, and offers the right words.
    let script = "distlock completions bash >all && . ./all && \
                  COMP_WORDS=(distlock rel) COMP_CWORD=1 && _distlock distlock rel distlock && \
                  echo ${COMPREPLY[@]}";
    let mut bash = Command::new("bash");
    bench.prepare(bash.args(["-c", script]));
    finish(bash.spawn().unwrap(), SOON).is(0).printing("release\n");
    for (args, title, word) in [
        (&["man"][..], ".TH distlock 1", "Exit codes"),
        (&["man", "run"], ".TH distlock-run 1", "\\-\\-kill\\-after"),
    ] {
        let page = bench.done(args).is(0).stdout;
        assert!(page.contains(title) && page.contains(word), "{page}");
        assert!(!page.contains("supervise"), "{page}");
    }
    refused(bench.done(["man", "supervise"]), 64, "no subcommand");
    bench.done(["completions", "tcsh"]).is(64).printing("");
}
