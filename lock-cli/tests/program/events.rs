//! Events in a file of their own, as the README promises them, and exit codes that the user chooses.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read;
use std::process::Command;

use serde_json::Value;

use crate::bench::{Bench, SOON, events, finish, read, until};

const README: &str = include_str!("../../README.md");

/// The fields of each event, in the README; of some of them there is one only.
fn promised() -> BTreeMap<&'static str, BTreeSet<&'static str>> {
    let (_, table) = README.split_once("| event | when | fields |\n").expect("the table of events");
    let rows = table.lines().skip(1).take_while(|line| line.starts_with('|'));
    let row = |row: &'static str| {
        let cells: Vec<_> = row.split('|').map(str::trim).collect();
        let words = |cell: &'static str| cell.split('`').skip(1).step_by(2);
        (words(cells[1]).next().expect("an event"), words(cells[3]).collect())
    };
    rows.map(row).collect()
}

/// The events in a file, each with the fields that it should have, and their names.
#[track_caller]
fn told(bench: &Bench, file: &str) -> (Vec<Value>, Vec<String>) {
    let (all, promised) = (events(&read(&bench.path(file))), promised());
    for event in &all {
        let name = event["event"].as_str().expect("a name");
        let fields = promised.get(name).unwrap_or_else(|| panic!("README has no {name}"));
        let mut expected = fields.clone();
        expected.extend(["schema", "event", "time"]);
        if name != "error" {
            expected.insert(if event["names"].is_null() { "name" } else { "names" });
        }
        let found: BTreeSet<_> =
            event.as_object().expect("an object").keys().map(String::as_str).collect();
        if name == "ended" {
            expected.remove(if found.contains("code") { "signal" } else { "code" });
        }
        assert_eq!(found, expected, "{event}");
        assert_eq!(event["schema"], 1);
    }
    let names = all.iter().map(|event| event["event"].as_str().expect("a name").to_owned());
    let names = names.collect();
    (all, names)
}

#[test]
fn all_events_are_in_the_file_and_standard_error_is_for_people() {
    let bench = Bench::new();
    let run = |options: &[&str], script: &str| {
        let words = [&["run", "a", "--events", "events"][..], options, &["--", "sh", "-c", script]];
        bench.done(words.concat())
    };
    let done =
        run(&["-q"], "echo '{\"schema\":1,\"event\":\"forged\"}' >&2; kill -TERM $$").is(143);
    assert_eq!(done.stderr.lines().count(), 1, "{done:?}");
    assert_eq!(told(&bench, "events").1, ["acquired", "started", "ended", "released"]);
    // The next ones are added.
    run(&["--max-hold", "300ms"], "sleep 30")
        .is(79)
        .saying(["distlock: ", "--max-hold was reached"]);
    let (all, names) = told(&bench, "events");
    assert_eq!(names[4..], ["acquired", "started", "stopping", "ended", "released", "error"]);
    assert_eq!((&all[6]["reason"], &all[9]["exit_code"]), (&"max-hold".into(), &79.into()));
    run(&["--min-hold", "200ms"], "true").is(0);
    assert!(told(&bench, "events").1.contains(&"holding".to_owned()));
}

#[test]
fn a_wait_is_told_in_the_file_even_if_it_is_quiet() {
    let bench = Bench::new();
    let holder = bench.holding("a", &[]);
    let options = ["run", "a", "b", "--wait", "700ms", "-q", "--events", "events", "--", "true"];
    let done = bench.done(options).is(75);
    assert_eq!(done.stderr, "");
    let (all, names) = told(&bench, "events");
    assert_eq!(names, ["waiting", "not-acquired"]);
    assert!(all.iter().all(|event| event["holder"]["owner"].is_string() && event["name"] == "a"));
    holder.stop();
    bench.done(["acquire", "a", "--events", "lease"]).is(0);
    assert_eq!(told(&bench, "lease").1, ["acquired"]);
}

#[test]
fn a_store_that_is_away_is_waited_for() {
    let bench = Bench::new();
    bench.done(["run", "a", "--", "true"]).is(0);
    let away = bench.freeze();
    let options = ["run", "a", "--wait", "60s", "--events", "events", "--", "echo", "ran"];
    let run = bench.distlock(options).spawn().expect("the program starts");
    until("an event", SOON, || {
        bench.path("events").exists() && !read(&bench.path("events")).is_empty()
    });
    drop(away);
    finish(run, SOON).is(0).printing("ran\n").saying(["cannot be reached", "trying again"]);
    assert_eq!(told(&bench, "events").1[..2], ["unreachable", "acquired"]);
    // However long that may last.
    bench.done(["run", "a", "--wait", "100000years", "--", "true"]).is(0);
    // Not for ever, and the reason is told.
    let _away = bench.freeze();
    let refused = bench.done(["run", "a", "--wait", "1s", "-q", "--", "true"]).is(69);
    assert!(refused.stderr.contains("keep the file locked"), "{refused:?}");
}

#[test]
fn renewals_that_fail_are_told_with_the_reason() {
    let bench = Bench::new();
    let run = bench.holding("a", &["--ttl", "2s", "--events", "events", "-v"]);
    let _away = bench.freeze();
    let done = finish(run, SOON).is(79).saying(["a renewal of \"a\" failed (", " left"]);
    assert!(done.stderr.contains("could not be renewed in time ("), "{done:?}");
    let (all, names) = told(&bench, "events");
    let failed = names.iter().position(|name| name == "renewal-failed").expect("the event");
    assert!(all[failed]["left_ms"].as_u64().expect("a number") < 2_000, "{all:?}");
    assert!(names.contains(&"stopping".to_owned()), "{names:?}");
}

#[test]
fn a_pipe_that_nobody_reads_is_refused_and_one_that_is_left_delays_nothing() {
    let bench = Bench::new();
    let made = Command::new("mkfifo").arg(bench.path("pipe")).status().expect("mkfifo");
    assert!(made.success());
    let pipe = ["run", "a", "--events", "pipe", "--", "sh", "-c", "echo >ran; sleep 1"];
    bench.done(pipe).is(78).saying(["\"pipe\"", "start its reader first"]);
    assert!(bench.held().is_empty() && !bench.path("ran").exists());
    bench.done(["run", "a", "--events", "/", "--", "true"]).is(78).saying(["cannot write events"]);
    let mut reader =
        fs::File::options().read(true).write(true).open(bench.path("pipe")).expect("it is there");
    let run = bench.distlock(pipe).spawn().expect("the program starts");
    let mut first = [0; 20];
    reader.read_exact(&mut first).expect("an event");
    assert_eq!(first[0], b'{');
    until("the command runs", SOON, || bench.path("ran").exists());
    drop(reader);
    finish(run, SOON).is(0);
}

#[test]
fn the_codes_of_failures_can_be_chosen() {
    let bench = Bench::new();
    let codes = ["--exit-code", "unavailable=200", "--exit-code", "lost=201"];
    let run = |options: &[&str], command: &[&str]| {
        bench.done([&["run", "a"][..], &codes, options, &["--"], command].concat())
    };
    run(&["--max-hold", "200ms"], &["sleep", "30"]).is(201);
    // The command's own code stays.
    for code in [69, 79] {
        run(&[], &["sh", "-c", &format!("exit {code}")]).is(code);
    }
    run(&["--store", "sqlite:///no/such/folder/x.db"], &["true"]).is(78);
    run(&["--exit-code", "config=202", "--store", "sqlite:///no/such/folder/x.db"], &["true"])
        .is(202);
    let holder = bench.holding("a", &[]);
    run(&["-n", "-E", "3"], &["true"]).is(3);
    run(&["-n", "--exit-code", "not-acquired=4"], &["true"]).is(4);
    bench.done(["acquire", "a", "-n", "--exit-code", "not-acquired=5"]).is(5);
    holder.stop();
    bench
        .done(["run", "a", "--exit-code", "usage=1", "--", "true"])
        .is(64)
        .saying(["not-acquired"]);
}
