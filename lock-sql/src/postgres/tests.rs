//! The statements, by a clock that the test sets: a function of the same name stands before the server's.

use lock_testkit::servers;
use sqlx::{AssertSqlSafe, Executor, PgPool};

use super::*;
use crate::engine::tests::{Bench, read, shared};

struct Database {
    server: servers::PostgresServer,
    admin: PgPool,
}

#[async_trait]
impl Bench for Database {
    type Of = Postgres;
    // A renewal reads the clock when it has the row.
    const KEEPS_ENDS: bool = false;

    async fn start() -> Self {
        let server = servers::PostgresServer::builder().start().await.unwrap();
        let admin = PgPool::connect(server.url()).await.unwrap();
        let this = Self { server, admin };
        this.run(
            "CREATE TABLE clock AS SELECT now() AS at; \
             CREATE FUNCTION public.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS \
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
    without: a_shorter_ttl_cuts_and_a_late_statement_does_not,
    fences_rise_while_two_stores_sweep_all_the_time
);
