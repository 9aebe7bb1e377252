//! The PostgreSQL dialect.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use listener::NotificationListener;
use lock_core::{Attempt, Finding, LockBackend, Result, SystemClock, Wake, async_trait};
use lock_kit::runtime;
use server::PostgresServer;
use statements::{GONE, NAME, RENEWED};

use crate::engine::backend::DialectBackend;
use crate::engine::store::{Dialect, SqlStore};
use crate::engine::table::lock_table::StatementName;
use crate::engine::table::row::{DueRenewal, OwnRow, RenewalOutcome};
use crate::engine::table::settings::{Settings, SqlTarget};
use crate::engine::table::sweep;
use crate::engine::waiters::NotifiedClaim;
use crate::engine::wire::connections::{StatementClass, StatementLimits};
use crate::engine::wire::errors::no_answer;
use crate::engine::wire::pool::ServerPool;
use crate::engine::wire::statement::{SqlValue, Values, nullable};

mod codes;
mod config;
mod doctor;
mod listener;
mod pooler;
pub(crate) mod server;
pub(crate) mod statements;

pub(crate) use codes::{RULES, code};
pub use config::{POSTGRES_PARAMETERS, Pooler};
pub(crate) use config::{PostgresTarget, SCHEMA};

#[async_trait]
impl SqlTarget for PostgresTarget {
    fn dialect(&self) -> &'static str {
        NAME
    }

    fn parameters(&self) -> &'static [&'static str] {
        POSTGRES_PARAMETERS
    }

    fn endpoint(&self) -> String {
        self.at()
    }

    async fn open(&self, settings: &Settings) -> Result<Arc<dyn LockBackend>> {
        runtime::require("PostgreSQL")?;
        let limit = settings.connect_timeout;
        let store = tokio::time::timeout(limit, open(self, settings)).await;
        let store = store.unwrap_or_else(|_| Err(no_answer(&self.at(), limit)))?;
        Ok(Arc::new(DialectBackend::new(store, settings.retention)))
    }
}

async fn open(
    target: &PostgresTarget,
    settings: &Settings,
) -> Result<Arc<SqlStore<PostgresServer>>> {
    let (mut server, clock) = (PostgresServer::new(target, settings)?, SystemClock::default());
    let limit = settings.connect_timeout;
    let (mut first, third) = pooler::open_first(&server, target.pooler, limit).await?;
    server.name_schema(&mut first[0], settings).await?;
    let server = Arc::new(server);
    let pool = ServerPool::new(Arc::clone(&server), clock.clone());
    for connection in first {
        pool.keep(server.make_ours(connection).await?);
    }
    let store = Arc::new(SqlStore { dialect: server, connections: Arc::new(pool), clock });
    let server = &store.dialect;
    let listener = match server.is_pooled() {
        true => None,
        false => NotificationListener::prove(&store, limit, third).await?,
    };
    if listener.is_none() && !server.is_pooled() {
        tracing::warn!(target: "distlock", at = %store.at(), "no notifications arrive: waiters poll");
    }
    store.probe(limit).await?;
    if let Some(listener) = listener {
        // It is set nowhere else.
        let _ = server.pushes.set(listener.start(&store));
    }
    Ok(store)
}

#[async_trait]
impl Dialect for PostgresServer {
    const NAME: &'static str = NAME;
    // An insert reads the mark as of the start of its statement, so inserts that began before the
    // mark was raised must have ended.
    const SETTLE: Duration = Duration::from_secs(2);

    async fn acquire(
        store: &SqlStore<Self>,
        entry: &OwnRow,
        _polling: bool,
    ) -> Result<Option<Attempt>> {
        let server = &store.dialect;
        let limits = store.limits(StatementClass::Try, entry.call_timeout).taking();
        // On the list of waiters, or not. Made for each statement: another claim of this client may begin to
        // wait in between, and a grant must then leave the client on the list.
        let values = || {
            let listed = entry.waiter.as_ref().filter(|waiter| waiter.waits());
            let values = entry.values(None);
            values
                .with("client", nullable(listed.map(|_| &*server.client)))
                .with("company", listed.is_some_and(NotifiedClaim::has_company))
        };
        if server.free.take(&entry.name) {
            let reply =
                store.execute(limits, store.statement(StatementName::Acquire), &values()).await?;
            let Some(reply) = reply else { return Ok(None) };
            if let Some(row) = reply.rows.first() {
                return store.attempt(entry, row).map(Some);
            }
        }
        let queue = store.statement(StatementName::AcquireOrQueue);
        let reply = store.execute(limits, queue, &values()).await?;
        let row = reply.as_ref().and_then(|reply| reply.rows.first());
        row.map(|row| store.attempt(entry, row)).transpose()
    }

    fn wake(&self) -> Wake {
        if self.pushes.get().is_some() { Wake::Hint } else { Wake::Poll }
    }

    fn listen(&self, name: &str, wait: bool) -> Option<NotifiedClaim> {
        self.pushes.get().map(|(waiters, _)| waiters.register(name, wait))
    }

    fn closing(&self) {
        self.stop_delivery();
    }

    async fn diagnose(store: &SqlStore<Self>) -> Result<Vec<Finding>> {
        doctor::diagnose(store).await
    }

    /// Skips rows that another client has locked.
    async fn renew_batch(
        store: &SqlStore<Self>,
        dues: &[DueRenewal<'_>],
        limit: Duration,
    ) -> Result<Vec<RenewalOutcome>> {
        let list = |value: fn(&DueRenewal<'_>) -> SqlValue<'static>| {
            dues.iter().map(value).collect::<Vec<_>>()
        };
        let values = Values::default()
            .with("names", list(|due| due.entry.name.clone().into()))
            .with("owners", list(|due| due.entry.owner.0.clone().into()))
            .with("fences", list(|due| due.fence.into()))
            .with("ttls", list(|due| due.entry.ttl.into()));
        let limits = store.limits(StatementClass::Keep, limit);
        let renew = store.statement(StatementName::RenewBatch);
        let reply = store.patiently(limits, renew, &values).await?;
        let mut outcomes = HashMap::with_capacity(reply.rows.len());
        for row in &reply.rows {
            let outcome = match row.int(1)? {
                RENEWED => RenewalOutcome::Renewed,
                GONE => RenewalOutcome::Gone,
                _ => RenewalOutcome::Locked,
            };
            outcomes.insert(row.text(0)?, outcome);
        }
        // A lease missing from the reply is retried.
        let of = |due: &DueRenewal<'_>| {
            outcomes.get(&*due.entry.name).copied().unwrap_or(RenewalOutcome::Locked)
        };
        Ok(dues.iter().map(of).collect())
    }

    async fn released(
        store: &SqlStore<Self>,
        limits: StatementLimits,
        entry: &OwnRow,
        is_free: bool,
    ) {
        let server = &store.dialect;
        if is_free {
            server.free.note(&entry.name);
        }
        let Some(waiter) = &entry.waiter else { return };
        if !waiter.leave() {
            return;
        }
        let values = Values::default().with("name", &*entry.name).with("client", &*server.client);
        let leave = store.statement(StatementName::Leave);
        if let Err(failure) = store.execute(limits, leave, &values).await {
            let error = failure.error;
            // At worst an unwanted notification arrives, and is passed on.
            tracing::debug!(target: "distlock", %error, "could not be removed from the list of waiters");
        }
        // A claim that began to wait just now may have been removed from the list with us.
        waiter.alert_company();
    }

    /// Each statement on a lock reads all versions of its row that the server has not removed yet.
    async fn swept(store: &SqlStore<Self>) {
        let server = &store.dialect;
        let (table, limits) =
            (server.table.values(), store.limits(StatementClass::Look, sweep::LIMIT));
        let dead_rows = store.statement(StatementName::DeadRows);
        let reply = store.patiently(limits, dead_rows, &table).await;
        let Ok(reply) = reply else { return };
        let number = reply.rows.first().and_then(|row| row.int(0).ok()).unwrap_or(0);
        // Warn again only when it is twice as bad, or after it was fine.
        let warned = server.warned.load(Ordering::Relaxed);
        if number < doctor::MANY_DEAD_ROWS {
            server.warned.store(0, Ordering::Relaxed);
        } else if number / 2 >= warned {
            server.warned.store(number, Ordering::Relaxed);
            tracing::warn!(target: "distlock", at = %store.at(), number, "the lock table has many dead row versions, and locks that change hands often become slow: look for an old snapshot (a long or prepared transaction, a replication slot), and check that autovacuum is on");
        }
    }
}

/// The statements, by a clock that the test sets: functions of the same names stand before the server's.
#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::table::row::OwnerSecret;
    use crate::engine::table::sweep::Sweeper;
    use crate::engine::tests::Bench;
    use crate::engine::tests::START;
    use crate::engine::tests::TTL;
    use crate::engine::tests::acquire;
    use crate::engine::tests::entry;
    use crate::engine::tests::granted;
    use crate::engine::tests::left;
    use crate::engine::tests::read;
    use crate::engine::tests::release;
    use crate::engine::tests::shared;
    use lock_core::Released;
    use lock_testkit::servers;
    use lock_testkit::warnings::Warnings;
    use sqlx::AssertSqlSafe;
    use sqlx::Executor;
    use sqlx::PgPool;

    struct Database {
        server: servers::PostgresServer,
        admin: PgPool,
    }

    #[async_trait]
    impl Bench for Database {
        type Of = PostgresServer;

        async fn start() -> Self {
            let server = servers::PostgresServer::builder().start().await.unwrap();
            let admin = PgPool::connect(server.url()).await.unwrap();
            let this = Self { server, admin };
            this.run(
                "CREATE TABLE clock AS SELECT now() AS at; \
                 CREATE FUNCTION public.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS \
                 'SELECT at FROM clock'; \
                 CREATE FUNCTION public.statement_timestamp() RETURNS timestamptz LANGUAGE sql STABLE AS \
                 'SELECT at FROM clock'; \
                 ALTER DATABASE postgres SET search_path = public, pg_catalog",
            )
            .await;
            this
        }

        async fn at(&self, micros: i64) -> Arc<SqlStore<PostgresServer>> {
            let clock = format!(
                "UPDATE clock SET at = to_timestamp(0) + {micros} * interval '1 microsecond'"
            );
            self.run(&clock).await;
            let target = read(self.server.url(), PostgresTarget::from_url);
            open(&target, &Settings::default()).await.unwrap()
        }

        async fn run(&self, sql: &str) {
            self.admin.execute(sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))).await.unwrap();
        }

        async fn names(&self) -> Vec<String> {
            let names = "SELECT name FROM distlock WHERE name <> E'\\x01fence' ORDER BY name";
            sqlx::query_scalar(names).fetch_all(&self.admin).await.unwrap()
        }
    }

    shared!(Database);

    /// The client ends in the pause between raising the mark and deleting.
    #[tokio::test]
    async fn a_sweep_that_a_close_ends_is_no_warning() {
        let database = Database::start().await;
        let store = database.at(START * 1_000_000).await;
        let old = entry("old");
        granted(acquire(&store, &old, false).await);
        assert_eq!(release(&store, &old).await.unwrap(), Released::Freed);
        let sweeper = Arc::new(Sweeper::new(Arc::clone(&store), Duration::ZERO));
        let warnings = Warnings::default();
        let _seen = tracing::subscriber::set_default(warnings.clone());
        sweeper.sweep_if_due();
        tokio::time::sleep(PostgresServer::SETTLE / 2).await;
        store.connections.close().await.unwrap();
        tokio::time::sleep(PostgresServer::SETTLE).await;
        assert_eq!(database.names().await, ["old"], "the sweep has come to its end");
        assert!(warnings.so_far().is_empty(), "{:?}", warnings.so_far());
    }

    /// As `no_request_of_a_hold_shortens_its_lease`, of the statement that waits for a row.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_renewal_that_waits_for_its_row_shortens_nothing() {
        let database = Database::start().await;
        let store = database.at(START * 1_000_000).await;
        let mine = entry("x");
        let fence = Some(granted(acquire(&store, &mine, false).await));
        for (ttl, wanted) in [(TTL / 2, TTL), (TTL * 2, TTL * 2)] {
            let owner = OwnerSecret(mine.owner.0.clone());
            let again = OwnRow { ttl, owner, ..entry("x") };
            let values = again.values(fence);
            let limits = store.limits(StatementClass::Keep, TTL);
            let renew = store.statement(StatementName::RenewAlone);
            let reply = store.patiently(limits, renew, &values).await.unwrap();
            assert_eq!(reply.rows.len(), 1);
            assert_eq!(left(&store, &mine, fence).await, Some(wanted.as_millis()));
        }
    }
}
