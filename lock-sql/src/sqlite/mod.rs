//! The SQLite dialect: a file, used by the processes of one machine.

mod codes;
mod config;
mod doctor;
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
    Attempt, ClockInstant, DataLoss, Finding, LockBackend, Result, SystemClock, async_trait,
};

pub use config::SQLITE_PARAMETERS;
pub(crate) use config::SqliteTarget;

use crate::engine::backend::Backend;
use crate::engine::dialect::Dialect;
use crate::engine::entry::{Due, Entry, Outcome};
use crate::engine::executor::Executor;
use crate::engine::links::Turn;
use crate::engine::settings::Settings;
use crate::engine::statement::Values;
use crate::engine::store::Store;
use crate::engine::target::Target;
use crate::engine::wake::busy;
use file::SqliteFile;
use lanes::Lanes;
use statements::NAME;
use time::MachineTime;

/// The lock table in an SQLite file.
#[derive(Debug)]
pub(crate) struct Sqlite;

#[async_trait]
impl Target for SqliteTarget {
    fn dialect(&self) -> &'static str {
        NAME
    }

    fn endpoint(&self) -> String {
        self.path.display().to_string()
    }

    async fn open(&self, settings: &Settings) -> Result<Arc<dyn LockBackend>> {
        let store = on(&Arc::new(SqliteFile::new(self, settings, Arc::new(MachineTime::new()?))));
        store.executor.probe(settings.connect_timeout).await?;
        Ok(Arc::new(Backend::new(store, settings.retention)))
    }
}

fn on(file: &Arc<SqliteFile>) -> Arc<Store<Sqlite>> {
    let lanes = Arc::new(Lanes::new(file));
    Arc::new(Store::new(Sqlite, Arc::clone(file), lanes, SystemClock::default()))
}

#[async_trait]
impl Dialect for Sqlite {
    type Driver = SqliteFile;

    const NAME: &'static str = NAME;
    /// Every commit is synced.
    const LOSES_DATA_ON: &'static [DataLoss] = &[];

    /// The lock was held when the statement ran, or is another machine's.
    async fn missing(
        &self,
        executor: &Executor<SqliteFile>,
        entry: &Entry,
        _start: ClockInstant,
    ) -> Result<Option<Attempt>> {
        Ok(Some(executor.held_by_another(entry).await?.unwrap_or_else(|| busy(None))))
    }

    async fn diagnose(&self, executor: &Executor<SqliteFile>) -> Result<Vec<Finding>> {
        doctor::diagnose(executor).await
    }

    async fn renew(
        &self,
        executor: &Executor<SqliteFile>,
        dues: &[Due<'_>],
        limit: Duration,
    ) -> Result<Vec<Outcome>> {
        let values = Values::default().with("leases", statements::leases(dues));
        let reply = executor.patiently(Turn::Keep, limit, executor.own(), &values).await?;
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
