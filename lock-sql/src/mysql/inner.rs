//! Executing the statements: on which connections, for how long, and what their answers say.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{
    Clock, ClockInstant, Error, FencingToken, HolderInfo, LockInfo, LockKey, Released, Result,
};
use sqlx::mysql::MySqlRow;
use sqlx::{AssertSqlSafe, MySql, Row};

use super::error::Failure;

use super::open::Site;
use super::pool::{Answer, Pool, Query, Turn, Want};
use super::sweep::Sweeper;
use super::unfinished::Unfinished;
use crate::engine::error::{no_answer, still_locked, strange};
use crate::engine::limits::Limits;
use crate::engine::operations::Entry;
use crate::statements::mysql::{Sql, WAS_RUNNING};

/// The first and the longest pause between two tries while somebody else has the row, beside the
/// time for which the server itself waits.
const RETRY: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(16));

/// What the clones of a store share.
#[derive(Debug)]
pub(super) struct Inner {
    pub(super) site: Arc<Site>,
    pub(super) pool: Arc<Pool>,
    pub(super) unfinished: Arc<Unfinished>,
    pub(super) retention: Duration,
    pub(super) sweeper: Sweeper,
}

impl Inner {
    pub(super) fn query(&self, sql: &Sql) -> Query {
        sqlx::query::<MySql>(AssertSqlSafe(Arc::clone(sql)))
    }

    pub(super) fn now(&self) -> ClockInstant {
        self.site.clock.now()
    }

    /// Executes a statement. `None` if somebody else had the row until patience ran out: nothing was
    /// done then.
    pub(super) async fn execute(
        &self,
        turn: Turn,
        want: Want,
        limits: Limits,
        make: impl Fn() -> Query + Send + Sync,
    ) -> Result<Option<Answer>> {
        self.execute_for(None, turn, want, limits, make).await
    }

    /// Executes a statement that may take the lock. Dropped, it is waited for by the owner's release.
    /// Cut off, it is not repeated here: it may be executed after the repeat and after a release, so
    /// the core must know of it.
    pub(super) async fn write_entry(
        &self,
        entry: &Entry,
        limits: Limits,
        make: impl Fn() -> Query + Send + Sync,
    ) -> Result<Option<Answer>> {
        self.execute_for(Some(&entry.owner.0), Turn::Try, Want::Number, limits, make).await
    }

    /// Writes the row that has the greatest fence of all removed rows, if it is missing. Not if
    /// somebody has just that row: then it is not missing.
    pub(super) async fn write_mark(&self, limits: Limits) -> Result<()> {
        let mark = || self.query(&self.site.statements.mark);
        self.execute(Turn::Try, Want::Number, limits, mark).await.map(drop)
    }

    async fn execute_for(
        &self,
        owner: Option<&str>,
        turn: Turn,
        want: Want,
        limits: Limits,
        make: impl Fn() -> Query + Send + Sync,
    ) -> Result<Option<Answer>> {
        let unfinished = owner.map(|owner| (&self.unfinished, owner));
        let work = async {
            let mut pause = RETRY.0;
            let mut looked_again = false;
            let mut repeated = false;
            let unknown = |error: Error, repeated: bool| match repeated {
                true => error.with_unknown_effect(),
                false => error,
            };
            loop {
                match self.pool.execute(turn, want, make(), limits.end, unfinished).await {
                    Ok(answer) => return Ok(Some(Answer { repeated, ..answer })),
                    Err(Failure::Failed(error)) => return Err(unknown(error, repeated)),
                    // All connections have probably ended, as they do when the server is restarted.
                    // What keeps a lock or gives it up may be executed twice, and late; what the first
                    // one may have done is in the second one's answer, except for that of a release.
                    Err(Failure::Cut(error)) => {
                        self.pool.forget();
                        if owner.is_some() || std::mem::replace(&mut repeated, true) {
                            return Err(error);
                        }
                    }
                    // Dropped while it was in use. A new connection creates it, or says why not.
                    Err(Failure::NoTable(error)) => {
                        self.site.forget_table();
                        self.pool.forget();
                        if std::mem::replace(&mut looked_again, true) {
                            return Err(unknown(error, repeated));
                        }
                    }
                    Err(Failure::Contended) if self.now() >= limits.patience => return Ok(None),
                    Err(Failure::Contended) => self.site.clock.sleep(pause).await,
                }
                pause = (pause * 2).min(RETRY.1);
            }
        };
        // sqlx has no limit for a statement, and neither has a network that is silent.
        tokio::select! {
            biased;
            answer = work => answer,
            () = self.site.clock.sleep_until(limits.end) => {
                // The other connections are likely to lead into the same silence.
                self.pool.forget();
                Err(no_answer(&self.site.place.endpoint, limits.whole))
            }
        }
    }

    /// For what must not fail because somebody else has the row for a moment.
    pub(super) async fn patiently(
        &self,
        turn: Turn,
        want: Want,
        limit: Duration,
        make: impl Fn() -> Query + Send + Sync,
    ) -> Result<Answer> {
        let limits = Limits::patient(self.now(), limit);
        let answer = self.execute(turn, want, limits, make).await?;
        answer.ok_or_else(|| still_locked(&self.site.place.table(), limit * 3 / 4))
    }

    /// How long the lease of a hold lasts; `None` if there is no such hold. A plain read is asked first,
    /// which waits for nobody; that there is none only a statement that writes may say.
    pub(super) async fn held(
        &self,
        entry: &Entry,
        fence: Option<FencingToken>,
    ) -> Result<Option<Duration>> {
        let row = self.look(Turn::Keep, &entry.name, entry.call_timeout).await?;
        let mine = row.filter(|row| {
            row.owner.as_deref() == Some(entry.owner.0.as_bytes())
                && fence.is_none_or(|fence| fence.as_i64() == row.fence)
        });
        if let Some(left) = mine.and_then(|row| row.left()) {
            return Ok(Some(left));
        }
        let answer = self
            .patiently(Turn::Keep, Want::Number, entry.call_timeout, || {
                self.query(&self.site.statements.confirm)
                    .bind(entry.name.as_bytes().to_vec())
                    .bind(entry.owner.0.as_bytes().to_vec())
                    .bind(fence.map_or(0, FencingToken::as_i64))
            })
            .await?;
        let left = self.told(&answer)?;
        Ok((left > 0).then(|| from_micros(left)))
    }

    pub(super) async fn free(
        &self,
        name: &str,
        owner: Option<&str>,
        fence: Option<FencingToken>,
        limit: Duration,
    ) -> Result<Released> {
        let statements = &self.site.statements;
        let start = self.now();
        if let Some(owner) = owner {
            tokio::select! {
                biased;
                () = self.unfinished.none(owner) => {}
                () = self.site.clock.sleep_until(start + limit) => {
                    return Err(no_answer(&self.site.place.endpoint, limit));
                }
            }
        }
        let limit = limit.saturating_sub(self.now().since(start));
        let answer = self
            .patiently(Turn::Release, Want::Number, limit, || match owner {
                Some(owner) => self
                    .query(&statements.release)
                    .bind(name.as_bytes().to_vec())
                    .bind(owner.as_bytes().to_vec())
                    .bind(fence.map_or(0, FencingToken::as_i64)),
                None => self.query(&statements.force).bind(name.as_bytes().to_vec()),
            })
            .await?;
        // Ours, or somebody who took the lock away: nobody can tell.
        let told = self.told(&answer)?;
        if told == 0 && answer.repeated {
            return Err(self.site.place.unanswered());
        }
        Ok(if told == WAS_RUNNING { Released::Freed } else { Released::AlreadyGone })
    }

    /// What the row says, read without waiting for anybody.
    pub(super) async fn look(
        &self,
        turn: Turn,
        name: &str,
        limit: Duration,
    ) -> Result<Option<EntryRow>> {
        let answer = self
            .patiently(turn, Want::Rows, limit, || {
                self.query(&self.site.statements.look).bind(name.as_bytes().to_vec())
            })
            .await?;
        answer.rows.first().map(|row| self.entry_row(row, 0)).transpose()
    }

    /// How long somebody else's lease lasts; `None` if the lock can be taken.
    pub(super) async fn held_by_another(&self, entry: &Entry) -> Result<Option<Duration>> {
        let Some(row) = self.look(Turn::Try, &entry.name, entry.call_timeout).await? else {
            return Ok(None);
        };
        let other = row.owner.as_deref().is_some_and(|owner| owner != entry.owner.0.as_bytes());
        Ok(row.left().filter(|_| other))
    }

    pub(super) fn info(&self, key: LockKey, row: EntryRow) -> Option<LockInfo> {
        let left = row.left()?;
        let owner = row.owner.as_ref()?;
        let owner = std::str::from_utf8(owner).ok().and_then(|owner| owner.parse().ok());
        let mut holder = HolderInfo::new(owner);
        holder.fence = FencingToken::try_from(row.fence).ok();
        holder.expires_in = Some(left);
        holder.held_for = Some(from_micros(row.held));
        holder.label = row.label;
        Some(LockInfo::new(key, Some(holder), None))
    }

    pub(super) fn entry_row(&self, row: &MySqlRow, first: usize) -> Result<EntryRow> {
        Ok(EntryRow {
            owner: self.get(row, first)?,
            fence: self.get(row, first + 1)?,
            left: self.get(row, first + 2)?,
            held: self.get(row, first + 3)?,
            label: self.get(row, first + 4)?,
        })
    }

    pub(super) fn get<'r, T>(&self, row: &'r MySqlRow, column: usize) -> Result<T>
    where
        T: sqlx::Decode<'r, MySql> + sqlx::Type<MySql>,
    {
        row.try_get(column).map_err(|error| self.strange().with_source(error))
    }

    /// What a statement has told of the row that it has found; 0 if it has found none.
    pub(super) fn told(&self, answer: &Answer) -> Result<i64> {
        answer.told().ok_or_else(|| self.site.place.untold())
    }

    pub(super) fn strange(&self) -> Error {
        strange(&self.site.place.endpoint, "a value of another type")
    }
}

/// A row, without its name.
pub(super) struct EntryRow {
    pub(super) owner: Option<Vec<u8>>,
    pub(super) fence: i64,
    /// In µs, by the server's clock at the time of the statement; not positive when it is over.
    left: i64,
    /// Since the start of the hold, likewise.
    held: i64,
    pub(super) label: Option<String>,
}

impl EntryRow {
    /// How long the lease lasts.
    pub(super) fn left(&self) -> Option<Duration> {
        (self.left > 0).then(|| from_micros(self.left))
    }
}

pub(super) fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

pub(super) fn from_micros(micros: i64) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}
