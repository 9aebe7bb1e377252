//! A server process that never outlives the test.

use std::ffi::OsStr;
use std::fmt;
use std::net::TcpListener;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use conformance_tests::Unavailable;
use rustix::process::{Pid, Signal, kill_process};

/// A server may have children of its own, which do not end on their own while they are frozen.
const GUARD: &str =
    "cat >/dev/null; kill -9 \"$0\" $(cat /proc/\"$0\"/task/*/children) 2>/dev/null";

/// A running server. Dropping it kills it, with its children.
pub struct Process {
    child: Child,
    guardian: Child,
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Process").field(&self.child.id()).finish()
    }
}

impl Process {
    /// Starts `command`, whose program is in the Debian package `package`.
    pub fn start(command: &mut Command, package: &str) -> Result<Self, Unavailable> {
        let program = command.get_program().to_string_lossy().into_owned();
        let child = command.stdin(Stdio::null()).spawn().map_err(|error| {
            if error.kind() == std::io::ErrorKind::NotFound {
                not_installed(&program, package)
            } else {
                failed(&format!("{program} cannot be started"), error)
            }
        })?;
        // The guardian reads from a pipe that only this process holds open. When this process dies,
        // in whatever way, the pipe closes, and the server is killed. A parent-death signal would
        // be tied to the thread that spawned the server, and need unsafe code.
        let guardian = Command::new("sh")
            .args(["-c", GUARD])
            .arg(child.id().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let mut child = child;
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
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Freezes it (SIGSTOP): its connections stay open and nothing is answered.
    pub fn freeze(&self) -> Result<(), Unavailable> {
        // First the server, so that it starts no more children.
        self.signal(Signal::STOP)?;
        self.signal_children(Signal::STOP);
        Ok(())
    }

    /// Resumes it after [`freeze`](Self::freeze).
    pub fn thaw(&self) -> Result<(), Unavailable> {
        self.signal_children(Signal::CONT);
        self.signal(Signal::CONT)
    }

    /// Sends `signal`, which makes it shut down in an orderly way, and waits for it.
    pub(super) fn end_by(&mut self, signal: Signal) -> Result<(), Unavailable> {
        self.thaw()?;
        self.signal(signal)?;
        self.child.wait().map_err(|error| Unavailable::broken(error.to_string()))?;
        Ok(())
    }

    /// Kills it without warning (SIGKILL), and waits until it is gone.
    pub fn kill(&mut self) {
        let _ = self.signal(Signal::STOP);
        let children = self.children();
        let _ = self.child.kill();
        let _ = self.child.wait();
        for child in &children {
            let _ = kill_process(*child, Signal::KILL);
        }
        // They hold the server's memory and its sockets until they are gone.
        for _ in 0..1000 {
            if children.iter().all(|child| has_ended(*child)) {
                break;
            }
            pause();
        }
    }

    /// The processor time that it and its children have used, from the counters of the kernel.
    pub(super) fn cpu_time(&self) -> Duration {
        let ids = self.children().into_iter().map(|pid| pid.as_raw_nonzero().get().to_string());
        let ids = ids.chain([self.child.id().to_string()]);
        let ticks: u64 = ids.filter_map(|pid| ticks(&pid)).sum();
        // 100 a second on every Linux.
        Duration::from_millis(ticks * 10)
    }

    /// The processes that the server has started.
    fn children(&self) -> Vec<Pid> {
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

    fn signal(&self, signal: Signal) -> Result<(), Unavailable> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| Unavailable::broken("a process id is out of range"))?;
        kill_process(pid, signal)
            .map_err(|error| Unavailable::broken(format!("{signal:?} to {pid:?}: {error}")))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The guardian first: afterwards the process id may belong to another process.
        let _ = self.guardian.kill();
        let _ = self.guardian.wait();
        self.kill();
    }
}

/// Whether there is no such process, or only a zombie.
fn has_ended(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
    stat.map_or(true, |stat| stat.contains(") Z "))
}

#[expect(clippy::disallowed_methods, reason = "also in `drop`, which cannot await")]
fn pause() {
    std::thread::sleep(Duration::from_millis(1));
}

/// User and system time, with that of the children that have ended.
fn ticks(pid: &str) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may contain blanks and brackets.
    let fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11).take(4);
    fields.map(|field| field.parse::<u64>().ok()).sum()
}

/// A loopback port that is free at this moment.
pub fn free_port() -> Result<u16, Unavailable> {
    let listener = TcpListener::bind("127.0.0.1:0")
        .and_then(|listener| listener.local_addr())
        .map_err(|error| Unavailable::broken(format!("no free port: {error}")))?;
    Ok(listener.port())
}

/// The URL in `variable`, if it is set and not empty.
pub(super) fn url_from(variable: impl AsRef<OsStr>) -> Option<String> {
    std::env::var(variable).ok().filter(|url| !url.is_empty())
}

/// Something that should work but does not.
pub(super) fn failed(what: &str, error: impl fmt::Display) -> Unavailable {
    Unavailable::broken(format!("{what}: {error}"))
}

/// A program that is not installed, with its package.
pub(super) fn not_installed(program: &str, package: &str) -> Unavailable {
    Unavailable::missing(format!(
        "{program} is not installed: apt-get install --no-install-recommends {package}"
    ))
}
