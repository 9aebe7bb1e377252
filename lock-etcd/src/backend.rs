//! An etcd cluster as a store of locks.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{
    Binding, Capabilities, Claim, ClaimRequest, ErrorKind, Fencing, LockAdmin, LockBackend,
    LockKey, Result, Seen, SystemClock, Wake, async_trait,
};
use lock_kit::runtime;

use crate::config::EtcdConfig;
use crate::doctor;
use crate::queue::EtcdClaim;
use crate::queue::statements;
use crate::shared_state::SharedState;
use crate::wire::Cluster;
use crate::wire::messages::EtcdRequest;

/// The longest lease that etcd grants.
const LONGEST: Duration = Duration::from_secs(9_000_000_000);

/// The locks of one etcd cluster, as seen by one client.
///
/// Clones share one connection, to one member at a time, for all requests, watches and keep-alives.
/// The guarantees, and what breaks them, are in the [crate documentation](crate).
#[derive(Clone, Debug)]
pub struct EtcdBackend {
    pub(crate) store: Arc<SharedState>,
}

impl EtcdBackend {
    /// Connects to a random member, or to the next one that answers, signs in, and asks for its
    /// version and the shortest lease that it grants. A version with known lease defects is used,
    /// with a warning; the versions of the other members are checked afterwards, in the background.
    ///
    /// # Errors
    ///
    /// [`Config`](ErrorKind::Config) if the settings are invalid, or if called outside a Tokio
    /// runtime with timers and I/O enabled, [`Unsupported`](ErrorKind::Unsupported) if the server
    /// is older than 3.4, [`Unavailable`](ErrorKind::Unavailable) if no member can be reached,
    /// [`Denied`](ErrorKind::Denied) if the credentials are refused.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn connect(config: EtcdConfig) -> Result<Self> {
        config.check()?;
        runtime::require("etcd")?;
        let limit = config.response_timeout;
        let members = u32::try_from(config.members.len()).unwrap_or(u32::MAX);
        let first = config.connect_timeout.saturating_mul(members) + limit;
        let cluster = Cluster::open(config.clone(), Arc::new(SystemClock::default()))?;
        let store = SharedState::new(cluster, config.folder.clone(), config.revision_fences, limit);
        let backend = Self::start(store, first).await?;
        if let Some(connection) = backend.store.cluster.connection() {
            tokio::spawn(doctor::report_others(config, connection.member()));
        }
        Ok(backend)
    }

    /// `first` is the timeout of the first request, which may have to try all members.
    async fn start(store: SharedState, first: Duration) -> Result<Self> {
        check_version(&store, first).await?;
        store.leases.ask_for_the_shortest(store.limit).await?;
        let backend = Self { store: Arc::new(store) };
        // All of that is answered without authentication; a read is not, if the cluster requires
        // it.
        backend.ping().await?;
        Ok(backend)
    }
}

async fn check_version(store: &SharedState, limit: Duration) -> Result<()> {
    let status = store.cluster.ask(limit, EtcdRequest::Status).await;
    let connection = store.cluster.connection();
    let endpoint = connection.as_ref().map_or("", |connection| connection.endpoint());
    match status {
        Ok(status) => doctor::report(&status.version, endpoint),
        Err(failed) if failed.error.kind() == ErrorKind::Denied && !failed.is_unknown() => {
            tracing::warn!(target: "distlock", endpoint, "this user may not read the version of etcd, so it is not known whether its leases have defects: use 3.4.38, 3.5.23, 3.6.5 or newer");
            Ok(())
        }
        Err(failed) => Err(failed.into()),
    }
}

#[async_trait]
impl LockBackend for EtcdBackend {
    fn name(&self) -> &'static str {
        "etcd"
    }

    fn capabilities(&self) -> Capabilities {
        let mut can = Capabilities::new(Binding::Lease, Wake::Reliable);
        can.fair = true;
        can.fencing = Fencing::Durable;
        can.detachable = true;
        can.inspect = true;
        can.look = true;
        can.ttl_step = Duration::from_secs(1);
        can.min_ttl = self.store.leases.granted_for(can.ttl_step);
        can.max_ttl = Some(LONGEST);
        can
    }

    fn claim(&self, request: ClaimRequest) -> Result<Box<dyn Claim>> {
        Ok(Box::new(EtcdClaim::new(Arc::clone(&self.store), request)?))
    }

    async fn ping(&self) -> Result<()> {
        let store = &self.store;
        let probe = statements::read(&format!("{}\u{1e}ping", store.folder));
        match store.cluster.ask(store.limit, probe).await {
            Ok(_) => Ok(()),
            // A user needs rights only to the keys of its locks, which a probe cannot know.
            Err(failed) if failed.is_about_a_right() => Ok(()),
            Err(failed) => Err(failed.into()),
        }
    }

    async fn look(&self, keys: &[LockKey]) -> Result<Vec<Seen>> {
        Ok(self.store.look(keys).await?)
    }

    async fn close(&self) -> Result<()> {
        if self.store.cluster.connection().is_none() {
            return Ok(());
        }
        let closed = self.store.leases.close().await;
        self.store.cluster.close();
        Ok(closed?)
    }

    fn admin(&self) -> Option<&dyn LockAdmin> {
        Some(self)
    }
}
