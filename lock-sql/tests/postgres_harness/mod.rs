//! The harness of PostgreSQL: a real server, with or without a pooler.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use conformance_tests::Unavailable;
use conformance_tests::proxied::{Servers, Setup};
use lock_core::{LockBackend, Result, async_trait};
use lock_testkit::servers::{PgBouncer, PostgresServer};
use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions, Connection, Executor};

/// The server trusts everybody, and asks for none.
const PASSWORD: &str = "s3cr3t-of-postgres";

/// For the pooler, to find a server that was started again.
const START_LIMIT: Duration = Duration::from_secs(10);

/// How clients reach the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(dead_code, reason = "each test target uses one of them")]
pub(crate) enum Route {
    Direct,
    /// Through PgBouncer in transaction mode.
    Pooled,
}

#[derive(Debug)]
pub(crate) struct Postgres(pub(crate) Route);

#[derive(Debug)]
struct Pooled {
    pooler: PgBouncer,
    server: PostgresServer,
}

#[async_trait]
impl Setup for Postgres {
    fn name(&self) -> &str {
        match self.0 {
            Route::Direct => "postgres",
            Route::Pooled => "pgbouncer",
        }
    }

    async fn launch(&self) -> Result<Box<dyn Servers>, Unavailable> {
        let server = PostgresServer::start().await?;
        Ok(match self.0 {
            Route::Direct => Box::new(server),
            Route::Pooled => {
                let pooler = PgBouncer::start(server.address()?, "transaction", 8).await?;
                Box::new(Pooled { pooler, server })
            }
        })
    }

    fn url(&self, hosts: &str, case: &str) -> String {
        let url = format!("postgres://postgres:{PASSWORD}@{hosts}/postgres?sslmode=disable");
        self.foreign_url(&url, case)
    }

    fn secrets(&self) -> Vec<String> {
        vec![PASSWORD.to_owned()]
    }

    fn foreign_url(&self, url: &str, case: &str) -> String {
        let more = if url.contains('?') { '&' } else { '?' };
        format!("{url}{more}lock_table=t{case}")
    }

    async fn connect(&self, url: &str) -> Result<Arc<dyn LockBackend>> {
        Ok(Arc::new(lock_sql::connect(url).await?))
    }

    /// The table keeps the cases apart.
    fn prefix(&self, _: &str) -> String {
        String::new()
    }
}

#[async_trait]
impl Servers for Pooled {
    fn addresses(&self) -> Vec<SocketAddr> {
        vec![self.pooler.address()]
    }

    fn freeze(&self) -> Result<(), Unavailable> {
        self.server.freeze()
    }

    fn thaw(&self) -> Result<(), Unavailable> {
        self.server.thaw()
    }

    async fn restart(&self) -> Result<(), Unavailable> {
        self.server.restart().await?;
        until_it_answers(&self.pooler).await
    }
}

/// A pooler that could not log in while the server was down refuses the next statement for that.
async fn until_it_answers(pooler: &PgBouncer) -> Result<(), Unavailable> {
    let deadline = tokio::time::Instant::now() + START_LIMIT;
    let broken = |error| Unavailable::broken(format!("no server behind the pooler: {error}"));
    let url = Postgres(Route::Pooled).url(&pooler.address().to_string(), "");
    let options: PgConnectOptions = url.parse().map_err(broken)?;
    // A parameter that the pooler does not know.
    let options = options.extra_float_digits(None);
    loop {
        let answer = async {
            let mut connection = options.connect().await?;
            connection.execute(sqlx::raw_sql("SELECT 1")).await?;
            connection.close().await
        };
        let answer: sqlx::Result<()> = answer.await;
        let Err(error) = answer else { return Ok(()) };
        if tokio::time::Instant::now() >= deadline {
            return Err(broken(error));
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
