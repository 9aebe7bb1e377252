//! The connections: one that writes and one that reads, each used by one statement at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lock_core::{Result, async_trait};
use sqlx::Connection;
use tokio::sync::Mutex;

use super::file::{Open, SqliteFile};
use crate::engine::driver::Driver as _;
use crate::engine::error::{Failure, Means, closed};
use crate::engine::links::{Links, Turn, Want};
use crate::engine::statement::Query;
use crate::engine::value::Reply;

/// Both connections.
#[derive(Debug)]
pub(crate) struct Lanes {
    /// For all writes.
    pub(super) writer: Lane,
    /// Taken before `writer` by everything that can wait: at most one such statement is ahead of a
    /// renewal or a release, however many tasks want a lock.
    tries: Mutex<()>,
    /// For reads, which in WAL mode wait for no writer.
    reader: Lane,
}

impl Lanes {
    pub(super) fn new(file: &Arc<SqliteFile>) -> Self {
        let lane = |writes| Lane {
            file: Arc::clone(file),
            writes,
            open: Mutex::default(),
            closed: AtomicBool::new(false),
        };
        Self { writer: lane(true), tries: Mutex::default(), reader: lane(false) }
    }
}

#[async_trait]
impl Links for Lanes {
    async fn execute(
        &self,
        want: Want<'_>,
        make: &(dyn Fn() -> Query + Send + Sync),
    ) -> Result<Reply, Failure> {
        match want.turn {
            Turn::Check | Turn::Look => self.reader.reply(make).await,
            Turn::Keep | Turn::Release => self.writer.reply(make).await,
            Turn::Try => {
                let _turn = self.tries.lock().await;
                self.writer.reply(make).await
            }
        }
    }

    async fn close(&self) -> Result<()> {
        self.reader.close().await?;
        self.writer.close().await
    }
}

/// A connection that its users share in order of arrival.
///
/// Not a pool, for two reasons. SQLite has one writer at a time anyway, and a second connection of
/// the same process would only poll for the write lock. And a statement whose future was dropped
/// stays in the queue of its connection's thread: on the same connection it is executed before a
/// later release and not after it, so a late acquire leaves no lock behind.
#[derive(Debug)]
pub(super) struct Lane {
    file: Arc<SqliteFile>,
    /// See [`SqliteFile::open`].
    writes: bool,
    open: Mutex<Option<Open>>,
    closed: AtomicBool,
}

impl Lane {
    async fn reply(&self, make: &(dyn Fn() -> Query + Send + Sync)) -> Result<Reply, Failure> {
        let mut slot = self.open.lock().await;
        if self.closed.load(Ordering::Acquire) {
            return Err(closed());
        }
        if slot.as_ref().is_some_and(|open| !self.file.is_current(open)) {
            tracing::warn!(target: "distlock", path = %self.file.table.names.at, "the database file was deleted or replaced while it was in use: opening the new one");
            *slot = None;
        }
        let open = match &mut *slot {
            Some(open) => open,
            empty => empty.insert(self.file.open(self.writes).await?),
        };
        self.file.run(&mut open.connection, make()).await.map_err(|error| {
            let failure = self.file.failure(error, true);
            if failure.means != Means::Contended {
                // In any case, a new connection checks the file and the table again.
                *slot = None;
            }
            failure
        })
    }

    /// Keeps all other users waiting.
    #[cfg(test)]
    pub(super) async fn occupy(&self) -> tokio::sync::MutexGuard<'_, Option<Open>> {
        self.open.lock().await
    }

    /// Waits for the statement under way and closes the connection.
    async fn close(&self) -> Result<()> {
        self.closed.store(true, Ordering::Release);
        let Some(open) = self.open.lock().await.take() else { return Ok(()) };
        let done = open.connection.close().await;
        done.map_err(|error| self.file.failure(error, true).into())
    }
}
