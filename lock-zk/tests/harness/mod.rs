//! The harness of ZooKeeper: one server, or an ensemble whose servers serve one client each, in
//! turn.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use conformance_tests::Unavailable;
use conformance_tests::proxied::{self, Servers, Setup};
use lock_core::{ClaimRequest, LockBackend, LockKey, OsRng, OwnerId, Result, async_trait};
use lock_testkit::servers::ZooKeeper;

/// Names an ensemble to use instead of local servers.
const URL: &str = "LOCK_TEST_ZOOKEEPER_URL";

/// Of the user whose nodes they are.
const PASSWORD: &str = "s3cr3t-of-zookeeper";

#[derive(Debug)]
struct Zk {
    servers: usize,
}

impl Zk {
    /// The shortest and the longest, which are the short and the long ttl of the cases. A busy
    /// machine lets a server that has just started be silent for most of a second, and the client
    /// leaves it after a quarter of the session timeout.
    fn sessions(&self) -> (Duration, Duration) {
        (Duration::from_secs(if self.servers == 1 { 4 } else { 5 }), Duration::from_secs(60))
    }
}

#[async_trait]
impl Setup for Zk {
    fn name(&self) -> &str {
        if self.servers == 1 { "zookeeper" } else { "zookeeper-ensemble" }
    }

    async fn launch(&self) -> Result<Box<dyn Servers>, Unavailable> {
        if self.servers == 1 && std::env::var_os(URL).is_some() {
            return Ok(Box::new(ZooKeeper::start().await?));
        }
        let (shortest, longest) = self.sessions();
        Ok(Box::new(ZooKeeper::with_sessions(self.servers, shortest, longest).await?))
    }

    /// Each ttl has a session of its own: the long one of the cases survives a restart, however long
    /// a busy machine takes for it.
    fn url(&self, hosts: &str, _: &str) -> String {
        format!("zookeeper://app:{PASSWORD}@{hosts}?lock_tick_time=100ms")
    }

    fn secrets(&self) -> Vec<String> {
        vec![PASSWORD.to_owned()]
    }

    async fn connect(&self, url: &str) -> Result<Arc<dyn LockBackend>> {
        Ok(Arc::new(lock_zk::connect(url).await?))
    }

    /// Opens the sessions of both ttls of the cases, or a fault would hit the request for one.
    async fn warm_up(&self, backend: &dyn LockBackend) -> Result<()> {
        let (shortest, longest) = self.sessions();
        for ttl in [shortest, longest] {
            let key = LockKey::new("warm-up", OwnerId::generate(&OsRng)?.to_hex())?;
            let request = ClaimRequest::new(key, OwnerId::generate(&OsRng)?, ttl);
            let mut claim = backend.claim(request)?;
            claim.try_acquire().await?;
            claim.release().await?;
        }
        Ok(())
    }
}

pub(crate) fn main(servers: usize) -> ExitCode {
    proxied::main(Zk { servers })
}
