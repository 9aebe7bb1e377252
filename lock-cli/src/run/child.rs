//! The supervisor, seen from `run`.

use std::ffi::OsString;
use std::fs::File;
use std::io::IsTerminal;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener as StdUnixListener};
use std::time::Duration;

use distlock::OwnerId;
use distlock::backend::OsRng;
use distlock::clock::Clock;
use rustix::process::{Pid, Signal, getpgrp, kill_process_group};
use rustix::termios::tcgetpgrp;
use tokio::net::unix::OwnedWriteHalf;
use tokio::net::{UnixListener, UnixStream};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;

use super::family::{self, Process};
use super::protocol::{self, Incoming, Order, Report};
use super::supervisor;
use crate::exit::Failure;

/// How long the supervisor may take to start, and to end after its last report.
const STARTING: Duration = Duration::from_secs(10);
const ENDING: Duration = Duration::from_secs(2);
/// How long we keep killing; see the supervisor.
const KILLING: Duration = Duration::from_millis(500);

/// What to run.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) command: Vec<OsString>,
    pub(crate) environment: Vec<(&'static str, String)>,
    /// One of these variables, as `NAME=value`, that no other job has.
    pub(crate) mark: String,
    pub(crate) signal: i32,
    pub(crate) kill_after: Duration,
}

/// A supervisor and its command.
#[derive(Debug)]
pub(crate) struct Supervised {
    process: Child,
    pid: i32,
    shared_group: bool,
    /// Contained in the environment of the command and of everything it has started.
    mark: String,
    orders: mpsc::UnboundedSender<Order>,
    reports: Incoming<Report>,
}

impl Supervised {
    /// Starts the supervisor. The command starts when the supervisor is sent the first lease.
    ///
    /// Call it on the main thread: when the thread that started the supervisor ends, the kernel
    /// treats that as the death of the process.
    pub(crate) async fn start(job: &Job, clock: &dyn Clock) -> Result<Self, Failure> {
        let failed = |error: std::io::Error| {
            Failure::internal(format!("cannot start the supervisor: {error}"))
        };
        let socket = format!("{}-{}", supervisor::NAME, OwnerId::generate(&OsRng)?.to_hex());
        let listener = listen(&socket).map_err(failed)?;
        let shared_group = in_foreground();
        let mut process = spawn(job, &socket, shared_group).map_err(failed)?;
        let pid = process.id().and_then(|pid| i32::try_from(pid).ok()).unwrap_or_default();
        let stream = tokio::select! {
            biased;
            stream = accept(&listener, pid) => stream.map_err(failed)?,
            status = process.wait() => {
                let how = status.map_or_else(|error| error.to_string(), |status| status.to_string());
                return Err(Failure::internal(format!("the supervisor ended before it was ready: {how}")));
            }
            () = clock.sleep(STARTING) => {
                // It has no command yet.
                let _ = process.kill().await;
                return Err(Failure::internal(format!("the supervisor was not ready after {STARTING:?}")));
            }
        };
        let (reports, socket) = stream.into_split();
        let (orders, queue) = mpsc::unbounded_channel();
        tokio::spawn(write_orders(socket, queue));
        let reports = Incoming::new(reports);
        Ok(Self { process, pid, shared_group, mark: job.mark.clone(), orders, reports })
    }

    /// Sends an order; if the supervisor is gone, the order is dropped.
    pub(crate) fn tell(&self, order: Order) {
        let _ = self.orders.send(order);
    }

    /// The next report; `None` when there will be no more. Cancel-safe.
    pub(crate) async fn report(&mut self) -> Option<Report> {
        self.reports.next().await
    }

    /// Kills everything without the supervisor, which has died or been stopped.
    pub(crate) async fn kill(&mut self, clock: &dyn Clock) {
        // First everything below a stopped supervisor: once it is dead they are orphans, and those
        // that have left the group can no longer be identified by their parents.
        if let Some(supervisor) = Process::find(self.pid) {
            family::kill_descendants(clock, supervisor, KILLING).await;
        }
        if !self.shared_group
            && let Some(group) = Pid::from_raw(self.pid)
        {
            // The number is still taken: the supervisor has not been waited for.
            let _ = kill_process_group(group, Signal::KILL);
        }
        family::kill_marked(clock, &self.mark, KILLING).await;
        let _ = self.process.start_kill();
    }

    /// Waits until the supervisor itself has ended.
    pub(crate) async fn join(mut self, clock: &dyn Clock) {
        tokio::select! {
            biased;
            _ = self.process.wait() => {}
            () = clock.sleep(ENDING) => drop(self.process.start_kill()),
        }
    }
}

fn listen(socket: &str) -> std::io::Result<UnixListener> {
    // An abstract name leaves no file behind. std opens every socket close-on-exec, so the command
    // does not inherit it.
    let listener = StdUnixListener::bind_addr(&SocketAddr::from_abstract_name(socket)?)?;
    listener.set_nonblocking(true)?;
    UnixListener::from_std(listener)
}

/// Anyone on this machine can connect to an abstract socket: only the supervisor is accepted.
async fn accept(listener: &UnixListener, pid: i32) -> std::io::Result<UnixStream> {
    loop {
        let (stream, _) = listener.accept().await?;
        if stream.peer_cred()?.pid() == Some(pid) {
            return Ok(stream);
        }
    }
}

fn spawn(job: &Job, socket: &str, shared_group: bool) -> std::io::Result<Child> {
    // The running program itself, even if the file has been replaced by a newer one.
    let mut command = Command::new("/proc/self/exe");
    command.arg0(supervisor::NAME).arg("supervise");
    command.arg("--parent").arg(std::process::id().to_string()).arg("--socket").arg(socket);
    command.arg("--signal").arg(job.signal.to_string());
    let kill_after = u64::try_from(job.kill_after.as_nanos()).unwrap_or(u64::MAX);
    command.arg("--kill-after-ns").arg(kill_after.to_string());
    if shared_group {
        command.arg("--shared-group");
    } else {
        command.process_group(0);
    }
    command.arg("--").args(&job.command);
    command.envs(job.environment.iter().map(|(name, value)| (name, value)));
    command.spawn()
}

async fn write_orders(mut socket: OwnedWriteHalf, mut queue: mpsc::UnboundedReceiver<Order>) {
    while let Some(order) = queue.recv().await {
        if protocol::send(&mut socket, &order).await.is_err() {
            return;
        }
    }
}

/// Whether we are used interactively at a terminal: the command must then stay in our process
/// group, or the terminal would stop it as soon as it reads.
fn in_foreground() -> bool {
    let foreground = || File::open("/dev/tty").ok().and_then(|tty| tcgetpgrp(tty).ok());
    // Where nothing is in the foreground, as in a container, our group may be one outside, which
    // has no number here.
    std::io::stdin().is_terminal() || foreground().is_some_and(|group| group == getpgrp())
}
