//! The SQLite dialect: a file, used by the processes of one machine.

mod codes;
mod config;
mod file;
mod lanes;
mod mounts;
mod statements;
mod storage;
#[cfg(test)]
mod tests;
mod time;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use lock_core::{
    Attempt, Binding, Capabilities, Error, ErrorKind, Fencing, FencingToken, Result, SystemClock,
    Wake, async_trait,
};
use sqlx::sqlite::SqliteConnectOptions;

pub use config::SQLITE_PARAMETERS;
pub(crate) use config::{SqliteTarget, config_from_url};

use crate::config::SqlConfig;
use crate::engine::driver::{Dialect, Freeing, Lease, State, Turn};
use crate::engine::entry::{Due, Entry, Outcome};
use crate::engine::limits::longest_excess;
use crate::engine::steps::{Steps, Taken};
use crate::engine::store::Store;
use crate::engine::value::{Query, Row, Value, from_micros, micros};
use crate::engine::wake::{WHILE_CONTENDED, busy};
use file::{Location, SqliteFile};
use lanes::Lanes;
use statements::{BATCH, Statements, leases};
use time::{MachineTime, Time};

/// The lock table in an SQLite file.
#[derive(Debug)]
pub(crate) struct Sqlite {
    file: Arc<SqliteFile>,
    statements: Statements,
    /// On which the leases are counted.
    time: Arc<dyn Time>,
}

pub(crate) type SqliteStore = Arc<Store<Sqlite>>;

pub(crate) async fn connect(target: &SqliteTarget, config: &SqlConfig) -> Result<SqliteStore> {
    let location =
        Location { path: target.path.clone(), may_create: target.create_file, use_wal: true };
    let time = Arc::new(MachineTime::new()?);
    open(location, config, SqliteConnectOptions::new(), time).await
}

/// Connections of our own, with the options of the pool.
pub(crate) async fn from_pool(pool: &sqlx::SqlitePool, config: &SqlConfig) -> Result<SqliteStore> {
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
    let location = Location { path, may_create: false, use_wal: false };
    open(location, config, options, Arc::new(MachineTime::new()?)).await
}

async fn open(
    location: Location,
    config: &SqlConfig,
    options: SqliteConnectOptions,
    time: Arc<dyn Time>,
) -> Result<SqliteStore> {
    let table = config.table.clone();
    let statements = Statements::new(&table);
    let file = Arc::new(SqliteFile::new(location, table, config.create_table, options));
    let lanes = Lanes::new(&file);
    let sqlite = Sqlite { file, statements, time };
    let store = Store::new(sqlite, lanes, SystemClock::default(), config.retention);
    store.probe(config.connect_timeout).await?;
    Ok(store)
}

impl Sqlite {
    fn take(&self, entry: &Entry) -> Query {
        let now = self.time.boot_us();
        Query::new(&self.statements.acquire)
            .bind(&*entry.name)
            .bind(&*entry.owner.0)
            .bind(now)
            .bind(lease_end(now, entry.ttl))
            .bind(self.time.boot_id())
            .bind(self.time.wall_us())
            .bind(entry.label.as_deref())
            .bind(self.time.booted_us())
    }

    /// A row whose lease ended, or that was released, before then can go.
    fn cut(&self, retention: Duration) -> i64 {
        self.time.boot_us().saturating_sub(micros(retention))
    }

    fn another_machine(&self, boot: &str) -> Error {
        Error::new(
            ErrorKind::Store,
            format!(
                "this lock in {} was taken since this machine was started, but under another boot id ({boot}): by another machine or virtual machine, or in a container with a boot id of its own. SQLite's locks hold on one machine only: use a store with a server. If only the clock was set back since, release the lock by force",
                self.file.names.at
            ),
        )
    }
}

impl Dialect for Sqlite {
    type Links = Lanes;

    const NAME: &'static str = "sqlite";
    const SWEPT: usize = BATCH;

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::new(Binding::Lease, Wake::Poll);
        // Every commit is synced, and the next fence is made from the stored one; the clock is
        // needed only if the file is lost.
        capabilities.fencing = Fencing::Durable;
        capabilities.detachable = true;
        capabilities.inspect = true;
        capabilities
    }

    fn endpoint(&self) -> String {
        self.file.names.at.clone()
    }

    fn probe(&self) -> Query {
        Query::new(&self.statements.probe)
    }

    fn look(&self, name: &str) -> Query {
        Query::new(&self.statements.look).bind(name)
    }

    fn list(&self, start: &str, bare: bool) -> Query {
        Query::new(&self.statements.list)
            .bind(start)
            .bind(bare)
            .bind(self.time.boot_id())
            .bind(self.time.boot_us())
            .bind(self.time.booted_us())
    }

    fn release(&self, freeing: &Freeing<'_>) -> Query {
        Query::new(&self.statements.release)
            .bind(freeing.name)
            .bind(freeing.owner)
            .bind(self.time.boot_us())
            .bind(self.time.boot_id())
            .bind(freeing.fence.map(FencingToken::as_i64))
            .bind(self.time.booted_us())
    }

    fn sweep_page(&self, after: &Value, retention: Duration) -> Query {
        Query::new(&self.statements.sweep_page)
            .bind(after.clone())
            .bind(self.time.boot_id())
            .bind(self.cut(retention))
            .bind(self.time.booted_us())
    }

    fn sweep_fold(&self, fence: i64) -> Query {
        Query::new(&self.statements.sweep_fold).bind(fence)
    }

    /// The statement reads the mark itself.
    fn sweep_delete(&self, names: &[Value], _folded: i64, retention: Duration) -> Query {
        Query::new(&self.statements.sweep_delete)
            .bind(self.time.boot_id())
            .bind(self.cut(retention))
            .bind(self.time.booted_us())
            .bind_places(names, BATCH)
    }

    /// By the clocks as they are now.
    fn lease(&self, row: &Row) -> Result<Lease> {
        let (fence, boot) = (row.int(2)?, row.text(3)?);
        let (expires, acquired) = (row.int(4)?, row.int(5)?);
        let now = self.time.boot_us();
        let here = boot == self.time.boot_id();
        let state = match here {
            true => State::of(expires.saturating_sub(now)),
            false if fence >= self.time.booted_us() => State::Elsewhere(self.another_machine(boot)),
            false => State::Over,
        };
        Ok(Lease {
            name: Some(row.text(0)?.to_owned()),
            owner: row.optional_text(1)?.map(str::to_owned),
            fence,
            state,
            held: here.then(|| from_micros(now.saturating_sub(acquired))),
            label: row.optional_text(6)?.map(str::to_owned),
        })
    }
}

#[async_trait]
impl Steps for Sqlite {
    async fn acquire(store: &Store<Self>, entry: &Entry, polling: bool) -> Result<Attempt> {
        let take = || store.dialect.take(entry);
        let reply = match store.take_or_look(entry, polling, take).await? {
            Taken::Answered(reply) => reply,
            Taken::Held(left) => return Ok(busy(Some(left))),
            Taken::Contended => return Ok(busy(Some(WHILE_CONTENDED))),
        };
        let Some(row) = reply.rows.first() else {
            return Ok(busy(store.held_by_another(entry).await?));
        };
        let token = FencingToken::answered(row.int(0)?)?;
        Ok(Attempt::Granted { token, valid_for: Some(entry.ttl) })
    }

    async fn renew(store: &Store<Self>, dues: &[Due<'_>], limit: Duration) -> Result<Vec<Outcome>> {
        let this = &store.dialect;
        let make = || {
            let now = this.time.boot_us();
            let leases = leases(dues.iter().map(|due| {
                let end = lease_end(now, due.entry.ttl);
                let fence = due.fence.map(FencingToken::as_i64);
                let cut = end.saturating_add(longest_excess(due.entry));
                (&*due.entry.name, &*due.entry.owner.0, end, fence, cut)
            }));
            Query::new(&this.statements.renew).bind(leases).bind(now).bind(this.time.boot_id())
        };
        let reply = store.patiently(Turn::Keep, limit, make).await?;
        let renewed: Result<HashSet<&str>> = reply.rows.iter().map(|row| row.text(0)).collect();
        let renewed = renewed?;
        // There is one writer at a time, so no row is locked.
        let outcome = |due: &Due<'_>| match renewed.contains(&*due.entry.name) {
            true => Outcome::Renewed,
            false => Outcome::Gone,
        };
        Ok(dues.iter().map(outcome).collect())
    }
}

/// The clock is cut to whole µs when it is read: one more, or the lease would be shorter than
/// promised by a part of one.
fn lease_end(now: i64, ttl: Duration) -> i64 {
    now.saturating_add(micros(ttl)).saturating_add(1)
}
