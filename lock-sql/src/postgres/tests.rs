//! The statements, by a clock that the test sets: a function of the same name stands before the server's.

use lock_testkit::servers;
use sqlx::{AssertSqlSafe, Executor, PgPool};

use super::*;
use crate::engine::tests::{Bench, shared};

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

    async fn at(&self, micros: i64, retention: Duration) -> PostgresStore {
        let clock =
            format!("UPDATE clock SET at = to_timestamp(0) + {micros} * interval '1 microsecond'");
        self.run(&clock).await;
        let config = SqlConfig::from_url(self.server.url()).unwrap().retention(retention);
        let crate::config::Target::Postgres(target) = &config.target else { panic!("postgres") };
        let store = connect(target, &config).await.unwrap();
        // Only when a test says so.
        store.sweeper.stop();
        store
    }

    async fn run(&self, sql: &str) {
        self.admin.execute(sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))).await.unwrap();
    }

    async fn names(&self) -> Vec<String> {
        let names = "SELECT name FROM distlock WHERE name <> E'\\x01fence' ORDER BY name";
        sqlx::query_scalar(names).fetch_all(&self.admin).await.unwrap()
    }
}

shared! {
    Database:
    a_lease_ends_by_the_clock,
    a_try_in_vain_names_the_holder,
    a_clock_that_goes_back,
    used_up_fences_are_an_error_and_not_a_grant,
    each_lease_of_a_batch_has_its_own_answer,
    the_sweep_removes_what_is_old_and_keeps_the_greatest_fence,
    the_sweep_judges_each_row_anew,
}
