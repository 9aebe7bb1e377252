//! The harness of PostgreSQL: a real server per case, each client behind a fault proxy, with or without
//! a pooler.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use conformance_tests::{Client, Fault, Faults, Harness, Store, Time, Unavailable, async_trait};
use lock_core::{Error, ErrorKind, LockBackend, OsRng, OwnerId, Result};
use lock_testkit::proxy::Proxy;
use lock_testkit::servers::{PgBouncer, PostgresServer};
use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions, Connection, Executor};

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
pub(crate) struct PostgresHarness(pub(crate) Route);

#[derive(Debug)]
struct PostgresStore {
    server: PostgresServer,
    pooler: Option<PgBouncer>,
    prefix: String,
    proxies: Mutex<Vec<Arc<Proxy>>>,
}

#[derive(Debug)]
struct Link(Arc<Proxy>);

#[async_trait]
impl Faults for Link {
    async fn inject(&self, fault: Fault) -> Result<(), Unavailable> {
        self.0.inject(fault).await
    }
}

#[async_trait]
impl Harness for PostgresHarness {
    fn name(&self) -> &str {
        match self.0 {
            Route::Direct => "postgres",
            Route::Pooled => "pgbouncer",
        }
    }

    fn time(&self) -> Time {
        Time::Real
    }

    async fn start(&self) -> Result<Box<dyn Store>, Unavailable> {
        let server = PostgresServer::start().await?;
        // A server that is not ours may have been used before.
        let prefix =
            if server.is_own() { String::new() } else { OwnerId::generate(&OsRng)?.to_hex() };
        let pooler = match self.0 {
            Route::Direct => None,
            Route::Pooled => Some(PgBouncer::start(server.address()?, "transaction", 8).await?),
        };
        Ok(Box::new(PostgresStore { server, pooler, prefix, proxies: Mutex::default() }))
    }

    async fn join(&self, uri: &str) -> Result<Arc<dyn LockBackend>> {
        Ok(Arc::new(lock_sql::connect(uri).await?))
    }
}

#[async_trait]
impl Store for PostgresStore {
    async fn client(&self) -> Result<Client> {
        let Ok(address) = self.server.address() else {
            return Ok(Client::new(lock_sql::connect(self.server.url()).await?));
        };
        let address = self.pooler.as_ref().map_or(address, PgBouncer::address);
        let proxy = Proxy::start(address)
            .await
            .map_err(|error| Error::new(ErrorKind::Internal, format!("no proxy: {error}")))?;
        let proxy = Arc::new(proxy);
        let backend = lock_sql::connect(&url(proxy.address())).await?;
        self.proxies.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&proxy));
        Ok(Client::new(backend).with_faults(Link(proxy)))
    }

    fn prefix(&self) -> String {
        self.prefix.clone()
    }

    async fn freeze(&self) -> Result<(), Unavailable> {
        self.server.freeze()
    }

    async fn thaw(&self) -> Result<(), Unavailable> {
        self.server.thaw()
    }

    async fn restart(&self) -> Result<(), Unavailable> {
        self.server.restart().await?;
        match &self.pooler {
            Some(pooler) => until_it_answers(pooler).await,
            None => Ok(()),
        }
    }

    fn uri(&self) -> Option<String> {
        Some(match &self.pooler {
            Some(pooler) => url(pooler.address()),
            None => self.server.url().to_owned(),
        })
    }
}

/// A pooler that could not log in while the server was down refuses the next statement for that.
async fn until_it_answers(pooler: &PgBouncer) -> Result<(), Unavailable> {
    let deadline = tokio::time::Instant::now() + START_LIMIT;
    let broken = |error| Unavailable::broken(format!("no server behind the pooler: {error}"));
    let options: PgConnectOptions = url(pooler.address()).parse().map_err(broken)?;
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

fn url(address: std::net::SocketAddr) -> String {
    format!("postgres://postgres@{address}/postgres?sslmode=disable")
}
