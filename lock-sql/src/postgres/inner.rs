//! Executing the statements: in which order, for how long, and what their rows say.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use lock_core::{
    Clock, Effect, Error, ErrorKind, FencingToken, HolderInfo, LockInfo, LockKey, Released, Result,
    SystemClock,
};
use sqlx::postgres::PgRow;
use sqlx::{Postgres, Row};
use tokio::sync::Semaphore;

use super::error::Failure;
use super::open::Site;
use super::pool::{Pool, Repeat, Turn};
use super::sweep::Sweeper;
use super::unfinished::Unfinished;
use super::value::Value;
use crate::engine::error::{no_answer, still_locked, strange};
use crate::engine::operations::Entry;
use crate::engine::wake::Waiters;
use crate::statements::postgres::{Sql, Statements};

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
    /// Renewals that wait for a row: one at a time, since each has a connection meanwhile.
    pub(super) waits_for_row: Semaphore,
    /// How many there were.
    pub(super) waited: AtomicUsize,
    /// Marks us among those who wait, and names our channel.
    pub(super) client: String,
    /// Where pushes arrive, if they can be had.
    pub(super) waiters: Option<Arc<Waiters>>,
}

/// How a statement is executed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Want {
    pub(super) turn: Turn,
    pub(super) repeat: Repeat,
    pub(super) limit: Duration,
    /// For how long it is repeated while others write.
    pub(super) patience: Duration,
}

impl Want {
    /// Some of `limit` is left to say that it was in vain.
    pub(super) fn new(turn: Turn, limit: Duration) -> Self {
        Self { turn, repeat: Repeat::Once, limit, patience: limit * 3 / 4 }
    }
}

/// What the server has answered.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) rows: Vec<PgRow>,
    /// The statement was sent before, over a connection that has ended without an answer.
    repeated: bool,
}

impl Inner {
    /// Executes a statement. `None` if others were writing until patience ran out: nothing was done
    /// then.
    pub(super) async fn execute(
        &self,
        want: Want,
        sql: &Sql,
        values: &[Value],
    ) -> Result<Option<Answer>> {
        let answer = self.run(want, sql, values).await;
        answer.map_err(|failure| failure.into_error(&self.site.place.endpoint))
    }

    async fn run(
        &self,
        want: Want,
        sql: &Sql,
        values: &[Value],
    ) -> Result<Option<Answer>, Failure> {
        let Want { turn, repeat, limit, patience } = want;
        let start = self.clock.now();
        let work = async {
            let (mut pause, mut looked_again) = (RETRY.0, false);
            // Whether it was tried again over another connection, and whether it may have been executed
            // before.
            let (mut tried_again, mut repeated) = (false, false);
            loop {
                match self.pool.rows(turn, repeat, sql, values).await {
                    Ok(rows) => return Ok(Some(Answer { rows, repeated })),
                    // A new connection has, or makes, what was missing.
                    Err(Failure::NoTable(_)) if !looked_again => looked_again = true,
                    Err(Failure::Cut(error)) if !tried_again && repeat == Repeat::Once => {
                        tried_again = true;
                        repeated = error.effect() == Effect::Unknown;
                        // A server that was started again has ended the idle connections as well.
                        self.pool.forget();
                    }
                    Err(Failure::Contended | Failure::Pooled) => {
                        if self.clock.now() >= start + patience {
                            return Ok(None);
                        }
                        self.clock.sleep(pause).await;
                        pause = (pause * 2).min(RETRY.1);
                    }
                    Err(failure) if repeated => return Err(failure.with_unknown_effect()),
                    Err(failure) => return Err(failure),
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
                Err(no_answer(&self.site.place.endpoint, limit).into())
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
            let want = Want { repeat: Repeat::Never, ..Want::new(Turn::Try, limit) };
            let answer = inner.execute(want, sql, &values).await;
            drop(unfinished);
            answer.map(|answer| answer.map(|answer| answer.rows))
        });
        task.await.unwrap_or_else(|_| {
            Err(Error::new(ErrorKind::Unavailable, "the runtime of the try has ended")
                .with_unknown_effect())
        })
    }

    /// Keeps a lock, or looks at one that is held.
    pub(super) async fn keep(
        &self,
        limit: Duration,
        sql: &Sql,
        values: &[Value],
    ) -> Result<Vec<PgRow>> {
        Ok(self.patiently(Turn::Keep, limit, sql, values).await?.rows)
    }

    pub(super) async fn read(
        &self,
        limit: Duration,
        sql: &Sql,
        values: &[Value],
    ) -> Result<Vec<PgRow>> {
        Ok(self.patiently(Turn::Try, limit, sql, values).await?.rows)
    }

    async fn patiently(
        &self,
        turn: Turn,
        limit: Duration,
        sql: &Sql,
        values: &[Value],
    ) -> Result<Answer> {
        let answer = self.execute(Want::new(turn, limit), sql, values).await?;
        answer.ok_or_else(|| self.still_locked(limit))
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
        fence: i64,
        limit: Duration,
    ) -> Result<Released> {
        let values = |tell: bool| {
            [Value::from(name), Value::from(owner), Value::from(tell), Value::from(fence)]
        };
        let release =
            async |tell: bool| self.run(Want::new(Turn::Release, limit), sql, &values(tell)).await;
        let (answer, repeated) = match release(true).await {
            Err(Failure::FullQueue(error)) => {
                tracing::warn!(target: "distlock", %error, "waiters are not told and poll");
                (release(false).await, error.effect() == Effect::Unknown)
            }
            answer => (answer, false),
        };
        let answer = answer.map_err(|failure| failure.into_error(&self.site.place.endpoint))?;
        let answer = answer.ok_or_else(|| self.still_locked(limit))?;
        let Some(row) = answer.rows.first() else {
            // Ours, or somebody who took the lock away: nobody can tell.
            if repeated || answer.repeated {
                return Err(self.site.place.unanswered());
            }
            return Ok(Released::AlreadyGone);
        };
        let was_running: bool = self.get(row, 0)?;
        Ok(if was_running { Released::Freed } else { Released::AlreadyGone })
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

/// In whole µs, rounded up: the lease must not be shorter than promised.
pub(super) fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos().div_ceil(1000)).unwrap_or(i64::MAX)
}

/// 0 is no token, and stands for any.
pub(super) fn fence_or_zero(fence: Option<FencingToken>) -> i64 {
    fence.map_or(0, FencingToken::as_i64)
}

pub(super) fn from_micros(micros: i64) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}
