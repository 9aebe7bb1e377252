//! The link to a server: one shared connection that is reopened when it is lost, and that is kept
//! up and watched while a waiter needs pushes.
//!
//! The driver's own connection manager is not used. It blocks for nine seconds while the server is
//! down, and never replaces a connection on which nothing comes back (both were measured).

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lock_core::kit::backoff::Backoff;
use lock_core::kit::connect_once::ConnectOnce;
use lock_core::{ClockInstant, ErrorKind, Result};

use super::connection::Connection;
use super::dial::Dial;
use super::pulse::Pulse;

/// The pauses between attempts to connect.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(1));
/// A waiting client that has heard nothing for this long pings the server.
const PING_EVERY: Duration = Duration::from_secs(2);
/// How long it waits for the reply.
const PING_LIMIT: Duration = Duration::from_secs(1);
/// The pause after that, and how long the task waits for a connection before it checks whether it
/// is still wanted.
const PAUSE: Duration = Duration::from_millis(100);
const CONNECTING: Duration = Duration::from_secs(3);

/// The link to one server.
pub(super) struct Link {
    dial: Arc<Dial>,
    connection: ConnectOnce<Arc<Connection>>,
    watch: Mutex<Watch>,
}

#[derive(Default)]
struct Watch {
    /// How many wait for pushes.
    waiting: usize,
    /// The task runs.
    runs: bool,
}

/// A waiter needs pushes.
pub(crate) struct Interest(Arc<Link>);

impl Link {
    /// `limit` is for opening a connection, including the handshake.
    pub(super) fn new(dial: Dial, limit: Duration) -> Self {
        let server = format!("the Redis server at {}", dial.pulse.endpoint);
        let connection = ConnectOnce::new(server, limit, BACKOFF);
        Self { dial: Arc::new(dial), connection, watch: Mutex::default() }
    }

    pub(super) fn pulse(&self) -> &Pulse {
        &self.dial.pulse
    }

    /// The connection, if there is one that may be used.
    fn current(&self) -> Option<Arc<Connection>> {
        self.connection.forget(|connection| connection.is_over());
        self.connection.current()
    }

    /// The connection, opened if there is none.
    pub(super) async fn connection(&self, end: ClockInstant) -> Result<Arc<Connection>> {
        if let Some(connection) = self.current() {
            return Ok(connection);
        }
        let dial = Arc::clone(&self.dial);
        let connect = || async move { dial.connect().await.map(Arc::new) };
        self.connection.get(end.since(self.pulse().clock.now()), connect).await
    }

    /// Drops the connection. No new one is opened.
    pub(super) fn close(&self) {
        drop(self.connection.close());
        self.pulse().attention.notify_one();
    }

    /// Registers a waiter for pushes until the value is dropped.
    pub(super) fn interest(self: &Arc<Self>) -> Interest {
        let begins = {
            let mut watch = self.watch();
            watch.waiting += 1;
            !std::mem::replace(&mut watch.runs, true)
        };
        if begins {
            // Made before the task, which may end with its runtime before it has begun.
            let watching = Watching(Arc::clone(self));
            self.pulse().tasks.spawn(async move { watching.0.keep_up().await });
        } else if self.current().is_none() {
            self.pulse().attention.notify_one();
        }
        Interest(Arc::clone(self))
    }

    async fn keep_up(&self) {
        let pulse = self.pulse();
        while self.is_wanted() {
            let pause = match self.current() {
                None => {
                    // Attempts that fail are spaced.
                    let made = self.connection(pulse.clock.now() + CONNECTING).await;
                    if made.is_err_and(|error| error.kind() == ErrorKind::Closed) {
                        return;
                    }
                    continue;
                }
                Some(connection) => match PING_EVERY.saturating_sub(pulse.silent_for()) {
                    Duration::ZERO => {
                        let ping = redis::cmd("PING");
                        // A failure gives the connection up, which the next round sees.
                        let _ = connection.exchange(&ping, PING_LIMIT, PING_LIMIT).await;
                        PAUSE
                    }
                    left => left,
                },
            };
            tokio::select! {
                () = pulse.attention.notified() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Whether there are waiters. If not, the task ends, and the next interest starts another one.
    fn is_wanted(&self) -> bool {
        let mut watch = self.watch();
        watch.runs = watch.waiting > 0;
        watch.runs
    }

    fn watch(&self) -> MutexGuard<'_, Watch> {
        self.watch.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The task runs until this is dropped, at the latest with its runtime.
struct Watching(Arc<Link>);

impl Drop for Watching {
    fn drop(&mut self) {
        self.0.watch().runs = false;
    }
}

impl fmt::Debug for Interest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Interest")
    }
}

impl Drop for Interest {
    fn drop(&mut self) {
        self.0.watch().waiting -= 1;
    }
}
