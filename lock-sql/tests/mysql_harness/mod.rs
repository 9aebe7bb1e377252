//! The harness of MariaDB: real servers, a table of its own for each case, and each client behind a fault
//! proxy.

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use conformance_tests::{Client, Fault, Faults, Harness, Store, Time, Unavailable, async_trait};
use lock_core::{Error, ErrorKind, LockBackend, OsRng, OwnerId, Result};
use lock_testkit::proxy::Proxy;
use lock_testkit::servers::MariaDbServer;

#[derive(Debug, Default)]
struct MySqlHarness(Arc<Idle>);

/// Servers that other cases have left behind as they were. Starting one costs more time than most cases
/// do.
#[derive(Debug, Default)]
struct Idle(Mutex<Vec<MariaDbServer>>);

/// The suite. Ends all servers: threads that libtest has left behind may still have the harness.
pub(crate) fn main() -> ExitCode {
    let harness = MySqlHarness::default();
    let idle = Arc::clone(&harness.0);
    let code = conformance_tests::main(harness);
    idle.servers().clear();
    code
}

impl Idle {
    fn servers(&self) -> MutexGuard<'_, Vec<MariaDbServer>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
struct MySqlStore {
    server: Option<MariaDbServer>,
    /// It was frozen or killed: nobody else should have it.
    disturbed: AtomicBool,
    idle: Arc<Idle>,
    table: String,
    proxies: Mutex<Vec<Arc<Proxy>>>,
}

impl MySqlStore {
    fn server(&self) -> Result<&MariaDbServer, Unavailable> {
        self.server.as_ref().ok_or_else(|| Unavailable::broken("the server was given back"))
    }

    fn to_disturb(&self) -> Result<&MariaDbServer, Unavailable> {
        self.disturbed.store(true, Ordering::Relaxed);
        self.server()
    }
}

impl Drop for MySqlStore {
    fn drop(&mut self) {
        if let Some(server) = self.server.take()
            && !self.disturbed.load(Ordering::Relaxed)
        {
            self.idle.servers().push(server);
        }
    }
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
impl Harness for MySqlHarness {
    fn name(&self) -> &str {
        "mysql"
    }

    fn time(&self) -> Time {
        Time::Real
    }

    async fn start(&self) -> Result<Box<dyn Store>, Unavailable> {
        let used = self.0.servers().pop();
        let server = match used {
            Some(server) => server,
            None => MariaDbServer::start().await?,
        };
        Ok(Box::new(MySqlStore {
            server: Some(server),
            disturbed: AtomicBool::new(false),
            idle: Arc::clone(&self.0),
            table: format!("t{}", OwnerId::generate(&OsRng)?.to_hex()),
            proxies: Mutex::default(),
        }))
    }

    async fn join(&self, uri: &str) -> Result<Arc<dyn LockBackend>> {
        Ok(Arc::new(lock_sql::connect(uri).await?))
    }
}

#[async_trait]
impl Store for MySqlStore {
    async fn client(&self) -> Result<Client> {
        let broken = |error: String| Error::new(ErrorKind::Internal, error);
        let server = self.server().map_err(|error| broken(error.to_string()))?;
        let url = |url: &str| format!("{url}?lock_table={}", self.table);
        let Ok(address) = server.address() else {
            return Ok(Client::new(lock_sql::connect(&url(server.url())).await?));
        };
        let proxy =
            Proxy::start(address).await.map_err(|error| broken(format!("no proxy: {error}")))?;
        let proxy = Arc::new(proxy);
        let by_proxy = server.url_by(proxy.address()).map_err(|error| broken(error.to_string()))?;
        let backend = lock_sql::connect(&url(&by_proxy)).await?;
        self.proxies.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&proxy));
        Ok(Client::new(backend).with_faults(Link(proxy)))
    }

    async fn freeze(&self) -> Result<(), Unavailable> {
        self.to_disturb()?.freeze()
    }

    async fn thaw(&self) -> Result<(), Unavailable> {
        self.to_disturb()?.thaw()
    }

    async fn restart(&self) -> Result<(), Unavailable> {
        self.to_disturb()?.restart().await
    }

    fn uri(&self) -> Option<String> {
        Some(format!("{}?lock_table={}", self.server.as_ref()?.url(), self.table))
    }
}
