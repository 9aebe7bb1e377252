//! A harness for a store on real servers, each client behind a [`Proxy`]: what it has to know of the store is a
//! [`Setup`].
//!
//! The cases share their servers, and each has names of its own there, so that a server that starts slowly, or several of
//! them, start once. Only the cases that freeze or restart them have others, one after the other. `tests/memcached.rs` of
//! this crate is an example.

mod servers;
mod wrong_clients;

use std::fmt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{self, Arc, PoisonError};

use lock_core::{LockBackend, LockKey, OsRng, OwnerId, Result, async_trait};
use tokio::sync::Mutex;

use crate::harness::take_away;
use crate::server::Proxy;
use crate::{Client, Fault, Faults, Harness, Store, Unavailable};

pub use servers::Servers;
pub use wrong_clients::wrong_clients;

/// What the harness has to know about a store.
///
/// `case` is a name that no other case has.
#[async_trait]
pub trait Setup: fmt::Debug + Send + Sync + 'static {
    /// See [`Harness::name`].
    fn name(&self) -> &str;

    /// Starts servers, or uses those named by a variable.
    ///
    /// # Errors
    ///
    /// [`Unavailable::missing`] if their program is not installed, [`Unavailable::broken`] if they do not start.
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
    ///
    /// # Errors
    ///
    /// If it does not answer.
    async fn connect(&self, url: &str) -> Result<Arc<dyn LockBackend>>;

    /// The prefix of all keys of a case, which shares its servers with other cases.
    fn prefix(&self, case: &str) -> String {
        case.to_owned()
    }

    /// The passwords in [`url`](Self::url), of at least eight bytes each: no case may see one.
    fn secrets(&self) -> Vec<String> {
        Vec::new()
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

    /// Takes a lock away from its holder, as an operator does: see [`Store::break_hold`].
    ///
    /// # Errors
    ///
    /// [`Unavailable::missing`] if there is no way.
    async fn break_hold(&self, url: &str, key: &LockKey) -> Result<(), Unavailable> {
        take_away(&*self.connect(url).await?, key).await
    }

    /// Prepares the test's own servers once they have started.
    ///
    /// # Errors
    ///
    /// If they cannot be used.
    async fn prepare(&self, servers: &dyn Servers) -> Result<(), Unavailable> {
        let _ = servers;
        Ok(())
    }

    /// Warms up each client before the case gets it, as if it had worked for a while: the fault
    /// that a case arranges for the next request is meant for a request of the lock.
    ///
    /// # Errors
    ///
    /// If the store does not answer.
    async fn warm_up(&self, backend: &dyn LockBackend) -> Result<()> {
        let _ = backend;
        Ok(())
    }
}

/// What is put around the backend of each client.
pub(crate) type Wrap = Arc<dyn Fn(Arc<dyn LockBackend>) -> Arc<dyn LockBackend> + Send + Sync>;

/// Runs the suite as a test executable, as [`conformance_tests::main`](crate::main) does.
pub fn main(setup: impl Setup) -> ExitCode {
    wrapped(setup, Arc::new(|backend| backend))
}

pub(crate) fn wrapped(setup: impl Setup, wrap: Wrap) -> ExitCode {
    let shared = Arc::<Shared>::default();
    let setup = Arc::new(setup);
    let code = crate::main(Proxied { setup, wrap, shared: Arc::clone(&shared) });
    // Threads that libtest has left behind may still hold the harness.
    shared.servers.blocking_lock().take();
    shared.spare().clear();
    code
}

struct Proxied {
    setup: Arc<dyn Setup>,
    wrap: Wrap,
    shared: Arc<Shared>,
}

impl fmt::Debug for Proxied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxied").field("setup", &self.setup).finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct Shared {
    /// Those of all cases that disturb none.
    servers: Mutex<Option<Arc<dyn Servers>>>,
    /// Those that a case has had for itself, and has left in whatever state.
    spare: sync::Mutex<Vec<Arc<dyn Servers>>>,
    /// Whether a variable has named servers that are not ours.
    are_foreign: AtomicBool,
}

impl Shared {
    fn spare(&self) -> sync::MutexGuard<'_, Vec<Arc<dyn Servers>>> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Servers that nobody has any more, if they serve again.
    async fn mended(&self) -> Option<Arc<dyn Servers>> {
        let servers = self.spare().pop()?;
        (servers.thaw().is_ok() && servers.serve().await.is_ok()).then_some(servers)
    }
}

impl Proxied {
    async fn launch(&self) -> Result<Arc<dyn Servers>, Unavailable> {
        let servers = self.setup.launch().await?;
        match servers.foreign() {
            None => self.setup.prepare(&*servers).await?,
            Some(_) => self.shared.are_foreign.store(true, Relaxed),
        }
        Ok(Arc::from(servers))
    }

    fn store(&self, servers: Arc<dyn Servers>, alone: bool) -> Result<Box<dyn Store>, Unavailable> {
        Ok(Box::new(ProxiedStore {
            setup: Arc::clone(&self.setup),
            wrap: Arc::clone(&self.wrap),
            shared: Arc::clone(&self.shared),
            servers,
            alone,
            case: OwnerId::generate(&OsRng)?.to_hex(),
            clients: AtomicUsize::new(0),
        }))
    }
}

#[async_trait]
impl Harness for Proxied {
    fn name(&self) -> &str {
        self.setup.name()
    }

    async fn start(&self) -> Result<Box<dyn Store>, Unavailable> {
        let mut shared = self.shared.servers.lock().await;
        let servers = match &*shared {
            Some(servers) => Arc::clone(servers),
            None => Arc::clone(shared.insert(self.launch().await?)),
        };
        drop(shared);
        self.store(servers, false)
    }

    async fn start_alone(&self) -> Result<Box<dyn Store>, Unavailable> {
        let servers = match self.shared.mended().await {
            Some(servers) => servers,
            None => self.launch().await?,
        };
        self.store(servers, true)
    }

    /// With the servers of somebody else there are fewer cases.
    fn expected(&self) -> Option<PathBuf> {
        let package = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR")?);
        let path = package.join(format!("tests/expected/{}.txt", self.setup.name()));
        (!self.shared.are_foreign.load(Relaxed)).then_some(path)
    }

    async fn join(&self, uri: &str) -> Result<Arc<dyn LockBackend>> {
        self.setup.connect(uri).await
    }
}

struct ProxiedStore {
    setup: Arc<dyn Setup>,
    wrap: Wrap,
    shared: Arc<Shared>,
    servers: Arc<dyn Servers>,
    /// Whether no other case is on them.
    alone: bool,
    case: String,
    clients: AtomicUsize,
}

impl fmt::Debug for ProxiedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProxiedStore").field("setup", &self.setup).finish_non_exhaustive()
    }
}

impl Drop for ProxiedStore {
    fn drop(&mut self) {
        if self.alone {
            self.shared.spare().push(Arc::clone(&self.servers));
        }
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

    fn connections(&self) -> Option<u64> {
        Some(self.0.iter().map(Proxy::connections).sum())
    }

    fn last_messages(&self) -> Vec<String> {
        let nodes = self.0.iter().map(Faults::last_messages).enumerate();
        let told = |(nth, messages): (usize, Vec<String>)| {
            messages.into_iter().map(move |message| format!("server {}, {message}", nth + 1))
        };
        nodes.flat_map(told).collect()
    }
}

impl ProxiedStore {
    /// To disturb them.
    fn own(&self) -> Result<&dyn Servers, Unavailable> {
        match self.alone || self.servers.foreign().is_some() {
            true => Ok(&*self.servers),
            false => Err(Unavailable::broken("BUG: other cases are on these servers")),
        }
    }

    /// By which it is reached without a proxy.
    fn url(&self) -> String {
        if let Some(url) = self.servers.foreign() {
            return self.setup.foreign_url(url, &self.case);
        }
        let addresses = self.servers.addresses();
        let hosts: Vec<_> = addresses.iter().map(ToString::to_string).collect();
        self.setup.url(&hosts.join(","), &self.case)
    }

    /// Proxies to the servers of one client, and the URL by which it reaches them.
    async fn link(&self) -> Result<(Links, String), Unavailable> {
        let mut addresses = self.servers.addresses();
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
        if let Some(url) = self.servers.foreign() {
            let url = self.setup.foreign_url(url, &self.case);
            return Ok(Client::from_arc(self.setup.connect(&url).await?));
        }
        let (links, url) = self.link().await?;
        let backend = self.setup.connect(&url).await?;
        self.setup.warm_up(&*backend).await?;
        Ok(Client::from_arc(backend).map(|right| (self.wrap)(right)).with_faults(links))
    }

    fn prefix(&self) -> String {
        self.setup.prefix(&self.case)
    }

    fn secrets(&self) -> Vec<String> {
        self.setup.secrets()
    }

    async fn break_hold(&self, key: &LockKey) -> Result<(), Unavailable> {
        self.setup.break_hold(&self.url(), key).await
    }

    async fn freeze(&self) -> Result<(), Unavailable> {
        self.own()?.freeze()
    }

    async fn thaw(&self) -> Result<(), Unavailable> {
        let servers = self.own()?;
        servers.thaw()?;
        servers.serve().await
    }

    async fn restart(&self) -> Result<(), Unavailable> {
        self.own()?.restart().await
    }

    fn uri(&self) -> Option<String> {
        Some(self.url())
    }
}
