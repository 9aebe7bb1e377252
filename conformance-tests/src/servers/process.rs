//! A server process that never outlives the test.

use std::ffi::OsStr;
use std::fmt;
use std::net::TcpListener;
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::Unavailable;

/// A running server. Dropping it kills it.
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
    /// Starts `command`, whose program is in `package` of Debian.
    ///
    /// # Errors
    ///
    /// [`Unavailable::missing`] if there is no such program, with the name of the package;
    /// [`Unavailable::broken`] if it cannot be started.
    pub fn start(command: &mut Command, package: &str) -> Result<Self, Unavailable> {
        let program = command.get_program().to_string_lossy().into_owned();
        let child = command.stdin(Stdio::null()).spawn().map_err(|error| {
            if error.kind() == std::io::ErrorKind::NotFound {
                Unavailable::missing(format!(
                    "{program} is not installed: apt-get install --no-install-recommends {package}"
                ))
            } else {
                Unavailable::broken(format!("{program} cannot be started: {error}"))
            }
        })?;
        // The guardian reads from a pipe that only this process holds open. When this process dies,
        // in whatever way, the pipe closes, and the server is killed. A parent-death signal would
        // follow the thread that has spawned the server, and need unsafe code.
        let guardian = Command::new("sh")
            .args(["-c", "cat >/dev/null; kill -9 \"$0\" 2>/dev/null"])
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
    ///
    /// # Errors
    ///
    /// If it has ended.
    pub fn freeze(&self) -> Result<(), Unavailable> {
        self.signal(Signal::STOP)
    }

    /// Lets it go on after [`freeze`](Self::freeze).
    ///
    /// # Errors
    ///
    /// If it has ended.
    pub fn thaw(&self) -> Result<(), Unavailable> {
        self.signal(Signal::CONT)
    }

    /// Asks it to end (SIGTERM), and waits for it.
    ///
    /// # Errors
    ///
    /// If it cannot be asked.
    pub fn terminate(&mut self) -> Result<(), Unavailable> {
        self.signal(Signal::CONT)?;
        self.signal(Signal::TERM)?;
        self.child.wait().map_err(|error| Unavailable::broken(error.to_string()))?;
        Ok(())
    }

    /// Kills it without warning (SIGKILL), and waits until it is gone.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
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
        // The guardian first: afterwards the process id may belong to somebody else.
        let _ = self.guardian.kill();
        let _ = self.guardian.wait();
        self.kill();
    }
}

/// A loopback port that is free at this moment.
///
/// # Errors
///
/// If there is none.
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
