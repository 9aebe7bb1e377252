//! The SQLite dialect: a file, used by the processes of one machine.

mod config;
mod error;
mod inner;
mod lane;
mod mounts;
mod open;
mod storage;
mod sweep;
#[cfg(test)]
mod tests;
mod time;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use lock_core::{
    Attempt, Capabilities, Clock, Error, Fencing, FencingToken, Hold, LockInfo, LockKey, OwnerId,
    Released, Renewal, Result, SystemClock, Wake, async_trait,
};
use sqlx::sqlite::SqliteConnectOptions;
use tokio::sync::Mutex;

pub use config::SQLITE_PARAMETERS;
pub(crate) use config::{SqliteTarget, config_from_url};

use crate::config::SqlConfig;
use crate::engine::error::closed;
use crate::engine::limits::{Limits, longest_excess};
use crate::engine::operations::{Due, Entry, Operations, Outcome};
use crate::engine::wake::{WHILE_CONTENDED, busy};
use crate::statements::sqlite::{Statements, leases};
use error::{Failure, Place};
use inner::{Inner, Lease, Turn, lease_end};
use lane::Lane;
use open::Site;
use sweep::Sweeper;
use time::{MachineTime, Time};

/// The limit for what has no call timeout of its own.
const ADMIN_LIMIT: Duration = Duration::from_secs(5);

/// The lock table in an SQLite file.
#[derive(Clone, Debug)]
pub(crate) struct SqliteStore(Arc<Inner>);

impl SqliteStore {
    pub(crate) async fn connect(target: &SqliteTarget, config: &SqlConfig) -> Result<Self> {
        let place = Place { path: target.path.clone(), may_create: target.create_file };
        Self::open(place, config, true, SqliteConnectOptions::new(), Arc::new(MachineTime::new()?))
            .await
    }

    pub(crate) async fn from_pool(pool: &sqlx::SqlitePool, config: &SqlConfig) -> Result<Self> {
        let options = SqliteConnectOptions::clone(&pool.connect_options());
        let name = options.get_filename();
        if name.as_os_str().is_empty() || name.to_string_lossy().contains(":memory:") {
            return Err(Error::config(
                "this pool has an in-memory database, which belongs to one connection: use a file, or `memory://`",
            ));
        }
        let path = std::path::absolute(name).map_err(|error| {
            Error::config("the path of the pool's file cannot be made absolute").with_source(error)
        })?;
        let place = Place { path, may_create: false };
        Self::open(place, config, false, options, Arc::new(MachineTime::new()?)).await
    }

    async fn open(
        place: Place,
        config: &SqlConfig,
        use_wal: bool,
        options: SqliteConnectOptions,
        time: Arc<dyn Time>,
    ) -> Result<Self> {
        let table = config.table.clone();
        let statements = Statements::new(&table);
        let site = Arc::new(Site::new(place, table, config.create_table, use_wal, options));
        let store = Self(Arc::new(Inner {
            writer: Lane::new(Arc::clone(&site), true),
            reader: Lane::new(Arc::clone(&site), false),
            tries: Mutex::default(),
            time,
            clock: SystemClock::default(),
            retention: config.retention,
            sweeper: Sweeper::default(),
            statements,
            site,
        }));
        store.0.probe(config.connect_timeout).await?;
        Ok(store)
    }
}

#[async_trait]
impl Operations for SqliteStore {
    fn name(&self) -> &'static str {
        "sqlite"
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::new(Hold::Lease, Wake::Poll);
        // Every commit is synced, and the next fence is made from the stored one; the clock is
        // needed only if the file is lost.
        capabilities.fencing = Fencing::Durable;
        capabilities.detachable = true;
        capabilities.inspect = true;
        capabilities
    }

    async fn acquire(&self, entry: &Entry, polling: bool) -> Result<Attempt> {
        let inner = &*self.0;
        if polling && let Some(left) = inner.held_by_another(entry).await? {
            return Ok(busy(Some(left)));
        }
        let start = inner.clock.now();
        let take = || {
            let now = inner.time.boot_us();
            inner
                .query(&inner.statements.acquire)
                .bind(entry.name.clone())
                .bind(entry.owner.0.clone())
                .bind(now)
                .bind(lease_end(now, entry.ttl))
                .bind(inner.time.boot_id().to_owned())
                .bind(inner.time.wall_us())
                .bind(entry.label.clone())
                .bind(inner.time.booted_us())
        };
        let mut rows =
            inner.execute(Turn::Try, Limits::once(start, entry.call_timeout), take).await?;
        if rows.is_none() {
            // Somebody writes. Whether the lock is held can be seen all the same.
            if let Some(left) = inner.held_by_another(entry).await? {
                return Ok(busy(Some(left)));
            }
            rows =
                inner.execute(Turn::Try, Limits::patient(start, entry.call_timeout), take).await?;
        }
        let Some(rows) = rows else { return Ok(busy(Some(WHILE_CONTENDED))) };
        let Some(row) = rows.first() else {
            return Ok(busy(inner.held_by_another(entry).await?));
        };
        let token = FencingToken::try_from(inner.get::<i64>(row, 0)?)?;
        self.0.sweep_if_due();
        Ok(Attempt::Granted { token, valid_for: Some(entry.ttl) })
    }

    async fn renew(&self, dues: &[Due<'_>], limit: Duration) -> Result<Vec<Outcome>> {
        let inner = &*self.0;
        let rows = inner
            .write_urgent(limit, || {
                let now = inner.time.boot_us();
                let leases = leases(dues.iter().map(|due| {
                    let end = lease_end(now, due.entry.ttl);
                    let fence = due.fence.map(FencingToken::as_i64);
                    let cut = end.saturating_add(longest_excess(due.entry));
                    (&*due.entry.name, &*due.entry.owner.0, end, fence, cut)
                }));
                inner
                    .query(&inner.statements.renew)
                    .bind(leases)
                    .bind(now)
                    .bind(inner.time.boot_id().to_owned())
            })
            .await?;
        let renewed: Result<HashSet<String>> = rows.iter().map(|row| inner.get(row, 0)).collect();
        let renewed = renewed?;
        // There is one writer at a time, so no row is locked.
        let found = |due: &Due<'_>| match renewed.contains(&due.entry.name) {
            true => Outcome::Renewed,
            false => Outcome::Gone,
        };
        Ok(dues.iter().map(found).collect())
    }

    async fn check(&self, entry: &Entry, fence: Option<FencingToken>) -> Result<Renewal> {
        let inner = &*self.0;
        let row = inner.look(&entry.name, entry.call_timeout).await?;
        let mine = row.filter(|row| {
            row.owner.as_deref() == Some(&*entry.owner.0)
                && fence.is_none_or(|fence| fence.as_i64() == row.fence)
        });
        Ok(match mine.map(|row| inner.lease(&row)) {
            Some(Lease::Runs(left)) => Renewal::Alive { valid_for: Some(left) },
            _ => Renewal::Lost,
        })
    }

    async fn release(&self, entry: &Entry) -> Result<Released> {
        let owner = Some(&*entry.owner.0);
        self.0.free(&entry.name, owner, entry.taken_over, entry.call_timeout).await
    }

    async fn inspect(&self, key: &LockKey) -> Result<Option<LockInfo>> {
        let inner = &*self.0;
        let row = inner.look(&key.encode(), ADMIN_LIMIT).await?;
        Ok(row.and_then(|row| inner.info(key.clone(), row)))
    }

    async fn list(&self, prefix: &str, name_start: &str) -> Result<Vec<LockInfo>> {
        let inner = &*self.0;
        let start = LockKey::encoded_start(prefix, name_start);
        let rows = inner
            .read(ADMIN_LIMIT, || {
                inner
                    .query(&inner.statements.list)
                    .bind(start.clone())
                    .bind(prefix.is_empty())
                    .bind(inner.time.boot_id().to_owned())
                    .bind(inner.time.boot_us())
                    .bind(inner.time.booted_us())
            })
            .await?;
        let mut found = Vec::with_capacity(rows.len());
        for row in &rows {
            // A name that no lock can have was written by somebody else and blocks nobody.
            if let Ok(key) = LockKey::decode(&inner.get::<String>(row, 0)?) {
                found.extend(inner.info(key, inner.entry_row(row, 1)?));
            }
        }
        Ok(found)
    }

    async fn force_release(&self, key: &LockKey, expected: Option<&OwnerId>) -> Result<Released> {
        let owner = expected.map(OwnerId::to_hex);
        self.0.free(&key.encode(), owner.as_deref(), None, ADMIN_LIMIT).await
    }

    async fn ping(&self) -> Result<()> {
        self.0.probe(ADMIN_LIMIT).await
    }

    async fn close(&self) -> Result<()> {
        let closing = async {
            self.0.reader.close().await?;
            self.0.writer.close().await
        };
        closing.await.map_err(|error| match self.0.site.place.failure(error) {
            Failure::Contended => closed(),
            Failure::Failed(error) => error,
        })
    }
}
