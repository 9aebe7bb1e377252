//! The PostgreSQL dialect.

mod codes;
mod config;
mod doctor;
mod free;
mod inline;
mod listener;
mod pooler;
mod renew;
mod server;
pub(crate) mod statements;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use lock_core::kit::runtime;
use lock_core::{
    Attempt, ClockInstant, Finding, LockBackend, OsRng, Result, Rng, SystemClock, Wake, async_trait,
};
use tokio::task::AbortHandle;

pub(crate) use config::PostgresTarget;
pub use config::{POSTGRES_PARAMETERS, Pooler};

use crate::engine::backend::Backend;
use crate::engine::dialect::Dialect;
use crate::engine::entry::{Due, Entry, Outcome};
use crate::engine::error::no_answer;
use crate::engine::executor::Executor;
use crate::engine::links::{Turn, Want};
use crate::engine::pool::Pool;
use crate::engine::settings::Settings;
use crate::engine::statement::Values;
use crate::engine::store::Store;
use crate::engine::sweep;
use crate::engine::target::Target;
use crate::engine::value::nullable;
use crate::engine::wake::{Waiter, Waiters};
use free::Free;
use listener::{Listener, Receiver};
use renew::Waits;
use server::PostgresServer;
use statements::NAME;

/// The number of dead row versions that is worth a warning.
const MANY_DEAD_ROWS: i64 = 10_000;

/// The lock table in a PostgreSQL database.
#[derive(Debug)]
pub(crate) struct Postgres {
    /// Identifies us in the list of waiters, and names our channel.
    client: String,
    /// Where pushes arrive, if the server can send them.
    waiters: Option<Arc<Waiters>>,
    /// Delivers notifications.
    delivery: OnceLock<AbortHandle>,
    waits: Waits,
    free: Arc<Free>,
    /// The number of dead row versions in the last warning.
    warned: AtomicI64,
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.closing();
    }
}

#[async_trait]
impl Target for PostgresTarget {
    fn dialect(&self) -> &'static str {
        NAME
    }

    fn endpoint(&self) -> String {
        self.at()
    }

    async fn open(&self, settings: &Settings) -> Result<Arc<dyn LockBackend>> {
        runtime::require("PostgreSQL")?;
        let limit = settings.connect_timeout;
        let store = tokio::time::timeout(limit, open(self, settings)).await;
        let store = store.unwrap_or_else(|_| Err(no_answer(&self.at(), limit)))?;
        Ok(Arc::new(Backend::new(store, settings.retention)))
    }
}

async fn open(target: &PostgresTarget, settings: &Settings) -> Result<Arc<Store<Postgres>>> {
    let (server, clock) = (Arc::new(PostgresServer::new(target, settings)), SystemClock::default());
    let limit = settings.connect_timeout;
    let first = pooler::open_first(&server, target.pooler, limit).await;
    let (first, third) = first?;
    let mut id = [0; 8];
    OsRng.fill(&mut id)?;
    let client = format!("{:016x}", u64::from_be_bytes(id));
    let pool = Pool::new(Arc::clone(&server), clock.clone());
    first.into_iter().for_each(|connection| pool.keep(connection));
    let listener = match server.is_pooled() {
        true => None,
        false => Listener::prove(&server, &pool, &clock, &client, limit, third).await?,
    };
    if listener.is_none() {
        tracing::info!(target: "distlock", at = %server.table.names.at, "no notifications arrive: waiters poll");
    }
    let (waiters, unwanted) = Waiters::new();
    let postgres = Postgres {
        client,
        waiters: listener.is_some().then(|| Arc::clone(&waiters)),
        delivery: OnceLock::new(),
        waits: Waits::default(),
        free: Arc::default(),
        warned: AtomicI64::new(0),
    };
    let store = Arc::new(Store::new(postgres, server, Arc::new(pool), clock));
    store.executor.probe(limit).await?;
    if let Some(listener) = listener {
        let (client, executor) = (store.dialect.client.clone(), Arc::downgrade(&store.executor));
        let free = Arc::clone(&store.dialect.free);
        let receiver = Receiver { waiters, unwanted, free, client, executor };
        // It is set nowhere else.
        let _ = store.dialect.delivery.set(listener.start(receiver));
    }
    Ok(store)
}

#[async_trait]
impl Dialect for Postgres {
    type Driver = PostgresServer;

    const NAME: &'static str = NAME;
    const LOOKS_FIRST: bool = false;
    // An insert reads the mark as of the start of its statement, so inserts that began before the
    // mark was raised must have ended.
    const SETTLE: Duration = Duration::from_secs(2);

    fn wanted(&self, entry: &Entry) -> Values {
        // On the list of waiters, or not.
        let listed = entry.waiter.as_ref().filter(|waiter| waiter.waits());
        entry
            .values(None)
            .with("client", nullable(listed.map(|_| &*self.client)))
            .with("company", listed.is_some_and(Waiter::has_company))
    }

    fn tries(&self, entry: &Entry) -> bool {
        self.free.take(&entry.name)
    }

    async fn missing(
        &self,
        executor: &Executor<PostgresServer>,
        entry: &Entry,
        start: ClockInstant,
    ) -> Result<Option<Attempt>> {
        let want = Want::patient(Turn::Try, start, entry.call_timeout).by(entry);
        let reply = executor.execute(want, &executor.own().enter, &self.wanted(entry)).await?;
        let row = reply.as_ref().and_then(|reply| reply.rows.first());
        row.map(|row| executor.attempt(entry, row)).transpose()
    }

    fn wake(&self) -> Wake {
        if self.waiters.is_some() { Wake::Hint } else { Wake::Poll }
    }

    fn listen(&self, name: &str, wait: bool) -> Option<Waiter> {
        Some(self.waiters.as_ref()?.register(name, wait))
    }

    fn closing(&self) {
        if let Some(delivery) = self.delivery.get() {
            delivery.abort();
        }
    }

    async fn diagnose(&self, executor: &Executor<PostgresServer>) -> Result<Vec<Finding>> {
        doctor::diagnose(self, executor).await
    }

    async fn renew(
        &self,
        executor: &Executor<PostgresServer>,
        dues: &[Due<'_>],
        limit: Duration,
    ) -> Result<Vec<Outcome>> {
        renew::renew(&self.waits, executor, dues, limit).await
    }

    async fn released(&self, executor: &Executor<PostgresServer>, entry: &Entry, freed: bool) {
        if freed {
            self.free.note(&entry.name);
        }
        let Some(waiter) = &entry.waiter else { return };
        if !waiter.leave() {
            return;
        }
        let values = Values::default().with("name", &*entry.name).with("client", &*self.client);
        let want = executor.want(Turn::Release, entry.call_timeout);
        if let Err(failure) = executor.execute(want, &executor.own().leave, &values).await {
            let error = failure.error;
            // At worst an unwanted notification arrives, and is passed on.
            tracing::debug!(target: "distlock", %error, "could not be removed from the list of waiters");
        }
        // A claim that began to wait just now may have been removed from the list with us.
        waiter.alert_company();
    }

    /// Each statement on a lock reads all versions of its row that the server has not removed yet.
    async fn swept(&self, executor: &Executor<PostgresServer>) {
        let (table, dead_rows) = (executor.driver.table.values(), &executor.own().dead_rows);
        let reply = executor.patiently(Turn::Look, sweep::LIMIT, dead_rows, &table).await;
        let Ok(reply) = reply else { return };
        let number = reply.rows.first().and_then(|row| row.int(0).ok()).unwrap_or(0);
        // Warn again only when it is twice as bad, or after it was fine.
        let warned = self.warned.load(Ordering::Relaxed);
        if number < MANY_DEAD_ROWS {
            self.warned.store(0, Ordering::Relaxed);
        } else if number / 2 >= warned {
            self.warned.store(number, Ordering::Relaxed);
            tracing::warn!(target: "distlock", at = %executor.at(), number, "the lock table has many dead row versions, and locks that change hands often become slow: look for an old snapshot (a long or prepared transaction, a replication slot), and check that autovacuum is on");
        }
    }
}
