//! The supervisor, seen from `run`.

use std::fs::File;
use std::io::IsTerminal;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener as StdUnixListener};
use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use distlock::admin::OwnerId;
use distlock::backend::OsRng;
use distlock::clock::Clock;
use rustix::process::{Pid, Signal, getpgrp, kill_process_group};
use rustix::termios::tcgetpgrp;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::unix::OwnedWriteHalf;
use tokio::net::{UnixListener, UnixStream};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;

use super::descendants::{Process, kill_all, marked};
use super::protocol::{self, Messages, SupervisorOrder, SupervisorReport};
use crate::args::RunArgs;
use crate::commands::lease;
use crate::exit::ExitError;
use crate::signals::{FORWARDED, Signals, interrupted};
use crate::store_url;

/// How long the supervisor may take to start, and to end after its last report.
const STARTING: Duration = Duration::from_secs(10);
const ENDING: Duration = Duration::from_secs(2);
/// The variable with the owners of the locks, by which the command and everything that it has
/// started can be found.
const MARK: &str = "DISTLOCK_OWNER";

/// A supervisor and its command.
#[derive(Debug)]
pub(crate) struct SupervisorHandle {
    process: Child,
    pid: i32,
    shared_group: bool,
    /// In the environment of the command and of everything it has started, and of no other.
    mark: String,
    orders: mpsc::UnboundedSender<SupervisorOrder>,
    reports: Messages,
}

impl SupervisorHandle {
    /// Starts the supervisor. The command starts when the supervisor is sent the first lease.
    ///
    /// Call it on the main thread: when the thread that started the supervisor ends, the kernel
    /// treats that as the death of the process.
    pub(crate) async fn start(
        args: &RunArgs,
        owners: &str,
        environment: impl IntoIterator<Item = (&'static str, String)>,
        clock: &dyn Clock,
        signals: &mut Signals,
    ) -> Result<Self, ExitError> {
        let failed = |error: std::io::Error| {
            ExitError::internal(format!("cannot start the supervisor: {error}"))
        };
        let socket = format!("{}-{}", super::NAME, OwnerId::generate(&OsRng)?.to_hex());
        let listener = listen(&socket).map_err(failed)?;
        let shared_group = in_foreground();
        let mut command = supervise(args, &socket, shared_group);
        let mut process = command.envs(environment).env(MARK, owners).spawn().map_err(failed)?;
        let pid = process.id().and_then(|pid| i32::try_from(pid).ok()).unwrap_or_default();
        let stream = tokio::select! {
            biased;
            signal = signals.next() => {
                // It has no command yet.
                let _ = process.kill().await;
                return Err(interrupted(signal));
            }
            stream = accept(&listener, pid) => stream.map_err(failed)?,
            status = process.wait() => {
                // Of a signal to both of us, before it could catch any.
                let signal = status.as_ref().ok().and_then(|status| status.signal());
                if let Some(signal) = signal.and_then(Signal::from_named_raw)
                    && FORWARDED.contains(&signal)
                {
                    return Err(interrupted(signal));
                }
                let how = status.map_or_else(|error| error.to_string(), |status| status.to_string());
                return Err(ExitError::internal(format!("the supervisor ended before it was ready: {how}")));
            }
            () = clock.sleep(STARTING) => {
                let _ = process.kill().await;
                return Err(ExitError::internal(format!("the supervisor was not ready after {STARTING:?}")));
            }
        };
        let (reports, socket) = stream.into_split();
        let (orders, queue) = mpsc::unbounded_channel();
        tokio::spawn(write_orders(socket, queue));
        let reports = BufReader::new(reports).lines();
        let mark = format!("{MARK}={owners}");
        Ok(Self { process, pid, shared_group, mark, orders, reports })
    }

    /// Sends an order; if the supervisor is gone, the order is dropped.
    pub(crate) fn tell(&self, order: SupervisorOrder) {
        let _ = self.orders.send(order);
    }

    /// The next report; `None` when there will be no more. Cancel-safe.
    pub(crate) async fn report(&mut self) -> Option<SupervisorReport> {
        protocol::receive(&mut self.reports).await
    }

    /// Kills everything without the supervisor, which has died or been stopped.
    pub(crate) async fn kill(&mut self, clock: &dyn Clock) {
        // First everything below a stopped supervisor: once it is dead they are orphans, and those
        // that have left the group can no longer be identified by their parents.
        if let Some(supervisor) = Process::find(self.pid) {
            kill_all(clock, || supervisor.descendants()).await;
        }
        if !self.shared_group
            && let Some(group) = Pid::from_raw(self.pid)
        {
            // The number is still taken: the supervisor has not been waited for.
            let _ = kill_process_group(group, Signal::KILL);
        }
        kill_all(clock, || marked(&self.mark)).await;
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

/// The command that starts the supervisor.
fn supervise(args: &RunArgs, socket: &str, shared_group: bool) -> Command {
    // The running program itself, even if the file has been replaced by a newer one.
    let mut command = Command::new("/proc/self/exe");
    command.arg0(super::NAME).arg("supervise");
    command.arg("--parent").arg(std::process::id().to_string()).arg("--socket").arg(socket);
    command.arg("--signal").arg(args.signal.to_string());
    let kill_after = u64::try_from(args.kill_after.as_nanos()).unwrap_or(u64::MAX);
    command.arg("--kill-after-ns").arg(kill_after.to_string());
    if shared_group {
        command.arg("--shared-group");
    } else {
        command.process_group(0);
    }
    if args.pass_store {
        store_url::pass_on(&args.want.store, &mut command);
    } else {
        // The supervisor passes its environment on to the command, and anyone of its user can read both.
        store_url::withhold(&args.want.store, &mut command);
        command.env_remove(lease::VARIABLE);
    }
    command.arg("--").args(args.argv());
    command
}

async fn write_orders(
    mut socket: OwnedWriteHalf,
    mut queue: mpsc::UnboundedReceiver<SupervisorOrder>,
) {
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
