//! With a person at a terminal, made by script(1).

use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::bench::{
    Bench, Done, Running, SOON, child_of, finish, is_alive, pause, read, send, stat, until,
};
#[cfg(feature = "redis")]
use crate::redis::Plain;
use rustix::process::Signal;

/// A terminal; what is written to its standard input is typed.
pub(crate) struct Terminal(Running);

impl Terminal {
    /// One in which a shell runs `line`, and finds `distlock` on its path.
    pub(crate) fn new(bench: &Bench, line: &str) -> Self {
        let mut command = Command::new("script");
        command
            .args(["--quiet", "--return", "--command", line, "/dev/null"])
            .env("SHELL", "/bin/sh");
        bench.prepare(&mut command);
        Self(
            command.stdin(Stdio::piped()).spawn().expect("script(1) of util-linux is there").into(),
        )
    }

    pub(crate) fn types(&mut self, keys: &str) {
        let stdin = self.0.stdin.as_mut().expect("a pipe");
        stdin.write_all(keys.as_bytes()).and_then(|()| stdin.flush()).expect("the terminal reads");
    }

    /// Everything shown up to and including `text`.
    pub(crate) fn shows(&mut self, text: &str) -> String {
        let stdout = self.0.stdout.as_mut().expect("a pipe");
        let mut shown = Vec::new();
        while !shown.ends_with(text.as_bytes()) {
            let mut byte = [0];
            stdout.read_exact(&mut byte).expect("the terminal shows something");
            shown.push(byte[0]);
        }
        String::from_utf8_lossy(&shown).into_owned()
    }

    pub(crate) fn done(self) -> Done {
        finish(self.0, SOON)
    }
}

#[test]
fn the_command_can_read_from_the_terminal() {
    let bench = Bench::new();
    let line = "exec distlock run a -- sh -c 'echo >ready; read x </dev/tty; echo \"got <$x>\"; read y; echo \"and <$y>\"'";
    let mut terminal = Terminal::new(&bench, line);
    bench.line("ready");
    terminal.types("first\nsecond\n");
    let done = terminal.done().is(0);
    assert!(
        done.stdout.contains("got <first>") && done.stdout.contains("and <second>"),
        "{done:?}"
    );
}

#[test]
fn an_interrupt_key_reaches_the_command_once() {
    let bench = Bench::new();
    std::fs::write(bench.path("job"), "trap 'echo INT >>log' INT; trap 'exit 4' TERM; echo $$ >ready; while :; do sleep 0.02; done").unwrap();
    let line = "exec distlock run a -- sh job";
    let mut terminal = Terminal::new(&bench, line);
    let command = bench.pid("ready");
    for nth in 1..=2 {
        terminal.types("\u{3}");
        until("the interrupt", SOON, || !read(&bench.path("log")).is_empty());
        // Time for a second copy, which must not arrive.
        pause(Duration::from_millis(400));
        assert_eq!(read(&bench.path("log")).lines().count(), nth);
    }
    send(command, Signal::TERM);
    terminal.done().is(4);
}

#[test]
fn an_interrupt_key_ends_the_script_around_it() {
    let bench = Bench::new();
    std::fs::write(
        bench.path("script"),
        "for name in a b; do distlock run $name -- sh -c 'echo >>started; exec sleep 30'; done; echo over",
    )
    .unwrap();
    let mut terminal = Terminal::new(&bench, "exec bash script");
    bench.line("started");
    terminal.types("\u{3}");
    let done = terminal.done().is(130);
    assert!(!done.stdout.contains("over"), "{done:?}");
    assert_eq!(read(&bench.path("started")).lines().count(), 1);
}

/// While the supervisor starts, and before the command has begun.
#[test]
fn an_early_interrupt_key_is_not_lost() {
    let bench = Bench::new();
    for tenth in 0..20 {
        let _ = std::fs::remove_file(bench.path("run"));
        let line = "echo $$ >run; exec distlock run a -- sh -c 'sleep 1; echo swallowed'";
        let mut terminal = Terminal::new(&bench, line);
        let run = bench.pid("run");
        child_of(run);
        pause(Duration::from_micros(100 * tenth * 2));
        terminal.types("\u{3}");
        let done = terminal.done().is(130);
        assert!(!done.stdout.contains("swallowed"), "{done:?}");
    }
}

#[test]
fn a_signal_for_run_alone_is_passed_on() {
    let bench = Bench::new();
    std::fs::write(
        bench.path("job"),
        "trap 'echo USR1 >>log; exit 8' USR1; echo $PPID >ready; while :; do sleep 0.02; done",
    )
    .unwrap();
    let line = "exec distlock run a -- sh job";
    let terminal = Terminal::new(&bench, line);
    let supervisor = bench.pid("ready");
    let (_, run) = stat(supervisor).unwrap();
    send(run, Signal::USR1);
    terminal.done().is(8);
    assert_eq!(read(&bench.path("log")), "USR1\n");
}

#[test]
fn a_kill_ends_the_family_but_not_the_rest_of_the_pipeline() {
    let bench = Bench::new();
    let job = "trap '' HUP TERM; sh -c 'echo $$ >child; exec sleep 60' & echo $PPID >supervisor; echo $$ >command; wait";
    std::fs::write(bench.path("job"), job).unwrap();
    let line = "distlock run a -- sh job & echo $! >run; sh -c 'echo $$ >other; exec sleep 1.5'; echo over";
    let terminal = Terminal::new(&bench, line);
    let pids = ["command", "child", "supervisor"].map(|file| bench.pid(file));
    let (run, other) = (bench.pid("run"), bench.pid("other"));
    send(run, Signal::KILL);
    until("the family is dead", Duration::from_secs(1), || !pids.iter().any(|pid| is_alive(*pid)));
    assert!(is_alive(other), "another process of the same group was hit");
    let done = terminal.done();
    assert!(done.stdout.contains("over"), "{done:?}");
}

#[test]
fn a_stop_key_does_not_outlast_the_lease() {
    let bench = Bench::new();
    std::fs::write(bench.path("job"), "echo $$ >command; while :; do sleep 0.02; done").unwrap();
    // An interactive shell, so that the key stops a job and not the session.
    let mut terminal = Terminal::new(&bench, "exec bash --norc --noprofile -i");
    terminal.types("distlock run a --ttl 2s -- sh job\n");
    let command = bench.pid("command");
    terminal.types("\u{1a}");
    until("the command is dead", Duration::from_secs(4), || !is_alive(command));
    bench.done(["run", "a", "--wait", "5s", "--", "true"]).is(0);
    terminal.types("fg\n");
    pause(Duration::from_millis(500));
    terminal.types("echo code:$?\nexit\n");
    let done = terminal.done();
    assert!(done.stdout.contains("code:79"), "{done:?}");
}

#[test]
fn waiting_is_one_line_that_is_drawn_again() {
    let bench = Bench::new();
    let holder = bench.holding("a", &["--label", "evil\u{202e}name"]);
    let line = "exec distlock run a --wait 2500ms -- true";
    let done = Terminal::new(&bench, line).done().is(75);
    let drawn = done.stdout.matches("waiting for \"a\" · held by evil\\u{202e}name").count();
    assert!((2..=5).contains(&drawn), "{done:?}");
    assert!(done.stdout.contains("· 00:01") && !done.stdout.contains("\u{202e}"), "{done:?}");
    holder.stop();
}

#[test]
fn a_terminal_that_was_stopped_does_not_hold_up_the_wait() {
    let bench = Bench::new();
    let holder = bench.hold("a", &[], "echo >ready; while ! test -e go; do sleep 0.02; done");
    bench.line("ready");
    std::fs::write(bench.path("job"), "echo >started").unwrap();
    let mut terminal = Terminal::new(&bench, "exec distlock run a --wait 60s -- sh job");
    pause(Duration::from_millis(500));
    terminal.types("\u{13}");
    // Time for some lines that the terminal does not accept.
    pause(Duration::from_millis(2500));
    std::fs::write(bench.path("go"), "").unwrap();
    finish(holder, SOON);
    bench.line("started");
    terminal.types("\u{11}");
    terminal.done().is(0);
}

#[test]
fn force_asks_on_a_terminal() {
    let bench = Bench::new();
    let holder = bench.holding("a", &["--ttl", "2s", "--label", "h"]);
    for (answer, code) in [("n\n", 75), ("\n", 75), ("y\n", 0)] {
        let mut terminal = Terminal::new(&bench, "exec distlock release a --force");
        let question = terminal.shows("[y/N]");
        assert!(question.contains("held by h"), "{question}");
        terminal.types(answer);
        terminal.done().is(code);
    }
    finish(holder, SOON).is(79);
}

/// A person confirms one hold: a client that took the lock while the question was open keeps it.
#[test]
fn a_lock_that_has_changed_hands_is_not_released() {
    let bench = Bench::new();
    let first = bench.holding("a", &["--label", "first"]);
    let mut terminal = Terminal::new(&bench, "exec distlock release a --force");
    let question = terminal.shows("[y/N]");
    assert!(question.contains("held by first"), "{question}");
    first.stop();
    let second = bench.holding("a", &["--label", "second"]);
    terminal.types("y\n");
    let done = terminal.done().is(75);
    assert!(done.stdout.contains("has already given up \"a\""), "{done:?}");
    assert_eq!(bench.status("a")["holder"]["label"], "second");
    second.stop();
}

/// The same where another program has written the row, whose owner is none of ours.
#[test]
fn a_lock_that_another_programs_row_has_given_up_is_not_released() {
    let bench = Bench::new();
    bench.done(["run", "a", "--", "true"]).is(0);
    drop(bench.execute("UPDATE distlock SET owner = 'worker-7', expires = expires + 60000000"));
    let mut terminal = Terminal::new(&bench, "exec distlock release a --force");
    let question = terminal.shows("[y/N]");
    assert!(question.contains("held by"), "{question}");
    drop(bench.execute("UPDATE distlock SET owner = NULL, expires = 0"));
    let second = bench.holding("a", &["--label", "second"]);
    terminal.types("y\n");
    terminal.done().is(75);
    assert_eq!(bench.status("a")["holder"]["label"], "second");
    second.stop();
}

/// The same with foreign clients, whose only marks are their values.
#[cfg(feature = "redis")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_a_foreign_client_has_taken_is_not_released() {
    let server = lock_testkit::servers::RedisServer::start().await.unwrap();
    let bench = Bench::new();
    let mut redis = Plain::connect(&server);
    assert_eq!(redis.ask("SET a first PX 60000"), "+OK");
    let line = format!("exec distlock release a --force --store {}", server.url());
    let mut terminal = Terminal::new(&bench, &line);
    terminal.shows("[y/N]");
    assert_eq!(redis.ask("SET a second PX 60000"), "+OK");
    terminal.types("y\n");
    terminal.done().is(75);
    assert_eq!(redis.ask("GET a"), "second");
    bench.done(["release", "a", "--force", "--yes", "--store", server.url()]).is(0);
    assert_eq!(redis.ask("GET a"), "$-1");
}

#[test]
fn a_table_fits_the_terminal_and_loses_nothing() {
    let bench = Bench::new();
    let name = format!("{}/{}", "漢字".repeat(15), "x".repeat(40));
    let _holder = bench.holding(&name, &[]);
    let done = Terminal::new(&bench, "stty cols 70; exec distlock list").done().is(0);
    let lines: Vec<_> = done.stdout.lines().collect();
    // A Chinese character is two columns wide.
    let width = |line: &str| line.chars().map(|c| if c.is_ascii() { 1 } else { 2 }).sum::<usize>();
    assert!(lines.iter().all(|line| width(line.trim_end()) <= 70), "{done:?}");
    for (sign, count) in [('漢', 15), ('字', 15), ('x', 40)] {
        assert_eq!(done.stdout.matches(sign).count(), count, "{done:?}");
    }
    // For programs, each row is one line.
    assert_eq!(bench.done(["list"]).stdout.lines().count(), 2);
}
