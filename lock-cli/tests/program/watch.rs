//! `watch`, for programs and on a terminal.

use std::io::{BufRead, BufReader, Lines};
use std::process::ChildStdout;
use std::time::Duration;

use serde_json::Value;

use crate::bench::{Bench, Running, SOON, finish, id, pause, send, until};
use crate::terminal::Terminal;
use rustix::io::ioctl_fionread;
use rustix::process::Signal;

/// `watch` with its output in a pipe.
pub(crate) struct Watching {
    program: Running,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Watching {
    pub(crate) fn start(bench: &Bench, args: &[&str]) -> Self {
        let args = [&["watch", "--every", "50ms"][..], args].concat();
        let mut program = bench.distlock(args).spawn().expect("the program starts");
        let lines = BufReader::new(program.stdout.take().expect("a pipe")).lines();
        Self { program: program.into(), lines }
    }

    pub(crate) fn next(&mut self) -> Value {
        let line = self.lines.next().expect("a line").expect("text");
        let event: Value = serde_json::from_str(&line).expect("JSON");
        assert!(event["schema"] == 1 && event["time"].as_str().is_some(), "{event}");
        event
    }
}

#[test]
fn each_change_is_a_line() {
    let bench = Bench::new();
    let mut watching = Watching::start(&bench, &["a", "b"]);
    for name in ["a", "b"] {
        let first = watching.next();
        assert_eq!((&first["event"], &first["name"]), (&"first".into(), &name.into()));
        assert_eq!((&first["held"], &first["changes"]), (&false.into(), &0.into()));
    }
    let holder = bench.holding("b", &["--label", "night\u{202e}"]);
    let taken = watching.next();
    assert_eq!((&taken["event"], &taken["name"]), (&"taken".into(), &"b".into()));
    assert_eq!(taken["holder"]["label"], "night\u{202e}");
    assert_eq!(taken["holder"]["fence"], bench.status("b")["holder"]["fence"]);
    holder.stop();
    let freed = watching.next();
    assert_eq!(
        (&freed["event"], &freed["changes"], &freed["lost"]),
        (&"freed".into(), &2.into(), &0.into())
    );
    // Nobody renews the lock of a killed holder.
    drop(bench.holding("a", &["--ttl", "1s"]));
    assert_eq!(watching.next()["event"], "taken");
    let freed = watching.next();
    assert_eq!(
        (&freed["event"], &freed["name"], &freed["lost"]),
        (&"freed".into(), &"a".into(), &1.into())
    );
    send(id(&watching.program), Signal::TERM);
    let done = finish(watching.program, SOON).is(143);
    assert_eq!(done.stderr, "");
}

#[test]
fn a_signal_ends_it_although_nobody_reads() {
    let bench = Bench::new();
    // More than a pipe has room for.
    let names: Vec<_> = (100..300).map(|number| format!("{number}{}", "x".repeat(500))).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    for signal in [Signal::TERM, Signal::INT] {
        let mut program = bench.distlock([&["watch"][..], &names].concat()).spawn().unwrap();
        let pipe = program.stdout.take().unwrap();
        let mut before = 0;
        until("the pipe is full", SOON, || {
            pause(Duration::from_millis(300));
            let now = ioctl_fionread(&pipe).unwrap();
            std::mem::replace(&mut before, now) == now && now > 0
        });
        send(id(&program), signal);
        finish(program, SOON).is(128 + signal.as_raw());
    }
}

#[test]
fn it_ends_when_nobody_reads_it_any_more() {
    let bench = Bench::new();
    let mut watching = Watching::start(&bench, &["a"]);
    watching.next();
    drop(watching.lines);
    let holder = bench.holding("a", &[]);
    let done = finish(watching.program, SOON).is(0);
    assert_eq!(done.stderr, "");
    holder.stop();
}

#[test]
fn what_will_not_mend_itself_ends_it() {
    let bench = Bench::new();
    bench.done(["watch", "a\nb"]).is(64).printing("").saying(["control character"]);
    bench.done(["watch", "a", "--every", "1ms"]).is(64).printing("").saying(["50ms"]);
    bench.done(["watch"]).is(64);
}

#[test]
fn on_a_terminal_one_table_is_drawn_again() {
    let bench = Bench::new();
    let mut terminal = Terminal::new(&bench, "exec distlock watch a b --every 50ms");
    let first = terminal.shows("\u{1b}[J");
    assert!(first.contains("HOLDER") && first.matches("free").count() == 2, "{first}");
    assert!(!first.contains("\u{1b}[3F"), "nothing to go up to: {first}");
    let holder = bench.holding("a", &["--label", "night shift"]);
    let taken = terminal.shows("night shift");
    assert!(taken.contains("\u{1b}[3F"), "it goes up to where the table began: {taken}");
    holder.stop();
    // Two changes: taken and freed.
    pause(Duration::from_millis(300));
    terminal.types("\u{3}");
    let done = terminal.done().is(130);
    let last =
        done.stdout.rsplit("\u{1b}[3F").find(|frame| frame.contains("HOLDER")).expect("a frame");
    let row = last.lines().find(|line| line.starts_with("a ")).expect("a row");
    let words: Vec<_> = row.trim_end_matches("\u{1b}[K").split_whitespace().collect();
    assert_eq!(words[..2], ["a", "free"], "{done:?}");
    assert!(row.contains(" 2 "), "{row:?}");
}
