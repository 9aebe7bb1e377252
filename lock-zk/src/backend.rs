//! A ZooKeeper ensemble as a store of locks.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{
    Binding, Capabilities, Claim, ClaimRequest, Fencing, LockAdmin, LockBackend, LockKey, Result,
    Seen, Wake, async_trait,
};
use lock_kit::runtime;

use crate::error::{Reply, RequestFailure};
use crate::queue::ZkClaim;
use crate::sessions::{Ensemble, SessionSeat, Sessions};
use crate::settings::ZkConfig;

/// The locks of one ZooKeeper ensemble, as seen by one client, whose sessions hold all its locks
/// and places.
///
/// Clones share the sessions. The guarantees, and what breaks them, are in the [crate
/// documentation](crate).
#[derive(Clone, Debug)]
pub struct ZkBackend {
    pub(crate) sessions: Arc<Sessions>,
}

/// The timeout of a ping, of a look, and of closing.
const LIMIT: Duration = Duration::from_secs(5);

impl ZkBackend {
    /// Connects, and reads the servers' limits. Sessions are opened when locks need them.
    ///
    /// # Errors
    ///
    /// [`Unavailable`](lock_core::ErrorKind::Unavailable) if no server can be reached,
    /// [`Denied`](lock_core::ErrorKind::Denied) if it refuses the credentials,
    /// [`Config`](lock_core::ErrorKind::Config) if it allows only sessions shorter than the one
    /// requested, [`Unsupported`](lock_core::ErrorKind::Unsupported) if it is too old.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: an abandoned session ends after its timeout.
    pub async fn connect(config: ZkConfig) -> Result<Self> {
        config.check()?;
        runtime::require("ZooKeeper")?;
        Ok(Self { sessions: Arc::new(Sessions::connect(Ensemble::new(config)).await?) })
    }

    /// Asks the ensemble by any session.
    async fn ask<T, F: Future<Output = Reply<T>>>(
        &self,
        request: impl Fn(SessionSeat) -> F,
    ) -> Result<T> {
        let sessions = &self.sessions;
        let ask = async {
            // The session may end meanwhile; the next attempt gets a new one.
            for _ in 0..2 {
                match request(sessions.any_seat(LIMIT).await?).await {
                    Err(RequestFailure::SessionEnded) => {}
                    answer => return answer,
                }
            }
            Err(RequestFailure::SessionEnded)
        };
        sessions.bounded(LIMIT, ask).await
    }

    /// For tests: lets them end the sessions of this client from outside.
    #[doc(hidden)]
    pub fn sessions(&self) -> Vec<zookeeper_client::SessionInfo> {
        self.sessions.open().iter().map(|session| session.info().clone()).collect()
    }
}

#[async_trait]
impl LockBackend for ZkBackend {
    fn name(&self) -> &'static str {
        "zookeeper"
    }

    fn capabilities(&self) -> Capabilities {
        let mut can = Capabilities::new(Binding::Session, Wake::Reliable);
        can.fair = true;
        can.fencing = Fencing::Durable;
        can.inspect = true;
        can.look = true;
        let limits = self.sessions.limits;
        can.min_ttl = limits.least;
        can.ttl_step = limits.step;
        can.max_ttl = Some(limits.most);
        can
    }

    fn claim(&self, request: ClaimRequest) -> Result<Box<dyn Claim>> {
        Ok(Box::new(ZkClaim::new(Arc::clone(&self.sessions), request)?))
    }

    async fn ping(&self) -> Result<()> {
        let ping = |seat: SessionSeat| async move {
            match seat.sync(&seat.config.root).await {
                Err(RequestFailure::NoNode) => Ok(()),
                answer => answer,
            }
        };
        self.ask(ping).await
    }

    async fn look(&self, keys: &[LockKey]) -> Result<Vec<Seen>> {
        self.ask(|seat| async move { seat.look(keys).await }).await
    }

    async fn close(&self) -> Result<()> {
        let close = async {
            self.sessions.close().await;
            Ok(())
        };
        self.sessions.bounded(LIMIT, close).await
    }

    fn admin(&self) -> Option<&dyn LockAdmin> {
        Some(self)
    }
}
