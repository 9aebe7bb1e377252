//! The PostgreSQL dialect.

mod codes;
mod config;
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
use lock_core::{OsRng, Result, Rng, SystemClock, Wake, async_trait};
use tokio::task::AbortHandle;

pub use config::{POSTGRES_PARAMETERS, Pooler};
pub(crate) use config::{PostgresTarget, config_from_url};

use crate::config::SqlConfig;
use crate::engine::dialect::{Dialect, Links as _, Turn};
use crate::engine::entry::{Due, Entry, Outcome};
use crate::engine::error::{Names, no_answer};
use crate::engine::pool::Pool;
use crate::engine::statement::{Statements, Values};
use crate::engine::store::Store;
use crate::engine::sweep;
use crate::engine::value::nullable;
use crate::engine::wake::{Waiter, Waiters};
use listener::{Listener, Receiver};
use renew::Waits;
use server::PostgresServer;
use statements::OwnStatements;

const NAME: &str = "postgres";
/// The number of dead row versions that is worth a warning.
const MANY_DEAD_ROWS: i64 = 10_000;
/// The limit for passing a notification on.
const PASS: Duration = Duration::from_secs(2);

/// The lock table in a PostgreSQL database.
#[derive(Debug)]
pub(crate) struct Postgres {
    server: Arc<PostgresServer>,
    /// Identifies us in the list of waiters, and names our channel.
    client: String,
    /// Where pushes arrive, if the server can send them.
    waiters: Option<Arc<Waiters>>,
    /// Delivers notifications.
    delivery: OnceLock<AbortHandle>,
    waits: Waits,
    /// The number of dead row versions in the last warning.
    warned: AtomicI64,
}

pub(crate) type PostgresStore = Arc<Store<Postgres>>;

impl Drop for Postgres {
    fn drop(&mut self) {
        self.closing();
    }
}

pub(crate) async fn connect(target: &PostgresTarget, config: &SqlConfig) -> Result<PostgresStore> {
    runtime::require("PostgreSQL")?;
    let limit = config.connect_timeout;
    let opening = tokio::time::timeout(limit, open(target, config));
    let late = |_| Err(no_answer(&target.endpoint(), limit));
    opening.await.unwrap_or_else(late)
}

/// Connections of our own, with the options of the pool.
pub(crate) async fn from_pool(pool: &sqlx::PgPool, config: &SqlConfig) -> Result<PostgresStore> {
    let options = sqlx::postgres::PgConnectOptions::clone(&pool.connect_options());
    connect(&PostgresTarget::new(options, Pooler::Auto)?, config).await
}

async fn open(target: &PostgresTarget, config: &SqlConfig) -> Result<PostgresStore> {
    let (server, clock) = (Arc::new(PostgresServer::new(target, config)), SystemClock::default());
    let limit = config.connect_timeout;
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
        tracing::info!(target: "distlock", at = %server.names.at, "no notifications arrive: waiters poll");
    }
    let (waiters, unwanted) = Waiters::new();
    let postgres = Postgres {
        client,
        waiters: listener.is_some().then(|| Arc::clone(&waiters)),
        delivery: OnceLock::new(),
        waits: Waits::default(),
        warned: AtomicI64::new(0),
        server,
    };
    let store = Store::new(postgres, pool, clock, config.retention);
    store.probe(limit).await?;
    if let Some(listener) = listener {
        let (lost, passing) = (Arc::downgrade(&store), Arc::downgrade(&store));
        let receiver = Receiver {
            waiters,
            unwanted,
            // The other connections were probably lost, too.
            lost: Box::new(move || {
                if let Some(store) = lost.upgrade() {
                    store.links.forget();
                }
            }),
            pass_on: Box::new(move |name| {
                if let Some(store) = passing.upgrade() {
                    tokio::spawn(async move { pass_on(&store, &name).await });
                }
            }),
        };
        // It is set nowhere else.
        let _ = store.dialect.delivery.set(listener.start(receiver));
    }
    Ok(store)
}

/// This client was notified of a free lock but no longer wants it: the next one is notified.
async fn pass_on(store: &Store<Postgres>, name: &str) {
    let this = &store.dialect;
    let values = Values::default().with("name", name).with("client", &*this.client);
    let want = store.want(Turn::Release, PASS);
    if let Err(failure) = store.execute(want, &this.own().pass, &values).await {
        let error = failure.error;
        tracing::debug!(target: "distlock", %error, "a notification was not passed on");
    }
}

impl Postgres {
    fn own(&self) -> &OwnStatements {
        &self.server.statements.1
    }
}

#[async_trait]
impl Dialect for Postgres {
    type Links = Arc<Pool<PostgresServer>>;

    const NAME: &'static str = NAME;
    const PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(32));
    const LOOKS_FIRST: bool = false;
    // An insert reads the mark as of the start of its statement, so inserts that began before the
    // mark was raised must have ended.
    const SETTLE: Duration = Duration::from_secs(2);

    fn names(&self) -> &Names {
        &self.server.names
    }

    fn statements(&self) -> &Statements {
        &self.server.statements.0
    }

    fn wanted(&self, entry: &Entry) -> Values {
        // On the list of waiters, or not.
        let listed = entry.waiter.as_ref().filter(|waiter| waiter.waits());
        entry
            .values(None)
            .with("client", nullable(listed.map(|_| &*self.client)))
            .with("company", listed.is_some_and(Waiter::has_company))
    }

    fn wake(&self) -> Wake {
        if self.waiters.is_some() { Wake::Hint } else { Wake::Poll }
    }

    fn listen(&self, name: &str, wait: bool) -> Option<Waiter> {
        Some(self.waiters.as_ref()?.register(name, wait))
    }

    fn look_again(&self) {
        self.server.schema.look_again();
    }

    fn closing(&self) {
        if let Some(delivery) = self.delivery.get() {
            delivery.abort();
        }
    }

    async fn renew(store: &Store<Self>, dues: &[Due<'_>], limit: Duration) -> Result<Vec<Outcome>> {
        renew::renew(store, dues, limit).await
    }

    async fn released(store: &Store<Self>, entry: &Entry) {
        let (this, Some(waiter)) = (&store.dialect, &entry.waiter) else { return };
        if !waiter.leave() {
            return;
        }
        let values = Values::default().with("name", &*entry.name).with("client", &*this.client);
        let want = store.want(Turn::Release, entry.call_timeout);
        if let Err(failure) = store.execute(want, &this.own().leave, &values).await {
            let error = failure.error;
            // At worst an unwanted notification arrives, and is passed on.
            tracing::debug!(target: "distlock", %error, "could not be removed from the list of waiters");
        }
        // A claim that began to wait just now may have been removed from the list with us.
        waiter.alert_company();
    }

    /// Each statement on a lock reads all versions of its row that the server has not removed yet.
    async fn swept(store: &Store<Self>) {
        let this = &store.dialect;
        let (table, dead_rows) = (this.server.schema.table(), &this.own().dead_rows);
        let reply = store.patiently(Turn::Look, sweep::LIMIT, dead_rows, &table).await;
        let Ok(reply) = reply else { return };
        let number = reply.rows.first().and_then(|row| row.int(0).ok()).unwrap_or(0);
        // Warn again only when it is twice as bad, or after it was fine.
        let warned = this.warned.load(Ordering::Relaxed);
        if number < MANY_DEAD_ROWS {
            this.warned.store(0, Ordering::Relaxed);
        } else if number / 2 >= warned {
            this.warned.store(number, Ordering::Relaxed);
            tracing::warn!(target: "distlock", at = %this.server.names.at, number, "the lock table has many dead row versions, and locks that change hands often become slow: look for an old snapshot (a long or prepared transaction, a replication slot), and check that autovacuum is on");
        }
    }
}
