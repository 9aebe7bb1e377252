//! How a client treats members, leases and runtimes that are no longer usable.

use std::time::Duration;

use lock_core::{Attempt, LockBackend, Renewal};
use lock_testkit::servers::EtcdCluster;

use crate::common::{
    LONG, backend, busy, claim, granted, keys, must, one, plain, quiet, request, soon, told,
    unless_refused,
};

pub(crate) async fn with_learner() -> EtcdCluster {
    EtcdCluster::builder().learner().start().await.unwrap()
}

/// A learner answers that it serves no such request: it is no worse than a dead member.
pub(crate) async fn a_learner_is_left() {
    let cluster = with_learner().await;
    let (voter, learner) = (cluster.address(0).unwrap(), cluster.address(1).unwrap());
    for url in [format!("etcd://{learner},{voter}"), format!("etcd://{voter},{learner}")] {
        for _ in 0..8 {
            let connected = soon("a connection", lock_etcd::connect(&url)).await;
            let backend = unless_refused(connected, "learner");
            must!(format!("{backend:?}").contains(&voter.to_string()), "{backend:?}");
            let mut holder = claim(&backend, "lock", false);
            granted(&mut *holder).await;
            must!(matches!(holder.renew().await.unwrap(), Renewal::Alive { .. }));
            holder.release().await.unwrap();
        }
    }
    let error = lock_etcd::connect(&format!("etcd://{learner}")).await.unwrap_err();
    must!(error.is_retryable() && error.to_string().contains("learner"), "{error}");
}

/// After a restore no lease of the pool exists. One missing lease shows that all are.
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
    let other = plain(&cluster, 0);
    assert!(other.leases().await.len() >= 12, "a pool of spare leases");
    cluster.restore().await.unwrap();
    // Nothing but the missing lease shows what has happened.
    let mut first = backend.claim(request("first", LONG)).unwrap();
    soon("a new connection", async {
        while let Err(error) = first.try_acquire().await {
            must!(!error.to_string().contains("in a row"), "one by one: {error}");
        }
    })
    .await;
    granted(&mut *backend.claim(request("second", LONG)).unwrap()).await;
}

/// The runtime that served the watches of a client has ended, or is no longer driven. Waiters on
/// another one are still woken.
pub(crate) async fn a_waiter_outlives_the_runtime_that_served_it() {
    for ends in [true, false] {
        // It has its own runtimes.
        let scene = move || wait_beside_another_runtime(ends);
        if let Err(broken) = tokio::task::spawn_blocking(scene).await {
            std::panic::resume_unwind(broken.into_panic());
        }
    }
}

fn wait_beside_another_runtime(ends: bool) {
    let (first, second) = (runtime(), runtime());
    let cluster = second.block_on(one());
    let (shared, mut holder) = second.block_on(async {
        let (holders, shared) = (backend(&cluster).await, backend(&cluster).await);
        let mut holder = claim(&holders, "lock", false);
        granted(&mut *holder).await;
        (shared, holder)
    });
    // A waiter of the first runtime is the first to listen.
    let mut early = claim(&shared, "lock", true);
    first.block_on(async {
        busy(&mut *early).await;
        quiet(&mut *early).await;
    });
    let mut waiter = claim(&shared, "lock", true);
    second.block_on(async {
        busy(&mut *waiter).await;
        quiet(&mut *waiter).await;
    });
    // It ends here, or stands still.
    let standing = (!ends).then_some(first);
    second.block_on(async {
        // Both have places before it, and go.
        let other = plain(&cluster, 0);
        let place = keys(&other, "lock/").await.remove(1).0;
        holder.release().await.unwrap();
        other.delete(&place).await;
        // Woken for whatever reason, it looks, and listens again.
        loop {
            told("the places before have gone", &mut *waiter).await;
            if matches!(waiter.try_acquire().await.unwrap(), Attempt::Granted { .. }) {
                break;
            }
        }
        if ends {
            // So does a claim that has moved from the one to the other.
            told("its own place has gone", &mut *early).await;
            busy(&mut *early).await;
            quiet(&mut *early).await;
            waiter.release().await.unwrap();
            told("the lock is free", &mut *early).await;
            granted(&mut *early).await;
        }
    });
    drop(standing);
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}
