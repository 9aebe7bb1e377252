//! A ZooKeeper ensemble as a store of locks.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{
    Capabilities, Claim, ClaimRequest, Clock, Error, Fencing, Hold, LockAdmin, LockBackend,
    LockKey, Result, SystemClock, Wake, async_trait,
};

use crate::claim::ZkClaim;
use crate::config::ZkConfig;
use crate::error::{describe, no_answer};
use crate::names;
use crate::opening::Opener;
use crate::sessions::Sessions;
use crate::transport::{Ensemble, Failure};

/// The locks of one ZooKeeper ensemble, as one client of it: its sessions keep all its locks and places.
///
/// Clones share the sessions. What is promised, and what breaks it, is on the [crate's page](crate).
#[derive(Clone, Debug)]
pub struct ZkBackend {
    pub(crate) shared: Arc<Shared>,
}

/// What all claims of a client share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) config: Arc<ZkConfig>,
}

impl Shared {
    /// The node of a lock.
    pub(crate) fn parent(&self, key: &LockKey) -> String {
        format!("{}/{}", self.config.root, names::encode(key))
    }

    /// How long the session of a lock with this ttl lasts.
    pub(crate) fn class(&self, ttl: Duration) -> Duration {
        ttl.max(self.sessions.limits().least)
    }

    pub(crate) fn refuse_too_long(&self, ttl: Duration) -> Result<()> {
        let most = self.sessions.limits().most;
        if ttl <= most {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "a ttl of {ttl:?} is longer than the sessions that the ZooKeeper ensemble at {} allows, {most:?}: shorten it, or raise the servers' maxSessionTimeout",
            self.sessions.endpoint()
        )))
    }
}

/// The limit for a ping.
const LIMIT: Duration = Duration::from_secs(5);

impl ZkBackend {
    /// Asks the servers for their limits. Sessions are opened when locks need them.
    ///
    /// # Errors
    ///
    /// [`Unavailable`](lock_core::ErrorKind::Unavailable) if no server can be reached,
    /// [`Denied`](lock_core::ErrorKind::Denied) if it refuses the credentials,
    /// [`Config`](lock_core::ErrorKind::Config) if it allows only a shorter session than was asked
    /// for, [`Unsupported`](lock_core::ErrorKind::Unsupported) if it is too old.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: a session that nobody gets ends by itself.
    pub async fn connect(config: ZkConfig) -> Result<Self> {
        config.check()?;
        Self::open(Ensemble::new(&config), config).await
    }

    /// Connects by a connector of yours: with TLS or SASL, for example. `cluster` is a connect string of the
    /// driver, such as `a.example:2281,b.example:2281/chroot`, or `tcp+tls://a.example:2281`. Locks stand
    /// under `/locks` in its chroot, and their nodes are open to everybody. The connector's own timeouts are
    /// not used.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect).
    ///
    /// # Cancel safety
    ///
    /// As [`connect`](Self::connect).
    pub async fn from_connector(
        connector: zookeeper_client::Connector,
        cluster: &str,
    ) -> Result<Self> {
        let ensemble = Ensemble::given(connector, cluster)?;
        Self::open(ensemble, ZkConfig::new("localhost")?).await
    }

    async fn open(ensemble: Ensemble, config: ZkConfig) -> Result<Self> {
        let (ensemble, config) = (Arc::new(ensemble), Arc::new(config));
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
        let opener = Opener { ensemble, config: Arc::clone(&config), clock };
        let sessions = Arc::new(Sessions::connect(opener).await?);
        Ok(Self { shared: Arc::new(Shared { sessions, config }) })
    }

    /// For tests: who knows these can end the sessions of this client.
    #[doc(hidden)]
    pub fn sessions(&self) -> Vec<zookeeper_client::SessionInfo> {
        let open = self.shared.sessions.open();
        open.iter().map(|session| session.link().info().clone()).collect()
    }
}

#[async_trait]
impl LockBackend for ZkBackend {
    fn name(&self) -> &'static str {
        "zookeeper"
    }

    fn capabilities(&self) -> Capabilities {
        let mut can = Capabilities::new(Hold::Session, Wake::Reliable);
        can.fair = true;
        can.fencing = Fencing::Durable;
        can.inspect = true;
        let limits = self.shared.sessions.limits();
        can.min_ttl = limits.least;
        can.ttl_step = limits.step;
        can.max_ttl = Some(limits.most);
        can
    }

    fn claim(&self, request: ClaimRequest) -> Result<Box<dyn Claim>> {
        Ok(Box::new(ZkClaim::new(Arc::clone(&self.shared), request)?))
    }

    async fn ping(&self) -> Result<()> {
        let sessions = &self.shared.sessions;
        let ask = async {
            let root = &self.shared.config.root;
            let mut answer = sessions.any_seat(LIMIT).await?.sync(root).await;
            if matches!(answer, Err(Failure::SessionEnded)) {
                answer = sessions.any_seat(LIMIT).await?.sync(root).await;
            }
            match answer {
                Ok(()) | Err(Failure::NoNode) => Ok(()),
                Err(failure) => Err(describe(&failure, sessions.endpoint())),
            }
        };
        match tokio::time::timeout(LIMIT, ask).await {
            Ok(answer) => answer,
            Err(_) => Err(no_answer(LIMIT, sessions.endpoint())),
        }
    }

    async fn close(&self) -> Result<()> {
        let close = self.shared.sessions.close();
        tokio::time::timeout(LIMIT, close)
            .await
            .map_err(|_| no_answer(LIMIT, self.shared.sessions.endpoint()))
    }

    fn admin(&self) -> Option<&dyn LockAdmin> {
        Some(self)
    }
}
