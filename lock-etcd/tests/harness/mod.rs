//! The harness of etcd: real servers, each client behind a fault proxy to one member.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use conformance_tests::{Client, Fault, Faults, Harness, Store, Time, Unavailable, async_trait};
use lock_core::{ClaimRequest, Error, ErrorKind, LockBackend, LockKey, OsRng, OwnerId, Result};
use lock_etcd::EtcdBackend;
use lock_testkit::proxy::Proxy;
use lock_testkit::servers::EtcdCluster;

/// Clusters that no case uses at the moment. Starting one takes longer than most cases.
type Spare = Arc<Mutex<Vec<EtcdCluster>>>;

#[derive(Debug)]
pub(crate) struct EtcdHarness {
    members: usize,
    spare: Spare,
}

#[derive(Debug)]
struct EtcdStore {
    /// Taken when the store is dropped.
    cluster: Option<EtcdCluster>,
    spare: Spare,
    prefix: String,
    clients: AtomicUsize,
    proxies: Mutex<Vec<Arc<Proxy>>>,
    /// Frozen now, or not started again: of no use to another case.
    unusable: AtomicBool,
}

#[derive(Debug)]
struct Link(Arc<Proxy>);

#[async_trait]
impl Faults for Link {
    async fn inject(&self, fault: Fault) -> Result<(), Unavailable> {
        self.0.inject(fault).await
    }
}

impl Default for EtcdHarness {
    fn default() -> Self {
        Self::of(1)
    }
}

impl EtcdHarness {
    pub(crate) fn of(members: usize) -> Self {
        Self { members, spare: Arc::default() }
    }
}

#[async_trait]
impl Harness for EtcdHarness {
    fn name(&self) -> &str {
        if self.members == 1 { "etcd" } else { "etcd-cluster" }
    }

    fn time(&self) -> Time {
        Time::Real
    }

    async fn start(&self) -> Result<Box<dyn Store>, Unavailable> {
        let spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let cluster = match spare {
            Some(cluster) => cluster,
            None if self.members == 1 => EtcdCluster::start().await?,
            None => EtcdCluster::builder().members(self.members).start().await?,
        };
        if cluster.is_own() {
            settle_base(&cluster).await?;
        }
        Ok(Box::new(EtcdStore {
            cluster: Some(cluster),
            spare: Arc::clone(&self.spare),
            // A cluster serves many cases.
            prefix: OwnerId::generate(&OsRng)?.to_hex(),
            clients: AtomicUsize::new(0),
            proxies: Mutex::default(),
            unusable: AtomicBool::new(false),
        }))
    }

    async fn join(&self, uri: &str) -> Result<Arc<dyn LockBackend>> {
        Ok(Arc::new(lock_etcd::connect(uri).await?))
    }
}

impl EtcdStore {
    fn cluster(&self) -> Result<&EtcdCluster, Unavailable> {
        self.cluster.as_ref().ok_or_else(|| Unavailable::broken("the store was dropped"))
    }

    fn each_member(
        &self,
        act: impl Fn(&EtcdCluster, usize) -> Result<(), Unavailable>,
    ) -> Result<(), Unavailable> {
        let cluster = self.cluster()?;
        if !cluster.is_own() {
            return Err(Unavailable::missing("the cluster of LOCK_TEST_ETCD_URL is not ours"));
        }
        (0..cluster.members()).try_for_each(|member| act(cluster, member))
    }
}

#[async_trait]
impl Store for EtcdStore {
    async fn client(&self) -> Result<Client> {
        let broken = |error: String| Error::new(ErrorKind::Internal, error);
        let cluster = self.cluster().map_err(|error| broken(error.to_string()))?;
        if !cluster.is_own() {
            return Ok(Client::new(lock_etcd::connect(cluster.url()).await?));
        }
        let member = self.clients.fetch_add(1, Relaxed) % cluster.members();
        let address = cluster.address(member).map_err(|error| broken(error.to_string()))?;
        let proxy = Proxy::start_http2(address)
            .await
            .map_err(|error| broken(format!("no proxy: {error}")))?;
        let proxy = Arc::new(proxy);
        let backend = lock_etcd::connect(&format!("etcd://{}", proxy.address())).await?;
        warm_up(&backend).await?;
        self.proxies.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&proxy));
        Ok(Client::new(backend).with_faults(Link(proxy)))
    }

    fn prefix(&self) -> String {
        self.prefix.clone()
    }

    async fn freeze(&self) -> Result<(), Unavailable> {
        self.unusable.store(true, Relaxed);
        self.each_member(EtcdCluster::freeze)
    }

    async fn thaw(&self) -> Result<(), Unavailable> {
        self.each_member(EtcdCluster::thaw)?;
        self.unusable.store(false, Relaxed);
        Ok(())
    }

    async fn restart(&self) -> Result<(), Unavailable> {
        // It stays so if that fails, or if the case is dropped meanwhile.
        self.unusable.store(true, Relaxed);
        self.cluster()?.restart_all().await?;
        self.unusable.store(false, Relaxed);
        Ok(())
    }

    fn uri(&self) -> Option<String> {
        self.cluster.as_ref().map(|cluster| cluster.url().to_owned())
    }
}

impl Drop for EtcdStore {
    fn drop(&mut self) {
        let usable = !self.unusable.load(Relaxed);
        if let Some(cluster) = self.cluster.take().filter(|cluster| cluster.is_own() && usable) {
            self.spare.lock().unwrap_or_else(PoisonError::into_inner).push(cluster);
        }
    }
}

/// Puts the base of the fences a little ahead of the clock, so that no new client lifts it. Else the fault that
/// a case has arranged for the next request would meet one that is refused for the old base.
async fn settle_base(cluster: &EtcdCluster) -> Result<(), Unavailable> {
    let broken = |error: &dyn std::fmt::Display| Unavailable::broken(format!("no base: {error}"));
    let ahead = SystemTime::now() + Duration::from_secs(60);
    let base = ahead.duration_since(UNIX_EPOCH).map_err(|error| broken(&error))?.as_micros();
    let address = cluster.address(0)?.to_string();
    let mut client =
        etcd_client::Client::connect([address], None).await.map_err(|error| broken(&error))?;
    let put = client.put("distlock-fence:", base.to_string(), None).await;
    put.map(drop).map_err(|error| broken(&error))
}

/// Has leases granted ahead, as in a client that works for a while. Else the fault that a case has
/// arranged for the next request would meet the request for a lease, and not the lock's.
async fn warm_up(backend: &EtcdBackend) -> Result<()> {
    for ttl in [2, 60] {
        let key = LockKey::new("warm-up", OwnerId::generate(&OsRng)?.to_hex())?;
        let owner = OwnerId::generate(&OsRng)?;
        let request = ClaimRequest::new(key, owner, Duration::from_secs(ttl));
        let mut claim = backend.claim(request)?;
        claim.try_acquire().await?;
        claim.release().await?;
    }
    // The second lease of each pool comes in the background.
    tokio::time::sleep(Duration::from_millis(20)).await;
    Ok(())
}
