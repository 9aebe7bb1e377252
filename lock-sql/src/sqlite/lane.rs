//! One connection, used by one statement at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lock_core::Result;
use sqlx::sqlite::{SqliteArguments, SqliteRow};
use sqlx::{Connection, Sqlite};
use tokio::sync::Mutex;

use super::error::Failure;
use super::open::{Open, Site};
use crate::engine::error::closed;

pub(super) type Query<'q> = sqlx::query::Query<'q, Sqlite, SqliteArguments>;

/// A connection that its users share in the order of their arrival.
///
/// Not a pool, for two reasons. SQLite has one writer at a time anyway, and a second connection of
/// the same process would only poll for the write lock. And a statement whose future was dropped
/// stays in the queue of its connection's thread: on the same connection it is executed before a
/// later release and not after it, so a late acquire leaves no lock behind.
#[derive(Debug)]
pub(super) struct Lane {
    site: Arc<Site>,
    /// See [`Site::open`].
    writes: bool,
    open: Mutex<Option<Open>>,
    closed: AtomicBool,
}

impl Lane {
    pub(super) fn new(site: Arc<Site>, writes: bool) -> Self {
        Self { site, writes, open: Mutex::default(), closed: AtomicBool::new(false) }
    }

    /// Executes one statement to its end. `make` is called when the connection is free, so that what
    /// it binds is fresh.
    ///
    /// Always to the end: SQLite commits after the last row of a RETURNING clause, so a reader that
    /// stops at the first row, as `fetch_optional` does, does not see a commit that fails.
    pub(super) async fn rows<'q>(
        &self,
        make: impl FnOnce() -> Query<'q> + Send,
    ) -> Result<Vec<SqliteRow>, Failure> {
        let mut slot = self.open.lock().await;
        if self.closed.load(Ordering::Acquire) {
            return Err(closed().into());
        }
        if slot.as_ref().is_some_and(|open| !self.site.is_current(open)) {
            tracing::warn!(target: "distlock", path = %self.site.place.endpoint(), "the database file was deleted or replaced while it was in use: opening the new one");
            *slot = None;
        }
        let open = match &mut *slot {
            Some(open) => open,
            empty => empty.insert(self.site.open(self.writes).await?),
        };
        let answer = make().fetch_all(&mut open.connection).await;
        answer.map_err(|error| {
            let failure = self.site.place.failure(error);
            if matches!(failure, Failure::Failed(_)) {
                // Whatever it was, a new connection looks at the file and the table again.
                *slot = None;
            }
            failure
        })
    }

    /// Keeps everybody else waiting.
    #[cfg(test)]
    pub(super) async fn occupy(&self) -> tokio::sync::MutexGuard<'_, Option<Open>> {
        self.open.lock().await
    }

    /// Waits for the statement under way and closes the connection.
    pub(super) async fn close(&self) -> Result<(), sqlx::Error> {
        self.closed.store(true, Ordering::Release);
        match self.open.lock().await.take() {
            Some(open) => open.connection.close().await,
            None => Ok(()),
        }
    }
}
