//! What the guard asks of its keeper.

use std::collections::VecDeque;

use tokio::sync::{mpsc, oneshot};

use super::Command;
use crate::{Released, Result};

/// What the guard asks for. While a call to the store is in progress, requests wait here, except
/// the request to leave, which ends the call.
pub(super) struct Inbox {
    commands: mpsc::UnboundedReceiver<Command>,
    waiting: VecDeque<Command>,
    pub(super) leave: Option<Leave>,
}

/// The guard was dropped, or wants to leave and waits for an answer.
pub(super) type Leave = Option<oneshot::Sender<Result<Released>>>;

impl Inbox {
    pub(super) fn new(commands: mpsc::UnboundedReceiver<Command>) -> Self {
        Self { commands, waiting: VecDeque::new(), leave: None }
    }

    pub(super) async fn next(&mut self) -> Option<Command> {
        match self.waiting.pop_front() {
            Some(command) => Some(command),
            None => self.commands.recv().await,
        }
    }

    /// Ready when the guard wants to leave.
    pub(super) async fn leaving(&mut self) {
        while self.leave.is_none() {
            match self.commands.recv().await {
                Some(Command::Release(reply)) => self.leave = Some(Some(reply)),
                Some(command) => self.waiting.push_back(command),
                None => self.leave = Some(None),
            }
        }
    }
}
