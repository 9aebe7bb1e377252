//! Locks that belong to anyone who knows their lease: for scripts that cannot be run under `run`.

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::process::Signal;
use serde_json::Value;

use crate::bench::{Bench, Done, SOON, finish, id, now, pause, send, until};

/// Takes the lock `a`, and returns its lease.
fn acquired(bench: &Bench, options: &[&str]) -> String {
    let done = bench.done([&["acquire", "a"], options].concat()).is(0);
    assert_eq!(done.stdout.lines().count(), 1, "{done:?}");
    done.stdout.trim_end().to_owned()
}

fn shell(bench: &Bench, script: &str) -> Done {
    let mut command = Command::new("sh");
    bench.prepare(command.args(["-ec", script]));
    finish(command.spawn().expect("a shell"), SOON)
}

#[test]
fn a_script_takes_a_lock_keeps_it_and_releases_it() {
    let bench = Bench::new();
    let script = r#"
        DISTLOCK_LEASE=$(distlock acquire a --ttl 2s --label script)
        export DISTLOCK_LEASE
        for i in 1 2 3; do sleep 1; distlock renew a --ttl 2s >/dev/null; done
        distlock run a -nq -- echo ran || echo "busy $?"
        distlock release a
        distlock run a -n -- echo free
    "#;
    shell(&bench, script).is(0).printing("busy 75\nreleased \"a\"\nfree\n");
}

#[test]
fn the_lease_is_taken_from_everywhere_and_shown_nowhere() {
    let bench = Bench::new();
    let lease = acquired(&bench, &[]);
    let renewed = bench.done(["renew", "a", &lease]).is(0);
    assert!(renewed.stdout.starts_with("renewed \"a\": 29s left, fence "), "{renewed:?}");
    let mut by_variable = bench.distlock(["renew", "a"]);
    let by_variable = by_variable.env("DISTLOCK_LEASE", &lease).spawn().unwrap();
    finish(by_variable, SOON).is(0);
    let mut by_stdin = bench.distlock(["release", "a", "-"]).stdin(Stdio::piped()).spawn().unwrap();
    writeln!(by_stdin.stdin.take().unwrap(), "{lease}").unwrap();
    finish(by_stdin, SOON).is(0).printing("released \"a\"\n");

    let lease = acquired(&bench, &[]);
    let damaged = &lease[..lease.len() - 4];
    for (args, word) in [
        (&["renew", "b", &lease][..], "is of the lock \"a\", not of \"b\""),
        (&["release", "b", &lease], "is of the lock \"a\", not of \"b\""),
        (&["renew", "a", damaged], "not a lease"),
        (&["release", "a", damaged], "not a lease"),
        (&["release", &lease], "the name of the lock comes first"),
        (&["renew", &lease, "a"], "the name of the lock comes first"),
        (&["acquire", &lease], "the name of the lock comes first"),
        (&["release", "a", &lease, "--force"], "cannot be used with"),
        (&["renew", "a"], "$DISTLOCK_LEASE"),
        (&["release", "a"], "$DISTLOCK_LEASE"),
        (&["renew", "a", "-"], "not a lease"),
    ] {
        for json in [false, true] {
            let args = args.iter().copied().chain(json.then_some("--json"));
            let done = bench.done(args).is(64).printing("");
            let text = done.stderr.replace("\\\"", "\"");
            assert!(text.contains(word), "{word}: {done:?}");
            assert!(!text.contains(&lease[10..40]), "{done:?}");
        }
    }
    assert!(bench.is_held("a"));
}

#[test]
fn a_lease_that_has_ended_is_lost() {
    let bench = Bench::new();
    let ended = acquired(&bench, &["--ttl", "500ms"]);
    pause(Duration::from_millis(700));
    let taken = acquired(&bench, &[]);
    bench.done(["release", "a", "--force", "--yes"]).is(0);
    for lease in [ended, taken] {
        bench.done(["renew", "a", &lease]).is(79).printing("");
        bench
            .done(["release", "a", &lease])
            .is(79)
            .printing("")
            .saying(["not held with this lease"]);
    }
}

#[test]
fn acquire_waits_as_run_does() {
    let bench = Bench::new();
    let holder = bench.holding("a", &["--label", "h"]);
    bench.done(["acquire", "a", "-n"]).is(75).printing("").saying(["held by h"]);
    bench.done(["acquire", "a", "-n", "-q", "-E", "3"]).is(3).printing("").saying([]);
    let start = now();
    bench.done(["acquire", "a", "--wait", "600ms"]).is(75).printing("");
    assert!(now().since(start) >= Duration::from_millis(600));
    let interrupted = bench.distlock(["acquire", "a"]).spawn().unwrap();
    pause(Duration::from_millis(500));
    send(id(&interrupted), Signal::INT);
    finish(interrupted, SOON).is(130).printing("").saying(["nothing was started"]);

    let waiter = bench.distlock(["acquire", "a", "--json", "--label", "w"]).spawn().unwrap();
    pause(Duration::from_millis(300));
    holder.stop();
    let acquired: Value = serde_json::from_str(&finish(waiter, SOON).is(0).stdout).unwrap();
    assert_eq!((acquired["schema"].as_i64(), acquired["ttl_ms"].as_i64()), (Some(1), Some(30_000)));
    let holder = &bench.status("a")["holder"];
    assert_eq!((&holder["label"], &holder["fence"]), (&Value::from("w"), &acquired["fence"]));
    let renewed = bench.done(["renew", "a", acquired["lease"].as_str().unwrap(), "--json"]).is(0);
    let renewed: Value = serde_json::from_str(&renewed.stdout).unwrap();
    assert_eq!(renewed["fence"], acquired["fence"]);
    assert!((29_000..=30_000).contains(&renewed["left_ms"].as_u64().unwrap()), "{renewed}");
}

#[test]
fn a_lease_that_nobody_has_got_is_released() {
    let bench = Bench::new();
    let done = shell(&bench, "distlock acquire a >/dev/full || echo $?").is(0).printing("70\n");
    done.saying(["cannot write the lease", "the lock was released"]);
    assert!(bench.held().is_empty());
    // If the store can be told.
    let (reader, mut pipe) = std::io::pipe().unwrap();
    let flags = fcntl_getfl(&pipe).unwrap();
    fcntl_setfl(&pipe, flags | OFlags::NONBLOCK).unwrap();
    while pipe.write(b"x").is_ok() {}
    fcntl_setfl(&pipe, flags).unwrap();
    let acquire = bench.distlock(["acquire", "a"]).stdout(pipe).spawn().unwrap();
    until("it has the lock", SOON, || bench.is_held("a"));
    pause(Duration::from_millis(500));
    let frozen = bench.freeze();
    drop(reader);
    finish(acquire, 2 * SOON)
        .is(70)
        .saying(["cannot write the lease", "the lock was not released ("]);
    drop(frozen);
}
