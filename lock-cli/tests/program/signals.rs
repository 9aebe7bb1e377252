//! Signals that `run` gets while its command runs.

use std::os::unix::process::CommandExt;
use std::time::Duration;

use crate::bench::{
    Bench, Running, SOON, child_of, finish, heeding_signals, id, is_alive, now, pause, read, send,
    until,
};
use rustix::process::Signal;

/// Another program that starts ours.
fn started(bench: &Bench, program: &str, args: &[&str]) -> Running {
    let mut command = heeding_signals(program);
    bench.prepare(command.args(args).process_group(0));
    command.spawn().expect("it starts").into()
}

#[test]
fn signals_are_passed_on_and_the_command_decides() {
    let bench = Bench::new();
    let script = "for s in HUP INT QUIT TERM USR1 USR2; do trap \"echo $s >>log\" $s; done; \
                  trap 'echo TERM >>log; exit 9' TERM; echo >ready; while :; do sleep 0.02; done";
    let run = bench.hold("a", &[], script);
    bench.line("ready");
    let names = ["HUP", "INT", "QUIT", "USR1", "USR2", "TERM"];
    use Signal as S;
    let signals = [S::HUP, S::INT, S::QUIT, S::USR1, S::USR2, S::TERM];
    for (nth, (name, signal)) in names.into_iter().zip(signals).enumerate() {
        send(id(&run), signal);
        until(name, SOON, || read(&bench.path("log")).lines().count() > nth);
    }
    finish(run, SOON).is(9);
    assert_eq!(read(&bench.path("log")), "HUP\nINT\nQUIT\nUSR1\nUSR2\nTERM\n", "each once");
    assert!(bench.held().is_empty());
}

/// As a service manager does it.
#[test]
fn a_signal_to_all_processes_reaches_the_command_once() {
    let bench = Bench::new();
    let script = "trap 'echo TERM >>log' TERM; trap 'echo INT >>log; exit 3' INT; \
                  echo $$ >command; while :; do sleep 5 & wait; done";
    let run = bench.hold("a", &[], script);
    let command = bench.pid("command");
    let count = || read(&bench.path("log")).lines().count();
    for pid in [id(&run), child_of(id(&run)), command] {
        send(pid, Signal::TERM);
    }
    until("the command has it", SOON, || count() > 0);
    // Time for a second copy, which must not arrive.
    pause(Duration::from_millis(400));
    assert_eq!(count(), 1);
    // Those to `run` alone are all passed on, however close together.
    for nth in 2..=3 {
        send(id(&run), Signal::TERM);
        until("the command has it", SOON, || count() >= nth);
    }
    send(id(&run), Signal::INT);
    finish(run, SOON).is(3);
    assert_eq!(read(&bench.path("log")), "TERM\nTERM\nTERM\nINT\n");
}

/// A shell must see of what the command died, or it goes on with its script after Ctrl-C.
#[test]
fn run_dies_of_the_signal_that_ended_its_command() {
    let bench = Bench::new();
    for signal in [Signal::INT, Signal::TERM, Signal::SEGV, Signal::KILL] {
        let script = format!("kill -{} $$", signal.as_raw());
        let done = bench.done(["run", "a", "--", "sh", "-c", &script]);
        // A busy machine may take its time to get the lock.
        let said = done.stderr.replace("distlock: waiting for \"a\"\n", "");
        assert_eq!((done.signal, &*said), (Some(signal.as_raw()), ""), "{done:?}");
        assert!(!bench.is_held("a"));
    }
    // One that has handled it has not died of it.
    let script = "trap 'exit 130' INT; kill -INT $$";
    let done = bench.done(["run", "a", "--", "sh", "-c", script]).is(130);
    assert_eq!(done.signal, None);
    let _holder = bench.holding("a", &[]);
    let waiting = bench.hold("a", &[], "true");
    until("it waits", SOON, || caught(id(&waiting), Signal::INT));
    send(id(&waiting), Signal::INT);
    let done = finish(waiting, SOON).saying(["SIGINT: nothing was started"]);
    assert_eq!(done.signal, Some(Signal::INT.as_raw()), "{done:?}");
}

/// Whether the process catches this signal.
fn caught(pid: i32, signal: Signal) -> bool {
    let status = read(format!("/proc/{pid}/status").as_ref());
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = caught.expect("a line").trim();
    u64::from_str_radix(caught, 16).expect("a number") & 1 << (signal.as_raw() - 1) != 0
}

#[test]
fn descendants_get_them_too() {
    let bench = Bench::new();
    let run = bench.hold("a", &[], "sh -c 'echo $$ >child; exec sleep 60'; echo $$ >command");
    let child = bench.pid("child");
    let start = now();
    run.stop();
    until("the grandchild is dead", SOON, || !is_alive(child));
    assert!(now().since(start) < SOON / 2);
}

#[test]
fn what_was_ignored_stays_ignored() {
    let bench = Bench::new();
    let script = "trap '' HUP; exec distlock run a -- sh -c 'echo $$ >command; while ! test -e go; do sleep 0.02; done; echo done'";
    let run = started(&bench, "sh", &["-c", script]);
    let job = bench.pid("command");
    send(id(&run), Signal::HUP);
    send(child_of(id(&run)), Signal::HUP);
    send(job, Signal::HUP);
    std::fs::write(bench.path("go"), "").unwrap();
    finish(run, SOON).is(0).printing("done\n");
}

#[test]
fn the_command_starts_with_default_signals_and_no_open_files_of_ours() {
    let bench = Bench::new();
    let script = "grep -E 'SigBlk|SigIgn|SigCgt' /proc/self/status; ls /proc/self/fd";
    let with = bench.done(["run", "a", "--", "sh", "-c", script]);
    let mut plain = heeding_signals("sh");
    plain.args(["-c", script]).stdin(std::process::Stdio::null());
    let plain = plain.output().unwrap();
    assert_eq!(with.stdout, String::from_utf8_lossy(&plain.stdout));
}

#[test]
fn an_ignored_sigchld_does_not_lose_the_exit_code() {
    let bench = Bench::new();
    let script = "echo $PPID >supervisor; while ! test -e go; do sleep 0.02; done; exit 6";
    // dash cannot ignore SIGCHLD for its children, env can.
    let args = ["--ignore-signal=CHLD", "distlock", "run", "a", "--", "sh", "-c", script];
    let run = started(&bench, "env", &args);
    bench.pid("supervisor");
    assert!(caught(id(&run), Signal::CHILD));
    std::fs::write(bench.path("go"), "").unwrap();
    finish(run, SOON).is(6);
}

/// As in a sandbox: its process group is one outside, which has no number inside.
#[test]
fn it_runs_as_the_first_process_of_a_namespace() {
    let bench = Bench::new();
    let script = "test $PPID -lt 10 && exit 7";
    let alone = ["--user", "--map-root-user", "--pid", "--fork", "--mount-proc"];
    let args = [&alone[..], &["distlock", "run", "a", "--", "sh", "-c", script]].concat();
    finish(started(&bench, "unshare", &args), SOON).is(7);
    assert!(bench.held().is_empty());
}
