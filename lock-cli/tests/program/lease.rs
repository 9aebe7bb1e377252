//! The command never keeps running without the lock.

use std::time::Duration;

use crate::bench::{
    BEAT, Bench, SOON, child_of, events, finish, id, is_alive, last_beat, now, pause, read, send,
    until,
};
use distlock::clock::ClockInstant;
use rustix::process::{Pid, Signal, kill_process_group};

const SECOND: Duration = Duration::from_secs(1);

/// A command with a child, and an orphan in its own session; all ignore polite signals.
const STUBBORN_FAMILY: &str = "trap '' TERM INT HUP; \
     sh -c 'echo $$ >child; exec sleep 60' & \
     (setsid sh -c 'echo $$ >daemon; exec sleep 60' &); \
     echo $$ >command; wait; wait; sleep 60";

fn family(bench: &Bench) -> [i32; 3] {
    ["command", "child", "daemon"].map(|file| bench.pid(file))
}

fn all_dead(pids: &[i32]) -> bool {
    !pids.iter().any(|pid| is_alive(*pid))
}

/// When the store ends the current lease.
fn lease_end(bench: &Bench, name: &str) -> ClockInstant {
    // Taken before asking: the true end is not earlier than this.
    let before = now();
    let left = bench.status(name)["holder"]["expires_in_ms"].as_u64().expect("a holder");
    before + Duration::from_millis(left)
}

#[test]
fn a_killed_holder_takes_its_family_with_it_and_frees_the_lock() {
    let bench = Bench::new();
    let ttl = 2 * SECOND;
    let holder = bench.hold("a", &["--ttl", "2s"], STUBBORN_FAMILY);
    let pids = family(&bench);
    let killed = now();
    drop(holder);
    let dead = until("the family is dead", SOON, || all_dead(&pids));
    assert!(dead.since(killed) < SECOND / 2, "{:?}", dead.since(killed));
    let done = bench.done(["run", "a", "--wait", "10s", "--", "true"]);
    let took = now().since(killed);
    done.is(0);
    assert!(took <= ttl + SECOND, "{took:?}");
}

#[test]
fn a_killed_supervisor_takes_the_command_with_it() {
    let bench = Bench::new();
    let holder = bench.hold("a", &[], STUBBORN_FAMILY);
    let pids = family(&bench);
    send(child_of(id(&holder)), Signal::KILL);
    until("the family is dead, the one in its own session too", SECOND, || all_dead(&pids));
    finish(holder, SOON).is(137).saying(["supervisor"]);
    assert!(bench.held().is_empty(), "the lock was released");
}

#[test]
fn killing_all_that_is_called_distlock_spares_the_supervisor() {
    let bench = Bench::new();
    let holder = bench.holding("a", &[]);
    let supervisor = child_of(id(&holder));
    let name = read(format!("/proc/{supervisor}/comm").as_ref());
    let args = read(format!("/proc/{supervisor}/cmdline").as_ref());
    assert!(!name.contains("distlock") && !args.contains("distlock"), "{name} {args}");
    drop(holder);
    until("the supervisor is gone", SOON, || !is_alive(supervisor));
}

#[test]
fn a_frozen_store_stops_the_command_before_the_lease_ends() {
    let bench = Bench::new();
    let script = format!("{BEAT}; trap 'echo >asked' TERM; echo $$ >command; beat");
    let holder = bench.hold("a", &["--ttl", "3s"], &script);
    let command = bench.pid("command");
    let mut frozen = bench.freeze();
    let end = frozen.lease_end("a");
    until("the command is dead", SOON, || !is_alive(command));
    let last = last_beat(&bench);
    assert!(last < end, "it kept working for {:?} after the lease", last.since(end));
    assert!(bench.path("asked").exists(), "it was asked to stop before it was killed");
    let left = end.since(last);
    assert!(left < SECOND, "it was killed {left:?} before the end: too early");
    finish(holder, 2 * SOON).is(79).saying(["was lost while the command ran"]);
}

#[test]
fn a_store_that_comes_back_in_time_is_no_loss() {
    let bench = Bench::new();
    let script = "echo $$ >command; sleep 8; echo done";
    let holder = bench.hold("a", &["--ttl", "6s", "-k", "1s"], script);
    bench.pid("command");
    let frozen = bench.freeze();
    pause(3 * SECOND);
    drop(frozen);
    finish(holder, 2 * SOON).is(0).printing("done\n");
}

#[test]
fn a_stopped_holder_loses_its_command_before_the_lease_ends() {
    let bench = Bench::new();
    let script = format!("{BEAT}; beat & {STUBBORN_FAMILY}");
    let holder = bench.hold("a", &["--ttl", "2s"], &script);
    let pids = family(&bench);
    // Stopped right after a few renewals, as nearly as possible.
    pause(SECOND);
    send(id(&holder), Signal::STOP);
    let end = lease_end(&bench, "a");
    until("the family is dead", SOON, || all_dead(&pids));
    let last = last_beat(&bench);
    assert!(last < end, "it kept working for {:?} after the lease", last.since(end));
    // Another client gets the lock while the first one still sleeps.
    bench.done(["run", "a", "--wait", "10s", "--", "true"]).is(0);
    send(id(&holder), Signal::CONT);
    finish(holder, SOON).is(79).saying(["was lost while the command ran"]);
}

#[test]
fn a_holder_that_was_stopped_for_a_moment_goes_on() {
    let bench = Bench::new();
    let holder = bench.hold("a", &["--ttl", "9s"], "echo >ready; sleep 4; echo done");
    bench.line("ready");
    send(id(&holder), Signal::STOP);
    pause(2 * SECOND);
    send(id(&holder), Signal::CONT);
    finish(holder, SOON).is(0).printing("done\n");
}

#[test]
fn a_command_that_ends_in_time_was_covered_although_its_holder_slept() {
    let bench = Bench::new();
    let holder = bench.hold("a", &["--ttl", "3s"], "echo $$ >command; sleep 0.5; exit 5");
    let command = bench.pid("command");
    send(id(&holder), Signal::STOP);
    let end = lease_end(&bench, "a");
    let dead = until("the command has ended", SOON, || !is_alive(command));
    assert!(dead < end);
    pause(end.since(now()) + SECOND / 2);
    send(id(&holder), Signal::CONT);
    finish(holder, SOON).is(5);
}

#[test]
fn a_stopped_supervisor_does_not_keep_its_command_alive() {
    let bench = Bench::new();
    // The whole group is stopped; the cap of --max-hold ends it.
    let holder =
        bench.hold("a", &["--ttl", "1s", "--max-hold", "1s", "-k", "500ms"], STUBBORN_FAMILY);
    let pids = family(&bench);
    let group = Pid::from_raw(child_of(id(&holder))).unwrap();
    kill_process_group(group, Signal::STOP).unwrap();
    until("the family is dead", 5 * SECOND, || all_dead(&pids));
    finish(holder, SOON).is(79);
}

#[test]
fn max_hold_asks_and_then_kills() {
    let bench = Bench::new();
    let start = now();
    let done = bench.done(["run", "a", "--max-hold", "600ms", "--", "sleep", "60"]);
    let took = now().since(start);
    done.is(79).saying(["--max-hold"]);
    assert!(took >= Duration::from_millis(600), "{took:?}");

    let stubborn =
        bench.hold("a", &["--max-hold", "600ms", "-k", "500ms", "--json"], STUBBORN_FAMILY);
    let pids = family(&bench);
    let done = finish(stubborn, SOON).is(79);
    assert!(all_dead(&pids), "the whole family, not only the command");
    let reasons: Vec<_> = events(&done.stderr)
        .iter()
        .filter(|event| event["event"] == "stopping")
        .map(|event| event["reason"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(reasons, ["max-hold"]);

    // A command that obeys and exits with 0 was stopped nevertheless.
    let polite = "trap 'exit 0' TERM; while :; do sleep 0.05; done";
    bench.done(["run", "a", "--max-hold", "500ms", "--", "sh", "-c", polite]).is(79);
    bench.done(["run", "a", "--max-hold", "30s", "--", "true"]).is(0);
    assert!(bench.held().is_empty());
}

#[test]
fn a_descendant_that_does_not_obey_is_killed_although_the_command_has_obeyed() {
    let bench = Bench::new();
    let script = "sh -c 'trap \"\" TERM; echo $$ >child; exec sleep 60' >/dev/null 2>&1 & \
                  while ! test -e child; do sleep 0.02; done; wait";
    let holder = bench.hold("a", &["--max-hold", "500ms", "-k", "500ms"], script);
    let child = bench.pid("child");
    finish(holder, SOON).is(79);
    assert!(!is_alive(child), "it runs without the lock");
}

#[test]
fn another_signal_asks_if_one_wants() {
    let bench = Bench::new();
    let script = "trap 'echo usr1; exit 0' USR1; while :; do sleep 0.05; done";
    let options = ["run", "a", "--max-hold", "2s", "-s", "usr1", "--", "sh", "-c", script];
    bench.done(options).is(79).printing("usr1\n");
}

#[test]
fn a_lock_that_is_taken_away_stops_the_command() {
    let bench = Bench::new();
    let script = "trap 'echo asked; exit 0' TERM; echo >ready; while :; do sleep 0.05; done";
    let holder = bench.hold("a", &["--ttl", "9s", "-k", "1s"], script);
    bench.line("ready");
    bench.done(["release", "a", "--force", "--yes"]).is(0);
    let taken = now();
    let done = finish(holder, SOON).is(79).printing("asked\n");
    // The next renewal finds out, after a third of the ttl; the deadline would come 5 s later.
    assert!(now().since(taken) < 5 * SECOND, "{:?}", now().since(taken));
    assert!(done.stderr.contains("no longer hold it"), "{done:?}");
}

#[test]
fn a_command_whose_lock_was_taken_away_has_its_time_to_stop() {
    let bench = Bench::new();
    let script =
        "trap 'sleep 1.5; echo finished; exit 0' TERM; echo >ready; while :; do sleep 0.05; done";
    let holder = bench.hold("a", &["--ttl", "3s", "-k", "20s"], script);
    bench.line("ready");
    bench.done(["release", "a", "--force", "--yes"]).is(0);
    finish(holder, 2 * SOON).is(79).printing("finished\n");
}

#[test]
fn a_command_that_does_not_stop_is_killed_when_its_time_is_over() {
    let bench = Bench::new();
    let holder = bench.hold("a", &["--ttl", "9s", "-k", "1s", "--json"], STUBBORN_FAMILY);
    let pids = family(&bench);
    bench.done(["release", "a", "--force", "--yes"]).is(0);
    finish(holder, SOON).is(79);
    assert!(all_dead(&pids));
}

#[test]
fn a_lock_that_was_taken_away_is_told_although_the_command_ended() {
    let bench = Bench::new();
    let holder =
        bench.hold("a", &["--ttl", "60s"], "echo >ready; while ! test -e go; do sleep 0.02; done");
    bench.line("ready");
    bench.done(["release", "a", "--force", "--yes"]).is(0);
    std::fs::write(bench.path("go"), "").unwrap();
    finish(holder, SOON).is(79);
}

#[test]
fn a_short_lease_is_renewed_for_as_long_as_it_takes() {
    let bench = Bench::new();
    bench
        .done(["run", "a", "--ttl", "1500ms", "--", "sh", "-c", "sleep 5; echo done"])
        .is(0)
        .printing("done\n");
}

#[test]
fn what_a_command_leaves_in_the_background_is_left_alone() {
    let bench = Bench::new();
    bench.done(["run", "a", "--", "sh", "-c", "sleep 30 >/dev/null 2>&1 & echo $! >left"]).is(0);
    let left = bench.pid("left");
    assert!(is_alive(left) && bench.held().is_empty());
    send(left, Signal::KILL);
}
