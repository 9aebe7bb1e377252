//! What a client makes of members, leases and runtimes that are of no more use.

use std::time::Duration;

use lock_core::{Attempt, LockBackend, Renewal};
use lock_testkit::servers::EtcdCluster;

use crate::common::{
    backend, busy, claim, granted, keys, one, plain, pushed, quiet, request, soon, told,
};

/// Longer than a restore takes: what the pool holds is not too old.
const LONG: Duration = Duration::from_secs(60);

pub(crate) async fn with_learner() -> EtcdCluster {
    EtcdCluster::builder().learner().start().await.unwrap()
}

/// A learner answers that it serves no such request: it is no worse than a dead member.
pub(crate) async fn a_learner_is_left() {
    let cluster = with_learner().await;
    let (voter, learner) = (cluster.address(0).unwrap(), cluster.address(1).unwrap());
    for url in [format!("etcd://{learner},{voter}"), format!("etcd://{voter},{learner}")] {
        for _ in 0..4 {
            let backend = soon("a connection", lock_etcd::connect(&url)).await.unwrap();
            assert!(format!("{backend:?}").contains(&voter.to_string()), "{backend:?}");
            let mut holder = claim(&backend, "lock", false);
            granted(&mut *holder).await;
            assert!(matches!(holder.renew().await.unwrap(), Renewal::Alive { .. }));
            holder.release().await.unwrap();
        }
    }
    let error = lock_etcd::connect(&format!("etcd://{learner}")).await.unwrap_err();
    assert!(error.is_retryable() && error.to_string().contains("learner"), "{error}");
}

/// After a restore no lease of the pool is there any more. One that is gone shows it of all.
pub(crate) async fn leases_that_a_restore_has_taken_are_not_tried_one_by_one() {
    let cluster = one().await;
    cluster.back_up().await.unwrap();
    let backend = backend(&cluster).await;
    let mut holders = Vec::new();
    for at in 0..12 {
        let mut holder = backend.claim(request(&format!("lock{at}"), LONG)).unwrap();
        granted(&mut *holder).await;
        holders.push(holder);
    }
    for mut holder in holders {
        holder.release().await.unwrap();
    }
    let mut other = plain(&cluster, 0).await;
    assert!(other.leases().await.unwrap().leases().len() >= 12, "a pool of spare leases");
    cluster.restore().await.unwrap();
    soon("a new connection", async { while backend.ping().await.is_err() {} }).await;
    for name in ["first", "second"] {
        granted(&mut *backend.claim(request(name, LONG)).unwrap()).await;
    }
}

/// The runtime that served the watches of a client has ended. Whoever waits on another one is told, and goes
/// on there.
pub(crate) async fn a_waiter_outlives_the_runtime_that_served_it() {
    // It has runtimes of its own.
    tokio::task::spawn_blocking(end_the_runtime_that_serves).await.unwrap();
}

fn end_the_runtime_that_serves() {
    let runtime = || {
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
    };
    let (first, second) = (runtime(), runtime());
    let cluster = second.block_on(one());
    let (shared, mut holder) = second.block_on(async {
        let holders = backend(&cluster).await;
        let mut holder = claim(&holders, "lock", false);
        granted(&mut *holder).await;
        (backend(&cluster).await, holder)
    });
    // A waiter of the first runtime is the first to listen, so the watches are served there.
    let mut early = shared.claim(request("lock", Duration::from_secs(30)).with_wait(true)).unwrap();
    let early = first.block_on(async move {
        busy(&mut *early).await;
        quiet(&mut *early).await;
        early
    });
    let mut waiter = claim(&shared, "lock", true);
    let waiting = second.spawn(async move {
        busy(&mut *waiter).await;
        quiet(&mut *waiter).await;
        // Woken for whatever reason, it looks, and listens again.
        loop {
            told("the place before has gone", &mut *waiter).await;
            if matches!(waiter.try_acquire().await.unwrap(), Attempt::Granted { .. }) {
                return;
            }
        }
    });
    second.block_on(async {
        let mut other = plain(&cluster, 0).await;
        soon("three places", async { while keys(&mut other, "lock/").await.len() < 3 {} }).await;
        tokio::time::sleep(Duration::from_millis(800)).await;
    });
    drop(early);
    first.shutdown_timeout(Duration::from_secs(5));
    second.block_on(async {
        holder.release().await.unwrap();
        let mut other = plain(&cluster, 0).await;
        // The place of the early waiter, whose runtime has ended, is taken away.
        let early = keys(&mut other, "lock/").await.remove(0).0;
        other.delete(early, None).await.unwrap();
        pushed("the waiter has the lock", waiting).await.unwrap();
    });
}
