//! What the tests of this crate share.

#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]
#![allow(dead_code, reason = "each test target uses a part of it")]

use std::time::Duration;

use conformance_tests::servers::EtcdCluster;
use etcd_client::{Client, GetOptions};
use lock_core::{
    Attempt, Claim, ClaimRequest, FencingToken, LockBackend, LockKey, Locks, OsRng, OwnerId,
};
use lock_etcd::EtcdBackend;

/// Far above what anything here takes; only a defect meets it.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// A server of the test's own. A machine without one fails the test: it says which package is
/// missing, and a skip would look like a pass.
pub(crate) async fn one() -> EtcdCluster {
    EtcdCluster::builder().start().await.unwrap()
}

/// Three members, whose elections take about a second.
pub(crate) async fn three() -> EtcdCluster {
    EtcdCluster::builder().members(3).cuttable().start().await.unwrap()
}

pub(crate) async fn backend(cluster: &EtcdCluster) -> EtcdBackend {
    lock_etcd::connect(cluster.url()).await.unwrap()
}

pub(crate) async fn locks(cluster: &EtcdCluster) -> Locks {
    Locks::new(backend(cluster).await)
}

/// The URL of the cluster with `member` first: a client begins with it.
pub(crate) fn url_from(cluster: &EtcdCluster, member: usize) -> String {
    let count = cluster.members();
    let members = (0..count).map(|at| cluster.address((member + at) % count).unwrap().to_string());
    format!("etcd://{}", members.collect::<Vec<_>>().join(","))
}

/// Waits for an election to end.
pub(crate) async fn locks_from(cluster: &EtcdCluster, member: usize) -> Locks {
    let url = url_from(cluster, member);
    soon("a connection", async {
        loop {
            match lock_etcd::connect(&url).await {
                Ok(backend) => return Locks::new(backend),
                Err(error) => assert!(error.is_retryable(), "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await
}

/// A plain client of one member.
pub(crate) async fn plain(cluster: &EtcdCluster, member: usize) -> Client {
    let address = cluster.address(member).unwrap();
    Client::connect([format!("http://{address}")], None).await.unwrap()
}

pub(crate) fn request(name: &str, ttl: Duration) -> ClaimRequest {
    let key = LockKey::new("", name).unwrap();
    let owner = OwnerId::generate(&OsRng).unwrap();
    ClaimRequest::new(key, owner, ttl).with_call_timeout(Duration::from_secs(2))
}

pub(crate) fn claim(backend: &impl LockBackend, name: &str, wait: bool) -> Box<dyn Claim> {
    backend.claim(request(name, Duration::from_secs(10)).with_wait(wait)).unwrap()
}

pub(crate) async fn granted(claim: &mut dyn Claim) -> FencingToken {
    match claim.try_acquire().await.unwrap() {
        Attempt::Granted { token, .. } => token,
        other => panic!("the lock is free, and the answer is {other:?}"),
    }
}

pub(crate) async fn busy(claim: &mut dyn Claim) {
    let answer = claim.try_acquire().await.unwrap();
    assert!(matches!(answer, Attempt::Busy { .. }), "somebody else holds the lock: {answer:?}");
}

/// All keys under `prefix`, the oldest first, each with its lease.
pub(crate) async fn keys(client: &mut Client, prefix: &str) -> Vec<(String, i64)> {
    let answer = client.get(prefix, Some(GetOptions::new().with_prefix())).await.unwrap();
    let mut found = answer.kvs().to_vec();
    found.sort_by_key(etcd_client::KeyValue::create_revision);
    found.iter().map(|kv| (kv.key_str().unwrap().to_owned(), kv.lease())).collect()
}

pub(crate) async fn revision(client: &mut Client) -> i64 {
    client.get("any", None).await.unwrap().header().unwrap().revision()
}

pub(crate) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(LIMIT, future).await {
        Ok(value) => value,
        Err(_) => panic!("not within {LIMIT:?}: {what}"),
    }
}
