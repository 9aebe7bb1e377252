//! One connection to a server: calls with a limit, and the check whether it still answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use lock_core::{ClockInstant, Error, ErrorKind, Result};
use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisError, Value};

use super::pulse::{NodeEvent, Pulse};
use crate::error::is_read_only;

/// How long a new connection is assumed to lead where the server's name does.
const FRESH: Duration = Duration::from_secs(1);

/// One connection, which all calls share.
pub(super) struct Connection {
    driver: MultiplexedConnection,
    made: ClockInstant,
    life: Arc<Life>,
    /// A check whether it still answers is under way.
    doubted: AtomicBool,
}

/// Whether a connection may still be used. The driver's own task, which reports its end, shares this.
pub(super) struct Life {
    pub(super) pulse: Arc<Pulse>,
    /// Nothing new is sent over it: it is closed, or a reply never came.
    over: AtomicBool,
}

impl Life {
    pub(super) fn new(pulse: Arc<Pulse>) -> Self {
        Self { pulse, over: AtomicBool::new(false) }
    }

    /// Nothing new goes over this connection. What is under way may still be answered.
    pub(super) fn give_up(&self) {
        if !self.over.swap(true, Relaxed) {
            tracing::debug!(target: "distlock", endpoint = %self.pulse.endpoint, "giving up a Redis connection");
            self.pulse.emit(NodeEvent::Down);
            self.pulse.attention.notify_one();
        }
    }
}

impl Connection {
    pub(super) fn new(driver: MultiplexedConnection, life: Arc<Life>) -> Self {
        let made = life.pulse.clock.now();
        Self { driver, made, life, doubted: AtomicBool::new(false) }
    }

    pub(super) fn is_over(&self) -> bool {
        self.life.over.load(Relaxed)
    }

    /// Sends `command`, and waits for the answer until `limit` is over. A connection that is silent for
    /// as long as `patience` is given up.
    ///
    /// The inner result is what the server said, or how the connection broke; the outer one is an
    /// error of ours.
    pub(super) async fn exchange(
        self: &Arc<Self>,
        command: &Cmd,
        limit: Duration,
        patience: Duration,
    ) -> Result<std::result::Result<Value, RedisError>> {
        let pulse = &self.life.pulse;
        let sent = pulse.clock.now();
        let mut driver = self.driver.clone();
        let mut request = InFlight { connection: self, sent, patience, answered: false };
        // The driver's timer, not the lock's clock: it bounds a call, and decides nothing.
        let answer = tokio::time::timeout(limit, driver.send_packed_command(command)).await;
        let Ok(answer) = answer else {
            return Err(Error::new(
                ErrorKind::NoAnswer,
                format!("the Redis server at {} did not answer within {limit:?}", pulse.endpoint),
            ));
        };
        request.answered = true;
        let answer = answer.and_then(Value::extract_error);
        match &answer {
            Err(error) if error.is_unrecoverable_error() || error.is_io_error() => {
                self.life.give_up();
            }
            // A replica by now: the name may lead to its master. A new connection has just followed
            // the name, and each one wakes all waiters, so reconnects must not chase one another.
            Err(error) if is_read_only(error) && sent.since(self.made) >= FRESH => {
                self.life.give_up();
            }
            _ => pulse.note_answer(sent),
        }
        Ok(answer)
    }

    /// Finds out whether the connection is slow or dead: answers come in the order of the requests.
    /// One check at a time.
    fn doubt(self: &Arc<Self>, patience: Duration) {
        if self.is_over() || self.doubted.swap(true, Relaxed) {
            return;
        }
        let doubt = Doubt(Arc::clone(self));
        self.life.pulse.tasks.spawn(async move {
            // A failure gives the connection up.
            let _ = doubt.0.exchange(&redis::cmd("PING"), patience, patience).await;
        });
    }
}

/// A check of a connection is under way until this is dropped, at the latest with its runtime.
struct Doubt(Arc<Connection>);

impl Drop for Doubt {
    fn drop(&mut self) {
        self.0.doubted.store(false, Relaxed);
    }
}

/// A request without an answer yet.
struct InFlight<'a> {
    connection: &'a Arc<Connection>,
    sent: ClockInstant,
    /// A connection that is silent for this long is given up.
    patience: Duration,
    answered: bool,
}

/// The caller has given up, or its time is over. That says nothing about the shared connection,
/// unless it was silent for as long as any request waits.
impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        if self.answered {
            return;
        }
        let life = &self.connection.life;
        // The core drops a call at the same limit, and its timer may be the faster one.
        if life.pulse.clock.now().since(self.sent) >= self.patience * 9 / 10 {
            life.give_up();
        } else {
            self.connection.doubt(self.patience);
        }
    }
}
