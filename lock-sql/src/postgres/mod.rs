//! The PostgreSQL dialect.

mod config;
mod error;
mod inner;
mod listener;
mod mutants;
mod open;
mod pool;
mod renew;
mod resting;
mod sweep;
mod unfinished;
mod value;

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use lock_core::{
    Attempt, Capabilities, DataLoss, Fencing, FencingToken, Hold, LockInfo, LockKey, OsRng,
    OwnerId, Released, Renewal, Result, Rng, SystemClock, Wake, async_trait,
};
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;

pub use config::{POSTGRES_PARAMETERS, Pooler};
pub(crate) use config::{PostgresTarget, config_from_url};
pub(crate) use mutants::Mutation;
#[cfg(distlock_mutants)]
pub use mutants::{MUTANTS, VARIABLE};

use crate::config::SqlConfig;
use crate::engine::error::no_answer;
use crate::engine::operations::{Due, Entry, Operations, Outcome};
use crate::engine::wake::{WHILE_CONTENDED, Waiter, Waiters, busy};
use crate::statements::postgres::Statements;
use error::Failure;
use inner::{Inner, Want, fence_or_zero, from_micros, micros};
use listener::Listener;
use open::Site;
use pool::{Pool, Turn};
use sweep::Sweeper;
use value::Value;

/// The limit for what has no call timeout of its own.
const ADMIN_LIMIT: Duration = Duration::from_secs(5);

/// The lock table in a PostgreSQL database.
#[derive(Debug)]
pub(crate) struct PostgresStore {
    inner: Arc<Inner>,
    /// Delivers notifications.
    delivery: Option<AbortHandle>,
}

impl Drop for PostgresStore {
    fn drop(&mut self) {
        if let Some(delivery) = &self.delivery {
            delivery.abort();
        }
    }
}

impl PostgresStore {
    pub(crate) async fn connect(target: &PostgresTarget, config: &SqlConfig) -> Result<Self> {
        let limit = config.connect_timeout;
        let endpoint = config::endpoint(&target.options);
        let opening = tokio::time::timeout(limit, Self::open(target, config));
        opening.await.unwrap_or_else(|_| Err(no_answer(&endpoint, limit)))
    }

    /// Connections of our own, with the options of the pool.
    pub(crate) async fn from_pool(pool: &sqlx::PgPool, config: &SqlConfig) -> Result<Self> {
        let options = sqlx::postgres::PgConnectOptions::clone(&pool.connect_options());
        Self::connect(&PostgresTarget::new(options, Pooler::Auto)?, config).await
    }

    async fn open(target: &PostgresTarget, config: &SqlConfig) -> Result<Self> {
        let site = Arc::new(Site::new(target, config));
        let failed = |failure: Failure| failure.into_error(&site.place.endpoint);
        let limit = config.connect_timeout;
        let (first, third) = site.open_first(target.pooler, limit).await.map_err(failed)?;
        let mut id = [0; 8];
        OsRng.fill(&mut id)?;
        let client = format!("{:016x}", u64::from_be_bytes(id));
        let clock = Arc::new(SystemClock::default());
        let pool = Pool::new(Arc::clone(&site), Arc::clone(&clock));
        first.into_iter().for_each(|connection| pool.keep(connection));
        let listener = match site.is_pooled() {
            true => None,
            false => Listener::prove(&site, &pool, &client, limit, third).await?,
        };
        if listener.is_none() {
            tracing::info!(target: "distlock", at = %site.place.endpoint, "no notifications arrive: waiters poll");
        }
        let (waiters, unwanted) = Waiters::new();
        let inner = Arc::new(Inner {
            statements: Statements::new(&config.table),
            pool,
            clock,
            retention: config.retention,
            sweeper: Sweeper::default(),
            unfinished: Arc::default(),
            waits_for_row: Semaphore::new(1),
            waited: AtomicUsize::new(0),
            client,
            waiters: listener.is_some().then(|| Arc::clone(&waiters)),
            site,
        });
        inner.probe(limit).await?;
        let delivery =
            listener.map(|listener| listener.start(waiters, unwanted, Arc::downgrade(&inner)));
        Ok(Self { inner, delivery })
    }

    /// The client's id, if `entry` is to be on the list of those who wait.
    fn listed(&self, entry: &Entry) -> Option<&str> {
        let waits = entry.waiter.as_ref().is_some_and(Waiter::waits);
        waits.then_some(&*self.inner.client)
    }
}

#[async_trait]
impl Operations for PostgresStore {
    fn name(&self) -> &'static str {
        "postgres"
    }

    fn capabilities(&self) -> Capabilities {
        let wake = if self.inner.waiters.is_some() { Wake::Hint } else { Wake::Poll };
        let mut capabilities = Capabilities::new(Hold::Lease, wake);
        // The next fence is made from the stored one; the clock is needed only if the data are lost.
        capabilities.fencing = Fencing::Durable;
        capabilities.detachable = true;
        capabilities.inspect = true;
        capabilities.loses_data_on = &[DataLoss::Failover];
        capabilities
    }

    /// The statement itself looks before it writes.
    async fn acquire(&self, entry: &Entry, _polling: bool) -> Result<Attempt> {
        let inner = &*self.inner;
        let look = entry.waiter.as_ref().map(Waiter::look);
        let client = self.listed(entry);
        let company = client.is_some() && entry.waiter.as_ref().is_some_and(Waiter::has_company);
        let values = vec![
            Value::from(&*entry.name),
            Value::from(&*entry.owner.0),
            Value::from(micros(entry.ttl)),
            Value::from(entry.label.as_deref()),
            Value::from(client),
            Value::from(company),
        ];
        let rows = self.inner.acquire(entry, values).await?;
        // Others were writing, or have made the row while this statement looked for it.
        let Some(row) = rows.iter().flatten().next() else {
            return Ok(busy(Some(WHILE_CONTENDED)));
        };
        let granted = inner.get(row, 0)?;
        if let Some(look) = look {
            look.answered(granted);
        }
        if !granted {
            return Ok(busy(Some(from_micros(inner.get(row, 2)?))));
        }
        let token = FencingToken::try_from(inner.get::<i64>(row, 1)?)?;
        self.inner.sweep_if_due();
        Ok(Attempt::Granted { token, valid_for: Some(entry.ttl) })
    }

    async fn renew(&self, dues: &[Due<'_>], limit: Duration) -> Result<Vec<Outcome>> {
        let mut found = self.inner.renew_unlocked(dues, limit).await?;
        // Nobody waits for another answer, and one statement at a time waits for a row.
        if found.iter().all(|found| *found == Outcome::Locked)
            && let Ok(_turn) = self.inner.waits_for_row.try_acquire()
        {
            let at = self.inner.next_of(dues.len());
            found[at] = self.inner.renew_waiting(&dues[at], limit).await?;
        }
        Ok(found)
    }

    async fn check(&self, entry: &Entry, fence: Option<FencingToken>) -> Result<Renewal> {
        let inner = &*self.inner;
        let values = [
            Value::from(&*entry.name),
            Value::from(&*entry.owner.0),
            Value::from(fence_or_zero(fence)),
        ];
        // What a plain read does not show may have been read from a standby that is behind.
        for sql in [&inner.statements.check, &inner.statements.check_locking] {
            let rows = inner.keep(entry.call_timeout, sql, &values).await?;
            let left = rows.first().map(|row| inner.get::<i64>(row, 0)).transpose()?;
            if let Some(left) = left.filter(|left| *left > 0) {
                return Ok(Renewal::Alive { valid_for: Some(from_micros(left)) });
            }
        }
        Ok(Renewal::Lost)
    }

    async fn release(&self, entry: &Entry) -> Result<Released> {
        let inner = &*self.inner;
        let owner = Some(&*entry.owner.0);
        let limit = entry.call_timeout;
        inner.unfinished.ended(&entry.owner.0, limit / 2).await;
        let fence = fence_or_zero(entry.taken_over);
        let released =
            inner.free(&inner.statements.release, &entry.name, owner, fence, limit).await;
        if let Some(waiter) = &entry.waiter
            && waiter.leave()
        {
            let values = [Value::from(&*entry.name), Value::from(&*inner.client)];
            let leave = &inner.statements.leave;
            let left = inner.execute(Want::new(Turn::Release, limit), leave, &values).await;
            if let Err(error) = left {
                // Only a notification will come that nobody wants, and that is passed on.
                tracing::debug!(target: "distlock", %error, "not taken off the list of those who wait");
            }
            // One that has begun to wait meanwhile may have been taken off the list with us.
            waiter.alert_company();
        }
        released
    }

    fn listen(&self, name: &str, wait: bool) -> Option<Waiter> {
        Some(self.inner.waiters.as_ref()?.register(name, wait))
    }

    async fn inspect(&self, key: &LockKey) -> Result<Option<LockInfo>> {
        let inner = &*self.inner;
        let values = [Value::from(&*key.encode())];
        let rows = inner.read(ADMIN_LIMIT, &inner.statements.look, &values).await?;
        rows.first().map_or(Ok(None), |row| inner.info(row))
    }

    async fn list(&self, prefix: &str, name_start: &str) -> Result<Vec<LockInfo>> {
        let inner = &*self.inner;
        let start = LockKey::encoded_start(prefix, name_start);
        let values = [Value::from(&*start), Value::from(prefix.is_empty())];
        let rows = inner.read(ADMIN_LIMIT, &inner.statements.list, &values).await?;
        let mut found = Vec::with_capacity(rows.len());
        for row in &rows {
            found.extend(inner.info(row)?);
        }
        Ok(found)
    }

    async fn force_release(&self, key: &LockKey, expected: Option<&OwnerId>) -> Result<Released> {
        let expected = expected.map(OwnerId::to_hex);
        let force = &self.inner.statements.force;
        self.inner.free(force, &key.encode(), expected.as_deref(), 0, ADMIN_LIMIT).await
    }

    async fn ping(&self) -> Result<()> {
        self.inner.probe(ADMIN_LIMIT).await
    }

    async fn close(&self) -> Result<()> {
        if let Some(delivery) = &self.delivery {
            delivery.abort();
        }
        let place = &self.inner.site.place;
        let closing = self.inner.pool.close().await;
        closing.map_err(|error| place.failure(error, false).into_error(&place.endpoint))
    }
}
