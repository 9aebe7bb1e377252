//! Executing the statements: in which order, for how long, and what their rows say.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{
    Clock, Error, ErrorKind, FencingToken, HolderInfo, LockInfo, LockKey, Released, Result,
    SystemClock,
};
use sqlx::sqlite::SqliteRow;
use sqlx::{AssertSqlSafe, Row, Sqlite};
use tokio::sync::Mutex;

use super::error::Failure;
use super::lane::{Lane, Query};
use super::open::Site;
use super::sweep::Sweeper;
use super::time::Time;
use crate::engine::error::{no_answer, still_locked, strange};
use crate::engine::limits::Limits;
use crate::engine::operations::Entry;
use crate::statements::sqlite::{Sql, Statements};

/// The first and the longest pause between two tries while somebody else writes, beside the time
/// for which SQLite itself waits. The connection is free for others in the meantime.
const RETRY: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(16));

/// What the clones of a store share.
#[derive(Debug)]
pub(super) struct Inner {
    pub(super) site: Arc<Site>,
    pub(super) statements: Statements,
    /// For all that writes.
    pub(super) writer: Lane,
    /// Passed before `writer` by all that can wait: at most one of them is ahead of a renewal or a
    /// release, however many want a lock.
    pub(super) tries: Mutex<()>,
    /// For looks, which in WAL mode wait for no writer.
    pub(super) reader: Lane,
    pub(super) time: Arc<dyn Time>,
    /// For limits only. The leases are counted on `time`.
    pub(super) clock: SystemClock,
    pub(super) retention: Duration,
    pub(super) sweeper: Sweeper,
}

/// Who a statement waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// Keeping or giving up a lock.
    Urgent,
    /// Getting one, or cleaning up: waits behind all others who do.
    Try,
    /// Reading.
    Look,
}

impl Inner {
    pub(super) fn query<'q>(&self, sql: &Sql) -> Query<'q> {
        sqlx::query::<Sqlite>(AssertSqlSafe(Arc::clone(sql)))
    }

    /// Executes a statement. `None` if somebody else was writing until patience ran out: nothing was
    /// done then.
    pub(super) async fn execute<'q>(
        &self,
        turn: Turn,
        limits: Limits,
        make: impl Fn() -> Query<'q> + Send + Sync,
    ) -> Result<Option<Vec<SqliteRow>>> {
        self.within(limits, async {
            let mut pause = RETRY.0;
            loop {
                let answer = match turn {
                    Turn::Look => self.reader.rows(&make).await,
                    Turn::Urgent => self.writer.rows(&make).await,
                    Turn::Try => {
                        let _turn = self.tries.lock().await;
                        self.writer.rows(&make).await
                    }
                };
                match answer {
                    Ok(rows) => return Ok(Some(rows)),
                    Err(Failure::Failed(error)) => return Err(error),
                    Err(Failure::Contended) if self.clock.now() >= limits.patience => {
                        return Ok(None);
                    }
                    Err(Failure::Contended) => self.clock.sleep(pause).await,
                }
                pause = (pause * 2).min(RETRY.1);
            }
        })
        .await
    }

    pub(super) async fn write_urgent<'q>(
        &self,
        limit: Duration,
        make: impl Fn() -> Query<'q> + Send + Sync,
    ) -> Result<Vec<SqliteRow>> {
        let limits = Limits::patient(self.clock.now(), limit);
        self.execute(Turn::Urgent, limits, make).await?.ok_or_else(|| self.still_locked(limit))
    }

    pub(super) async fn read<'q>(
        &self,
        limit: Duration,
        make: impl Fn() -> Query<'q> + Send + Sync,
    ) -> Result<Vec<SqliteRow>> {
        let limits = Limits::patient(self.clock.now(), limit);
        let rows = self.execute(Turn::Look, limits, make).await?;
        rows.ok_or_else(|| self.still_locked(limit))
    }

    /// sqlx has no limit for a statement, and neither has SQLite for a disk that hangs.
    pub(super) async fn within<T>(
        &self,
        limits: Limits,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        tokio::select! {
            biased;
            answer = work => answer,
            () = self.clock.sleep_until(limits.end) => {
                Err(no_answer(&self.site.place.endpoint(), limits.whole))
            }
        }
    }

    /// Whether this process may write, proven by a write that changes nothing.
    pub(super) async fn probe(&self, limit: Duration) -> Result<()> {
        self.write_urgent(limit, || self.query(&self.statements.probe)).await.map(drop)
    }

    pub(super) async fn free(
        &self,
        name: &str,
        owner: Option<&str>,
        fence: Option<FencingToken>,
        limit: Duration,
    ) -> Result<Released> {
        let rows = self
            .write_urgent(limit, || {
                self.query(&self.statements.release)
                    .bind(name.to_owned())
                    .bind(owner.map(str::to_owned))
                    .bind(self.time.boot_us())
                    .bind(self.time.boot_id().to_owned())
                    .bind(fence.map(FencingToken::as_i64))
                    .bind(self.time.booted_us())
            })
            .await?;
        let was_running = match rows.first() {
            Some(row) => self.get(row, 0)?,
            None => false,
        };
        Ok(if was_running { Released::Freed } else { Released::AlreadyGone })
    }

    pub(super) async fn look(&self, name: &str, limit: Duration) -> Result<Option<EntryRow>> {
        let rows = self.read(limit, || self.look_query(name)).await?;
        rows.first().map(|row| self.entry_row(row, 0)).transpose()
    }

    fn look_query<'q>(&self, name: &str) -> Query<'q> {
        self.query(&self.statements.look).bind(name.to_owned())
    }

    /// How long somebody else's lease lasts; `None` if the lock can be taken, or if that cannot be
    /// seen now, which happens without a write-ahead log only. An error if another machine has it.
    pub(super) async fn held_by_another(&self, entry: &Entry) -> Result<Option<Duration>> {
        let limits = Limits::once(self.clock.now(), entry.call_timeout);
        let rows = self.execute(Turn::Look, limits, || self.look_query(&entry.name)).await?;
        let Some(row) = rows.iter().flatten().next() else { return Ok(None) };
        let row = self.entry_row(row, 0)?;
        let other = row.owner.as_deref().is_some_and(|owner| owner != entry.owner.0);
        match self.lease(&row) {
            Lease::Runs(left) if other => Ok(Some(left)),
            Lease::Elsewhere if other => Err(self.another_machine(&row)),
            _ => Ok(None),
        }
    }

    /// What has become of the lease in this row, by the clocks as they are now.
    pub(super) fn lease(&self, row: &EntryRow) -> Lease {
        let left = row.expires.saturating_sub(self.time.boot_us());
        match row.boot == self.time.boot_id() {
            true if left > 0 => Lease::Runs(from_micros(left)),
            false if row.fence >= self.time.booted_us() => Lease::Elsewhere,
            _ => Lease::Over,
        }
    }

    fn another_machine(&self, row: &EntryRow) -> Error {
        Error::new(
            ErrorKind::Store,
            format!(
                "this lock in {} was taken since this machine was started, but under another boot id ({}): by another machine or virtual machine, or in a container with a boot id of its own. SQLite's locks hold on one machine only: use a store with a server. If only the clock was set back since, release the lock by force",
                self.site.place.endpoint(),
                row.boot
            ),
        )
    }

    pub(super) fn info(&self, key: LockKey, row: EntryRow) -> Option<LockInfo> {
        let mut holder = HolderInfo::new(row.owner.as_ref()?.parse().ok());
        match self.lease(&row) {
            Lease::Over => return None,
            Lease::Runs(left) => {
                holder.expires_in = Some(left);
                let since = self.time.boot_us().saturating_sub(row.acquired);
                holder.held_for = Some(from_micros(since));
            }
            // Its times are of another clock.
            Lease::Elsewhere => {}
        }
        holder.fence = FencingToken::try_from(row.fence).ok();
        holder.label = row.label;
        Some(LockInfo::new(key, Some(holder), None))
    }

    pub(super) fn entry_row(&self, row: &SqliteRow, first: usize) -> Result<EntryRow> {
        Ok(EntryRow {
            owner: self.get(row, first)?,
            fence: self.get(row, first + 1)?,
            boot: self.get(row, first + 2)?,
            expires: self.get(row, first + 3)?,
            acquired: self.get(row, first + 4)?,
            label: self.get(row, first + 5)?,
        })
    }

    pub(super) fn get<'r, T>(&self, row: &'r SqliteRow, column: usize) -> Result<T>
    where
        T: sqlx::Decode<'r, Sqlite> + sqlx::Type<Sqlite>,
    {
        row.try_get(column).map_err(|error| {
            strange(&self.site.place.endpoint(), "a value of another type").with_source(error)
        })
    }

    pub(super) fn still_locked(&self, limit: Duration) -> Error {
        still_locked(&self.site.place.endpoint(), limit * 3 / 4)
    }
}

/// What has become of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lease {
    Runs(Duration),
    Over,
    /// It counts on the clock of another machine, which nobody can read here.
    Elsewhere,
}

/// A row, without its name.
pub(super) struct EntryRow {
    pub(super) owner: Option<String>,
    pub(super) fence: i64,
    pub(super) boot: String,
    pub(super) expires: i64,
    pub(super) acquired: i64,
    pub(super) label: Option<String>,
}

/// The clock is cut to whole µs when it is read: one more, or the lease would be shorter than
/// promised by a part of one.
pub(super) fn lease_end(now: i64, ttl: Duration) -> i64 {
    now.saturating_add(micros(ttl)).saturating_add(1)
}

pub(super) fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

pub(super) fn from_micros(micros: i64) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}
