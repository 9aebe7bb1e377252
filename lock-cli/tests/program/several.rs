//! `run` with several names: all or none, in one order; and what a loss does to the command.

use std::time::Duration;

use serde_json::Value;

use crate::bench::{Bench, SOON, events, finish, id, pause, send, until};
use rustix::process::Signal;

#[test]
fn the_command_learns_of_all_its_locks_in_the_order_given() {
    let bench = Bench::new();
    let script = "echo \"$DISTLOCK_NAME\" >names; echo \"$DISTLOCK_FENCE\" >fences; echo \"$DISTLOCK_OWNER\" >owners; echo >ready; sleep 30";
    let args = ["run", "b", "a", "c", "--", "sh", "-c", script];
    let run: crate::bench::Running = bench.distlock(args).spawn().unwrap().into();
    bench.line("ready");
    let lines = |file| crate::bench::read(&bench.path(file));
    assert_eq!(lines("names"), "b\na\nc\n");
    let shown: Vec<_> = ["b", "a", "c"].map(|name| bench.status(name)["holder"].clone()).into();
    let fences: String = shown.iter().map(|holder| format!("{}\n", holder["fence"])).collect();
    assert_eq!(lines("fences"), fences);
    for (owner, holder) in lines("owners").lines().zip(&shown) {
        assert_eq!((owner.len(), &owner[..8]), (32, holder["owner"].as_str().unwrap()));
    }
    run.stop();
    assert!(bench.held().is_empty());
}

#[test]
fn all_or_none_are_taken() {
    let bench = Bench::new();
    let holder = bench.holding("b", &["--label", "the other"]);
    let done = bench.done(["run", "c", "b", "a", "-n", "--", "echo", "ran"]).is(75).printing("");
    assert!(done.stderr.contains("\"b\" not acquired: held by the other"), "{done:?}");
    assert_eq!(bench.held(), ["b"]);
    let done = bench.done(["run", "a", "b", "--wait", "600ms", "-E", "3", "--", "echo", "ran"]);
    done.is(3).printing("");
    assert_eq!(bench.held(), ["b"]);
    // A signal ends the wait for the second, and gives up the first.
    let run = bench.distlock(["run", "a", "b", "--", "echo", "ran"]).spawn().unwrap();
    until("the first is held", SOON, || bench.is_held("a"));
    send(id(&run), Signal::TERM);
    finish(run, SOON).is(143).printing("");
    assert_eq!(bench.held(), ["b"]);
    holder.stop();
}

#[test]
fn two_orders_of_the_same_names_do_not_wait_for_each_other_forever() {
    let bench = Bench::new();
    let runs: Vec<_> = (0..6)
        .map(|nth| {
            let names = if nth % 2 == 0 { ["a", "b"] } else { ["b", "a"] };
            let script = "mkdir alone && sleep 0.05 && rmdir alone";
            let args = [&["run"][..], &names, &["--", "sh", "-c", script]].concat();
            bench.distlock(args).spawn().unwrap()
        })
        .collect();
    for run in runs {
        finish(run, SOON * 2).is(0);
    }
}

#[test]
fn the_command_stops_when_one_of_its_locks_is_lost() {
    let bench = Bench::new();
    for lost in ["a", "b"] {
        let options = ["--ttl", "2s", "--json"];
        let args =
            [&["run", "a", "b"][..], &options, &["--", "sh", "-c", "echo >ready; exec sleep 30"]];
        let run = bench.distlock(args.concat()).spawn().unwrap();
        bench.line("ready");
        std::fs::remove_file(bench.path("ready")).unwrap();
        bench.done(["release", lost, "--force", "--yes"]).is(0);
        let done = finish(run, SOON).is(79);
        let events = events(&done.stderr);
        let message = events.last().unwrap()["message"].as_str().unwrap();
        assert!(message.starts_with(&format!("\"{lost}\" was lost")), "{done:?}");
        let of = |event: &str| {
            events.iter().filter(|e| e["event"] == event).cloned().collect::<Vec<Value>>()
        };
        assert_eq!(
            of("acquired").iter().map(|e| e["name"].clone()).collect::<Vec<_>>(),
            ["a", "b"]
        );
        assert_eq!(of("started")[0]["names"], serde_json::json!(["a", "b"]));
        // The other one is given back.
        assert_eq!(of("released").len(), 1, "{done:?}");
        assert!(bench.held().is_empty(), "{:?}", bench.held());
    }
}

/// The last one taken is the first one given back.
#[test]
fn locks_are_given_back_in_reverse() {
    let bench = Bench::new();
    let done = bench.done(["run", "c", "a", "b", "--json", "--", "true"]).is(0);
    let released = events(&done.stderr).into_iter().filter(|event| event["event"] == "released");
    assert_eq!(released.map(|event| event["name"].clone()).collect::<Vec<_>>(), ["c", "b", "a"]);
}

#[test]
fn a_lock_that_is_lost_while_waiting_for_the_next_ends_the_wait() {
    let bench = Bench::new();
    let holder = bench.holding("b", &[]);
    let run =
        bench.distlock(["run", "a", "b", "--ttl", "2s", "--", "echo", "ran"]).spawn().unwrap();
    until("the first is held", SOON, || bench.is_held("a"));
    pause(Duration::from_millis(100));
    bench.done(["release", "a", "--force", "--yes"]).is(0);
    let done = finish(run, SOON).is(79).printing("");
    assert!(done.stderr.contains("\"a\" was lost while waiting for \"b\""), "{done:?}");
    holder.stop();
}

#[test]
fn a_name_given_twice_is_64() {
    let done = Bench::new().done(["run", "a", "b", "a", "--", "echo", "ran"]).is(64).printing("");
    done.saying(["\"a\" is named twice"]);
}

/// `--on-lost`: a command that would clean up gets no time for it, or goes on to its end.
#[test]
fn a_loss_kills_or_is_ignored_as_asked() {
    let job = "trap 'echo asked >>log; exit 1' TERM; echo >ready; for i in 1 2 3 4 5 6 7 8 9 10; do sleep 0.2; done; echo end >>log";
    for (on_lost, log, word) in [
        ("term", "asked\n", "stopping the command"),
        ("kill", "", "stopping the command"),
        ("ignore", "end\n", "the command went on to its end"),
    ] {
        let bench = Bench::new();
        let run = bench.hold("a", &["--ttl", "1s", "--on-lost", on_lost], job);
        bench.line("ready");
        bench.done(["release", "a", "--force", "--yes"]).is(0);
        finish(run, SOON).is(79).saying([word]);
        assert_eq!(crate::bench::read(&bench.path("log")), log, "{on_lost}");
    }
}

/// A lease that cannot be renewed: killed just before its end, without a word, or left alone.
#[test]
fn a_lease_that_ends_kills_or_is_ignored_as_asked() {
    let job = "trap 'echo asked >>log; exit 1' TERM; echo >ready; for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do sleep 0.2; done; echo end >>log";
    for (on_lost, log) in [("kill", ""), ("ignore", "end\n")] {
        let bench = Bench::new();
        let run = bench.hold("a", &["--ttl", "1s", "--on-lost", on_lost], job);
        bench.line("ready");
        let frozen = bench.freeze();
        finish(run, SOON).is(79);
        drop(frozen);
        assert_eq!(crate::bench::read(&bench.path("log")), log, "{on_lost}");
    }
}
