//! The SQLite dialect: a file, used by the processes of one machine.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use lock_core::{Attempt, DataLoss, Finding, LockBackend, Result, SystemClock, async_trait};

use crate::engine::backend::DialectBackend;
use crate::engine::store::{Dialect, SqlStore};
use crate::engine::table::lock_table::StatementName;
use crate::engine::table::row::{DueRenewal, OwnRow, RenewalOutcome};
use crate::engine::table::settings::{Settings, SqlTarget};
use crate::engine::waiters::busy;
use crate::engine::wire::connections::{StatementClass, StatementLimits};
use crate::engine::wire::statement::Values;

mod clocks;
mod config;
mod connections;
mod database;
mod doctor;
mod filesystem;
pub(crate) mod statements;
#[cfg(test)]
mod tests;

use clocks::SystemClocks;
pub use config::SQLITE_PARAMETERS;
pub(crate) use config::SqliteTarget;
use connections::FileConnections;
use database::SqliteFile;
pub(crate) use database::code;
use statements::NAME;
pub(crate) use statements::RULES;

#[async_trait]
impl SqlTarget for SqliteTarget {
    fn dialect(&self) -> &'static str {
        NAME
    }

    fn parameters(&self) -> &'static [&'static str] {
        SQLITE_PARAMETERS
    }

    fn endpoint(&self) -> String {
        self.path.display().to_string()
    }

    async fn open(&self, settings: &Settings) -> Result<Arc<dyn LockBackend>> {
        let store = on(&Arc::new(SqliteFile::new(self, settings, Arc::new(SystemClocks::new()?))));
        store.probe(settings.connect_timeout).await?;
        Ok(Arc::new(DialectBackend::new(store, settings.retention)))
    }
}

fn on(file: &Arc<SqliteFile>) -> Arc<SqlStore<SqliteFile>> {
    let (dialect, connections) = (Arc::clone(file), Arc::new(FileConnections::new(file)));
    Arc::new(SqlStore { dialect, connections, clock: SystemClock::default() })
}

#[async_trait]
impl Dialect for SqliteFile {
    const NAME: &'static str = NAME;
    /// Every commit is synced.
    const LOSES_DATA_ON: &'static [DataLoss] = &[];

    /// The lock was held when the statement ran, or is another machine's.
    async fn acquire_without_row(
        store: &SqlStore<Self>,
        limits: StatementLimits,
        entry: &OwnRow,
    ) -> Result<Option<Attempt>> {
        let busy_now = store.held_by_another(limits, entry).await?;
        Ok(Some(busy_now.unwrap_or_else(|| busy(None))))
    }

    async fn diagnose(store: &SqlStore<Self>) -> Result<Vec<Finding>> {
        doctor::diagnose(store).await
    }

    async fn renew_batch(
        store: &SqlStore<Self>,
        dues: &[DueRenewal<'_>],
        limit: Duration,
    ) -> Result<Vec<RenewalOutcome>> {
        let values = Values::default().with("leases", statements::leases(dues));
        let limits = store.limits(StatementClass::Keep, limit);
        let renew = store.statement(StatementName::RenewBatch);
        let reply = store.patiently(limits, renew, &values).await?;
        let renewed: Result<HashSet<&str>> = reply.rows.iter().map(|row| row.text(0)).collect();
        let renewed = renewed?;
        // There is one writer at a time, so no row is locked.
        let outcome = |due: &DueRenewal<'_>| match renewed.contains(&*due.entry.name) {
            true => RenewalOutcome::Renewed,
            false => RenewalOutcome::Gone,
        };
        Ok(dues.iter().map(outcome).collect())
    }
}
