//! What the tests of lock-zk share.

#![allow(dead_code, reason = "each test target uses a part of it")]
#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

pub(crate) mod scenes;
pub(crate) mod session_scenes;

use std::time::Duration;

use lock_core::{Attempt, Claim, ClaimRequest, FencingToken, LockBackend, LockKey, OsRng, OwnerId};
use lock_testkit::proxy::Proxy;
use lock_testkit::servers::ZooKeeper;
use lock_zk::ZkBackend;
use zookeeper_client as zk;

/// The session timeout of the tests, and so the ttl of all locks.
pub(crate) const SESSION: Duration = Duration::from_secs(2);
/// What a busy machine may add.
pub(crate) const SLACK: Duration = Duration::from_secs(5);
pub(crate) const CALL: Duration = Duration::from_secs(2);

/// A server of the test's own. A machine without one fails the test: it says which package is
/// missing, and a skip would look like a pass.
pub(crate) async fn server() -> ZooKeeper {
    ZooKeeper::single().await.unwrap()
}

pub(crate) fn url(endpoint: &str) -> String {
    format!("zookeeper://{endpoint}?lock_session_timeout=2s")
}

/// A client of all servers.
pub(crate) async fn backend(servers: &ZooKeeper) -> ZkBackend {
    let hosts = servers.url().trim_start_matches("zookeeper://");
    lock_zk::connect(&url(hosts)).await.unwrap()
}

/// A client of one server alone.
pub(crate) async fn backend_at(servers: &ZooKeeper, member: usize) -> ZkBackend {
    lock_zk::connect(&url(&servers.address(member).unwrap().to_string())).await.unwrap()
}

/// A client behind a proxy.
pub(crate) async fn behind_proxy(servers: &ZooKeeper) -> (ZkBackend, Proxy) {
    let proxy = Proxy::start(servers.address(0).unwrap()).await.unwrap();
    let backend = lock_zk::connect(&url(&proxy.address().to_string())).await.unwrap();
    (backend, proxy)
}

/// A plain client of ZooKeeper, as a program in another language has one.
pub(crate) async fn plain(servers: &ZooKeeper) -> zk::Client {
    let hosts = servers.url().trim_start_matches("zookeeper://");
    zk::Client::connector().with_session_timeout(SESSION * 5).connect(hosts).await.unwrap()
}

/// The nodes in a queue, in no order; none if there is no queue.
pub(crate) async fn children(plain: &zk::Client, name: &str) -> Vec<String> {
    let path = format!("/locks/{name}");
    plain.sync("/").await.unwrap();
    match plain.list_children(&path).await {
        Ok(children) => children,
        Err(zk::Error::NoNode) => Vec::new(),
        Err(error) => panic!("{error}"),
    }
}

pub(crate) fn claim(backend: &impl LockBackend, name: &str, wait: bool) -> Box<dyn Claim> {
    let key = LockKey::new("", name).unwrap();
    let owner = OwnerId::generate(&OsRng).unwrap();
    let ttl = backend.capabilities().min_ttl;
    let request = ClaimRequest::new(key, owner, ttl).with_wait(wait).with_call_timeout(CALL);
    backend.claim(request).unwrap()
}

pub(crate) async fn granted(claim: &mut dyn Claim) -> FencingToken {
    match claim.try_acquire().await.unwrap() {
        Attempt::Granted { token, .. } => token,
        other => panic!("the lock is free, and the answer is {other:?}"),
    }
}

pub(crate) async fn busy(claim: &mut dyn Claim) {
    let answer = claim.try_acquire().await.unwrap();
    assert!(matches!(answer, Attempt::Busy { .. }), "{answer:?}");
}

/// Looks as the core does, until the lock is granted.
pub(crate) async fn acquired(claim: &mut dyn Claim) -> FencingToken {
    let work = async {
        loop {
            match claim.try_acquire().await {
                Ok(Attempt::Granted { token, .. }) => return token,
                Ok(_) => {
                    let _ = tokio::time::timeout(Duration::from_millis(500), claim.changed()).await;
                }
                Err(error) => {
                    assert!(error.is_retryable(), "{error}");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
    };
    tokio::time::timeout(SESSION * 3 + SLACK, work).await.expect("the lock is granted in the end")
}

/// Waits until `done`, which is asked every few milliseconds.
pub(crate) async fn until(
    what: &str,
    limit: Duration,
    mut done: impl AsyncFnMut() -> bool,
) -> Duration {
    let start = tokio::time::Instant::now();
    while !done().await {
        assert!(start.elapsed() < limit, "{what}: not within {limit:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    start.elapsed()
}
