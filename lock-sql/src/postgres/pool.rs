//! The connections of one client.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lock_core::{Clock, Result, SystemClock};
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};
use tokio::sync::Semaphore;

use super::error::{Failure, code};
use super::open::Site;
use super::resting::{REST, Resting};
use super::value::{Value, inline};
use crate::engine::error::closed;
use crate::statements::postgres::{LIMITED, Sql};

/// A connection that was used within this time is taken to work still. A server that has gone is
/// noticed sooner by the connection that listens.
const FRESH: Duration = Duration::from_secs(1);

/// How long a connection that is tested has to answer.
const TEST: Duration = Duration::from_secs(1);

/// Who a statement waits for. The numbers of statements of one kind that are under way at the same
/// time are limited, each by itself: however many want a lock, or wait to give up one whose row somebody
/// else has locked, keeping does not wait for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// Keeping locks.
    Keep,
    /// Giving them up, and telling the next one.
    Release,
    /// Getting them, looking, and cleaning up.
    Try,
}

/// How many statements of each kind are under way at the most.
const TURNS: [(Turn, usize); 3] = [(Turn::Keep, 3), (Turn::Release, 3), (Turn::Try, 4)];

/// What may be done when the connection was lost in a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Repeat {
    /// The statement changes nothing that must not be changed twice, nor late: again, once.
    Once,
    /// What it may still do must be known to the caller.
    Never,
}

/// Connections that are opened when they are needed.
///
/// Not the driver's pool, for three reasons: renewals and releases must not wait behind those who want
/// a lock; a statement that was dropped in its middle must not leave its connection to others, so a
/// connection comes back only after a whole answer; and no question whether the connection still works
/// goes ahead of each statement.
#[derive(Debug)]
pub(super) struct Pool {
    site: Arc<Site>,
    turns: [Semaphore; TURNS.len()],
    resting: Arc<Resting>,
    clock: Arc<SystemClock>,
    closed: AtomicBool,
}

impl Pool {
    pub(super) fn new(site: Arc<Site>, clock: Arc<SystemClock>) -> Self {
        Self {
            site,
            turns: TURNS.map(|(_, number)| Semaphore::new(number)),
            resting: Resting::new(Arc::clone(&clock), REST),
            clock,
            closed: AtomicBool::new(false),
        }
    }

    /// Executes one statement to its end: its commit is confirmed by what follows the last row.
    pub(super) async fn rows(
        &self,
        turn: Turn,
        repeat: Repeat,
        sql: &Sql,
        values: &[Value],
    ) -> Result<Vec<PgRow>, Failure> {
        let turns = TURNS.iter().position(|(kind, _)| *kind == turn).unwrap_or_default();
        // Closing the semaphores is how the pool is closed.
        let _permit = self.turns[turns].acquire().await.map_err(|_| closed())?;
        let mut connection = match self.last_used(repeat).await {
            Some(connection) => connection,
            None => self.site.open().await?,
        };
        let rows = self.execute(&mut connection, sql, values).await;
        match rows {
            Ok(rows) => {
                self.keep(connection);
                Ok(rows)
            }
            Err(error) => {
                // A plan that the table's owner has made obsolete stays with its connection.
                let whole = code(&error).is_some_and(|code| code != "0A000");
                let failure = self.site.place.failure(error, false);
                match &failure {
                    // The others were probably cut, too, or are as read-only.
                    Failure::Cut(_)
                    | Failure::Pooled
                    | Failure::NoTable(_)
                    | Failure::ReadOnly(_) => self.forget(),
                    _ if whole => self.keep(connection),
                    _ => {}
                }
                if matches!(failure, Failure::Pooled) {
                    self.site.set_pooled();
                }
                if matches!(failure, Failure::NoTable(_)) {
                    self.site.look_again();
                }
                Err(failure)
            }
        }
    }

    /// The connection that is the least likely to have been cut meanwhile. A statement that must not be
    /// repeated should not be the one to find out, after some time.
    async fn last_used(&self, repeat: Repeat) -> Option<PgConnection> {
        let (mut connection, since) = self.resting.pop()?;
        let fresh = self.clock.now().since(since) < FRESH;
        if repeat == Repeat::Once || fresh {
            return Some(connection);
        }
        if let Ok(Ok(())) = tokio::time::timeout(TEST, connection.ping()).await {
            return Some(connection);
        }
        self.forget();
        None
    }

    async fn execute(
        &self,
        connection: &mut PgConnection,
        sql: &Sql,
        values: &[Value],
    ) -> Result<Vec<PgRow>, sqlx::Error> {
        if self.site.is_pooled() {
            let text = format!("{LIMITED}{}", inline(&sql.0, values));
            return connection.fetch_all(sqlx::raw_sql(AssertSqlSafe(text))).await;
        }
        let query = sqlx::query(AssertSqlSafe(Arc::clone(&sql.0)));
        let query = values.iter().cloned().fold(query, |query, value| value.bind(query));
        query.fetch_all(connection).await
    }

    pub(super) fn keep(&self, connection: PgConnection) {
        if !self.closed.load(Ordering::Acquire) {
            self.resting.push(connection);
        }
    }

    /// Closes the idle connections.
    pub(super) fn forget(&self) {
        drop(self.resting.take());
    }

    /// Waits for the statements under way and closes the connections.
    pub(super) async fn close(&self) -> Result<(), sqlx::Error> {
        self.closed.store(true, Ordering::Release);
        for (turns, (_, number)) in self.turns.iter().zip(TURNS) {
            // An error means that it was closed before.
            let _all = turns.acquire_many(u32::try_from(number).unwrap_or(u32::MAX)).await;
            turns.close();
        }
        for connection in self.resting.take() {
            connection.close().await?;
        }
        Ok(())
    }
}
