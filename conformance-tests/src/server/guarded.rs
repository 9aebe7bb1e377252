//! A process that never outlives the test.

use std::fmt;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::Unavailable;

/// The guardian has to outlive the test, whatever ends that. A server may have children of its own, which do
/// not end on their own while they are frozen.
const GUARD: &str = "trap '' INT HUP TERM; cat >/dev/null; \
                     kill -9 \"$0\" $(cat /proc/\"$0\"/task/*/children) 2>/dev/null";

/// A running server. Dropping it kills it, with its children.
pub(super) struct Guarded {
    child: Child,
    guardian: Child,
}

impl fmt::Debug for Guarded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Guarded").field(&self.child.id()).finish()
    }
}

impl Guarded {
    /// Starts `command`. If its program is not installed, `remedy` says what to do.
    pub(super) fn start(command: &mut Command, remedy: &str) -> Result<Self, Unavailable> {
        let program = command.get_program().to_string_lossy().into_owned();
        let mut child = command.stdin(Stdio::null()).spawn().map_err(|error| {
            if error.kind() == std::io::ErrorKind::NotFound {
                Unavailable::missing(format!("{program} is not installed: {remedy}"))
            } else {
                Unavailable::broken(format!("{program} cannot be started: {error}"))
            }
        })?;
        // The guardian reads from a pipe that only this process holds open. When this process dies,
        // in whatever way, the pipe closes, and the server is killed. A parent-death signal would
        // be tied to the thread that spawned the server, and need unsafe code.
        let guardian = Command::new("sh")
            .args(["-c", GUARD])
            .arg(child.id().to_string())
            // Ctrl-C at a terminal is sent to the whole group of the test, perhaps before `sh` has set its traps.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        match guardian {
            Ok(guardian) => Ok(Self { child, guardian }),
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(Unavailable::broken(format!(
                    "sh cannot be started to guard {program}: {error}"
                )))
            }
        }
    }

    /// The process id.
    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// How it ended, if it has.
    pub(super) fn ended(&mut self) -> Option<ExitStatus> {
        let status = self.child.try_wait().ok().flatten();
        if status.is_some() {
            self.dismiss_guardian();
        }
        status
    }

    /// Its process id may now belong to another process.
    fn dismiss_guardian(&mut self) {
        let _ = self.guardian.kill();
        let _ = self.guardian.wait();
    }

    /// Freezes it (SIGSTOP): its connections stay open and nothing is answered.
    pub(super) fn freeze(&mut self) -> Result<(), Unavailable> {
        // First the server, so that it starts no more children.
        self.signal(Signal::STOP)?;
        self.signal_children(Signal::STOP);
        // The signal has been sent. A thread that is running may still answer a request.
        match wait_for_threads(&self.family(), "TtZX") {
            true => Ok(()),
            false => Err(Unavailable::broken(format!("process {} does not stop", self.id()))),
        }
    }

    /// Resumes it after [`freeze`](Self::freeze).
    pub(super) fn thaw(&mut self) -> Result<(), Unavailable> {
        self.signal_children(Signal::CONT);
        self.signal(Signal::CONT)
    }

    /// Sends the signal with this number, which makes it end, and waits for that.
    pub(super) fn end_by(&mut self, signal: i32) -> Result<(), Unavailable> {
        let signal = Signal::from_named_raw(signal).ok_or_else(|| {
            Unavailable::broken(format!(
                "{signal} is not the number of a signal, such as 15 (SIGTERM)"
            ))
        })?;
        self.thaw()?;
        self.signal(signal)?;
        self.child.wait().map_err(|error| Unavailable::broken(error.to_string()))?;
        Ok(())
    }

    /// Kills it without warning (SIGKILL), and waits until it is gone. Whether it has ended by that.
    pub(super) fn kill(&mut self) -> bool {
        // So that it starts no more children. There is nothing to kill if it has ended.
        if self.signal(Signal::STOP).is_err() {
            return false;
        }
        let children = self.children();
        let _ = self.child.kill();
        let is_killed =
            self.child.wait().is_ok_and(|status| status.signal() == Some(Signal::KILL.as_raw()));
        self.dismiss_guardian();
        for child in &children {
            let _ = kill_process(*child, Signal::KILL);
        }
        // They hold the server's memory and its sockets until they are gone.
        wait_for_threads(&children, "ZX");
        is_killed
    }

    /// The server and its children.
    fn family(&self) -> Vec<Pid> {
        let mut family = self.children();
        family.push(Pid::from_child(&self.child));
        family
    }

    /// The processes that the server has started.
    pub(super) fn children(&self) -> Vec<Pid> {
        let pid = self.child.id();
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task"));
        let lists = tasks
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
        let lists: Vec<_> = lists.collect();
        let pids = lists.iter().flat_map(|list| list.split_whitespace());
        pids.filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect()
    }

    fn signal_children(&self, signal: Signal) {
        for child in self.children() {
            // One that has already ended needs no signal.
            let _ = kill_process(child, signal);
        }
    }

    fn signal(&mut self, signal: Signal) -> Result<(), Unavailable> {
        if let Some(status) = self.ended() {
            return Err(Unavailable::broken(format!(
                "no {signal:?} to a server that has ended: {status}"
            )));
        }
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal)
            .map_err(|error| Unavailable::broken(format!("{signal:?} to {pid:?}: {error}")))
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Waits for at most ten seconds until all threads of these processes are in one of these states, as
/// `/proc` shows them. Those that do not exist are.
fn wait_for_threads(processes: &[Pid], states: &str) -> bool {
    let is_there = |stat: &str| {
        let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
        state.is_some_and(|state| states.contains(state))
    };
    for _ in 0..10_000 {
        let tasks = processes.iter().filter_map(|process| {
            std::fs::read_dir(format!("/proc/{}/task", process.as_raw_nonzero())).ok()
        });
        let mut stats = tasks
            .flatten()
            .flatten()
            .filter_map(|task| std::fs::read_to_string(task.path().join("stat")).ok());
        if stats.all(|stat| is_there(&stat)) {
            return true;
        }
        pause();
    }
    false
}

#[expect(clippy::disallowed_methods, reason = "also in `drop`, which cannot await")]
fn pause() {
    std::thread::sleep(Duration::from_millis(1));
}
