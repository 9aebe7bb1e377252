//! `run` with permits, and as a reader or a writer; and what other commands show of them under their name.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::Value;

use crate::bench::{Bench, Running, SOON, finish, pause, read, until};
use crate::watch::Watching;

/// A command that says its slot, and waits.
const SAYS: &str = "echo \"$DISTLOCK_SLOT $DISTLOCK_NAME\" >ready.$$; exec sleep 30";

fn started(bench: &Bench) -> Vec<String> {
    let files = std::fs::read_dir(bench.path(".")).expect("the folder");
    let names = files.map(|file| file.expect("a file").file_name().into_string().expect("a name"));
    let ready = names.filter(|name| name.starts_with("ready."));
    ready
        .map(|name| read(&bench.path(&name)).trim().to_owned())
        .filter(|text| !text.is_empty())
        .collect()
}

#[test]
fn as_many_commands_run_as_there_are_permits() {
    let bench = Bench::new();
    let run = || -> Running {
        bench
            .distlock(["run", "gpu", "--permits", "2", "--", "sh", "-c", SAYS])
            .spawn()
            .unwrap()
            .into()
    };
    let running = [run(), run()];
    until("two commands run", SOON, || started(&bench).len() == 2);
    let slots: BTreeSet<_> = started(&bench).into_iter().collect();
    assert_eq!(slots, BTreeSet::from(["0 gpu".to_owned(), "1 gpu".to_owned()]));
    let done =
        bench.done(["run", "gpu", "--permits", "2", "-n", "--", "echo", "ran"]).is(75).printing("");
    assert!(done.stderr.contains("\"gpu\" not acquired: all its permits are taken"), "{done:?}");
    let done =
        bench.done(["run", "gpu", "--permits", "2", "-w", "3s", "-E", "3", "--", "echo", "ran"]);
    done.is(3).printing("");
    let waits =
        bench.distlock(["run", "gpu", "--permits", "2", "--", "echo", "ran"]).spawn().unwrap();
    let [one, other] = running;
    one.stop();
    finish(waits, SOON).is(0).printing("ran\n");
    other.stop();
    assert!(bench.held().is_empty());
}

fn reads(bench: &Bench) -> Running {
    let mut command = bench.distlock(["run", "prices", "--read", "--", "sh", "-c", SAYS]);
    command.spawn().expect("it starts").into()
}

/// Its limit begins when it has the lock.
#[test]
fn a_writer_may_wait_for_longer_than_it_holds() {
    let bench = Bench::new();
    let reader = reads(&bench);
    until("a reader runs", SOON, || started(&bench).len() == 1);
    let limits = ["--write", "--max-hold", "500ms", "--kill-after", "100ms"];
    let writes = [&["run", "prices"][..], &limits, &["--", "echo", "ran"]].concat();
    let writes = bench.distlock(writes).spawn().unwrap();
    pause(Duration::from_secs(2));
    reader.stop();
    finish(writes, SOON).is(0).printing("ran\n");
}

#[test]
fn a_wait_of_no_time_asks_once() {
    let bench = Bench::new();
    let writes = || bench.done(["run", "prices", "--write", "--wait", "0s", "--", "echo", "ran"]);
    writes().is(0).printing("ran\n");
    let reader = reads(&bench);
    until("a reader runs", SOON, || started(&bench).len() == 1);
    writes().is(75).printing("");
    reader.stop();
}

#[test]
fn readers_run_side_by_side_and_a_writer_alone() {
    let bench = Bench::new();
    let readers = [reads(&bench), reads(&bench)];
    until("two readers run", SOON, || started(&bench).len() == 2);
    let done =
        bench.done(["run", "prices", "--write", "-n", "--", "echo", "ran"]).is(75).printing("");
    assert!(done.stderr.contains("other clients read or write"), "{done:?}");
    let writes = bench.distlock(["run", "prices", "--write", "--", "echo", "ran"]).spawn().unwrap();
    for reader in readers {
        reader.stop();
    }
    finish(writes, SOON).is(0).printing("ran\n");
    let script = "echo >writing; exec sleep 30";
    let writer: Running = bench
        .distlock(["run", "prices", "--write", "--", "sh", "-c", script])
        .spawn()
        .unwrap()
        .into();
    bench.line("writing");
    let done =
        bench.done(["run", "prices", "--read", "-n", "--", "echo", "ran"]).is(75).printing("");
    assert!(done.stderr.contains("another client writes"), "{done:?}");
    writer.stop();
    assert!(bench.held().is_empty());
}

#[test]
fn kinds_are_one_at_a_time() {
    let bench = Bench::new();
    for options in [
        ["--permits=0", "-q"],
        ["--permits=257", "-q"],
        ["--read", "--write"],
        ["--permits=2", "--read"],
    ] {
        bench.done([&["run", "a"][..], &options, &["--", "true"]].concat()).is(64);
    }
    let done = bench.done(["run", "a~~p0", "--", "true"]).is(64);
    assert!(done.stderr.contains("~~p0"), "{done:?}");
}

/// Permits of one name, each held by a command with the label of its place here. Returns their numbers.
fn with_permits(bench: &Bench, labels: &[&str]) -> Vec<(Running, u64)> {
    let hold = |label: &&str| {
        let script = "echo $DISTLOCK_SLOT >slot; exec sleep 30";
        let run = bench.hold("gpu", &["--permits=4", "--ttl=6s", "--label", *label], script);
        let slot = bench.line("slot").parse().expect("a number");
        std::fs::remove_file(bench.path("slot")).expect("it was written");
        (run, slot)
    };
    labels.iter().map(hold).collect()
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn permits_are_shown_as_one_under_their_name() {
    let bench = Bench::new();
    let mut held = with_permits(&bench, &["one", "two", "three"]);
    held.sort_by_key(|(_, slot)| *slot);
    let slots: Vec<_> = held.iter().map(|(_, slot)| slot.to_string()).collect();
    let (count, listed) = (slots.iter().filter(|slot| *slot != "3").count(), slots.join(", "));

    let text = bench.done(["status", "gpu"]).is(0).stdout;
    let lines: Vec<_> = text.lines().collect();
    assert!(lines[0].starts_with(&format!("\"gpu\" is held: 3 permits ({listed})")), "{text}");
    assert_eq!(lines.len(), 4, "{text}");
    for (line, slot) in lines[1..].iter().zip(&slots) {
        assert!(line.starts_with(&format!("  permit {slot}: ")), "{text}");
        assert!(line.contains(", owner ") && line.contains("fence "), "{text}");
    }
    let four = bench.done(["status", "gpu", "--permits", "4"]).is(0).stdout;
    assert!(four.starts_with(&format!("\"gpu\" is held: 3 of 4 permits ({listed})")), "{four}");
    let three = bench.done(["status", "gpu", "--permits", "3"]).is(0).stdout;
    assert!(three.starts_with(&format!("\"gpu\" is held: {count} of 3 permits")), "{three}");
    bench.done(["status", "gpu", "-q"]).is(0).printing("");
    bench.done(["status", "gpu", "--permits=0"]).is(64);

    let status = json(&bench.done(["status", "gpu", "--permits=4", "--json"]).is(0).stdout);
    assert_eq!((&status["held"], &status["holder"]), (&true.into(), &Value::Null));
    assert_eq!(status["permits"], serde_json::json!({ "held": 3, "of": 4 }));
    let holders = status["holders"].as_array().unwrap();
    let shown: Vec<_> = holders.iter().map(|holder| holder["slot"].as_u64().unwrap()).collect();
    assert_eq!(shown, held.iter().map(|(_, slot)| *slot).collect::<Vec<_>>());
    assert!(holders.iter().all(|holder| holder["as"] == "permit" && holder["fence"].is_u64()));
    let labels: BTreeSet<_> = holders.iter().map(|h| h["label"].as_str().unwrap()).collect();
    assert_eq!(labels, BTreeSet::from(["one", "two", "three"]));

    let list = bench.done(["list"]).is(0).stdout;
    let rows: Vec<_> = list.lines().skip(1).collect();
    assert!(rows.len() == 1 && rows[0].contains(&format!("3 permits ({listed})")), "{list}");
    assert_eq!(bench.status("gpu")["permits"]["of"], Value::Null, "nobody has said how many");
    held.into_iter().for_each(|(run, _)| run.stop());
    bench.done(["status", "gpu", "--permits", "4"]).is(0);
}

#[test]
fn readers_and_a_writer_are_shown_as_one_under_their_name() {
    let bench = Bench::new();
    let run = |label: &str, side: &str| {
        let run = bench.hold("prices", &[side, "--label", label], "echo >in; exec sleep 30");
        bench.line("in");
        std::fs::remove_file(bench.path("in")).unwrap();
        run
    };
    let readers = [run("report", "--read"), run("export", "--read")];
    let writer = bench.hold("prices", &["--write", "--label", "import"], "echo >in; exec sleep 30");
    until("the writer is next", SOON, || {
        bench.status("prices")["holders"].as_array().unwrap().len() == 3
    });
    let text = bench.done(["status", "prices"]).is(0).stdout;
    assert!(text.starts_with("\"prices\" is held: 2 readers, a writer is next"), "{text}");
    for line in ["  reader: report (held", "  reader: export (held", "  writer: import (held"] {
        assert_eq!(text.matches(line).count(), 1, "{text}");
    }
    // A reader that gave up is told what it waited for, and of no mark of this library.
    let done = bench.done(["run", "prices", "--read", "--wait=3s", "--", "true"]).is(75);
    assert!(!done.stderr.contains('~'), "{done:?}");
    let list = bench.done(["list"]).is(0).stdout;
    let rows: Vec<_> = list.lines().skip(1).collect();
    assert!(rows.len() == 1 && rows[0].contains("2 readers, a writer is next"), "{list}");
    readers.into_iter().for_each(Running::stop);
    bench.line("in");
    let status = bench.status("prices");
    assert_eq!(status["holders"][0]["as"], "writer", "{status}");
    let list = bench.done(["list"]).is(0).stdout;
    assert!(list.contains("writer: import"), "{list}");
    writer.stop();
    bench.done(["status", "prices"]).is(0).printing("\"prices\" is free\n");
    bench.done(["status", "prices", "-q"]).is(1);
}

#[test]
fn a_forced_release_ends_all_permits_or_the_one_that_is_named() {
    let bench = Bench::new();
    let mut held = with_permits(&bench, &["one", "two", "three"]);
    let (first, slot) = held.remove(0);
    let one = slot.to_string();
    let unasked = bench.done(["release", "gpu", "--force"]).is(64).printing("");
    for word in ["3 holders", ": one (held", ": two (held", ": three (held", "--yes"] {
        assert!(unasked.stderr.contains(word), "{word}: {unasked:?}");
    }
    bench.done(["release", "gpu", "--slot", &one]).is(64);
    let other = ["release", "gpu", "--force", "--yes", "--owner=00000000"];
    bench.done(other).is(75).printing("").saying([": one (held", "nothing was released"]);
    let done = bench.done(["release", "gpu", "--force", "--yes", "--slot", &one]).is(0);
    assert!(done.stdout.starts_with(&format!("released permit {one} of \"gpu\"")), "{done:?}");
    assert_eq!(done.stdout.lines().count(), 1, "{done:?}");
    finish(first, SOON).is(79);
    let free = bench.done(["release", "gpu", "--force", "--yes", "--slot", &one]).is(0);
    assert!(free.stdout.contains(&format!("permit {one} of \"gpu\" is free")), "{free:?}");
    assert_eq!(bench.status("gpu")["permits"]["held"], 2, "the others have theirs");

    let done = json(&bench.done(["release", "gpu", "--force", "--yes", "--json"]).is(0).stdout);
    assert_eq!((&done["released"], &done["holder"]), (&true.into(), &Value::Null));
    let released: BTreeSet<_> =
        done["holders"].as_array().unwrap().iter().map(|h| h["slot"].as_u64().unwrap()).collect();
    assert_eq!(released, held.iter().map(|(_, slot)| *slot).collect());
    held.into_iter().for_each(|(run, _)| drop(finish(run, SOON).is(79)));
    assert!(bench.held().is_empty());
    let free = bench.done(["release", "gpu", "--force", "--yes"]).is(0);
    free.printing("\"gpu\" is free: nothing to release\n");
}

#[test]
fn a_forced_release_ends_readers_and_the_writer() {
    let bench = Bench::new();
    let reader = bench.holding("prices", &["--read", "--ttl=6s"]);
    let writer = bench.hold("prices", &["--write", "--ttl=6s"], "exec sleep 30");
    until("the writer is next", SOON, || {
        bench.status("prices")["holders"].as_array().unwrap().len() == 2
    });
    let done = bench.done(["release", "prices", "--force", "--yes"]).is(0);
    for line in [
        "released a read lock on \"prices\"; it was held by",
        "released the write lock on \"prices\"",
    ] {
        assert_eq!(done.stdout.matches(line).count(), 1, "{done:?}");
    }
    finish(reader, SOON).is(79);
    drop(writer);
}

#[test]
fn each_permit_that_changes_hands_is_a_line_of_watch() {
    let bench = Bench::new();
    let mut watching = Watching::start(&bench, &["gpu", "--permits=4"]);
    let first = watching.next();
    assert_eq!(first["permits"], serde_json::json!({ "held": 0, "of": 4 }));
    let mut held = with_permits(&bench, &["one"]);
    let taken = watching.next();
    assert_eq!((&taken["event"], &taken["name"]), (&"taken".into(), &"gpu".into()));
    assert_eq!(taken["holders"][0]["label"], "one");
    held.extend(with_permits(&bench, &["two"]));
    let mut next = watching.next();
    while next["event"] == "queue" {
        next = watching.next();
    }
    assert_eq!((&next["event"], &next["permits"]["held"]), (&"taken".into(), &2.into()));
    held.remove(0).0.stop();
    let mut next = watching.next();
    while next["event"] == "queue" {
        next = watching.next();
    }
    assert_eq!((&next["event"], &next["changes"]), (&"freed".into(), &3.into()));
    assert_eq!(next["holders"][0]["label"], "two");
    held.remove(0).0.stop();
}

/// A leader has the lock of the name: its value is the label, and its term the fence.
#[test]
fn a_leader_is_shown_under_the_name_of_its_election() {
    let bench = Bench::new();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let (locks, leadership) = runtime.block_on(async {
        let locks = distlock::connect(&bench.url()).await.unwrap();
        let election = locks.election("scheduler").unwrap();
        (locks, election.campaign("10.0.0.7:80").await.unwrap())
    });
    let status = bench.status("scheduler");
    assert_eq!(status["holder"]["label"], "10.0.0.7:80");
    assert_eq!(status["holder"]["fence"], leadership.term().unwrap().get());
    assert_eq!(bench.held(), ["scheduler"]);
    runtime.block_on(async { leadership.resign().await.unwrap() });
    assert!(!bench.is_held("scheduler"));
    drop(locks);
}
