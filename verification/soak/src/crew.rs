//! The workers of a phase, each a process with links of its own to the servers.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use conformance_tests::Unavailable;
use conformance_tests::server::Proxy;
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::protocol::{Brief, Order, Say};
use crate::site::Site;
use crate::stage::Stage;
use crate::worker;

/// How long a worker that was told to finish may take before it is killed, which is a violation. It waits for its contenders,
/// and then for its client.
const LONGEST_END: Duration = Duration::from_secs(35);
/// The signals that end a process which has gone wrong, and the status of one whose main thread has panicked.
const CRASHES: [Signal; 5] = [Signal::ABORT, Signal::SEGV, Signal::BUS, Signal::ILL, Signal::FPE];
const PANICKED: i32 = 101;
/// Before a worker that has ended is started again.
const REST: Duration = Duration::from_millis(50);

/// What is done to a worker.
#[derive(Debug)]
pub(crate) enum Do {
    Tell(Order),
    Kill,
    Stop,
    Continue,
    /// Kill it, and start it with these variables.
    Restart(Vec<(String, OsString)>),
}

#[derive(Debug)]
pub(crate) struct Worker {
    orders: mpsc::UnboundedSender<Do>,
    pub(crate) links: Vec<Proxy>,
}

impl Worker {
    pub(crate) fn tell(&self, order: Do) {
        // A worker that has ended for good needs no order.
        let _ = self.orders.send(order);
    }
}

#[derive(Debug)]
pub(crate) struct Crew {
    pub(crate) workers: Vec<Worker>,
    /// The process ids of all that run.
    pub(crate) pids: Arc<Mutex<Vec<Option<u32>>>>,
    tasks: JoinSet<()>,
}

impl Crew {
    /// Starts as many workers as there are briefs. The URL is filled in.
    pub(crate) async fn start(
        site: &dyn Site,
        stage: &Arc<Stage>,
        briefs: Vec<Brief>,
    ) -> Result<Self, Unavailable> {
        let pids = Arc::new(Mutex::new(vec![None; briefs.len()]));
        let (mut workers, mut senders) = (Vec::new(), Vec::new());
        let mut keepers = Vec::new();
        for (at, mut brief) in briefs.into_iter().enumerate() {
            let mut links = Vec::new();
            for address in site.addresses() {
                links.push(match site.is_http2() {
                    true => Proxy::start_http2(address).await?,
                    false => Proxy::start(address).await?,
                });
            }
            let hosts: Vec<_> = links.iter().map(|link| link.address().to_string()).collect();
            brief.url = site.url(&hosts.join(","));
            let (orders, received) = mpsc::unbounded_channel();
            senders.push(orders.clone());
            keepers.push((at, brief, received));
            workers.push(Worker { orders, links });
        }
        let mut tasks = JoinSet::new();
        for (at, brief, orders) in keepers {
            let next = senders[(at + 1) % senders.len()].downgrade();
            let keeper = Keeper {
                at,
                brief,
                variables: Vec::new(),
                stage: Arc::clone(stage),
                pids: Arc::clone(&pids),
                next,
            };
            tasks.spawn(keeper.keep(orders));
        }
        Ok(Self { workers, pids, tasks })
    }

    /// Whether a worker is stopped (SIGSTOP).
    pub(crate) fn is_stopped(&self, at: usize) -> bool {
        let pid = self.pids.lock().unwrap_or_else(PoisonError::into_inner)[at];
        let stat = pid.and_then(|pid| std::fs::read_to_string(format!("/proc/{pid}/stat")).ok());
        stat.is_some_and(|stat| stat.contains(") T "))
    }

    /// Lets all workers finish, and waits until they have ended.
    pub(crate) async fn finish(mut self) {
        for worker in &self.workers {
            worker.tell(Do::Continue);
            worker.tell(Do::Tell(Order::Finish));
        }
        while self.tasks.join_next().await.is_some() {}
    }
}

/// Keeps one worker running.
struct Keeper {
    at: usize,
    brief: Brief,
    variables: Vec<(String, OsString)>,
    stage: Arc<Stage>,
    pids: Arc<Mutex<Vec<Option<u32>>>>,
    /// The worker that goes on with what this one detaches.
    next: mpsc::WeakUnboundedSender<Do>,
}

enum Fate {
    /// It has done what it was told.
    Finished,
    /// It was killed at this moment.
    Died(u64),
}

impl Keeper {
    async fn keep(mut self, mut orders: mpsc::UnboundedReceiver<Do>) {
        let mut finishing = false;
        while !finishing {
            let fate = match self.spawn() {
                Ok(child) => self.attend(child, &mut orders, &mut finishing).await,
                Err(error) => {
                    self.stage.complain("L4", format!("a worker cannot be started: {error}"));
                    Fate::Finished
                }
            };
            self.set_pid(None);
            match fate {
                Fate::Finished => return,
                Fate::Died(at) => self.stage.ledger().died(self.at, at),
            }
            tokio::time::sleep(REST).await;
            // Other numbers than those of the process that has died.
            self.brief.number += 1 << 10;
            self.brief.seed = self.brief.seed.wrapping_add(1);
        }
    }

    fn spawn(&self) -> std::io::Result<Child> {
        let brief = serde_json::to_string(&self.brief)?;
        let child = Command::new(std::env::current_exe()?)
            .env(worker::BRIEF, brief)
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        self.set_pid(child.id());
        Ok(child)
    }

    fn set_pid(&self, pid: Option<u32>) {
        self.pids.lock().unwrap_or_else(PoisonError::into_inner)[self.at] = pid;
    }

    /// Carries lines and orders until the process has ended.
    async fn attend(
        &mut self,
        mut child: Child,
        orders: &mut mpsc::UnboundedReceiver<Do>,
        finishing: &mut bool,
    ) -> Fate {
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Fate::Finished;
        };
        let writer = Lines::start(stdin);
        let mut lines = BufReader::new(stdout).lines();
        let mut killed = None;
        let mut closed = false;
        let overdue = tokio::time::sleep(Duration::MAX);
        tokio::pin!(overdue);
        loop {
            tokio::select! {
                line = lines.next_line() => match line {
                    Ok(Some(line)) => closed |= self.hear(&line, &writer),
                    _ => break,
                },
                Some(order) = orders.recv() => {
                    if matches!(order, Do::Tell(Order::Finish)) {
                        *finishing = true;
                        overdue.as_mut().reset(tokio::time::Instant::now() + LONGEST_END);
                    }
                    if matches!(order, Do::Kill | Do::Restart(_)) {
                        killed.get_or_insert(self.stage.now());
                    }
                    self.act(order, &mut child, &writer);
                }
                () = &mut overdue => {
                    self.stage.complain("L4", format!("worker {} does not end", self.at));
                    let _ = child.start_kill();
                    break;
                }
            }
        }
        if let Ok(status) = child.wait().await
            && has_crashed(status)
        {
            self.stage.panicked(self.at, &status.to_string());
        }
        match closed {
            true => Fate::Finished,
            false => Fate::Died(killed.unwrap_or_else(|| self.stage.now())),
        }
    }

    /// Whether this was the last line of the worker.
    fn hear(&self, line: &str, writer: &Lines) -> bool {
        // The last line of a killed process may be a part of one.
        let Ok(said) = serde_json::from_str::<Say>(line) else { return false };
        let last = matches!(said, Say::Closed(_));
        if let Say::Detached { hold, name, token } = &said
            && let Some(next) = self.next.upgrade()
        {
            let (hold, name, token) = (*hold, *name, token.clone());
            let _ = next.send(Do::Tell(Order::Attach { hold, name, token }));
        }
        if let Some(answer) = self.stage.hear(self.at, said) {
            writer.write(&answer);
        }
        last
    }

    fn act(&mut self, order: Do, child: &mut Child, writer: &Lines) {
        let signal = match order {
            Do::Tell(order) => return writer.write(&order),
            Do::Kill => Signal::KILL,
            Do::Restart(variables) => {
                self.variables = variables;
                Signal::KILL
            }
            Do::Stop => Signal::STOP,
            Do::Continue => Signal::CONT,
        };
        // It is not waited for before `attend` ends, so the id is still its own.
        let pid = child.id().and_then(|id| Pid::from_raw(id.try_into().ok()?));
        if let Some(pid) = pid {
            let _ = kill_process(pid, signal);
        }
    }
}

/// Whether a process has ended in a way that no order explains.
fn has_crashed(status: ExitStatus) -> bool {
    let is_crash = |signal| CRASHES.iter().any(|crash| crash.as_raw() == signal);
    status.code() == Some(PANICKED) || status.signal().is_some_and(is_crash)
}

/// Writes to a worker that may be stopped, and then reads nothing.
struct Lines(mpsc::UnboundedSender<String>);

impl Lines {
    fn start(mut stdin: ChildStdin) -> Self {
        let (sender, mut lines) = mpsc::unbounded_channel::<String>();
        tokio::spawn(async move {
            while let Some(line) = lines.recv().await {
                if stdin.write_all(line.as_bytes()).await.is_err() {
                    return;
                }
            }
        });
        Self(sender)
    }

    fn write(&self, order: &Order) {
        if let Ok(line) = serde_json::to_string(order) {
            let _ = self.0.send(line + "\n");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crash_is_told_from_a_kill() {
        let crashed = |status| has_crashed(ExitStatus::from_raw(status));
        // As wait(2) has them: a signal, or a status in the higher byte.
        assert_eq!([6, 11, 7, 4, 8, 101 << 8].map(crashed), [true; 6]);
        assert_eq!([0, 9, 15, 1 << 8].map(crashed), [false; 4]);
    }
}
