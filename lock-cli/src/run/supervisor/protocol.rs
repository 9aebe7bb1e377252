//! The messages between `run` and its supervisor: one line of JSON each.

use std::io;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncWriteExt, BufReader, Lines};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

use crate::run::hold_machine::deadline::Deadlines;

/// From `run` to the supervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SupervisorOrder {
    /// The lease has changed. The first one starts the command.
    Lease(Deadlines),
    /// Pass this signal on.
    Signal(i32),
    /// The lock is no longer ours: ask the command to stop now, and give it the time set by
    /// `--kill-after`, whatever the lease was.
    Stop,
    /// The same, but kill it at once.
    Kill,
}

/// From the supervisor to `run`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SupervisorReport {
    /// The command runs, with this process id.
    Started(i32),
    /// It could not be started, with this errno (0 if there is none).
    NotStarted(i32),
    /// The first lease had expired or was about to when it arrived: the command was not started.
    TooLate,
    /// A deadline was reached, and the command was asked to stop or killed.
    Stopping,
    /// The command has ended. Always the last report.
    Ended(CommandExit),
}

/// How the command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CommandExit {
    Exited(u8),
    Signaled(i32),
}

/// Messages from the other side.
pub(crate) type Messages = Lines<BufReader<OwnedReadHalf>>;

/// The next message; `None` when there will be no more. `None` also for a message that cannot be
/// parsed, which cannot happen: both sides are the same executable. Cancel-safe.
pub(crate) async fn receive<T: DeserializeOwned>(messages: &mut Messages) -> Option<T> {
    let line = messages.next_line().await.ok()??;
    serde_json::from_str(&line).ok()
}

pub(crate) async fn send(socket: &mut OwnedWriteHalf, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    socket.write_all(&line).await
}
