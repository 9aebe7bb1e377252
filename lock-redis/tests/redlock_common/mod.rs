//! What the tests of Redlock share: three real masters, and clients behind fault proxies.

#![allow(dead_code, reason = "each test target uses a part of it")]
#![allow(clippy::unwrap_used, reason = "a test whose surroundings fail has failed")]

#[path = "../common/mod.rs"]
pub(crate) mod common;
pub(crate) mod scenarios;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use conformance_tests::server::Proxy;
use conformance_tests::{Fault, Faults, Unavailable};
use lock_core::{
    Claim, ClaimRequest, Error, ErrorKind, LockBackend, LockGuard, LockKey, Locks, OsRng, OwnerId,
    Result, async_trait,
};
use lock_redis::{Bootstrap, RedlockBackend, RedlockConfig};
use lock_testkit::servers::RedisServer;
use redis::Value;
use tokio::time::{Instant, sleep};

/// The places of a vote's parts, see [`Masters::vote`].
pub(crate) const COUNTER: usize = 1;
pub(crate) const ADOPTED: usize = 4;

/// Three masters of the test's own.
#[derive(Debug)]
pub(crate) struct Masters(pub(crate) Vec<RedisServer>);

/// The links of one client, one proxy for each master.
#[derive(Clone, Debug)]
pub(crate) struct Links(pub(crate) Vec<Arc<Proxy>>);

impl Masters {
    /// Three masters, with an append-only file each.
    pub(crate) async fn start() -> Result<Self, Unavailable> {
        Self::start_number(3).await
    }

    pub(crate) async fn start_number(number: usize) -> Result<Self, Unavailable> {
        let mut servers = Vec::new();
        for _ in 0..number {
            servers.push(RedisServer::builder().start().await?);
        }
        Ok(Self(servers))
    }

    /// The URL of the quorum, for clients that reach the masters directly.
    pub(crate) fn url(&self, parameters: &str) -> String {
        let hosts: Vec<_> = self
            .0
            .iter()
            .map(|server| server.url().trim_start_matches("redis://").to_owned())
            .collect();
        format!(
            "redlock://{}?lock_quorum_name=test&lock_bootstrap=now{parameters}",
            hosts.join(",")
        )
    }

    /// A client with links of its own.
    pub(crate) async fn links(&self) -> Result<Links> {
        let mut proxies = Vec::new();
        for server in &self.0 {
            let address = server.address().map_err(|error| internal(&error))?;
            let proxy = Proxy::start(address).await.map_err(|error| internal(&error))?;
            proxies.push(Arc::new(proxy));
        }
        Ok(Links(proxies))
    }

    /// A client of the masters, without proxies.
    pub(crate) async fn client(&self, parameters: &str) -> Result<RedlockBackend> {
        lock_redis::connect_redlock(&self.url(parameters)).await
    }

    /// A plain connection.
    pub(crate) async fn plain(&self, node: usize) -> redis::aio::MultiplexedConnection {
        common::plain(&self.0[node]).await
    }

    /// Three masters, and a client that reaches each over a proxy.
    pub(crate) async fn proxied() -> (Self, Links, RedlockBackend) {
        let masters = Self::start().await.unwrap();
        let links = masters.links().await.unwrap();
        let backend = links.client().await.unwrap();
        (masters, links, backend)
    }

    /// Runs a command on each of these masters.
    pub(crate) async fn each(&self, nodes: Range<usize>, words: &[&str]) {
        for node in nodes {
            self.command(node, words).await;
        }
    }

    /// A client that is not this library takes `lock` on these masters, for long.
    pub(crate) async fn occupy(&self, nodes: Range<usize>) {
        self.each(nodes, &["SET", "lock", "foreign", "PX", "30000"]).await;
    }

    /// Whether a master has this key.
    pub(crate) async fn has(&self, node: usize, key: &str) -> bool {
        self.command(node, &["EXISTS", key]).await == Value::Int(1)
    }

    /// What the value of `lock` says behind the owner on this master, in the order of `vote.lua`; nothing where there
    /// is no value.
    pub(crate) async fn vote(&self, node: usize, lock: &str) -> Vec<String> {
        let value = self.command(node, &["GET", lock]).await;
        let Value::BulkString(value) = value else { return Vec::new() };
        let value = String::from_utf8(value).unwrap();
        value.split(['.', '|']).skip(1).map(str::to_owned).collect()
    }

    /// Runs a command on one master over a plain connection.
    pub(crate) async fn command(&self, node: usize, words: &[&str]) -> Value {
        common::run(&mut self.plain(node).await, words).await
    }
}

impl Links {
    pub(crate) fn config(&self) -> Result<RedlockConfig> {
        let clients = self.0.iter().map(|proxy| {
            redis::Client::open(format!("redis://{}", proxy.address()))
                .map_err(|error| internal(&error))
        });
        let config = RedlockConfig::from_clients(clients.collect::<Result<Vec<_>>>()?);
        Ok(config.quorum_name("test").bootstrap(Bootstrap::Now))
    }

    pub(crate) async fn client(&self) -> Result<RedlockBackend> {
        RedlockBackend::connect(self.config()?).await
    }
}

/// A request of this client is one to all its nodes, so every link is disturbed.
#[async_trait]
impl Faults for Links {
    async fn inject(&self, fault: Fault) -> Result<(), Unavailable> {
        for proxy in &self.0 {
            proxy.inject(fault).await?;
        }
        Ok(())
    }
}

pub(crate) fn internal(error: &dyn std::fmt::Display) -> Error {
    Error::new(ErrorKind::Internal, error.to_string())
}

pub(crate) fn request(name: &str, ttl: Duration) -> ClaimRequest {
    let key = LockKey::new("", name).unwrap();
    let owner = OwnerId::generate(&OsRng).unwrap();
    ClaimRequest::new(key, owner, ttl).with_call_timeout(Duration::from_secs(2))
}

pub(crate) fn claim(backend: &impl LockBackend, name: &str, ttl: Duration) -> Box<dyn Claim> {
    backend.claim(request(name, ttl)).unwrap()
}

/// The shortest time of five from the moment at which `end` ends a's hold to the grant to a waiter of b.
/// What `end` answers beside that moment is kept until then.
pub(crate) async fn shortest_wake<T>(
    a: &Locks,
    b: &Locks,
    mut end: impl AsyncFnMut(LockGuard) -> (Instant, T),
) -> Duration {
    let mut shortest = Duration::MAX;
    for _ in 0..5 {
        let guard = a.named("lock").unwrap().acquire().await.unwrap();
        let waiter = b.named("lock").unwrap();
        let waiting = tokio::spawn(async move {
            let guard = waiter.acquire_timeout(Duration::from_secs(10)).await.unwrap();
            let got = Instant::now();
            guard.release().await.unwrap();
            got
        });
        sleep(Duration::from_millis(200)).await;
        let (ended, kept) = end(guard).await;
        shortest = shortest.min(waiting.await.unwrap() - ended);
        drop(kept);
    }
    shortest
}

/// Tries, which must be granted, and returns the fence.
pub(crate) async fn granted(claim: &mut dyn Claim) -> u64 {
    common::granted(claim).await.get()
}
