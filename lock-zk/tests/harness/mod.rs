//! The harness of ZooKeeper: real servers, each client behind a fault proxy.
//!
//! A server takes half a second to start, so servers are used again: one case at a time, each under a
//! prefix of its own.

use std::process::ExitCode;
use std::sync::Arc;

use conformance_tests::Unavailable;
use lock_core::{LockBackend, Result, async_trait};
use lock_testkit::proxied::{self, Setup};
use lock_testkit::servers::{Servers, ZooKeeper};

/// One server, or an ensemble of three, of which the clients use one after the other.
#[derive(Debug)]
struct Ensemble {
    is_single: bool,
}

#[async_trait]
impl Setup for Ensemble {
    fn name(&self) -> &str {
        if self.is_single { "zookeeper" } else { "zookeeper-ensemble" }
    }

    async fn launch(&self) -> Result<Box<dyn Servers>, Unavailable> {
        Ok(Box::new(match self.is_single {
            true => ZooKeeper::start().await?,
            false => ZooKeeper::ensemble().await?,
        }))
    }

    /// All cases have this session timeout, and so this ttl. A hold must survive a restart of the servers,
    /// and an ensemble takes longer. A busy machine lets a server that has just started be silent for most
    /// of a second, and the client leaves it after a quarter of the session timeout.
    fn url(&self, hosts: &str, _: &str) -> String {
        let timeout = if self.is_single { "4s" } else { "5s" };
        format!("zookeeper://{hosts}?lock_session_timeout={timeout}&lock_tick_time=100ms")
    }

    async fn connect(&self, url: &str) -> Result<Arc<dyn LockBackend>> {
        Ok(Arc::new(lock_zk::connect(url).await?))
    }

    fn reuses_servers(&self) -> bool {
        true
    }

    fn at_once(&self) -> usize {
        if self.is_single { 8 } else { 7 }
    }
}

pub(crate) fn main(is_single: bool) -> ExitCode {
    proxied::main(Ensemble { is_single })
}
