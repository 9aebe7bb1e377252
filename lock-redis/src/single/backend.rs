//! One Redis node as a lock store.

use std::sync::Arc;

use lock_core::kit::runtime;
use lock_core::kit::versions::REDIS;
use lock_core::{
    Binding, Capabilities, Claim, ClaimRequest, DataLoss, Error, ErrorKind, Fencing, LockAdmin,
    LockBackend, Result, Wake, async_trait,
};

use super::claim::RedisClaim;
use super::config::RedisConfig;
use super::scripts::{MARK, PROBE};
use super::store::Store;
use crate::node::{Eviction, info_field};

/// The locks of one Redis server, as one client of it.
///
/// Clones share one connection for all commands and pushes. For the guarantees, and what breaks
/// them, see the [crate's page](crate).
#[derive(Clone, Debug)]
pub struct RedisBackend {
    pub(super) store: Arc<Store>,
    evicts: bool,
}

impl RedisBackend {
    /// Connects, and checks that the server can keep locks: its version, the rights of the user, and
    /// that it does not evict.
    ///
    /// # Errors
    ///
    /// [`Unavailable`](ErrorKind::Unavailable) if the server cannot be reached or cannot write now (a
    /// replica, a full disk), [`Denied`](ErrorKind::Denied) if it refuses the credentials or a
    /// command that locks need (the message lists them), [`Unsupported`](ErrorKind::Unsupported) if
    /// it is older than Redis 6.0, [`Config`](ErrorKind::Config) if it evicts keys when its memory
    /// is full. If `INFO` is denied, a warning says that version and eviction are not known.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn connect(config: RedisConfig) -> Result<Self> {
        config.check()?;
        runtime::require("Redis")?;
        let backend = Self {
            store: Arc::new(Store::new(&config)?),
            evicts: config.eviction == Eviction::Warn,
        };
        backend.check_rights().await?;
        backend.check_server(config.eviction).await?;
        Ok(backend)
    }

    /// Like [`connect`](Self::connect), with the default settings for the server of `client`: for
    /// a client that was built by other means, for example with custom certificates.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect).
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn from_client(client: redis::Client) -> Result<Self> {
        Self::connect(RedisConfig::from_client(client)).await
    }

    async fn check_rights(&self) -> Result<()> {
        let store = &self.store;
        let keys = ["string", "set", "hash"]
            .map(|kind| format!("{{distlock\u{1e}probe:{}}}:{kind}", store.client));
        let channel = store.channel();
        let call = PROBE.call().keys(&keys).key(MARK).arg(&channel);
        store.node.probe(call, "The page of lock-redis", store.limit).await
    }

    /// Checks the version, and that locks are not evicted.
    async fn check_server(&self, eviction: Eviction) -> Result<()> {
        let node = &self.store.node;
        let info = match node.command(&redis::cmd("INFO"), self.store.limit).await {
            Ok(info) => info,
            Err(error) if error.kind() == ErrorKind::Denied => {
                tracing::warn!(target: "distlock", endpoint = node.endpoint(), "INFO is denied, so it is not known whether this server is {REDIS} or newer, or whether it evicts locks: maxmemory-policy must be noeviction");
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let field = |name| {
            info_field(&info, name).ok_or_else(|| {
                let text = format!("the Redis server at {} has no {name} in INFO", node.endpoint());
                Error::new(ErrorKind::Store, text)
            })
        };
        REDIS.check(&field("redis_version")?)?;
        eviction.check(node.endpoint(), &field("maxmemory_policy")?)
    }
}

#[async_trait]
impl LockBackend for RedisBackend {
    fn name(&self) -> &'static str {
        "redis"
    }

    fn capabilities(&self) -> Capabilities {
        let mut can = Capabilities::new(Binding::Lease, Wake::Reliable);
        can.fair = true;
        can.fencing = Fencing::BestEffort;
        can.fence_block = true;
        can.detachable = true;
        can.inspect = true;
        can.loses_data_on = if self.evicts {
            &[DataLoss::Restart, DataLoss::Failover, DataLoss::Eviction]
        } else {
            &[DataLoss::Restart, DataLoss::Failover]
        };
        can
    }

    fn claim(&self, request: ClaimRequest) -> Result<Box<dyn Claim>> {
        Ok(Box::new(RedisClaim::new(Arc::clone(&self.store), request)?))
    }

    async fn ping(&self) -> Result<()> {
        self.store.node.ping(self.store.limit).await
    }

    async fn close(&self) -> Result<()> {
        self.store.node.shut_down().await;
        Ok(())
    }

    fn admin(&self) -> Option<&dyn LockAdmin> {
        Some(self)
    }
}
