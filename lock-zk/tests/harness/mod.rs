//! The harness of ZooKeeper: real servers, each client behind a fault proxy.
//!
//! A server takes half a second to start, so servers are used again: one case at a time, each under a
//! prefix of its own.

#![allow(dead_code, reason = "each test target uses a part of it")]

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use conformance_tests::{Client, Fault, Faults, Harness, Store, Time, Unavailable, async_trait};
use lock_core::{Error, ErrorKind, LockBackend, OsRng, OwnerId, Result};
use lock_testkit::proxy::Proxy;
use lock_testkit::servers::ZooKeeper;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The session timeout of all cases, and so their ttl. A hold must survive a restart of the servers,
/// and an ensemble takes longer. A busy machine lets a server that has just started be silent for most of
/// a second, and the client leaves it after a quarter of the session timeout.
const SINGLE: &str = "?lock_session_timeout=4s&lock_tick_time=100ms";
const ENSEMBLE: &str = "?lock_session_timeout=5s&lock_tick_time=100ms";

#[derive(Debug)]
pub(crate) struct ZkHarness {
    ensemble: bool,
    pool: Arc<Pool>,
}

/// Servers that no case uses.
#[derive(Debug)]
struct Pool {
    idle: Mutex<Vec<ZooKeeper>>,
    places: Arc<Semaphore>,
}

impl ZkHarness {
    /// One server for a case.
    pub(crate) fn single() -> Self {
        Self::with(false, 8)
    }

    /// An ensemble of three for a case, of which its clients use one after the other.
    pub(crate) fn ensemble() -> Self {
        Self::with(true, 7)
    }

    fn with(ensemble: bool, places: usize) -> Self {
        let places = Arc::new(Semaphore::new(places));
        Self { ensemble, pool: Arc::new(Pool { idle: Mutex::default(), places }) }
    }
}

impl Pool {
    fn idle(&self) -> MutexGuard<'_, Vec<ZooKeeper>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
struct ZkStore {
    parameters: &'static str,
    servers: Option<ZooKeeper>,
    pool: Arc<Pool>,
    prefix: String,
    clients: AtomicUsize,
    proxies: Mutex<Vec<Arc<Proxy>>>,
    _place: OwnedSemaphorePermit,
}

impl ZkStore {
    fn servers(&self) -> &ZooKeeper {
        self.servers.as_ref().expect("they are there until the store is dropped")
    }
}

impl Drop for ZkStore {
    fn drop(&mut self) {
        // Those that do not even continue are not used again.
        if let Some(servers) = self.servers.take().filter(|servers| servers.thaw().is_ok()) {
            self.pool.idle().push(servers);
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
impl Harness for ZkHarness {
    fn name(&self) -> &str {
        if self.ensemble { "zookeeper-ensemble" } else { "zookeeper" }
    }

    fn time(&self) -> Time {
        Time::Real
    }

    async fn start(&self) -> Result<Box<dyn Store>, Unavailable> {
        let places = Arc::clone(&self.pool.places);
        let place = places.acquire_owned().await.map_err(|error| {
            Unavailable::broken(format!("the servers of the suite are gone: {error}"))
        })?;
        let idle = self.pool.idle().pop();
        let servers = match idle {
            // What an earlier case has done to them must be over.
            Some(servers) => {
                servers.serve().await?;
                servers
            }
            None if self.ensemble => ZooKeeper::ensemble().await?,
            None => ZooKeeper::start().await?,
        };
        Ok(Box::new(ZkStore {
            parameters: if self.ensemble { ENSEMBLE } else { SINGLE },
            servers: Some(servers),
            pool: Arc::clone(&self.pool),
            prefix: OwnerId::generate(&OsRng)?.to_hex(),
            clients: AtomicUsize::new(0),
            proxies: Mutex::default(),
            _place: place,
        }))
    }

    async fn join(&self, uri: &str) -> Result<Arc<dyn LockBackend>> {
        Ok(Arc::new(lock_zk::connect(uri).await?))
    }
}

#[async_trait]
impl Store for ZkStore {
    async fn client(&self) -> Result<Client> {
        let servers = self.servers();
        if !servers.is_own() {
            return Ok(Client::new(lock_zk::connect(servers.url()).await?));
        }
        // One proxy and so one server per client: what happens to "the next request" must not be
        // planned on three links.
        let member = self.clients.fetch_add(1, Relaxed) % servers.len();
        let internal = |why: String| Error::new(ErrorKind::Internal, format!("no proxy: {why}"));
        let address = servers.address(member).map_err(|error| internal(error.to_string()))?;
        let proxy = Proxy::start(address).await.map_err(|error| internal(error.to_string()))?;
        let proxy = Arc::new(proxy);
        let url = format!("zookeeper://{}{}", proxy.address(), self.parameters);
        let backend = lock_zk::connect(&url).await?;
        self.proxies.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&proxy));
        Ok(Client::new(backend).with_faults(Link(proxy)))
    }

    fn prefix(&self) -> String {
        self.prefix.clone()
    }

    async fn freeze(&self) -> Result<(), Unavailable> {
        self.servers().freeze()
    }

    async fn thaw(&self) -> Result<(), Unavailable> {
        self.servers().thaw()?;
        self.servers().serve().await
    }

    async fn restart(&self) -> Result<(), Unavailable> {
        self.servers().restart().await
    }

    fn uri(&self) -> Option<String> {
        let servers = self.servers();
        let parameters = if servers.is_own() { self.parameters } else { "" };
        Some(format!("{}{parameters}", servers.url()))
    }
}
