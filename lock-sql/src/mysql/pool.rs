//! The connections of one client.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lock_core::{Clock, ClockInstant, Result};
use sqlx::mysql::{MySqlArguments, MySqlConnection, MySqlRow};
use sqlx::{Connection, MySql};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::error::{Connections, Failure};
use super::open::Site;
use super::unfinished::{Finished, Unfinished};
use crate::engine::error::closed;

pub(super) type Query = sqlx::query::Query<'static, MySql, MySqlArguments>;

/// A connection that was not used for so long is asked whether it is still there: the server, or
/// something between, may have ended it, and a statement would not be known to have been done or not.
const FRESH: Duration = Duration::from_millis(500);
/// The same for a statement that may take a lock: it is not repeated in silence, so it should not be
/// the one to find out. A small server has been seen to end and to be back within 80 ms.
const FRESH_FOR_TRIES: Duration = Duration::from_millis(25);
/// The limit for that question.
const PING: Duration = Duration::from_secs(1);

/// Who a statement waits for. The numbers of statements of one kind that are under way at the same
/// time are limited, each by itself: however many want a lock, keeping and giving up do not wait for
/// them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// Keeping locks.
    Keep,
    /// Giving them up, and whatever an administrator does.
    Release,
    /// Getting them, and cleaning up.
    Try,
}

/// How many statements of each kind are under way at the most.
const TURNS: [(Turn, usize); 3] = [(Turn::Keep, 3), (Turn::Release, 3), (Turn::Try, 4)];

/// Connections that are opened when they are needed.
///
/// Not sqlx's pool, for three reasons: keeping and giving up locks must not wait behind those who want
/// one; a pool asks before *every* statement whether the connection is alive; and it keeps a
/// connection whose statement was dropped half-way, where the next one then reads what is left of the
/// conversation. Here a connection is put back after a whole answer only, and closed otherwise.
#[derive(Debug)]
pub(super) struct Pool {
    site: Arc<Site>,
    turns: [Arc<Semaphore>; TURNS.len()],
    idle: Mutex<Vec<Idle>>,
    /// Connections from before this number are not used any more.
    generation: AtomicU64,
}

#[derive(Debug)]
struct Idle {
    connection: MySqlConnection,
    generation: u64,
    since: ClockInstant,
}

/// What is to be read from the server's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Want {
    Rows,
    Number,
}

/// What the server has answered.
#[derive(Debug, Default)]
pub(super) struct Answer {
    pub(super) rows: Vec<MySqlRow>,
    /// What the statement has put into `LAST_INSERT_ID`; 0 if nothing.
    pub(super) number: i64,
    /// How many rows the statement has found, or changed.
    pub(super) affected: u64,
    /// The statement was sent before, over a connection that has ended without an answer.
    pub(super) repeated: bool,
}

impl Answer {
    /// The number of a statement that gives one for every row that it finds. `None` if it is missing,
    /// which some proxies bring about; 0 if no row was found.
    pub(super) fn told(&self) -> Option<i64> {
        (self.number != 0 || self.affected == 0).then_some(self.number)
    }
}

impl Pool {
    pub(super) fn new(site: Arc<Site>) -> Arc<Self> {
        Arc::new(Self {
            site,
            turns: TURNS.map(|(_, number)| Arc::new(Semaphore::new(number))),
            idle: Mutex::default(),
            generation: AtomicU64::new(0),
        })
    }

    /// Executes one statement to its end. Dropped before it is sent, it is not sent. Dropped later,
    /// it goes on by itself until `end`, so that the connection has its whole answer, and whoever
    /// must know can wait for it.
    pub(super) async fn execute(
        self: &Arc<Self>,
        turn: Turn,
        want: Want,
        query: Query,
        end: ClockInstant,
        unfinished: Option<(&Arc<Unfinished>, &str)>,
    ) -> Result<Answer, Failure> {
        let turns = TURNS.iter().position(|(kind, _)| *kind == turn).unwrap_or_default();
        let turns = Arc::clone(&self.turns[turns]);
        // Closing the semaphores is how the pool is closed.
        let turn = turns.acquire_owned().await.map_err(|_| closed())?;
        let generation = self.generation.load(Ordering::Acquire);
        let fresh = if unfinished.is_some() { FRESH_FOR_TRIES } else { FRESH };
        let connection = match self.take(fresh).await {
            Some(connection) => connection,
            None => self.site.open().await?,
        };
        let statement = Arc::clone(self).answer(turn, connection, generation, want, query);
        let clock = self.site.clock.clone();
        Finished::new(Box::pin(statement), clock, end, unfinished).await
    }

    async fn answer(
        self: Arc<Self>,
        _turn: OwnedSemaphorePermit,
        mut connection: MySqlConnection,
        generation: u64,
        want: Want,
        query: Query,
    ) -> Result<Answer, Failure> {
        match answer(&mut connection, want, query).await {
            Ok(answer) => {
                self.put_back(connection, generation);
                Ok(answer)
            }
            Err(error) => {
                let (failure, left) = self.site.place.failure(error);
                match left {
                    Connections::Usable => self.put_back(connection, generation),
                    Connections::Broken => {}
                    Connections::AllBroken => self.forget(),
                }
                Err(failure)
            }
        }
    }

    /// The connection that was used last, if it is still good.
    async fn take(&self, fresh: Duration) -> Option<MySqlConnection> {
        loop {
            let Idle { mut connection, generation, since } = self.idle().pop()?;
            if generation != self.generation.load(Ordering::Acquire) {
                continue;
            }
            if self.site.clock.now().since(since) < fresh {
                return Some(connection);
            }
            let alive = tokio::select! {
                pong = connection.ping() => pong.is_ok(),
                () = self.site.clock.sleep_until(self.site.clock.now() + PING) => false,
            };
            if alive {
                return Some(connection);
            }
            // The others are as old.
            self.forget();
        }
    }

    fn put_back(&self, connection: MySqlConnection, generation: u64) {
        if self.turns[0].is_closed() || generation != self.generation.load(Ordering::Acquire) {
            return;
        }
        let since = self.site.clock.now();
        self.idle().push(Idle { connection, generation, since });
    }

    /// Uses none of the present connections any more: what they lead to does not answer, or has
    /// become another server.
    pub(super) fn forget(&self) {
        self.generation.fetch_add(1, Ordering::AcqRel);
        self.idle().clear();
    }

    /// Ends the connections in order. Statements under way end by themselves.
    pub(super) async fn close(&self) {
        for turns in &self.turns {
            turns.close();
        }
        let idle = std::mem::take(&mut *self.idle());
        for idle in idle {
            // One that has ended already is closed, too.
            let _ = idle.connection.close().await;
        }
    }

    /// How many connections are open and not in use.
    #[cfg(test)]
    pub(super) fn idle_connections(&self) -> usize {
        self.idle().len()
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Idle>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// All that the server answers, up to the end.
async fn answer(
    connection: &mut MySqlConnection,
    want: Want,
    query: Query,
) -> sqlx::Result<Answer> {
    Ok(match want {
        Want::Rows => Answer { rows: query.fetch_all(connection).await?, ..Answer::default() },
        Want::Number => {
            let done = query.execute(connection).await?;
            let number = done.last_insert_id().cast_signed();
            Answer { number, affected: done.rows_affected(), ..Answer::default() }
        }
    })
}
