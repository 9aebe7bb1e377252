//! The way to a server: a connection that is made again when it is gone, once for all who need it.
//!
//! The driver's own connection manager is not used. It blocks for nine seconds while the server is
//! down, and never replaces a connection on which nothing comes back (both were measured).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lock_core::{ClockInstant, Error, ErrorKind, Result};
use tokio::sync::watch;

use super::connection::Connection;
use super::dial::Dial;
use super::pulse::{NodeEvent, Pulse};

/// The way to one server. Clones share the connection.
#[derive(Clone)]
pub(super) struct Link {
    dial: Arc<Dial>,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    connection: Option<Arc<Connection>>,
    /// The attempt under way, which all callers share.
    attempt: Option<watch::Receiver<Option<Result<Arc<Connection>>>>>,
    closed: bool,
}

impl Link {
    pub(super) fn new(dial: Dial) -> Self {
        Self { dial: Arc::new(dial), state: Arc::default() }
    }

    pub(super) fn pulse(&self) -> &Pulse {
        &self.dial.pulse
    }

    /// The connection, if there is one that may be used.
    pub(super) fn current(&self) -> Option<Arc<Connection>> {
        let state = self.state();
        state.connection.as_ref().filter(|connection| !connection.is_over()).map(Arc::clone)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.state().closed
    }

    /// Drops the connection. No other one is made.
    pub(super) fn close(&self) {
        *self.state() = State { closed: true, ..State::default() };
        self.pulse().attention.notify_one();
    }

    /// Makes a connection for one who waits as long as that may take.
    pub(super) async fn connect(&self) -> Result<Arc<Connection>> {
        self.connection(self.pulse().clock.now() + self.dial.limit).await
    }

    /// The connection, which is made if there is none. The attempt is a task of its own, so that a
    /// caller who gives up early does not end it for the others.
    pub(super) async fn connection(&self, end: ClockInstant) -> Result<Arc<Connection>> {
        if let Some(connection) = self.current() {
            return Ok(connection);
        }
        let mut attempt = self.attempt()?;
        let left = end.since(self.pulse().clock.now());
        let waited = tokio::time::timeout(left, attempt.wait_for(Option::is_some)).await;
        match waited {
            Ok(Ok(outcome)) => match &*outcome {
                Some(Ok(connection)) => Ok(Arc::clone(connection)),
                Some(Err(error)) => Err(error.clone()),
                None => Err(self.dial.unreachable("the attempt to connect was given up")),
            },
            Ok(Err(_)) => {
                self.state().attempt = None;
                Err(self.dial.unreachable("the runtime in which it was connected has ended"))
            }
            Err(_) => Err(self.dial.unreachable(&format!("no connection within {left:?}"))),
        }
    }

    fn attempt(&self) -> Result<watch::Receiver<Option<Result<Arc<Connection>>>>> {
        let mut state = self.state();
        if state.closed {
            return Err(Error::new(ErrorKind::Closed, "the connection to Redis was closed"));
        }
        if let Some(attempt) = &state.attempt
            && attempt.has_changed().is_ok()
        {
            return Ok(attempt.clone());
        }
        let runtime = tokio::runtime::Handle::try_current().map_err(|_| {
            Error::config("Redis is connected outside of a Tokio runtime: call from within one")
        })?;
        let (sender, receiver) = watch::channel(None);
        state.attempt = Some(receiver.clone());
        drop(state);
        let link = self.clone();
        runtime.spawn(async move {
            let outcome = link.dial.connect().await.map(Arc::new);
            link.keep(outcome.as_ref().ok());
            let _ = sender.send(Some(outcome));
        });
        Ok(receiver)
    }

    /// The attempt is over, with this connection if it has made one.
    fn keep(&self, made: Option<&Arc<Connection>>) {
        let mut state = self.state();
        state.attempt = None;
        if state.closed {
            return;
        }
        if let Some(connection) = made {
            state.connection = Some(Arc::clone(connection));
            drop(state);
            self.pulse().emit(NodeEvent::Up);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
