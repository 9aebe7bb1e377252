//! Executing the statements: in which order, for how long, and what their rows say.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{
    Clock, Error, ErrorKind, FencingToken, HolderInfo, LockInfo, LockKey, Released, Result,
    SystemClock,
};
use sqlx::postgres::PgRow;
use sqlx::{Postgres, Row};

use super::error::Failure;
use super::open::Site;
use super::pool::{Pool, Repeat, Turn};
use super::sweep::Sweeper;
use super::unfinished::Unfinished;
use super::value::Value;
use crate::dialect::Entry;
use crate::error::{no_answer, still_locked, strange};
use crate::statements::postgres::{Sql, Statements};
use crate::wake::Ears;

/// The first and the longest pause between two tries while somebody else writes. The connection is
/// free for others in the meantime.
const RETRY: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(32));

/// What the clones of a store share.
#[derive(Debug)]
pub(super) struct Inner {
    pub(super) site: Arc<Site>,
    pub(super) statements: Statements,
    pub(super) pool: Pool,
    /// For limits only. The leases are counted by the server.
    pub(super) clock: Arc<SystemClock>,
    pub(super) retention: Duration,
    pub(super) sweeper: Sweeper,
    pub(super) unfinished: Arc<Unfinished>,
    /// Marks us among those who wait, and names our channel.
    pub(super) client: String,
    /// Where pushes arrive, if they can be had.
    pub(super) ears: Option<Arc<Ears>>,
}

impl Inner {
    /// Executes a statement. `None` if others were writing until patience ran out: nothing was done
    /// then.
    pub(super) async fn execute(
        &self,
        turn: Turn,
        repeat: Repeat,
        limit: Duration,
        sql: &Sql,
        values: &[Value],
    ) -> Result<Option<Vec<PgRow>>> {
        let start = self.clock.now();
        // Some time is left to say that it was in vain.
        let patience = start + limit * 3 / 4;
        let work = async {
            let (mut pause, mut again) = (RETRY.0, true);
            loop {
                match self.pool.rows(turn, repeat, sql, values).await {
                    Ok(rows) => return Ok(Some(rows)),
                    // A new connection has, or makes, what was missing.
                    Err(Failure::NoTable(_)) if again => again = false,
                    Err(Failure::Cut(_)) if again && repeat == Repeat::Once => again = false,
                    Err(Failure::Contended | Failure::Pooled) => {
                        if self.clock.now() >= patience {
                            return Ok(None);
                        }
                        self.clock.sleep(pause).await;
                        pause = (pause * 2).min(RETRY.1);
                    }
                    Err(failure) => return Err(failure.into_error(&self.site.place.endpoint)),
                }
            }
        };
        // The driver has no limit for a statement. Dropped, it takes its connection with it.
        tokio::select! {
            biased;
            answer = work => answer,
            () = self.clock.sleep_until(start + limit) => {
                // The idle connections are probably as silent as this one.
                self.pool.forget();
                Err(no_answer(&self.site.place.endpoint, limit))
            }
        }
    }

    /// Tries to get a lock, to the end of the statement also if the caller goes before it.
    pub(super) async fn acquire(
        self: &Arc<Self>,
        entry: &Entry,
        values: Vec<Value>,
    ) -> Result<Option<Vec<PgRow>>> {
        let (inner, limit) = (Arc::clone(self), entry.call_timeout);
        let unfinished = self.unfinished.begin(&entry.owner.0);
        let task = tokio::spawn(async move {
            let sql = &inner.statements.acquire;
            let rows = inner.execute(Turn::Try, Repeat::Never, limit, sql, &values).await;
            drop(unfinished);
            rows
        });
        task.await.unwrap_or_else(|_| {
            Err(Error::new(ErrorKind::Unavailable, "the runtime of the try has ended")
                .with_unknown_effect())
        })
    }

    /// Keeps or gives up a lock, or looks at one that is held.
    pub(super) async fn urgent(
        &self,
        limit: Duration,
        sql: &Sql,
        values: &[Value],
    ) -> Result<Vec<PgRow>> {
        let rows = self.execute(Turn::Urgent, Repeat::Once, limit, sql, values).await?;
        rows.ok_or_else(|| self.still_locked(limit))
    }

    pub(super) async fn read(
        &self,
        limit: Duration,
        sql: &Sql,
        values: &[Value],
    ) -> Result<Vec<PgRow>> {
        let rows = self.execute(Turn::Try, Repeat::Once, limit, sql, values).await?;
        rows.ok_or_else(|| self.still_locked(limit))
    }

    /// Whether this role may write, proven by a write that changes nothing.
    pub(super) async fn probe(&self, limit: Duration) -> Result<()> {
        self.read(limit, &self.statements.probe, &[]).await.map(drop)
    }

    pub(super) async fn free(
        &self,
        sql: &Sql,
        name: &str,
        owner: Option<&str>,
        limit: Duration,
    ) -> Result<Released> {
        let values = |tell: bool| [Value::from(name), Value::from(owner), Value::from(tell)];
        let rows = match self.urgent(limit, sql, &values(true)).await {
            Err(error) if is_full_queue(&error) => {
                tracing::warn!(target: "distlock", at = %self.site.place.endpoint, "the server's queue of notifications is full: waiters are not told and poll. Look for a session that listens and never ends its transaction");
                self.urgent(limit, sql, &values(false)).await?
            }
            rows => rows?,
        };
        let was_running = match rows.first() {
            Some(row) => self.get(row, 0)?,
            None => false,
        };
        Ok(if was_running { Released::Freed } else { Released::AlreadyGone })
    }

    /// How long somebody else's lease lasts; `None` if the lock can be taken.
    pub(super) async fn held_by_another(&self, entry: &Entry) -> Result<Option<Duration>> {
        let values = [Value::from(&*entry.name), Value::from(&*entry.owner.0)];
        let rows = self.read(entry.call_timeout, &self.statements.held, &values).await?;
        rows.first().map(|row| Ok(from_micros(self.get(row, 0)?))).transpose()
    }

    /// A row of the statements `look` and `list`. `None` for a name that no lock can have: it was
    /// written by somebody else and blocks nobody.
    pub(super) fn info(&self, row: &PgRow) -> Result<Option<LockInfo>> {
        let Ok(key) = LockKey::decode(&self.get::<String>(row, 0)?) else { return Ok(None) };
        let owner: String = self.get(row, 1)?;
        let mut holder = HolderInfo::new(owner.parse().ok());
        holder.fence = FencingToken::try_from(self.get::<i64>(row, 2)?).ok();
        holder.expires_in = Some(from_micros(self.get(row, 3)?));
        holder.held_for = Some(from_micros(self.get(row, 4)?));
        holder.label = self.get(row, 5)?;
        Ok(Some(LockInfo::new(key, Some(holder), None)))
    }

    pub(super) fn get<'r, T>(&self, row: &'r PgRow, column: usize) -> Result<T>
    where
        T: sqlx::Decode<'r, Postgres> + sqlx::Type<Postgres>,
    {
        row.try_get(column).map_err(|error| {
            strange(&self.site.place.endpoint, "a value of another type").with_source(error)
        })
    }

    pub(super) fn still_locked(&self, limit: Duration) -> Error {
        still_locked(&self.site.place.endpoint, limit * 3 / 4)
    }
}

/// `too many notifications in the NOTIFY queue`: no other statement of ours can meet this code.
fn is_full_queue(error: &Error) -> bool {
    let source = std::error::Error::source(error);
    let source = source.and_then(|source| source.downcast_ref::<sqlx::Error>());
    source.and_then(super::error::code).is_some_and(|code| code == "54000")
}

/// In whole µs, rounded up: the lease must not be shorter than promised.
pub(super) fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos().div_ceil(1000)).unwrap_or(i64::MAX)
}

pub(super) fn from_micros(micros: i64) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}
