//! A ZooKeeper ensemble as a store of locks.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{
    Capabilities, Claim, ClaimRequest, Clock, Fencing, Hold, LockAdmin, LockBackend, LockKey,
    Result, SystemClock, Wake, async_trait,
};

use crate::claim::ZkClaim;
use crate::config::{Access, ZkConfig};
use crate::error::{describe, no_answer};
use crate::names;
use crate::session::Session;
use crate::sessions::Sessions;
use crate::timeline::Timeline;
use crate::transport::{ClientTransport, Failure};

/// The locks of one ZooKeeper ensemble, as one client of it: one session, which keeps all its locks
/// and places.
///
/// Clones share the session. What is promised, and what breaks it, is on the [crate's page](crate).
#[derive(Clone, Debug)]
pub struct ZkBackend {
    pub(crate) shared: Arc<Shared>,
    /// What the server has made of the session timeout that was asked for.
    timeout: Duration,
}

/// What all claims of a client share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) root: String,
    pub(crate) sequence_limit: i32,
}

impl Shared {
    /// The node of a lock.
    pub(crate) fn parent(&self, key: &LockKey) -> String {
        format!("{}/{}", self.root, names::encode(key))
    }
}

/// The limit for a ping.
const LIMIT: Duration = Duration::from_secs(5);

impl ZkBackend {
    /// Opens a session.
    ///
    /// # Errors
    ///
    /// [`Unavailable`](lock_core::ErrorKind::Unavailable) if no server can be reached,
    /// [`Denied`](lock_core::ErrorKind::Denied) if it refuses the credentials,
    /// [`Config`](lock_core::ErrorKind::Config) if it allows only a shorter session than was asked
    /// for.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: a session that nobody gets ends by itself.
    pub async fn connect(config: ZkConfig) -> Result<Self> {
        config.check()?;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
        let limit = config.connect_timeout;
        let (root, sequence_limit) = (config.root.clone(), config.sequence_limit);
        let sessions = Arc::new(Sessions::new(config, clock));
        let timeout = sessions.get(limit).await?.timeout();
        Ok(Self { shared: Arc::new(Shared { sessions, root, sequence_limit }), timeout })
    }

    /// Uses the session of a client that you have connected: with TLS or SASL, for example. Locks stand
    /// under `/locks` in its chroot, and their nodes are open to everybody.
    ///
    /// A client of `zookeeper-client` has one session. When that has ended, this backend has ended too,
    /// and every call fails with an error that says so. Waits for two fifths of the session timeout:
    /// what was heard of the session before is not known.
    ///
    /// Keep no clone of the client. Its session ends with the last clone, so
    /// [`close`](LockBackend::close) would wait in vain and fail after 5 s, and the locks would stay.
    ///
    /// # Errors
    ///
    /// [`Unavailable`](lock_core::ErrorKind::Unavailable) if the client's session does not answer.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn from_client(client: zookeeper_client::Client) -> Result<Self> {
        let defaults = ZkConfig::new("localhost")?;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
        let timeout = client.session_timeout();
        let session = Session::start(
            ClientTransport::new(client, Access::Open),
            timeout,
            Timeline::unknown(timeout),
            Arc::clone(&clock),
            &defaults.root,
        );
        let sessions = Arc::new(Sessions::of(session, clock));
        let shared = Shared {
            sessions,
            root: defaults.root.clone(),
            sequence_limit: defaults.sequence_limit,
        };
        let backend = Self { shared: Arc::new(shared), timeout };
        backend.ping().await?;
        tokio::time::sleep(Timeline::warm_up(timeout)).await;
        Ok(backend)
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
        // One session keeps all locks of a client, so they have one ttl.
        can.min_ttl = self.timeout;
        can.max_ttl = Some(self.timeout);
        can
    }

    fn claim(&self, request: ClaimRequest) -> Result<Box<dyn Claim>> {
        Ok(Box::new(ZkClaim::new(Arc::clone(&self.shared), request)?))
    }

    async fn ping(&self) -> Result<()> {
        let sessions = &self.shared.sessions;
        let ask = async {
            let mut session = sessions.get(LIMIT).await?;
            let mut answer = session.sync(&self.shared.root).await;
            if matches!(answer, Err(Failure::SessionEnded)) {
                session = sessions.get(LIMIT).await?;
                answer = session.sync(&self.shared.root).await;
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
