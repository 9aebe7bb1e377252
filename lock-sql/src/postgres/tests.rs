//! The statements, by a clock that the test sets: functions of the same names stand before the server's.

use lock_testkit::servers;
use sqlx::{AssertSqlSafe, Executor, PgPool};

use super::*;
use crate::engine::entry::Secret;
use crate::engine::tests::{Bench, START, TTL, entry, granted, left, read, shared};

struct Database {
    server: servers::PostgresServer,
    admin: PgPool,
}

#[async_trait]
impl Bench for Database {
    type Of = Postgres;

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

    async fn at(&self, micros: i64) -> Arc<Store<Postgres>> {
        let clock =
            format!("UPDATE clock SET at = to_timestamp(0) + {micros} * interval '1 microsecond'");
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

shared!(
    Database,
    without: fences_rise_while_two_stores_sweep_all_the_time
);

/// As `no_request_of_a_hold_shortens_its_lease`, of the statement that waits for a row.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_that_waits_for_its_row_shortens_nothing() {
    let database = Database::start().await;
    let store = database.at(START * 1_000_000).await;
    let mine = entry("x");
    let fence = Some(granted(store.acquire(&mine, false).await));
    for (ttl, wanted) in [(TTL / 2, TTL), (TTL * 2, TTL * 2)] {
        let values = Entry { ttl, owner: Secret(mine.owner.0.clone()), ..entry("x") }.values(fence);
        let statement = &store.executor.own().renew_waiting;
        let reply = store.executor.patiently(Turn::Keep, TTL, statement, &values).await.unwrap();
        assert_eq!(reply.rows.len(), 1);
        assert_eq!(left(&store, &mine, fence).await, Some(wanted.as_millis()));
    }
}
