//! The harness of one Redis node: a real server per case, each client behind a fault proxy.

use std::sync::{Arc, Mutex, PoisonError};

use conformance_tests::{Client, Fault, Faults, Harness, Store, Time, Unavailable, async_trait};
use lock_core::{Error, ErrorKind, LockBackend, OsRng, OwnerId, Result};
use lock_testkit::proxy::Proxy;
use lock_testkit::servers::{Data, RedisServer};

#[derive(Debug)]
pub(crate) struct RedisHarness;

#[derive(Debug)]
struct RedisStore {
    server: RedisServer,
    prefix: String,
    proxies: Mutex<Vec<Arc<Proxy>>>,
}

#[derive(Debug)]
struct Link(Arc<Proxy>);

#[async_trait]
impl Faults for Link {
    async fn inject(&self, fault: Fault) -> Result<(), Unavailable> {
        self.0.inject(fault).await
    }
}

#[async_trait]
impl Harness for RedisHarness {
    fn name(&self) -> &str {
        "redis"
    }

    fn time(&self) -> Time {
        Time::Real
    }

    async fn start(&self) -> Result<Box<dyn Store>, Unavailable> {
        let server = RedisServer::start().await?;
        // A server that is not ours may have been used before.
        let prefix =
            if server.is_own() { String::new() } else { OwnerId::generate(&OsRng)?.to_hex() };
        Ok(Box::new(RedisStore { server, prefix, proxies: Mutex::default() }))
    }

    async fn join(&self, uri: &str) -> Result<Arc<dyn LockBackend>> {
        Ok(Arc::new(lock_redis::connect(uri).await?))
    }
}

#[async_trait]
impl Store for RedisStore {
    async fn client(&self) -> Result<Client> {
        let Ok(address) = self.server.address() else {
            return Ok(Client::new(lock_redis::connect(self.server.url()).await?));
        };
        let proxy = Proxy::start(address)
            .await
            .map_err(|error| Error::new(ErrorKind::Internal, format!("no proxy: {error}")))?;
        let proxy = Arc::new(proxy);
        let backend = lock_redis::connect(&format!("redis://{}", proxy.address())).await?;
        self.proxies.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&proxy));
        Ok(Client::new(backend).with_faults(Link(proxy)))
    }

    fn prefix(&self) -> String {
        self.prefix.clone()
    }

    async fn freeze(&self) -> Result<(), Unavailable> {
        self.server.freeze()
    }

    async fn thaw(&self) -> Result<(), Unavailable> {
        self.server.thaw()
    }

    async fn restart(&self) -> Result<(), Unavailable> {
        self.server.restart(Data::Keep).await
    }

    fn uri(&self) -> Option<String> {
        Some(self.server.url().to_owned())
    }
}
