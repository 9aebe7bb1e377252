//! The case's side.

use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::protocol::{Order, Reply};
use crate::context::Cx;
use crate::runner::check::{Check, Explain, Stop, fail};

/// A child process that has opened the case's store. Killed when this is dropped.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    stdin: ChildStdin,
    replies: Lines<BufReader<ChildStdout>>,
}

impl Process {
    /// The time limit of an order, except for those that wait for a lock.
    const PATIENCE: Duration = Duration::from_secs(60);

    pub(crate) fn start(cx: &Cx) -> Check<Self> {
        let Some(uri) = cx.store().uri() else {
            return Err(Stop::NotApplicable(
                "the harness provides no uri for a second process".into(),
            ));
        };
        let executable = std::env::current_exe().or_hindered("finding this executable")?;
        let mut child = Command::new(executable)
            .env(super::URI, uri)
            .env(super::PREFIX, cx.prefix())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .or_hindered("starting a child process")?;
        match (child.stdin.take(), child.stdout.take()) {
            (Some(stdin), Some(stdout)) => {
                Ok(Self { child, stdin, replies: BufReader::new(stdout).lines() })
            }
            _ => fail!("the child process has no pipes"),
        }
    }

    /// Sends an order and waits for its answer.
    pub(crate) async fn ask(&mut self, order: &Order) -> Check<Reply> {
        self.tell(order).await?;
        self.answer().await
    }

    /// Sends an order whose answer is fetched later.
    pub(crate) async fn tell(&mut self, order: &Order) -> Check {
        let mut line = serde_json::to_string(order).or_hindered("writing an order")?;
        line.push('\n');
        self.stdin.write_all(line.as_bytes()).await.or_hindered("telling the child process")
    }

    /// # Panics
    ///
    /// If the child says that it has panicked: then the case ends as if it had done so itself.
    pub(crate) async fn answer(&mut self) -> Check<Reply> {
        let line = match tokio::time::timeout(Self::PATIENCE, self.replies.next_line()).await {
            Err(_) => {
                return Err(Stop::hindered(format_args!(
                    "the child process did not answer within {:?}",
                    Self::PATIENCE
                )));
            }
            Ok(line) => line.or_hindered("reading from the child process")?,
        };
        match line {
            Some(line) => match serde_json::from_str(&line).or_hindered("reading an answer")? {
                Reply::Panicked { what } => panic!("in the second process: {what}"),
                reply => Ok(reply),
            },
            None => Err(Stop::hindered("the child process ended instead of answering")),
        }
    }

    /// Like [`ask`](Self::ask), for an order that must end with the lock held. Returns the fence.
    pub(crate) async fn hold(&mut self, order: &Order) -> Check<u64> {
        match self.ask(order).await? {
            Reply::Held { fence, .. } => Ok(fence),
            other => fail!("the child process was told {order:?} and answered {other:?}"),
        }
    }

    /// Kills it like `kill -9`, and waits until it is gone.
    pub(crate) async fn kill(&mut self) -> Check {
        self.child.kill().await.or_hindered("killing the child process")
    }

    /// Stops it like `kill -STOP`.
    pub(crate) fn pause(&self) -> Check {
        self.signal(Signal::Stop)
    }

    /// Continues it.
    pub(crate) fn resume(&self) -> Check {
        self.signal(Signal::Cont)
    }

    #[cfg(unix)]
    fn signal(&self, signal: Signal) -> Check {
        let pid =
            self.child.id().and_then(|id| rustix::process::Pid::from_raw(id.try_into().ok()?));
        let Some(pid) = pid else { fail!("the child process has ended") };
        let signal = match signal {
            Signal::Stop => rustix::process::Signal::STOP,
            Signal::Cont => rustix::process::Signal::CONT,
        };
        rustix::process::kill_process(pid, signal)
            .or_hindered("sending a signal to the child process")
    }

    #[cfg(not(unix))]
    fn signal(&self, _: Signal) -> Check {
        Err(Stop::NotApplicable("processes cannot be stopped and continued on this system".into()))
    }
}

#[derive(Clone, Copy, Debug)]
enum Signal {
    Stop,
    Cont,
}
