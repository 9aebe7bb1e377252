//! With a person at a terminal, made by script(1).

mod common;

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

use common::{Bench, Running, SOON, finish, id, is_alive, pause, read, send, until};
use rustix::process::Signal;

/// A terminal in which `line` runs; what is written to its standard input is typed.
fn terminal(bench: &Bench, line: &str) -> Running {
    let mut command = Command::new("script");
    command.args(["--quiet", "--return", "--command", line, "/dev/null"]);
    command.current_dir(bench.path("")).env("DISTLOCK_STORE", bench.url()).env("SHELL", "/bin/sh");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("script(1) of util-linux is there").into()
}

fn typed(terminal: &mut Running, keys: &str) {
    let stdin = terminal.stdin.as_mut().expect("a pipe");
    stdin.write_all(keys.as_bytes()).and_then(|()| stdin.flush()).expect("the terminal reads");
}

#[test]
fn the_command_can_read_from_the_terminal() {
    let bench = Bench::new();
    let line = format!(
        "exec {} run a -- sh -c 'echo >ready; read x </dev/tty; echo \"got <$x>\"; read y; echo \"and <$y>\"'",
        common::PROGRAM
    );
    let mut terminal = terminal(&bench, &line);
    bench.line("ready");
    typed(&mut terminal, "first\nsecond\n");
    let done = finish(terminal, SOON);
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(
        done.stdout.contains("got <first>") && done.stdout.contains("and <second>"),
        "{done:?}"
    );
}

#[test]
fn an_interrupt_key_reaches_the_command_once() {
    let bench = Bench::new();
    let script = "trap 'echo INT >>log' INT; trap 'exit 4' TERM; echo $$ >ready; while :; do sleep 0.02; done";
    let line =
        format!("exec {} run a -- sh -c \"{script}\"", common::PROGRAM).replace("$$", "\\$\\$");
    let mut terminal = terminal(&bench, &line);
    let command = bench.pid("ready");
    for nth in 1..=2 {
        typed(&mut terminal, "\u{3}");
        until("the interrupt", SOON, || !read(&bench.path("log")).is_empty());
        // Time for a second copy, which must not come.
        pause(Duration::from_millis(400));
        assert_eq!(read(&bench.path("log")).lines().count(), nth);
    }
    send(command, Signal::TERM);
    assert_eq!(finish(terminal, SOON).code, Some(4));
}

#[test]
fn a_signal_for_run_alone_is_passed_on() {
    let bench = Bench::new();
    let script =
        "trap 'echo USR1 >>log; exit 8' USR1; echo $PPID >ready; while :; do sleep 0.02; done";
    let line =
        format!("exec {} run a -- sh -c \"{script}\"", common::PROGRAM).replace("$PPID", "\\$PPID");
    let terminal = terminal(&bench, &line);
    let supervisor = bench.pid("ready");
    let stat = read(format!("/proc/{supervisor}/stat").as_ref());
    let run = stat.rsplit_once(") ").unwrap().1.split(' ').nth(1).unwrap().parse().unwrap();
    send(run, Signal::USR1);
    assert_eq!(finish(terminal, SOON).code, Some(8));
    assert_eq!(read(&bench.path("log")), "USR1\n");
}

#[test]
fn a_kill_ends_the_family_but_not_the_rest_of_the_pipeline() {
    let bench = Bench::new();
    let job = "trap '' HUP TERM; sh -c 'echo $$ >child; exec sleep 60' & echo $PPID >supervisor; echo $$ >command; wait";
    std::fs::write(bench.path("job"), job).unwrap();
    let line = format!(
        "{} run a -- sh job & echo $! >run; sh -c 'echo $$ >other; exec sleep 1.5'; echo over",
        common::PROGRAM
    );
    let terminal = terminal(&bench, &line);
    let pids = ["command", "child", "supervisor"].map(|file| bench.pid(file));
    let (run, other) = (bench.pid("run"), bench.pid("other"));
    send(run, Signal::KILL);
    until("the family is dead", Duration::from_secs(1), || !pids.iter().any(|pid| is_alive(*pid)));
    assert!(is_alive(other), "another process of the same group was hit");
    let done = finish(terminal, SOON);
    assert!(done.stdout.contains("over"), "{done:?}");
}

#[test]
fn a_stop_key_does_not_outlast_the_lease() {
    let bench = Bench::new();
    std::fs::write(bench.path("job"), "echo $$ >command; while :; do sleep 0.02; done").unwrap();
    // An interactive shell, so that the key stops a job and not the session.
    let mut terminal = terminal(&bench, "exec bash --norc --noprofile -i");
    typed(&mut terminal, &format!("{} run a --ttl 2s -- sh job\n", common::PROGRAM));
    let command = bench.pid("command");
    typed(&mut terminal, "\u{1a}");
    until("the command is dead", Duration::from_secs(4), || !is_alive(command));
    assert_eq!(bench.done(["run", "a", "--wait", "5s", "--", "true"]).code, Some(0));
    typed(&mut terminal, "fg\n");
    pause(Duration::from_millis(500));
    typed(&mut terminal, "echo code:$?\nexit\n");
    let done = finish(terminal, SOON);
    assert!(done.stdout.contains("code:79"), "{done:?}");
}

#[test]
fn waiting_is_one_line_that_is_drawn_again() {
    let bench = Bench::new();
    let holder = bench.hold("a", &["--label", "evil\u{202e}name"], "echo >ready; sleep 30");
    bench.line("ready");
    let line = format!("exec {} run a --wait 2500ms -- true", common::PROGRAM);
    let done = finish(terminal(&bench, &line), SOON);
    assert_eq!(done.code, Some(75), "{done:?}");
    let drawn = done.stdout.matches("waiting for \"a\" · held by evil\\u{202e}name").count();
    assert!((2..=5).contains(&drawn), "{done:?}");
    assert!(done.stdout.contains("· 00:01") && !done.stdout.contains("\u{202e}"), "{done:?}");
    send(id(&holder), Signal::TERM);
    finish(holder, SOON);
}

#[test]
fn a_terminal_that_was_stopped_does_not_hold_up_the_wait() {
    let bench = Bench::new();
    let holder = bench.hold("a", &[], "echo >ready; while ! test -e go; do sleep 0.02; done");
    bench.line("ready");
    std::fs::write(bench.path("job"), "echo >started").unwrap();
    let mut terminal =
        terminal(&bench, &format!("exec {} run a --wait 60s -- sh job", common::PROGRAM));
    pause(Duration::from_millis(500));
    typed(&mut terminal, "\u{13}");
    // Time for some lines that the terminal does not take.
    pause(Duration::from_millis(2500));
    std::fs::write(bench.path("go"), "").unwrap();
    finish(holder, SOON);
    bench.line("started");
    typed(&mut terminal, "\u{11}");
    assert_eq!(finish(terminal, SOON).code, Some(0));
}

#[test]
fn force_asks_on_a_terminal() {
    let bench = Bench::new();
    let holder = bench.hold("a", &["--ttl", "2s", "--label", "h"], "echo >ready; sleep 30");
    bench.line("ready");
    for (answer, code) in [("n\n", 75), ("\n", 75), ("y\n", 0)] {
        let mut terminal = terminal(&bench, &format!("exec {} release a --force", common::PROGRAM));
        pause(Duration::from_millis(300));
        typed(&mut terminal, answer);
        let done = finish(terminal, SOON);
        assert_eq!(done.code, Some(code), "{answer:?}: {done:?}");
        assert!(done.stdout.contains("held by h") && done.stdout.contains("[y/N]"), "{done:?}");
    }
    assert_eq!(finish(holder, SOON).code, Some(79));
}
