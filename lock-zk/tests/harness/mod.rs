//! The harness of ZooKeeper: one server, or an ensemble whose servers serve one client each, in
//! turn.

use std::process::ExitCode;
use std::sync::Arc;

use conformance_tests::Unavailable;
use lock_core::{LockBackend, Result, async_trait};
use lock_testkit::proxied::{self, Setup};
use lock_testkit::servers::{Servers, ZooKeeper};

#[derive(Debug)]
struct Zk {
    servers: usize,
}

#[async_trait]
impl Setup for Zk {
    fn name(&self) -> &str {
        if self.servers == 1 { "zookeeper" } else { "zookeeper-ensemble" }
    }

    async fn launch(&self) -> Result<Box<dyn Servers>, Unavailable> {
        Ok(Box::new(match self.servers {
            1 => ZooKeeper::start().await?,
            _ => ZooKeeper::ensemble().await?,
        }))
    }

    /// The session timeout is that of all cases, and so their ttl. A hold must survive a restart of
    /// the servers, and an ensemble takes longer. A busy machine lets a server that has just
    /// started be silent for most of a second, and the client leaves it after a quarter of the
    /// session timeout.
    fn url(&self, hosts: &str, _: &str) -> String {
        let session = if self.servers == 1 { "4s" } else { "5s" };
        format!("zookeeper://{hosts}?lock_session_timeout={session}&lock_tick_time=100ms")
    }

    async fn connect(&self, url: &str) -> Result<Arc<dyn LockBackend>> {
        Ok(Arc::new(lock_zk::connect(url).await?))
    }

    /// A server takes half a second to start.
    fn reuses_servers(&self) -> bool {
        true
    }

    fn at_once(&self) -> usize {
        if self.servers == 1 { 8 } else { 7 }
    }
}

pub(crate) fn main(servers: usize) -> ExitCode {
    proxied::main(Zk { servers })
}
