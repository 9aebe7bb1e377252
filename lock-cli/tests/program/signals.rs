//! Signals that `run` gets while its command runs.

use std::os::unix::process::CommandExt;

use crate::bench::{
    Bench, Running, SOON, child_of, finish, heeding_signals, id, is_alive, now, read, send, until,
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
    let status = read(format!("/proc/{}/status", id(&run)).as_ref());
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap().trim();
    let caught = u64::from_str_radix(caught, 16).unwrap();
    assert_ne!(caught & 1 << (Signal::CHILD.as_raw() - 1), 0, "{status}");
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
