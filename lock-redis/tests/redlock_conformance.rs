//! The conformance suite on three real masters, each client behind fault proxies.

mod redlock_common;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;

use conformance_tests::Unavailable;
use conformance_tests::proxied::{self, Servers, Setup};
use lock_core::{LockBackend, Result, async_trait};
use lock_testkit::servers::Data;
use redlock_common::Masters;

#[derive(Debug)]
struct Redlock;

#[async_trait]
impl Setup for Redlock {
    fn name(&self) -> &str {
        "redlock"
    }

    async fn launch(&self) -> Result<Box<dyn Servers>, Unavailable> {
        Ok(Box::new(Masters::start().await?))
    }

    fn url(&self, hosts: &str, _: &str) -> String {
        format!("redlock://{hosts}?lock_quorum_name=test&lock_bootstrap=now")
    }

    async fn connect(&self, url: &str) -> Result<Arc<dyn LockBackend>> {
        Ok(Arc::new(lock_redis::connect_redlock(url).await?))
    }

    fn asks_all(&self) -> bool {
        true
    }
}

#[async_trait]
impl Servers for Masters {
    fn addresses(&self) -> Vec<SocketAddr> {
        self.0.iter().filter_map(|server| server.address().ok()).collect()
    }

    fn freeze(&self) -> Result<(), Unavailable> {
        self.0.iter().try_for_each(|server| server.freeze())
    }

    fn thaw(&self) -> Result<(), Unavailable> {
        self.0.iter().try_for_each(|server| server.thaw())
    }

    /// One node: a quorum is made to survive that. What a restart of more nodes does stands in the
    /// tests of its own, since the longest ttl has to pass then.
    async fn restart(&self) -> Result<(), Unavailable> {
        self.0[0].restart(Data::Keep).await
    }
}

fn main() -> ExitCode {
    proxied::main(Redlock)
}
