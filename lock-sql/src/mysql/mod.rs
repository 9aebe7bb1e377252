//! The MySQL dialect: a table on a server, MySQL 8 or MariaDB 10.6 and newer.

mod codes;
mod config;
mod doctor;
mod renew;
mod server;
pub(crate) mod statements;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use lock_core::kit::runtime;
use lock_core::{
    Attempt, ClockInstant, FencingToken, Finding, LockBackend, Result, SystemClock, async_trait,
};

pub use config::MYSQL_PARAMETERS;
pub(crate) use config::MySqlTarget;

use crate::engine::backend::Backend;
use crate::engine::dialect::Dialect;
use crate::engine::entry::{Due, Entry, Outcome};
use crate::engine::executor::Executor;
use crate::engine::links::{Turn, Want};
use crate::engine::pool::Pool;
use crate::engine::settings::Settings;
use crate::engine::statement::Values;
use crate::engine::store::Store;
use crate::engine::target::Target;
use crate::engine::wake::busy;
use server::MySqlServer;
use statements::{NAME, WAS_RUNNING};

/// The lock table of a database.
#[derive(Debug)]
pub(crate) struct MySql;

#[async_trait]
impl Target for MySqlTarget {
    fn dialect(&self) -> &'static str {
        NAME
    }

    fn endpoint(&self) -> String {
        self.endpoint.clone()
    }

    async fn open(&self, settings: &Settings) -> Result<Arc<dyn LockBackend>> {
        runtime::require("MySQL")?;
        let store = on(MySqlServer::new(self, settings));
        // The connection looks up the table and checks every right that is needed.
        store.executor.probe(settings.connect_timeout).await?;
        Ok(Arc::new(Backend::new(store, settings.retention)))
    }
}

fn on(server: MySqlServer) -> Arc<Store<MySql>> {
    let (server, clock) = (Arc::new(server), SystemClock::default());
    let pool = Pool::new(Arc::clone(&server), clock.clone());
    Arc::new(Store::new(MySql, server, Arc::new(pool), clock))
}

#[async_trait]
impl Dialect for MySql {
    type Driver = MySqlServer;

    const NAME: &'static str = NAME;
    const SWEEPS_AT_ONCE: bool = false;
    const WAS_RUNNING: i64 = WAS_RUNNING;

    /// A new name, or one whose row was removed.
    async fn missing(
        &self,
        executor: &Executor<MySqlServer>,
        entry: &Entry,
        start: ClockInstant,
    ) -> Result<Option<Attempt>> {
        let (make, values) = (&executor.own().make, entry.values(None));
        let marking = Want::patient(Turn::Try, start, entry.call_timeout);
        let want = marking.by(entry);
        let mut made = executor.execute(want.once(), make, &values).await?;
        if made.is_none() {
            // Without the mark, as after a TRUNCATE, clients that insert rows lock the gap in its
            // place, and block each other. Not if another client has that row locked: then it
            // exists.
            let values = Values::default().with("fence", None::<FencingToken>);
            executor.execute(marking.once(), &executor.statements().sweep_fold, &values).await?;
            made = executor.execute(want, make, &entry.values(None)).await?;
        }
        let Some(made) = made else { return Ok(None) };
        match made.rows.first() {
            Some(row) => executor.attempt(entry, row).map(Some),
            None => Ok(Some(busy(Some(Duration::ZERO)))),
        }
    }

    async fn diagnose(&self, executor: &Executor<MySqlServer>) -> Result<Vec<Finding>> {
        doctor::diagnose(executor).await
    }

    async fn renew(
        &self,
        executor: &Executor<MySqlServer>,
        dues: &[Due<'_>],
        limit: Duration,
    ) -> Result<Vec<Outcome>> {
        renew::renew(executor, dues, limit).await
    }
}
