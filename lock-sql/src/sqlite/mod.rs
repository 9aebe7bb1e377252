//! The SQLite dialect: a file, used by the processes of one machine.

mod codes;
mod config;
mod file;
mod lanes;
mod mounts;
pub(crate) mod statements;
mod storage;
#[cfg(test)]
mod tests;
mod time;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use lock_core::{
    Attempt, ClockInstant, DataLoss, Error, ErrorKind, Result, SystemClock, async_trait,
};
use sqlx::sqlite::SqliteConnectOptions;

pub use config::SQLITE_PARAMETERS;
pub(crate) use config::{SqliteTarget, config_from_url};

use crate::config::SqlConfig;
use crate::engine::dialect::{Dialect, Turn};
use crate::engine::entry::{Due, Entry, Outcome};
use crate::engine::error::Names;
use crate::engine::statement::{Query, Statement, Statements, Values};
use crate::engine::store::Store;
use crate::engine::wake::busy;
use file::{Location, SqliteFile};
use lanes::Lanes;
use time::{MachineTime, Time};

const NAME: &str = "sqlite";

/// The lock table in an SQLite file.
#[derive(Debug)]
pub(crate) struct Sqlite {
    file: Arc<SqliteFile>,
    /// The clock on which leases run.
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
            "this pool uses an in-memory database, which belongs to one connection: use a file, or `memory://`",
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
    let file = Arc::new(SqliteFile::new(location, config, options));
    let lanes = Lanes::new(&file);
    let sqlite = Sqlite { file, time };
    let store = Store::new(sqlite, lanes, SystemClock::default(), config.retention);
    store.probe(config.connect_timeout).await?;
    Ok(store)
}

#[async_trait]
impl Dialect for Sqlite {
    type Links = Lanes;

    const NAME: &'static str = NAME;
    /// Every commit is synced.
    const LOSES_DATA_ON: &'static [DataLoss] = &[];

    fn names(&self) -> &Names {
        &self.file.names
    }

    fn statements(&self) -> &Statements {
        &self.file.statements.0
    }

    fn query(&self, statement: &Statement, values: &Values) -> Query {
        let present = values
            .clone()
            .with("now", self.time.boot_us())
            .with("boot", self.time.boot_id())
            .with("wall", self.time.wall_us())
            .with("booted", self.time.booted_us());
        statement.bind(&present)
    }

    fn elsewhere(&self, boot: &str) -> Error {
        Error::new(
            ErrorKind::Store,
            format!(
                "this lock in {} was taken since this machine was started, but under another boot id ({boot}): by another machine or virtual machine, or in a container with its own boot id. SQLite's locks hold on one machine only: use a store with a server. If the clock was merely set back since, release the lock by force",
                self.file.names.at
            ),
        )
    }

    /// The lock was held when the statement ran, or is another machine's.
    async fn missing(store: &Store<Self>, entry: &Entry, _start: ClockInstant) -> Result<Attempt> {
        Ok(store.held_by_another(entry).await?.unwrap_or_else(|| busy(None)))
    }

    async fn renew(store: &Store<Self>, dues: &[Due<'_>], limit: Duration) -> Result<Vec<Outcome>> {
        let values = Values::default().with("leases", statements::leases(dues));
        let renew = &store.dialect.file.statements.1;
        let reply = store.patiently(Turn::Keep, limit, renew, &values).await?;
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
