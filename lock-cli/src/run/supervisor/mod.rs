//! The resident half of `run`: it starts the command, and ends it when the lease is no longer
//! watched or is about to end.
//!
//! It is a separate process, since a process that is killed with SIGKILL or stopped with SIGSTOP
//! cannot look after its children. It needs no store, only the local clock.

mod descendants;
pub(crate) mod handle;
pub(crate) mod protocol;

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream as StdUnixStream};
use std::process::Command;
use std::time::Duration;

use distlock::clock::{Clock, ClockInstant, SystemClock};
use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, getpid, getppid, kill_current_process_group,
    set_child_subreaper, set_parent_process_death_signal, wait,
};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedWriteHalf;

use self::descendants::{Process, kill_all};
use self::protocol::{CommandExit, Messages, SupervisorOrder, SupervisorReport};
use super::hold_machine::deadline::Deadlines;
use crate::args::SuperviseArgs;
use crate::exit::ExitError;
use crate::signals::{FORWARDED, Signals};

/// The name in process lists. Killing everything called distlock with SIGKILL spares this process,
/// so that it can end the command. The kernel keeps 15 bytes.
pub(crate) const NAME: &str = "lock-supervisor";

/// Tells us that `run` has died. Any signal that we catch would do; nothing else sends this one.
const PARENT_DIED: Signal = Signal::IO;

/// Signals that would stop us together with the command: we must keep running to end it in time.
const JOB_CONTROL: [Signal; 3] = [Signal::TSTP, Signal::TTIN, Signal::TTOU];

/// How often we check whether the last descendant of a command that had to stop has ended.
const LOOK: Duration = Duration::from_millis(5);

/// A signal that a terminal or a shell sends to the whole group, or a service manager to the whole
/// service, reaches `run`, us and the command at the same time, within this span; `run` cannot
/// tell, but we can.
const SAME_SIGNAL: Duration = Duration::from_millis(200);

pub(crate) fn supervise(args: SuperviseArgs) -> Result<u8, ExitError> {
    // For people only: otherwise the name would be that of the link we were started through, "exe".
    let _ = std::fs::write("/proc/self/comm", NAME);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| ExitError::internal(format!("cannot start the supervisor: {error}")))?;
    runtime.block_on(async {
        let wanted = [&FORWARDED[..], &JOB_CONTROL].concat();
        let mut signals = Signals::watch(&wanted, &[Signal::CHILD, PARENT_DIED])?;
        let supervisor = Supervisor::connect(args, &mut signals).await;
        let supervisor = supervisor.map_err(|e| ExitError::internal(format!("supervisor: {e}")))?;
        if let Some(mut supervisor) = supervisor {
            supervisor.run(signals).await;
        }
        Ok(0)
    })
}

struct Supervisor {
    args: SuperviseArgs,
    orders: Messages,
    reports: OwnedWriteHalf,
    clock: SystemClock,
    own: Process,
    signal: Signal,
    /// Nothing is left to wait for after a SIGKILL.
    kill_after: Duration,
    lease: Deadlines,
    child: Option<Pid>,
    /// How the command itself has ended.
    ended: Option<CommandExit>,
    /// Since when the command is being stopped.
    stopping: Option<ClockInstant>,
    /// When each signal was last received.
    seen: HashMap<i32, ClockInstant>,
    /// Signals to our group of which our own copy is still to come.
    echoes: HashSet<i32>,
}

impl Supervisor {
    /// Ties this process to `run`, and starts the command when the first lease arrives. `None` if
    /// `run` is gone, or the command could not be started.
    async fn connect(args: SuperviseArgs, signals: &mut Signals) -> io::Result<Option<Self>> {
        set_parent_process_death_signal(Some(PARENT_DIED))?;
        set_child_subreaper(Some(getpid()))?;
        // `run` may have died before we asked for the signal.
        if !is_parent(args.parent) {
            return Ok(None);
        }
        let address = SocketAddr::from_abstract_name(&args.socket)?;
        let stream = StdUnixStream::connect_addr(&address)?;
        stream.set_nonblocking(true)?;
        let stream = UnixStream::from_std(stream)?;
        // Anyone on this machine can listen on an abstract socket: only our parent gives orders.
        if stream.peer_cred()?.pid() != Some(args.parent) {
            return Err(io::Error::other("the socket belongs to another process"));
        }
        let (orders, reports) = stream.into_split();
        let mut orders = BufReader::new(orders).lines();
        let first = protocol::receive(&mut orders).await;
        let Some(SupervisorOrder::Lease(lease)) = first else { return Ok(None) };
        let own = i32::try_from(std::process::id()).ok().and_then(Process::find);
        let missing = || io::Error::other("/proc does not show this process: mount /proc");
        let own = own.ok_or_else(missing)?;
        let signal = Signal::from_named_raw(args.signal).unwrap_or(Signal::TERM);
        let kill_after = if signal == Signal::KILL { 0 } else { args.kill_after_ns };
        let mut supervisor = Self {
            args,
            orders,
            reports,
            clock: SystemClock::default(),
            own,
            signal,
            kill_after: Duration::from_nanos(kill_after),
            lease,
            child: None,
            ended: None,
            stopping: None,
            seen: HashMap::new(),
            echoes: HashSet::new(),
        };
        Ok(supervisor.start(signals).await.then_some(supervisor))
    }

    /// Starts the command. False if it cannot be started, or if `run` was delayed for so long that
    /// the command would have to stop at once.
    async fn start(&mut self, signals: &mut Signals) -> bool {
        if self.clock.now() >= self.lease.start_by {
            self.report(SupervisorReport::TooLate).await;
            return false;
        }
        let Some((program, arguments)) = self.args.command.split_first() else { return false };
        match Command::new(program).args(arguments).spawn() {
            Ok(child) => {
                let pid = i32::try_from(child.id()).unwrap_or_default();
                self.child = Pid::from_raw(pid);
                // What came before the command was there has not reached it: `run` passes it on.
                tokio::task::yield_now().await;
                self.catch_up(signals).await;
                self.seen.clear();
                self.report(SupervisorReport::Started(pid)).await;
                true
            }
            Err(error) => {
                self.report(SupervisorReport::NotStarted(error.raw_os_error().unwrap_or(0))).await;
                false
            }
        }
    }

    async fn run(&mut self, mut signals: Signals) {
        let clock = self.clock.clone();
        loop {
            if let Some(ended) = self.ended
                && (self.stopping.is_none() || self.own.descendants().is_empty())
            {
                // The command ended on time; what it left in the background is not our concern.
                return self.report(SupervisorReport::Ended(ended)).await;
            }
            let wake_at = self.wake_at();
            tokio::select! {
                biased;
                signal = signals.next() => {
                    if signal != Signal::CHILD && !is_parent(self.args.parent) {
                        return self.kill().await;
                    }
                    self.note(signal);
                }
                order = protocol::receive(&mut self.orders) => match order {
                    Some(SupervisorOrder::Lease(lease)) => self.lease = lease,
                    Some(SupervisorOrder::Signal(number)) => self.forward(number, &mut signals).await,
                    Some(SupervisorOrder::Stop) => {
                        // The lease is no longer ours: haste gains nothing, and its end means
                        // nothing.
                        self.lease.kill_at = ClockInstant::FAR_FUTURE;
                        self.stop().await;
                    }
                    // `None`: `run` is gone.
                    Some(SupervisorOrder::Kill) | None => return self.kill().await,
                },
                () = clock.sleep_until(wake_at) => {
                    if clock.now() >= self.kill_at() {
                        if self.stopping.is_none() {
                            self.report(SupervisorReport::Stopping).await;
                        }
                        return self.kill().await;
                    }
                    if self.stopping.is_none() && clock.now() >= self.lease.ask_at {
                        self.report(SupervisorReport::Stopping).await;
                        self.stop().await;
                    }
                }
            }
        }
    }

    fn kill_at(&self) -> ClockInstant {
        match self.stopping {
            Some(since) => self.lease.kill_at.min(since + self.kill_after),
            None => self.lease.kill_at,
        }
    }

    fn wake_at(&self) -> ClockInstant {
        match (self.stopping, self.ended) {
            (None, _) => self.lease.ask_at.min(self.kill_at()),
            (Some(_), None) => self.kill_at(),
            (Some(_), Some(_)) => self.kill_at().min(self.clock.now() + LOOK),
        }
    }

    /// Asks the command and its descendants to stop.
    async fn stop(&mut self) {
        if self.stopping.is_some() {
            return;
        }
        self.stopping = Some(self.clock.now());
        if self.signal != Signal::KILL {
            self.signal_command(self.signal);
            // A stopped process acts on a signal only when it continues, as in timeout(1).
            self.signal_command(Signal::CONT);
        }
    }

    /// Passes on a signal that `run` has received, unless the command has received it directly.
    async fn forward(&mut self, number: i32, signals: &mut Signals) {
        let Some(signal) = Signal::from_named_raw(number) else { return };
        // Our own copy may arrive a moment later.
        tokio::time::sleep(Duration::from_millis(10)).await;
        self.catch_up(signals).await;
        let seen = self.seen.get(&number);
        if seen.is_none_or(|seen| self.clock.now().since(*seen) >= SAME_SIGNAL) {
            self.signal_command(signal);
        }
    }

    /// Notes all signals that have arrived.
    async fn catch_up(&mut self, signals: &mut Signals) {
        while let Some(arrived) = signals.try_next().await {
            self.note(arrived);
        }
    }

    fn note(&mut self, signal: Signal) {
        let number = signal.as_raw();
        if signal == Signal::CHILD {
            self.reap();
        } else if !self.echoes.remove(&number) {
            self.seen.insert(number, self.clock.now());
        }
    }

    fn signal_command(&mut self, signal: Signal) {
        if self.args.shared_group {
            // The group contains other processes too, such as the rest of a pipeline.
            for process in self.own.descendants() {
                let _ = process.signal(signal);
            }
        } else {
            // It reaches us as well, but we catch it.
            self.echoes.insert(signal.as_raw());
            let _ = kill_current_process_group(signal);
        }
    }

    /// Ends the command and all its descendants, and this process too where the group is ours.
    async fn kill(&mut self) {
        kill_all(&self.clock, || self.own.descendants()).await;
        self.reap();
        self.report(SupervisorReport::Ended(
            self.ended.unwrap_or(CommandExit::Signaled(Signal::KILL.as_raw())),
        ))
        .await;
        if !self.args.shared_group {
            // The whole group in one step, for any process that slipped through.
            let _ = kill_current_process_group(Signal::KILL);
        }
    }

    /// Reaps processes that have ended: the command, and orphans below it that became our children.
    fn reap(&mut self) {
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            if Some(pid) == self.child {
                self.ended = Some(ended(status));
            }
        }
    }

    async fn report(&mut self, report: SupervisorReport) {
        // If `run` is gone, the next read from the socket says so.
        let _ = protocol::send(&mut self.reports, &report).await;
    }
}

fn ended(status: WaitStatus) -> CommandExit {
    match status.terminating_signal() {
        Some(signal) => CommandExit::Signaled(signal),
        None => {
            let code = status.exit_status().and_then(|code| u8::try_from(code).ok());
            CommandExit::Exited(code.unwrap_or(u8::MAX))
        }
    }
}

fn is_parent(pid: i32) -> bool {
    getppid().is_some_and(|parent| parent.as_raw_nonzero().get() == pid)
}
