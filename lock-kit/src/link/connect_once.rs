//! One connection, made once and shared by all its users.
//!
//! ```
//! use std::time::Duration;
//! use lock_core::backoff::Backoff;
//! use lock_kit::connect_once::ConnectOnce;
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
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::Failures;
use crate::attendant::{Attendant, Requests};
use crate::runtime;
use lock_core::backoff::Backoff;
use lock_core::{Error, ErrorKind, Result};

/// The connection to one server, if there is one, and the attempt to make one, shared by all
/// callers. `C` is cheap to clone. Clones share both.
pub struct ConnectOnce<C>(Arc<Way<C>>);

struct Way<C> {
    server: String,
    limit: Duration,
    shared: Mutex<OnceState<C>>,
}

struct OnceState<C> {
    connection: Option<C>,
    /// Makes one attempt, on the runtime of the caller that needs it first, for all.
    attempt: Attendant<Caller<C>>,
    /// When that attempt must have ended, if its runtime is driven.
    end: Option<Instant>,
    /// Incremented with every attempt.
    attempts: u64,
    failures: Failures,
    is_closed: bool,
}

/// Who waits for an attempt.
type Caller<C> = oneshot::Sender<Result<C>>;

impl<C: Clone + Send + Sync + 'static> ConnectOnce<C> {
    /// Nothing is sent. `server` names the server and its endpoint in errors, without a credential;
    /// `limit` bounds one attempt; `backoff` spaces the attempts after a failed one.
    pub fn new(server: impl Into<String>, limit: Duration, backoff: Backoff) -> Self {
        let shared = OnceState {
            connection: None,
            attempt: Attendant::default(),
            end: None,
            attempts: 0,
            failures: Failures::new(backoff),
            is_closed: false,
        };
        Self(Arc::new(Way { server: server.into(), limit, shared: Mutex::new(shared) }))
    }

    /// The connection, if there is one.
    pub fn current(&self) -> Option<C> {
        self.0.shared.lock().connection.clone()
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
        let (caller, outcome) = oneshot::channel();
        self.ask(caller, connect)?;
        match tokio::time::timeout(limit, outcome).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) => Err(self.0.given_up()),
            Err(_) => Err(self.0.unreachable(&format!("no connection within {limit:?}"))),
        }
    }

    /// Has the caller wait for the running attempt, or for a new one.
    fn ask<F>(&self, caller: Caller<C>, connect: impl FnOnce() -> F) -> Result<()>
    where
        F: Future<Output = Result<C>> + Send + 'static,
    {
        let runtime = runtime::current(&self.0.server)?;
        let mut shared = self.0.shared.lock();
        if shared.is_closed {
            return Err(self.0.closed());
        }
        if let Some(connection) = &shared.connection {
            let _ = caller.send(Ok(connection.clone()));
            return Ok(());
        }
        let now = Instant::now();
        // An attempt whose runtime is not driven is not waited for.
        if shared.end.take_if(|end| now >= *end).is_some() {
            shared.attempt = Attendant::default();
        }
        let Some(callers) = shared.attempt.ask(caller) else { return Ok(()) };
        let begin = shared.failures.pause_until(now);
        shared.end = Some(begin.unwrap_or(now) + self.0.limit + STANDSTILL);
        shared.attempts += 1;
        let number = shared.attempts;
        drop(shared);
        let (way, work) = (Arc::clone(&self.0), connect());
        runtime.spawn(async move {
            if let Some(begin) = begin {
                tokio::time::sleep_until(begin).await;
            }
            way.attempt(number, work, callers).await;
        });
        Ok(())
    }

    /// Stops using the connection if `is_it` returns true: it is broken, or the way to it has
    /// changed.
    pub fn forget(&self, is_it: impl FnOnce(&C) -> bool) {
        let mut shared = self.0.shared.lock();
        if shared.connection.as_ref().is_some_and(is_it) {
            // Outside the lock: dropping a connection may run code.
            let connection = shared.connection.take();
            drop(shared);
            drop(connection);
        }
    }

    /// Forgets the connection and makes no more. Returns the last one.
    pub fn close(&self) -> Option<C> {
        let mut shared = self.0.shared.lock();
        shared.is_closed = true;
        shared.attempt = Attendant::default();
        shared.connection.take()
    }
}

/// How much an attempt may exceed its limit on a busy machine.
const STANDSTILL: Duration = Duration::from_millis(250);

impl<C: Clone> Way<C> {
    /// Makes an attempt, and tells all who wait for it what it has led to.
    async fn attempt(
        &self,
        number: u64,
        work: impl Future<Output = Result<C>>,
        mut callers: Requests<Caller<C>>,
    ) {
        let made = match tokio::time::timeout(self.limit, work).await {
            Ok(made) => made,
            Err(_) => Err(self.unreachable(&format!("no connection within {:?}", self.limit))),
        };
        let outcome = self.note(number, made);
        while let Some(callers) = callers.next(Duration::ZERO).await {
            for caller in callers {
                let _ = caller.send(outcome.clone());
            }
        }
    }

    /// Records the outcome of an attempt. If another one has begun since, or the link was closed,
    /// its connection is not used.
    fn note(&self, number: u64, outcome: Result<C>) -> Result<C> {
        let mut shared = self.shared.lock();
        if shared.is_closed {
            return Err(self.closed());
        }
        if shared.attempts != number {
            return Err(self.given_up());
        }
        shared.attempt = Attendant::default();
        match &outcome {
            Ok(connection) => {
                shared.connection = Some(connection.clone());
                shared.failures.end();
            }
            Err(_) => shared.failures.one_more(),
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
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    use super::*;
    use tokio::runtime::Builder;

    const MS: fn(u64) -> Duration = Duration::from_millis;
    const LIMIT: Duration = Duration::from_secs(1);

    fn link() -> ConnectOnce<u32> {
        ConnectOnce::new("X", LIMIT, Backoff::new(MS(100), MS(400)))
    }

    fn refused() -> Result<u32> {
        Err(Error::new(ErrorKind::Unavailable, "refused"))
    }

    #[tokio::test(start_paused = true)]
    async fn all_share_one_attempt_and_its_connection() {
        let (link, attempts) = (link(), Arc::new(AtomicU32::new(0)));
        let connect = || {
            let attempts = Arc::clone(&attempts);
            async move {
                tokio::time::sleep(MS(50)).await;
                Ok(attempts.fetch_add(1, Relaxed))
            }
        };
        let early = link.get(MS(10), connect);
        let others = (link.get(LIMIT, connect), link.get(LIMIT, connect));
        let (early, one, two) = tokio::join!(early, others.0, others.1);
        assert_eq!(early.unwrap_err().kind(), ErrorKind::Unavailable);
        assert_eq!((one.unwrap(), two.unwrap()), (0, 0));
        assert_eq!(link.get(LIMIT, connect).await.unwrap(), 0);
        link.forget(|number| *number == 7);
        assert_eq!(link.current(), Some(0), "it was another one");
        link.forget(|number| *number == 0);
        assert_eq!(link.get(LIMIT, connect).await.unwrap(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn an_error_goes_to_all_and_the_next_attempt_waits() {
        let link = link();
        let start = Instant::now();
        let connect = || async { refused() };
        let errors = tokio::join!(link.get(LIMIT, connect), link.get(LIMIT, connect));
        assert!(errors.0.is_err() && errors.1.is_err());
        assert_eq!(start.elapsed(), Duration::ZERO, "the first attempt does not wait");
        link.get(LIMIT, connect).await.unwrap_err();
        assert!(start.elapsed() >= MS(100), "the second does");
        let short = link.get(MS(50), || async { Ok(1) }).await;
        assert!(short.is_err(), "the pause is over later");
        assert_eq!(link.get(LIMIT, connect).await.unwrap(), 1, "it has joined that attempt");
        link.forget(|_| true);
        let start = Instant::now();
        assert_eq!(link.get(LIMIT, || async { Ok(2) }).await.unwrap(), 2);
        assert_eq!(start.elapsed(), Duration::ZERO, "a success ends the pauses");
    }

    #[tokio::test(start_paused = true)]
    async fn an_attempt_has_a_limit() {
        let link = link();
        let start = Instant::now();
        let error = link.get(10 * LIMIT, std::future::pending).await.unwrap_err();
        assert!(error.to_string().contains("X cannot be reached"), "{error}");
        assert!(start.elapsed() < LIMIT + MS(10));
    }

    #[tokio::test(start_paused = true)]
    async fn an_attempt_is_shared_until_it_has_ended() {
        let link = link();
        let slow = |number| async move {
            tokio::time::sleep(MS(900)).await;
            Ok(number)
        };
        let late = async {
            tokio::time::sleep(MS(850)).await;
            link.get(LIMIT, || slow(2)).await
        };
        let (first, second) = tokio::join!(link.get(LIMIT, || slow(1)), late);
        assert_eq!((first.unwrap(), second.unwrap()), (1, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn after_the_end_nothing_is_connected() {
        let link = link();
        let slow = async || {
            tokio::time::sleep(MS(50)).await;
            Ok(1)
        };
        let closing = async {
            tokio::time::sleep(MS(10)).await;
            link.close()
        };
        let (late, closed) = tokio::join!(link.get(LIMIT, slow), closing);
        assert_eq!((late.unwrap_err().kind(), closed), (ErrorKind::Closed, None));
        let error = link.get(LIMIT, || async { Ok(1) }).await.unwrap_err();
        assert_eq!((error.kind(), link.current()), (ErrorKind::Closed, None));
    }

    #[test]
    fn a_runtime_that_ends_or_stands_still_stops_nobody_else() {
        let runtime = || Builder::new_current_thread().enable_all().build().unwrap();
        let (link, standing, ending) =
            (ConnectOnce::new("X", MS(50), Backoff::new(MS(1), MS(1))), runtime(), runtime());
        let connect = || async { Ok(std::future::pending::<u32>().await) };
        let (answers, late) = oneshot::channel();
        standing.block_on(link.get(MS(5), || async { Ok(late.await.unwrap()) })).unwrap_err();
        let elsewhere = runtime();
        let mut tries = (0..100).map(|_| elsewhere.block_on(link.get(MS(50), || async { Ok(2) })));
        assert!(tries.any(|got| got.is_ok()), "it waits for another runtime");
        link.forget(|_| true);
        ending.block_on(link.get(MS(5), connect)).unwrap_err();
        drop(ending);
        assert_eq!(elsewhere.block_on(link.get(MS(5000), || async { Ok(3) })).unwrap(), 3);
        answers.send(9).unwrap();
        standing.block_on(async {
            for _ in 0..8 {
                tokio::task::yield_now().await;
            }
        });
        assert_eq!(link.current(), Some(3), "that one was given up");
    }
}
