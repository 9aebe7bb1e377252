//! What the guard asks of its keeper.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, oneshot};

use super::Command;
use crate::{Released, Result};

/// A channel for few commands: an application may hold ten thousand locks, and one of Tokio's keeps
/// room for 32.
#[derive(Debug, Default)]
struct Channel {
    commands: Mutex<Commands>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Commands {
    sent: VecDeque<Command>,
    is_closed: bool,
}

impl Channel {
    fn commands(&self) -> MutexGuard<'_, Commands> {
        self.commands.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A channel from a guard to its keeper.
pub(super) fn channel() -> (Outbox, Inbox) {
    let channel = Arc::<Channel>::default();
    (Outbox(Arc::clone(&channel)), Inbox { channel, waiting: VecDeque::new(), leave: None })
}

/// The guard's end. Dropping it tells the keeper that the guard was dropped.
#[derive(Debug)]
pub(crate) struct Outbox(Arc<Channel>);

impl Outbox {
    /// Asks the keeper for something. If it has ended, the command is dropped, and so is what it answers
    /// with.
    pub(crate) fn send(&self, command: Command) {
        let mut commands = self.0.commands();
        if !commands.is_closed {
            commands.sent.push_back(command);
            drop(commands);
            self.0.changed.notify_one();
        }
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        self.0.commands().is_closed = true;
        self.0.changed.notify_one();
    }
}

/// What the guard asks for. While a call to the store is in progress, requests wait here, except
/// the request to leave, which ends the call.
pub(super) struct Inbox {
    channel: Arc<Channel>,
    waiting: VecDeque<Command>,
    pub(super) leave: Option<Leave>,
}

/// The guard was dropped, or wants to leave and waits for an answer.
pub(super) type Leave = Option<oneshot::Sender<Result<Released>>>;

impl Inbox {
    pub(super) async fn next(&mut self) -> Option<Command> {
        match self.waiting.pop_front() {
            Some(command) => Some(command),
            None => self.receive().await,
        }
    }

    /// Ready when the guard wants to leave.
    pub(super) async fn leaving(&mut self) {
        while self.leave.is_none() {
            match self.receive().await {
                Some(Command::Release(reply)) => self.leave = Some(Some(reply)),
                Some(command) => self.waiting.push_back(command),
                None => self.leave = Some(None),
            }
        }
    }

    async fn receive(&self) -> Option<Command> {
        loop {
            {
                let mut commands = self.channel.commands();
                let command = commands.sent.pop_front();
                if command.is_some() || commands.is_closed {
                    return command;
                }
            }
            self.channel.changed.notified().await;
        }
    }
}

/// Whoever waits for an answer is told that there will be none.
impl Drop for Inbox {
    fn drop(&mut self) {
        let mut commands = self.channel.commands();
        commands.is_closed = true;
        let unanswered = std::mem::take(&mut commands.sent);
        drop(commands);
        drop(unanswered);
    }
}
