//! The resident half of `run`: it starts the command, and ends it when the lease is no longer
//! watched or is about to end.
//!
//! It is a separate process, since a process that is killed with SIGKILL or stopped with SIGSTOP
//! cannot look after its children. It needs no store, only the local clock.

use std::collections::HashMap;
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
use tokio::net::UnixStream;
use tokio::net::unix::OwnedWriteHalf;

use super::deadline::Deadlines;
use super::family::{self, Process};
use super::protocol::{self, Ended, Incoming, Order, Report};
use super::signals::{FORWARDED, Signals};
use crate::args::SuperviseArgs;
use crate::exit::Failure;

/// The name in process lists. Killing everything called distlock with SIGKILL spares this process,
/// so that it can end the command. The kernel keeps 15 bytes.
pub(crate) const NAME: &str = "lock-supervisor";

/// Tells us that `run` has died. Any signal that we catch would do; nothing else sends this one.
const PARENT_DIED: Signal = Signal::IO;

/// Signals that would stop us together with the command: we must keep running to end it in time.
const JOB_CONTROL: [Signal; 3] = [Signal::TSTP, Signal::TTIN, Signal::TTOU];

/// How long we keep killing: only processes that cannot be killed take longer.
const KILLING: Duration = Duration::from_millis(500);

/// How often we check whether the last descendant of a command that had to stop has ended.
const LOOK: Duration = Duration::from_millis(5);

/// A signal that the terminal or a shell sends to the whole group reaches `run`, us and the command
/// at the same time, within this span; `run` cannot tell, but we can.
const SAME_SIGNAL: Duration = Duration::from_millis(200);

pub(crate) fn supervise(args: SuperviseArgs) -> Result<u8, Failure> {
    // For people only: otherwise the name would be that of the link we were started through, "exe".
    let _ = std::fs::write("/proc/self/comm", NAME);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::internal(format!("cannot start the supervisor: {error}")))?;
    runtime.block_on(async {
        let mut signals = Signals::watch(&FORWARDED)?;
        signals.merge(Signals::watch(&JOB_CONTROL)?);
        signals.merge(Signals::watch_even_ignored(Signal::CHILD)?);
        signals.merge(Signals::watch_even_ignored(PARENT_DIED)?);
        let supervisor = Supervisor::connect(&args).await;
        let supervisor = supervisor.map_err(|e| Failure::internal(format!("supervisor: {e}")))?;
        if let Some(mut supervisor) = supervisor {
            supervisor.run(signals).await;
        }
        Ok(0)
    })
}

struct Supervisor {
    orders: Incoming<Order>,
    reports: OwnedWriteHalf,
    clock: SystemClock,
    own: Process,
    parent: i32,
    shared_group: bool,
    signal: Signal,
    kill_after: Duration,
    lease: Deadlines,
    child: Option<Pid>,
    /// How the command itself has ended.
    ended: Option<Ended>,
    /// Since when the command is being stopped.
    stopping: Option<ClockInstant>,
    /// When each signal was last received.
    seen: HashMap<i32, ClockInstant>,
}

impl Supervisor {
    /// Ties this process to `run`, and starts the command when the first lease arrives. `None` if
    /// `run` is gone, or the command could not be started.
    async fn connect(args: &SuperviseArgs) -> io::Result<Option<Self>> {
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
        let mut orders = Incoming::new(orders);
        let Some(Order::Lease(lease)) = orders.next().await else { return Ok(None) };
        let own = i32::try_from(std::process::id()).ok().and_then(Process::find);
        let missing = || io::Error::other("/proc does not show this process: mount /proc");
        let own = own.ok_or_else(missing)?;
        let mut supervisor = Self {
            orders,
            reports,
            clock: SystemClock::default(),
            own,
            parent: args.parent,
            shared_group: args.shared_group,
            signal: Signal::from_named_raw(args.signal).unwrap_or(Signal::TERM),
            kill_after: Duration::from_nanos(args.kill_after_ns),
            lease,
            child: None,
            ended: None,
            stopping: None,
            seen: HashMap::new(),
        };
        Ok(supervisor.start(args).await.then_some(supervisor))
    }

    /// Starts the command. False if it cannot be started, or if `run` was delayed for so long that
    /// the command would have to stop at once.
    async fn start(&mut self, args: &SuperviseArgs) -> bool {
        if self.clock.now() >= self.lease.ask_at {
            self.report(Report::TooLate).await;
            return false;
        }
        let Some((program, arguments)) = args.command.split_first() else { return false };
        match Command::new(program).args(arguments).spawn() {
            Ok(child) => {
                let pid = i32::try_from(child.id()).unwrap_or_default();
                self.child = Pid::from_raw(pid);
                self.report(Report::Started(pid)).await;
                true
            }
            Err(error) => {
                self.report(Report::NotStarted(error.raw_os_error().unwrap_or(0))).await;
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
                return self.report(Report::Ended(ended)).await;
            }
            let wake_at = self.wake_at();
            tokio::select! {
                biased;
                signal = signals.next() => {
                    if signal == Signal::CHILD {
                        self.reap();
                    } else if !is_parent(self.parent) {
                        return self.kill().await;
                    } else {
                        self.seen.insert(signal.as_raw(), clock.now());
                    }
                }
                order = self.orders.next() => match order {
                    Some(Order::Lease(lease)) => self.lease = lease,
                    Some(Order::Signal(number)) => self.forward(number, &mut signals).await,
                    Some(Order::Stop) => {
                        // The lease is no longer ours: haste gains nothing, and its end means
                        // nothing.
                        self.lease.kill_at = ClockInstant::FAR_FUTURE;
                        self.stop().await;
                    }
                    // `None`: `run` is gone.
                    Some(Order::Kill) | None => return self.kill().await,
                },
                () = clock.sleep_until(wake_at) => {
                    if clock.now() >= self.kill_at() {
                        if self.stopping.is_none() {
                            self.report(Report::Stopping).await;
                        }
                        return self.kill().await;
                    }
                    if self.stopping.is_none() && clock.now() >= self.lease.ask_at {
                        self.report(Report::Stopping).await;
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
        } else {
            self.kill_after = Duration::ZERO;
        }
    }

    /// Passes on a signal that `run` has received, unless the command has received it directly.
    async fn forward(&mut self, number: i32, signals: &mut Signals) {
        let Some(signal) = Signal::from_named_raw(number) else { return };
        if self.shared_group {
            // Our own copy may arrive a moment later.
            tokio::time::sleep(Duration::from_millis(10)).await;
            while let Some(arrived) = signals.try_next().await {
                if arrived == Signal::CHILD {
                    self.reap();
                }
                self.seen.insert(arrived.as_raw(), self.clock.now());
            }
            let seen = self.seen.get(&number);
            if seen.is_some_and(|seen| self.clock.now().since(*seen) < SAME_SIGNAL) {
                return;
            }
        }
        self.signal_command(signal);
    }

    fn signal_command(&self, signal: Signal) {
        if self.shared_group {
            // The group contains other processes too, such as the rest of a pipeline.
            for process in self.own.descendants() {
                let _ = process.signal(signal);
            }
        } else {
            // It reaches us as well, but we catch it.
            let _ = kill_current_process_group(signal);
        }
    }

    /// Ends the command and all its descendants, and this process too where the group is ours.
    async fn kill(&mut self) {
        family::kill_descendants(&self.clock, self.own, KILLING).await;
        self.reap();
        self.report(Report::Ended(self.ended.unwrap_or(Ended::Signaled(Signal::KILL.as_raw()))))
            .await;
        if !self.shared_group {
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

    async fn report(&mut self, report: Report) {
        // If `run` is gone, the next read from the socket says so.
        let _ = protocol::send(&mut self.reports, &report).await;
    }
}

fn ended(status: WaitStatus) -> Ended {
    match status.terminating_signal() {
        Some(signal) => Ended::Signaled(signal),
        None => {
            let code = status.exit_status().and_then(|code| u8::try_from(code).ok());
            Ended::Exited(code.unwrap_or(u8::MAX))
        }
    }
}

fn is_parent(pid: i32) -> bool {
    getppid().is_some_and(|parent| parent.as_raw_nonzero().get() == pid)
}
