//! The harness of a store with real servers, each client behind a fault proxy: written once for all
//! stores, each of which describes its specifics in a [`Setup`].

use std::fmt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use conformance_tests::server::Proxy;
use conformance_tests::{Client, Fault, Faults, Harness, Store, Unavailable};
use lock_core::{LockBackend, OsRng, OwnerId, Result, async_trait};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::servers::Servers;

/// What the harness has to know about a store.
///
/// `case` is a name that no other case has.
#[async_trait]
pub trait Setup: fmt::Debug + Send + Sync + 'static {
    /// See [`Harness::name`].
    fn name(&self) -> &str;

    /// Starts servers, or uses those named by a variable.
    async fn launch(&self) -> Result<Box<dyn Servers>, Unavailable>;

    /// The URL of the store whose servers are reached at `hosts`: `address:port`, separated by
    /// commas.
    fn url(&self, hosts: &str, case: &str) -> String;

    /// The same for servers not started by the test, from the URL in the variable.
    fn foreign_url(&self, url: &str, case: &str) -> String {
        let _ = case;
        url.to_owned()
    }

    /// Opens the store.
    async fn connect(&self, url: &str) -> Result<Arc<dyn LockBackend>>;

    /// The prefix of all keys of a case that shares its servers with other cases.
    fn prefix(&self, case: &str) -> String {
        case.to_owned()
    }

    /// The passwords in [`url`](Self::url), of at least eight bytes each: no case may see one.
    fn secrets(&self) -> Vec<String> {
        Vec::new()
    }

    /// Whether servers are reused from case to case: for those that start slowly.
    fn reuses_servers(&self) -> bool {
        false
    }

    /// How many cases may have servers at the same time.
    fn at_once(&self) -> usize {
        Semaphore::MAX_PERMITS
    }

    /// Whether clients speak HTTP/2.
    fn is_http2(&self) -> bool {
        false
    }

    /// Whether a client's request goes to all servers, as for a quorum. Otherwise each client is
    /// bound to one server, in turn: a fault for its next request must not be planned on several
    /// links.
    fn asks_all(&self) -> bool {
        false
    }

    /// Prepares the test's own servers before each case.
    async fn prepare(&self, servers: &dyn Servers) -> Result<(), Unavailable> {
        let _ = servers;
        Ok(())
    }

    /// Warms up each client before the case gets it, as if it had worked for a while: the fault
    /// that a case arranges for the next request is meant for a request of the lock.
    async fn warm_up(&self, backend: &dyn LockBackend) -> Result<()> {
        let _ = backend;
        Ok(())
    }
}

/// What is put around the backend of each client.
pub(crate) type Wrap = Arc<dyn Fn(Arc<dyn LockBackend>) -> Arc<dyn LockBackend> + Send + Sync>;

/// Runs the suite as a test executable, as [`conformance_tests::main`] does.
pub fn main(setup: impl Setup) -> ExitCode {
    wrapped(setup, Arc::new(|backend| backend))
}

pub(crate) fn wrapped(setup: impl Setup, wrap: Wrap) -> ExitCode {
    let places = Arc::new(Semaphore::new(setup.at_once()));
    let has_foreign = AtomicBool::new(false);
    let pool = Arc::new(Pool { idle: Mutex::default(), places, has_foreign });
    let setup = Arc::new(setup);
    let code = conformance_tests::main(Proxied { setup, wrap, pool: Arc::clone(&pool) });
    // Threads that libtest has left behind may still hold the harness.
    pool.idle().clear();
    code
}

struct Proxied {
    setup: Arc<dyn Setup>,
    wrap: Wrap,
    pool: Arc<Pool>,
}

impl fmt::Debug for Proxied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxied").field("setup", &self.setup).finish_non_exhaustive()
    }
}

/// Servers not in use by any case, and how many cases may have some.
#[derive(Debug)]
struct Pool {
    idle: Mutex<Vec<Box<dyn Servers>>>,
    places: Arc<Semaphore>,
    /// Whether a variable has named servers that are not ours.
    has_foreign: AtomicBool,
}

impl Pool {
    fn idle(&self) -> MutexGuard<'_, Vec<Box<dyn Servers>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Harness for Proxied {
    fn name(&self) -> &str {
        self.setup.name()
    }

    async fn start(&self) -> Result<Box<dyn Store>, Unavailable> {
        let places = Arc::clone(&self.pool.places);
        let place = places.acquire_owned().await.map_err(|error| {
            Unavailable::broken(format!("the servers of the suite are gone: {error}"))
        })?;
        let idle = self.pool.idle().pop();
        let servers = match idle {
            // They must have recovered from what an earlier case did to them.
            Some(servers) => {
                servers.serve().await?;
                servers
            }
            None => self.setup.launch().await?,
        };
        match servers.foreign() {
            None => self.setup.prepare(&*servers).await?,
            Some(_) => self.pool.has_foreign.store(true, Relaxed),
        }
        Ok(Box::new(ProxiedStore {
            setup: Arc::clone(&self.setup),
            wrap: Arc::clone(&self.wrap),
            servers: Some(servers),
            pool: Arc::clone(&self.pool),
            case: OwnerId::generate(&OsRng)?.to_hex(),
            clients: AtomicUsize::new(0),
            disturbed: AtomicBool::new(false),
            _place: place,
        }))
    }

    /// With the servers of somebody else there are fewer cases.
    fn expected(&self) -> Option<PathBuf> {
        let package = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR")?);
        let path = package.join(format!("tests/expected/{}.txt", self.setup.name()));
        (!self.pool.has_foreign.load(Relaxed)).then_some(path)
    }

    async fn join(&self, uri: &str) -> Result<Arc<dyn LockBackend>> {
        self.setup.connect(uri).await
    }
}

struct ProxiedStore {
    setup: Arc<dyn Setup>,
    wrap: Wrap,
    /// Taken when the store is dropped.
    servers: Option<Box<dyn Servers>>,
    pool: Arc<Pool>,
    case: String,
    clients: AtomicUsize,
    /// Frozen, or not restarted: of no use to another case.
    disturbed: AtomicBool,
    _place: OwnedSemaphorePermit,
}

impl fmt::Debug for ProxiedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProxiedStore").field("setup", &self.setup).finish_non_exhaustive()
    }
}

/// The proxies of one client.
#[derive(Debug, Default)]
struct Links(Vec<Proxy>);

#[async_trait]
impl Faults for Links {
    async fn inject(&self, fault: Fault) -> Result<(), Unavailable> {
        for proxy in &self.0 {
            proxy.inject(fault).await?;
        }
        Ok(())
    }

    fn requests(&self) -> Option<u64> {
        Some(self.0.iter().map(Proxy::requests).sum())
    }

    /// A quorum does not wait for all of its nodes.
    fn struck(&self) -> Option<u64> {
        self.0.iter().filter_map(Faults::struck).max()
    }
}

impl ProxiedStore {
    fn servers(&self) -> Result<&dyn Servers, Unavailable> {
        self.servers.as_deref().ok_or_else(|| Unavailable::broken("the store was dropped"))
    }

    /// Proxies to the servers of one client, and the URL by which it reaches them.
    async fn link(&self, servers: &dyn Servers) -> Result<(Links, String), Unavailable> {
        let mut addresses = servers.addresses();
        if !self.setup.asks_all() {
            let turn = self.clients.fetch_add(1, Relaxed) % addresses.len();
            addresses = vec![addresses[turn]];
        }
        let (mut links, mut hosts) = (Links::default(), Vec::new());
        for address in addresses {
            let proxy = match self.setup.is_http2() {
                true => Proxy::start_http2(address).await?,
                false => Proxy::start(address).await?,
            };
            hosts.push(proxy.address().to_string());
            links.0.push(proxy);
        }
        Ok((links, self.setup.url(&hosts.join(","), &self.case)))
    }
}

#[async_trait]
impl Store for ProxiedStore {
    async fn client(&self) -> Result<Client> {
        let servers = self.servers()?;
        if let Some(url) = servers.foreign() {
            let url = self.setup.foreign_url(url, &self.case);
            return Ok(Client::from_arc(self.setup.connect(&url).await?));
        }
        let (links, url) = self.link(servers).await?;
        let backend = self.setup.connect(&url).await?;
        self.setup.warm_up(&*backend).await?;
        Ok(Client::from_arc(backend).map(|right| (self.wrap)(right)).with_faults(links))
    }

    fn prefix(&self) -> String {
        let foreign = self.servers.as_ref().is_some_and(|servers| servers.foreign().is_some());
        match foreign || self.setup.reuses_servers() {
            true => self.setup.prefix(&self.case),
            false => String::new(),
        }
    }

    fn secrets(&self) -> Vec<String> {
        self.setup.secrets()
    }

    async fn freeze(&self) -> Result<(), Unavailable> {
        self.disturbed.store(true, Relaxed);
        self.servers()?.freeze()
    }

    async fn thaw(&self) -> Result<(), Unavailable> {
        let servers = self.servers()?;
        servers.thaw()?;
        servers.serve().await?;
        self.disturbed.store(false, Relaxed);
        Ok(())
    }

    async fn restart(&self) -> Result<(), Unavailable> {
        // It stays set if the restart fails, or if the case is dropped first.
        self.disturbed.store(true, Relaxed);
        self.servers()?.restart().await?;
        self.disturbed.store(false, Relaxed);
        Ok(())
    }

    fn uri(&self) -> Option<String> {
        let servers = self.servers.as_ref()?;
        Some(match servers.foreign() {
            Some(url) => self.setup.foreign_url(url, &self.case),
            None => {
                let hosts: Vec<_> = servers.addresses().iter().map(ToString::to_string).collect();
                self.setup.url(&hosts.join(","), &self.case)
            }
        })
    }
}

impl Drop for ProxiedStore {
    fn drop(&mut self) {
        let Some(servers) = self.servers.take() else { return };
        let usable = self.setup.reuses_servers() && !self.disturbed.load(Relaxed);
        if usable && servers.foreign().is_none() {
            self.pool.idle().push(servers);
        }
    }
}
