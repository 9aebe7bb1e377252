//! One connection, made once and shared by all its users.
//!
//! ```
//! use std::time::Duration;
//! use lock_core::kit::backoff::Backoff;
//! use lock_core::kit::connect_once::ConnectOnce;
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> lock_core::Result<()> {
//! let backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(1));
//! let connection = ConnectOnce::new("the demo server at db:6000", Duration::from_secs(1), backoff);
//! let limit = Duration::from_secs(5);
//! let one = connection.get(limit, || async { Ok("a socket") });
//! let other = connection.get(limit, || async { unreachable!("it waits for the first attempt") });
//! assert_eq!(tokio::try_join!(one, other)?, ("a socket", "a socket"));
//! connection.forget(|broken| *broken == "a socket");
//! assert!(connection.current().is_none());
//! # Ok(()) }
//! ```

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::kit::backoff::Backoff;
use crate::kit::runtime;
use crate::{Error, ErrorKind, OsRng, Result};

/// The connection to one server, if there is one, and the attempt to make one, shared by all
/// callers. `C` is cheap to clone. Clones share both.
pub struct ConnectOnce<C>(Arc<Link<C>>);

struct Link<C> {
    server: String,
    limit: Duration,
    state: Mutex<State<C>>,
}

struct State<C> {
    connection: Option<C>,
    attempt: Option<Attempt<C>>,
    /// Incremented with every attempt.
    attempts: u64,
    backoff: Backoff,
    /// The next attempt does not start before this.
    pause_until: Option<Instant>,
    is_closed: bool,
}

struct Attempt<C> {
    outcome: watch::Receiver<Option<Result<C>>>,
    /// When the attempt must have ended, if its runtime is driven.
    end: Instant,
}

impl<C: Clone + Send + Sync + 'static> ConnectOnce<C> {
    /// Nothing is sent. `server` names the server and its endpoint in errors, without a credential;
    /// `limit` bounds one attempt; `backoff` spaces the attempts after a failed one.
    pub fn new(server: impl Into<String>, limit: Duration, backoff: Backoff) -> Self {
        let state = State {
            connection: None,
            attempt: None,
            attempts: 0,
            backoff,
            pause_until: None,
            is_closed: false,
        };
        Self(Arc::new(Link { server: server.into(), limit, state: Mutex::new(state) }))
    }

    /// The connection, if there is one.
    pub fn current(&self) -> Option<C> {
        self.0.state().connection.clone()
    }

    /// The connection, made by `connect` if there is none and no attempt is running. The attempt is
    /// a separate task, so a caller that gives up early does not end it for the others.
    ///
    /// # Errors
    ///
    /// The error of the attempt, which all its waiters get; [`Unavailable`](ErrorKind::Unavailable)
    /// if there is no connection within `limit`; [`Closed`](ErrorKind::Closed) after
    /// [`close`](Self::close).
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: the attempt goes on.
    pub async fn get<F>(&self, limit: Duration, connect: impl FnOnce() -> F) -> Result<C>
    where
        F: Future<Output = Result<C>> + Send + 'static,
    {
        if let Some(connection) = self.current() {
            return Ok(connection);
        }
        let mut outcome = self.attempt(connect)?;
        match tokio::time::timeout(limit, outcome.wait_for(Option::is_some)).await {
            Ok(Ok(outcome)) => match &*outcome {
                Some(outcome) => outcome.clone(),
                None => Err(self.0.unreachable("the attempt to connect was abandoned")),
            },
            Ok(Err(_)) => Err(self.0.given_up()),
            Err(_) => Err(self.0.unreachable(&format!("no connection within {limit:?}"))),
        }
    }

    /// The running attempt, or a new one.
    fn attempt<F>(&self, connect: impl FnOnce() -> F) -> Result<watch::Receiver<Option<Result<C>>>>
    where
        F: Future<Output = Result<C>> + Send + 'static,
    {
        let runtime = runtime::current(&self.0.server)?;
        let mut state = self.0.state();
        if state.is_closed {
            return Err(self.0.closed());
        }
        let now = Instant::now();
        // An attempt whose runtime has ended or is not driven is not waited for.
        if let Some(attempt) = &state.attempt
            && attempt.outcome.has_changed().is_ok()
            && now < attempt.end
        {
            return Ok(attempt.outcome.clone());
        }
        let begin = state.pause_until.filter(|at| *at > now);
        let (sender, outcome) = watch::channel(None);
        let end = begin.unwrap_or(now) + self.0.limit + STANDSTILL;
        state.attempts += 1;
        state.attempt = Some(Attempt { outcome: outcome.clone(), end });
        let number = state.attempts;
        drop(state);
        let (link, work) = (Arc::clone(&self.0), connect());
        runtime.spawn(async move {
            if let Some(begin) = begin {
                tokio::time::sleep_until(begin).await;
            }
            let made = tokio::time::timeout(link.limit, work).await;
            let limit = link.limit;
            let made = made.unwrap_or_else(|_| {
                Err(link.unreachable(&format!("no connection within {limit:?}")))
            });
            let _ = sender.send(Some(link.note(number, made)));
        });
        Ok(outcome)
    }

    /// Stops using the connection if `is_it` returns true: it is broken, or the way to it has
    /// changed.
    pub fn forget(&self, is_it: impl FnOnce(&C) -> bool) {
        let mut state = self.0.state();
        if state.connection.as_ref().is_some_and(is_it) {
            // Outside the lock: dropping a connection may run code.
            let connection = state.connection.take();
            drop(state);
            drop(connection);
        }
    }

    /// Forgets the connection and makes no more. Returns the last one.
    pub fn close(&self) -> Option<C> {
        let mut state = self.0.state();
        state.is_closed = true;
        state.attempt = None;
        state.connection.take()
    }
}

/// How much an attempt may exceed its limit on a busy machine.
const STANDSTILL: Duration = Duration::from_millis(250);

impl<C: Clone> Link<C> {
    fn state(&self) -> MutexGuard<'_, State<C>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the outcome of an attempt. If another one has begun since, or the link was closed,
    /// its connection is not used.
    fn note(&self, number: u64, outcome: Result<C>) -> Result<C> {
        let mut state = self.state();
        if state.is_closed {
            return Err(self.closed());
        }
        if state.attempts != number {
            return Err(self.given_up());
        }
        state.attempt = None;
        match &outcome {
            Ok(connection) => {
                state.connection = Some(connection.clone());
                state.backoff.reset();
                state.pause_until = None;
            }
            Err(_) => {
                let pause = state.backoff.failed(&OsRng);
                state.pause_until = Some(Instant::now() + pause);
            }
        }
        outcome
    }

    fn unreachable(&self, why: &str) -> Error {
        let server = &self.server;
        Error::new(ErrorKind::Unavailable, format!("{server} cannot be reached: {why}"))
    }

    fn given_up(&self) -> Error {
        self.unreachable("the runtime on which it was being connected has ended or stalled")
    }

    fn closed(&self) -> Error {
        Error::new(ErrorKind::Closed, format!("the connection to {} was closed", self.server))
    }
}

impl<C> Clone for ConnectOnce<C> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<C> fmt::Debug for ConnectOnce<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ConnectOnce").field(&self.0.server).finish()
    }
}

#[cfg(test)]
mod tests;
