//! The conformance suite on the master of a group, each client behind a fault proxy, to which its sentinel leads.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;

use conformance_tests::Unavailable;
use conformance_tests::proxied::{self, Servers, Setup};
use lock_core::{Error, LockBackend, Result, async_trait};
use lock_testkit::servers::{RedisServer, follow, has_replicas, member, sentinel};

#[derive(Debug)]
struct Group;

/// A master with a replica, without which it writes nothing.
#[derive(Debug)]
struct Pair {
    master: RedisServer,
    _replica: RedisServer,
}

#[async_trait]
impl Setup for Group {
    fn name(&self) -> &str {
        "sentinel"
    }

    async fn launch(&self) -> Result<Box<dyn Servers>, Unavailable> {
        let bound = [("min-replicas-to-write", "1")];
        let (master, replica) = (member(&bound).await?, member(&bound).await?);
        follow(replica.address()?, master.address()?)?;
        has_replicas(master.address()?, 1).await?;
        Ok(Box::new(Pair { master, _replica: replica }))
    }

    fn url(&self, hosts: &str, _: &str) -> String {
        format!("redis+sentinel://{hosts}/orders?lock_bootstrap=now")
    }

    /// The host of the URL is that of the master.
    async fn connect(&self, url: &str) -> Result<Arc<dyn LockBackend>> {
        let host = url.split(['/', '@']).nth(2).unwrap_or_default();
        let master: SocketAddr = host.parse().map_err(|_| Error::config("no address"))?;
        let named = sentinel(master).await.map_err(|error| Error::config(error.to_string()))?;
        let url = url.replace(host, &named.to_string());
        Ok(Arc::new(lock_redis::connect_sentinel(&url).await?))
    }

    fn asks_all(&self) -> bool {
        true
    }
}

#[async_trait]
impl Servers for Pair {
    fn addresses(&self) -> Vec<SocketAddr> {
        self.master.address().into_iter().collect()
    }

    fn freeze(&self) -> Result<(), Unavailable> {
        self.master.freeze()
    }

    fn thaw(&self) -> Result<(), Unavailable> {
        self.master.thaw()
    }

    /// A restart of the master costs the wait after a failover. That is shown by tests of its own.
    async fn restart(&self) -> Result<(), Unavailable> {
        Err(Unavailable::missing("a restarted master grants nothing for the longest ttl"))
    }
}

fn main() -> ExitCode {
    proxied::main(Group)
}
