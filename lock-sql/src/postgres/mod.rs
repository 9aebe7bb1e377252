//! The PostgreSQL dialect.

mod codes;
mod config;
mod inline;
mod listener;
mod mutants;
mod pooler;
mod renew;
mod server;
mod statements;

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use lock_core::kit::runtime;
use lock_core::{
    Attempt, Binding, Capabilities, DataLoss, Fencing, FencingToken, OsRng, Result, Rng,
    SystemClock, Wake, async_trait,
};
use tokio::task::AbortHandle;

pub use config::{POSTGRES_PARAMETERS, Pooler};
pub(crate) use config::{PostgresTarget, config_from_url};
#[cfg(distlock_mutants)]
pub use mutants::wrong::{MUTANTS, VARIABLE};

use crate::config::SqlConfig;
use crate::engine::driver::{Dialect, Freeing, Lease, Links, State, Turn};
use crate::engine::entry::{Due, Entry, Outcome};
use crate::engine::error::no_answer;
use crate::engine::pool::Pool;
use crate::engine::steps::Steps;
use crate::engine::store::{Store, Want};
use crate::engine::sweep;
use crate::engine::value::{Query, Row, Value, fence_or_zero, micros};
use crate::engine::wake::{WHILE_CONTENDED, Waiter, Waiters, busy};
use listener::{Listener, Receiver};
use renew::Waits;
use server::PostgresServer;
use statements::Statements;

/// So many versions of rows that nobody needs are worth a warning.
const MANY_DEAD_ROWS: i64 = 10_000;
/// The limit for passing a notification on.
const PASS: Duration = Duration::from_secs(2);

/// The lock table in a PostgreSQL database.
#[derive(Debug)]
pub(crate) struct Postgres {
    server: Arc<PostgresServer>,
    statements: Statements,
    /// Marks us among those who wait, and names our channel.
    client: String,
    /// Where pushes arrive, if they can be had.
    waiters: Option<Arc<Waiters>>,
    /// Delivers notifications.
    delivery: OnceLock<AbortHandle>,
    waits: Waits,
    /// For how many row versions that nobody needs there was a warning.
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
    let late = |_| Err(no_answer(&config::endpoint(&target.options), limit));
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
    let (first, third) = first.map_err(|failure| failure.into_error(&server.names.at))?;
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
        statements: Statements::new(&config.table),
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
            // The others were probably cut, too.
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
        // Nobody else sets it.
        let _ = store.dialect.delivery.set(listener.start(receiver));
    }
    Ok(store)
}

/// The client that was told of a free lock does not want it any more: the next one is told.
async fn pass_on(store: &Store<Postgres>, name: &str) {
    let this = &store.dialect;
    let want = Want { turn: Turn::Release, limits: store.patient(PASS), owner: None };
    let pass = || Query::new(&this.statements.pass).bind(name).bind(&*this.client);
    if let Err(error) = store.execute(want, pass).await {
        tracing::debug!(target: "distlock", %error, "a notification was not passed on");
    }
}

impl Dialect for Postgres {
    type Links = Arc<Pool<PostgresServer>>;

    const NAME: &'static str = "postgres";
    const PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(32));
    // A statement that inserts a row reads the mark as it was when the statement began, so one that
    // began before the mark was raised must have ended.
    const SETTLE: Duration = Duration::from_secs(2);

    fn capabilities(&self) -> Capabilities {
        let wake = if self.waiters.is_some() { Wake::Hint } else { Wake::Poll };
        let mut capabilities = Capabilities::new(Binding::Lease, wake);
        // The next fence is made from the stored one; the clock is needed only if the data are lost.
        capabilities.fencing = Fencing::Durable;
        capabilities.detachable = true;
        capabilities.inspect = true;
        capabilities.loses_data_on = &[DataLoss::Failover];
        capabilities
    }

    fn endpoint(&self) -> String {
        self.server.names.at.clone()
    }

    fn probe(&self) -> Query {
        Query::new(&self.statements.probe)
    }

    fn look(&self, name: &str) -> Query {
        Query::new(&self.statements.look).bind(name)
    }

    fn list(&self, start: &str, bare: bool) -> Query {
        Query::new(&self.statements.list).bind(start).bind(bare)
    }

    fn release(&self, freeing: &Freeing<'_>) -> Query {
        let statement = match freeing.by_force {
            true => &self.statements.force,
            false => &self.statements.release,
        };
        Query::new(statement)
            .bind(freeing.name)
            .bind(freeing.owner)
            .bind(freeing.tell)
            .bind(fence_or_zero(freeing.fence))
    }

    fn confirm(&self, entry: &Entry, fence: Option<FencingToken>) -> Option<Query> {
        let confirm = Query::new(&self.statements.confirm).bind(&*entry.name);
        Some(confirm.bind(&*entry.owner.0).bind(fence_or_zero(fence)))
    }

    fn sweep_page(&self, after: &Value, retention: Duration) -> Query {
        Query::new(&self.statements.sweep_page).bind(after.clone()).bind(micros(retention))
    }

    fn sweep_fold(&self, fence: i64) -> Query {
        Query::new(&self.statements.sweep_fold).bind(fence)
    }

    /// The statement reads the mark itself.
    fn sweep_delete(&self, names: &[Value], _folded: i64, retention: Duration) -> Query {
        let text = |name: &Value| String::from_utf8_lossy(name.as_bytes()).into_owned();
        let names = Value::Texts(names.iter().map(text).collect());
        Query::new(&self.statements.sweep_delete).bind(names).bind(micros(retention))
    }

    fn lease(&self, row: &Row) -> Result<Lease> {
        Ok(Lease {
            name: Some(row.text(0)?.to_owned()),
            owner: Some(row.text(1)?.to_owned()),
            fence: row.int(2)?,
            state: State::of(row.int(3)?),
            held: Some(row.duration(4)?),
            label: row.optional_text(5)?.map(str::to_owned),
        })
    }

    fn look_again(&self) {
        self.server.look_again();
    }

    fn listen(&self, name: &str, wait: bool) -> Option<Waiter> {
        Some(self.waiters.as_ref()?.register(name, wait))
    }

    fn closing(&self) {
        if let Some(delivery) = self.delivery.get() {
            delivery.abort();
        }
    }
}

#[async_trait]
impl Steps for Postgres {
    /// The statement itself looks before it writes.
    async fn acquire(store: &Store<Self>, entry: &Entry, _polling: bool) -> Result<Attempt> {
        let (this, waiter) = (&store.dialect, entry.waiter.as_ref());
        let look = waiter.map(Waiter::look);
        // On the list of those who wait, or not.
        let client = waiter.filter(|waiter| waiter.waits()).map(|_| &*this.client);
        let company = client.is_some() && waiter.is_some_and(Waiter::has_company);
        let make = || {
            Query::new(&this.statements.acquire)
                .bind(&*entry.name)
                .bind(&*entry.owner.0)
                .bind(micros(entry.ttl))
                .bind(entry.label.as_deref())
                .bind(client)
                .bind(company)
        };
        let reply = store.take(entry, store.patient(entry.call_timeout), make).await?;
        // Others were writing, or have made the row while this statement looked for it.
        let Some(row) = reply.as_ref().and_then(|reply| reply.rows.first()) else {
            return Ok(busy(Some(WHILE_CONTENDED)));
        };
        let granted = row.flag(0)?;
        if let Some(look) = look {
            look.answered(granted);
        }
        if !granted {
            return Ok(busy(Some(row.duration(2)?)));
        }
        let token = FencingToken::answered(row.int(1)?)?;
        Ok(Attempt::Granted { token, valid_for: Some(entry.ttl) })
    }

    async fn renew(store: &Store<Self>, dues: &[Due<'_>], limit: Duration) -> Result<Vec<Outcome>> {
        renew::renew(store, dues, limit).await
    }

    async fn released(store: &Store<Self>, entry: &Entry) {
        let (this, Some(waiter)) = (&store.dialect, &entry.waiter) else { return };
        if !waiter.leave() {
            return;
        }
        let limits = store.patient(entry.call_timeout);
        let want = Want { turn: Turn::Release, limits, owner: None };
        let leave = || Query::new(&this.statements.leave).bind(&*entry.name).bind(&*this.client);
        if let Err(error) = store.execute(want, leave).await {
            // Only a notification will come that nobody wants, and that is passed on.
            tracing::debug!(target: "distlock", %error, "not taken off the list of those who wait");
        }
        // One that has begun to wait meanwhile may have been taken off the list with us.
        waiter.alert_company();
    }

    /// Each statement on a lock looks at all versions of its row that the server has not removed yet.
    async fn swept(store: &Store<Self>) {
        let this = &store.dialect;
        let make = || Query::new(&this.statements.dead_rows).bind(this.server.table.quoted());
        let Ok(reply) = store.patiently(Turn::Look, sweep::LIMIT, make).await else { return };
        let number = reply.rows.first().and_then(|row| row.int(0).ok()).unwrap_or(0);
        // Not again before it is twice as bad, or was well in between.
        let warned = this.warned.load(Ordering::Relaxed);
        if number < MANY_DEAD_ROWS {
            this.warned.store(0, Ordering::Relaxed);
        } else if number / 2 >= warned {
            this.warned.store(number, Ordering::Relaxed);
            tracing::warn!(target: "distlock", at = %this.server.names.at, number, "the lock table has many dead row versions, and locks that change hands often become slow: look for an old snapshot (a long transaction, a prepared one, a replication slot), and whether autovacuum is on");
        }
    }
}
