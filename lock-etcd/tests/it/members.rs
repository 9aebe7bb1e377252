//! Which member a client talks to, and how it treats unusable members.

use std::collections::HashSet;
use std::time::Duration;

use lock_core::{LockBackend, LockState, Locks};
use lock_testkit::scenes;

use crate::common::{LONG, backend, pushed, renewed, request, soon, starting_at, three};

crate::common::run! {
    a_learner_is_left
    leases_that_a_restore_has_taken_are_not_tried_one_by_one
    a_waiter_outlives_the_runtime_that_served_it
}

/// While the voter is away the client tries the learner; afterwards it returns, including its
/// streams.
#[tokio::test]
async fn a_restart_of_the_voter_strands_nobody() {
    let cluster = crate::scenarios::with_learner().await;
    let voter = cluster.address(0).unwrap().to_string();
    let (a, b) =
        (starting_at(cluster.url(), &voter).await, starting_at(cluster.url(), &voter).await);
    let locks = (Locks::new(a), Locks::new(b));
    let ttl = Duration::from_secs(20);
    let guard = locks.0.named("lock").unwrap().ttl(ttl).acquire().await.unwrap();
    let lock = locks.1.named("lock").unwrap().ttl(ttl);
    let waiting = tokio::spawn(async move { lock.acquire().await });
    tokio::time::sleep(Duration::from_millis(300)).await;
    cluster.kill(0).unwrap();
    // Long enough for every stream to have met the learner.
    tokio::time::sleep(Duration::from_secs(2)).await;
    cluster.restart(0).await.unwrap();
    renewed(&guard).await;
    assert!(!matches!(guard.state(), LockState::Lost(_)), "{:?}", guard.state());
    tokio::time::sleep(Duration::from_secs(2)).await;
    guard.release().await.unwrap();
    pushed("the hand-over", waiting).await.unwrap().unwrap().release().await.unwrap();
}

/// A probe has less patience than a request of its own has time, and is dropped.
#[tokio::test]
async fn a_probe_gets_away_from_a_member_that_is_frozen() {
    let cluster = three().await;
    let frozen = (cluster.leader().await.unwrap() + 1) % 3;
    let probed = starting_at(cluster.url(), &cluster.address(frozen).unwrap().to_string()).await;
    cluster.freeze(frozen).unwrap();
    let mut tries = 0..8;
    let probe = || tokio::time::timeout(Duration::from_millis(500), probed.ping());
    while !matches!(probe().await, Ok(Ok(()))) {
        assert!(tries.next().is_some(), "it stays with a member that is frozen");
    }
    cluster.thaw(frozen).unwrap();
}

/// A thousand clients that all begin with the first member would load it alone.
#[tokio::test]
async fn clients_begin_with_different_members() {
    let cluster = three().await;
    let mut seen = HashSet::new();
    soon("each member is begun with", async {
        while seen.len() < 3 {
            let backend = lock_etcd::connect(cluster.url()).await.unwrap();
            let shown = format!("{backend:?}");
            let at = (0..3).find(|at| shown.contains(&cluster.address(*at).unwrap().to_string()));
            seen.insert(at.unwrap());
        }
    })
    .await;
}

/// Keep-alives that share a stream are served by one runtime each.
#[tokio::test]
async fn renewals_go_on_beside_a_runtime_that_has_ended() {
    let cluster = three().await;
    let backend = backend(&cluster).await;
    let claim = |name: &str| backend.claim(request(name, LONG)).unwrap();
    scenes::renewals_survive_the_end_and_the_standstill_of_another_runtime(claim).await;
}
