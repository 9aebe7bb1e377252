//! A gRPC proxy of etcd, which numbers watches by itself.

use std::time::Duration;

use lock_core::{Claim, LockBackend, Renewal};
use lock_etcd::EtcdBackend;
use lock_testkit::servers::{EtcdCluster, GrpcProxy};

use crate::common::{
    LONG, busy, claim, granted, keys, must_eq, one, plain, quiet, request, soon, told,
};

/// A client of the proxy, whose watches have other numbers there than they would have had with
/// numbers of the client.
async fn behind_a_proxy() -> (EtcdCluster, GrpcProxy, EtcdBackend) {
    let cluster = one().await;
    let proxy = GrpcProxy::start(cluster.address(0).unwrap()).await.unwrap();
    let backend = lock_etcd::connect(&format!("etcd://{}", proxy.address())).await.unwrap();
    (cluster, proxy, backend)
}

/// Those of "a", "b" and "c", which hear of nothing yet.
async fn holders(backend: &EtcdBackend) -> Vec<Box<dyn Claim>> {
    let mut holders = Vec::new();
    for name in ["a", "b", "c"] {
        let mut holder = backend.claim(request(name, LONG)).unwrap();
        granted(&mut *holder).await;
        quiet(&mut *holder).await;
        holders.push(holder);
    }
    holders
}

/// The release of one lock is no loss of another.
pub(crate) async fn a_release_behind_a_proxy_ends_no_other_hold() {
    let (_cluster, _proxy, backend) = behind_a_proxy().await;
    let mut holders = holders(&backend).await;
    holders.remove(1).release().await.unwrap();
    for holder in &mut holders {
        quiet(&mut **holder).await;
    }
}

/// A holder hears of its own loss.
pub(crate) async fn a_holder_behind_a_proxy_hears_of_its_loss() {
    let (cluster, _proxy, backend) = behind_a_proxy().await;
    let other = plain(&cluster, 0);
    let mut holders = holders(&backend).await;
    for (holder, name) in holders.iter_mut().zip(["a/", "b/", "c/"]).rev() {
        other.delete(&keys(&other, name).await[0].0).await;
        told("its key has gone", &mut **holder).await;
        must_eq!(holder.renew().await.unwrap(), Renewal::Lost);
    }
}

/// An old copy of the store is put back, in which the lease is and the key is not. The proxy ends its
/// watch streams when it loses the leader, as a member does when it stops.
pub(crate) async fn a_holder_behind_a_proxy_looks_after_a_restore() {
    let (cluster, _proxy, backend) = behind_a_proxy().await;
    let other = plain(&cluster, 0);
    let mut first = claim(&backend, "lock", false);
    granted(&mut *first).await;
    let mut holder = backend.claim(request("lock", LONG)).unwrap();
    busy(&mut *holder).await;
    first.release().await.unwrap();
    cluster.back_up().await.unwrap();
    soon("an answer", async { while backend.ping().await.is_err() {} }).await;
    soon("the lock", async { while holder.try_acquire().await.is_err() {} }).await;
    let lease = keys(&other, "lock/").await[0].1;
    for _ in 0..5 {
        other.put("noise", "").await;
    }
    let _ = tokio::time::timeout(Duration::from_millis(300), holder.changed()).await;
    assert!(matches!(holder.renew().await, Ok(Renewal::Alive { .. })), "it holds the lock");
    cluster.restore().await.unwrap();
    assert_eq!(keys(&other, "lock/").await, [], "the copy has no such key");
    assert!(other.left(lease).await > 0, "a lease that is not copied");
    // The proxy has found the store again before the client asks anything.
    tokio::time::sleep(Duration::from_secs(4)).await;
    let answer = soon("a renewal", async {
        loop {
            if let Ok(answer) = holder.renew().await {
                return answer;
            }
        }
    });
    must_eq!(answer.await, Renewal::Lost);
}
