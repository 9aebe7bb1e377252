//! `run` with permits, and as a reader or a writer.

use std::collections::BTreeSet;

use crate::bench::{Bench, Running, SOON, finish, read, until};

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
        bench.done(["run", "gpu", "--permits", "2", "-w", "300ms", "-E", "3", "--", "echo", "ran"]);
    done.is(3).printing("");
    let waits =
        bench.distlock(["run", "gpu", "--permits", "2", "--", "echo", "ran"]).spawn().unwrap();
    let [one, other] = running;
    one.stop();
    finish(waits, SOON).is(0).printing("ran\n");
    other.stop();
    assert!(bench.held().is_empty());
}

#[test]
fn readers_run_side_by_side_and_a_writer_alone() {
    let bench = Bench::new();
    let read = || -> Running {
        bench.distlock(["run", "prices", "--read", "--", "sh", "-c", SAYS]).spawn().unwrap().into()
    };
    let readers = [read(), read()];
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
