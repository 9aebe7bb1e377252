//! The harness of etcd: one member or a cluster, whose members serve one client each, in turn.

use std::fmt::Display;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use conformance_tests::Unavailable;
use conformance_tests::proxied::{self, Servers, Setup};
use lock_core::{ClaimRequest, LockBackend, LockKey, OsRng, OwnerId, Result, async_trait};
use lock_testkit::servers::EtcdCluster;

use crate::client::Client;

#[derive(Debug)]
struct Etcd {
    name: &'static str,
    members: usize,
}

#[async_trait]
impl Setup for Etcd {
    fn name(&self) -> &str {
        self.name
    }

    async fn launch(&self) -> Result<Box<dyn Servers>, Unavailable> {
        Ok(Box::new(match self.members {
            1 => EtcdCluster::start().await?,
            members => EtcdCluster::builder().members(members).start().await?,
        }))
    }

    fn url(&self, hosts: &str, _: &str) -> String {
        format!("etcd://{hosts}")
    }

    async fn connect(&self, url: &str) -> Result<Arc<dyn LockBackend>> {
        Ok(Arc::new(match self.name {
            #[cfg(feature = "etcd-client")]
            "etcd-client" => over_client(url).await?,
            _ => lock_etcd::connect(url).await?,
        }))
    }

    fn is_http2(&self) -> bool {
        true
    }

    /// Puts the base of the fences ahead of the clock, so that no new client raises it.
    /// Otherwise the fault arranged for the next request would hit one that is refused for the old
    /// base.
    async fn prepare(&self, servers: &dyn Servers) -> Result<(), Unavailable> {
        let broken = |error: &dyn Display| Unavailable::broken(format!("no base: {error}"));
        let ahead = SystemTime::now() + Duration::from_secs(3600);
        let base = ahead.duration_since(UNIX_EPOCH).map_err(|error| broken(&error))?.as_micros();
        let addresses = servers.addresses();
        let put = Client::new(addresses[0]).try_put("distlock-fence:", &base.to_string(), 0).await;
        put.map_err(|error| broken(&error))
    }

    /// Has leases granted in advance, or the fault would hit the request for a lease.
    async fn warm_up(&self, backend: &dyn LockBackend) -> Result<()> {
        for ttl in [2, 60] {
            let key = LockKey::new("warm-up", OwnerId::generate(&OsRng)?.to_hex())?;
            let owner = OwnerId::generate(&OsRng)?;
            let request = ClaimRequest::new(key, owner, Duration::from_secs(ttl));
            let mut claim = backend.claim(request)?;
            claim.try_acquire().await?;
            claim.release().await?;
        }
        // The second lease of each pool comes in the background.
        tokio::time::sleep(Duration::from_millis(20)).await;
        Ok(())
    }
}

/// Over a client of the crate `etcd-client`, which is as the documentation recommends.
#[cfg(feature = "etcd-client")]
async fn over_client(url: &str) -> Result<lock_etcd::EtcdBackend> {
    use etcd_client::{Client, ConnectOptions};

    let options = ConnectOptions::new()
        .with_require_leader(true)
        .with_connect_timeout(Duration::from_secs(1))
        .with_keep_alive(Duration::from_secs(6), Duration::from_secs(3));
    let members: Vec<_> = url.trim_start_matches("etcd://").split(',').collect();
    let client = Client::connect(members, Some(options)).await;
    let client = client.map_err(|error| lock_core::Error::config(error.to_string()))?;
    lock_etcd::EtcdBackend::connect(lock_etcd::EtcdConfig::from_client(client)).await
}

pub(crate) fn main(name: &'static str, members: usize) -> ExitCode {
    proxied::main(Etcd { name, members })
}
