//! Faults that only etcd has, and those of a cluster.

use std::time::Duration;

use conformance_tests::server::Proxy;
use lock_core::{ErrorKind, LockGuard, LockState, Locks, Result};
use lock_testkit::assert_exactly;
use lock_testkit::hammer::Hammer;
use lock_testkit::servers::EtcdCluster;
use tokio::task::JoinHandle;

use crate::common::{
    LONG, PASSWORD, backend, claim, granted, guarded, keys, locks_from, one, plain, pushed,
    renewed, soon, three,
};

crate::common::run! {
    a_waiter_sees_that_its_own_place_has_gone
    a_waiter_looks_before_it_believes
    a_waiter_looks_after_a_compaction
    a_foreign_queue_below_ours_blocks_nobody
    every_claim_has_a_lease_of_its_own
    a_key_that_is_no_text_is_waited_for
    locks_are_listed_beside_large_values
    a_watch_is_not_refused_unnoticed
    a_stream_that_breaks_twice_hides_nothing
    a_holder_looks_although_its_watch_stands
    a_renewal_needs_to_see_the_key
    a_check_does_not_believe_a_member_that_is_cut_off
    a_check_loses_nothing_to_a_member_that_is_behind
    a_release_behind_a_proxy_ends_no_other_hold
    a_holder_behind_a_proxy_hears_of_its_loss
    a_holder_behind_a_proxy_looks_after_a_restore
    a_lease_that_has_ended_is_enough_to_know
    a_release_leaves_what_others_have_written
    an_answer_counts_from_its_own_request
    an_altered_token_touches_no_lease
    a_true_token_releases_at_once
    a_place_that_waits_is_no_hold
    a_token_is_refused_where_the_lease_is_another
    a_check_after_an_unknown_try_asks_the_store
    a_release_after_an_unknown_try_says_what_has_become_of_the_lock
    a_check_before_the_try_arrives_settles_nothing
    a_shared_watch_hides_nothing
    a_place_is_not_lost_with_the_one_before
    a_release_hands_the_lock_to_the_next
    a_restored_snapshot_is_no_proof
    a_restored_snapshot_hides_no_loss
    the_look_that_shows_a_restore_is_followed_by_watches
    a_holder_in_a_long_queue_tells_the_next_of_another_client
    a_release_proves_no_place_that_others_have_written
    a_proof_that_nobody_took_is_not_believed_later
    a_release_that_stands_still_keeps_nobody_waiting
}

/// Holds a lock through `disturb`, with one waiter behind it, on clients that begin with different
/// members. The holder must still hold afterwards, and the hand-over must work.
async fn holds_through<F: Future<Output = ()>>(
    cluster: &EtcdCluster,
    holder_at: usize,
    disturb: impl FnOnce() -> F,
) {
    let ttl = Duration::from_secs(15);
    let (a, b) =
        (locks_from(cluster, holder_at).await, locks_from(cluster, (holder_at + 1) % 3).await);
    let guard = a.named("lock").unwrap().ttl(ttl).acquire().await.unwrap();
    let fence = guard.token().unwrap();
    let lock = b.named("lock").unwrap().ttl(ttl);
    let waiting = tokio::spawn(async move { lock.acquire().await });
    tokio::time::sleep(Duration::from_millis(300)).await;
    disturb().await;
    // Longer than a ttl: the renewals have got through.
    tokio::time::sleep(ttl + Duration::from_secs(1)).await;
    assert!(!matches!(guard.state(), LockState::Lost(_)), "{:?}", guard.state());
    let waiting = still_waiting(waiting).await;
    assert_eq!(guard.token().unwrap(), fence);
    // A reply may be lost in an election; the clean-up continues in the background.
    let next = match guard.release().await {
        Ok(_) => pushed("the hand-over", waiting).await,
        Err(_) => soon("the hand-over", waiting).await,
    };
    let next = next.unwrap().unwrap();
    assert_exactly!(next.token().unwrap() > fence, "a fence falls: {next:?}");
}

/// The lock is held, so whoever waits for it waits.
async fn still_waiting(waiting: JoinHandle<Result<LockGuard>>) -> JoinHandle<Result<LockGuard>> {
    if !waiting.is_finished() {
        return waiting;
    }
    match waiting.await.unwrap() {
        Ok(guard) => {
            panic!("violated: two holders: the waiter was granted a lock that is held: {guard:?}")
        }
        Err(error) => panic!("the wait has ended: {error}"),
    }
}

async fn the_leader_dies() {
    let cluster = three().await;
    let leader = cluster.leader().await.unwrap();
    holds_through(&cluster, leader, || async { cluster.kill(leader).unwrap() }).await;
}

async fn the_leader_is_stopped() {
    let cluster = three().await;
    let leader = cluster.leader().await.unwrap();
    holds_through(&cluster, leader, || async { cluster.freeze(leader).unwrap() }).await;
    cluster.thaw(leader).unwrap();
}

async fn the_leader_is_moved() {
    let cluster = three().await;
    let leader = cluster.leader().await.unwrap();
    holds_through(&cluster, leader, || async {
        for to in 1..=3 {
            cluster.move_leader((leader + to) % 3).await.unwrap();
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    })
    .await;
}

/// The member that the holder talks to is cut off from the others, and still answers the holder.
async fn the_member_is_cut_off(leads: bool) {
    let cluster = three().await;
    let leader = cluster.leader().await.unwrap();
    let member = if leads { leader } else { (leader + 1) % 3 };
    holds_through(&cluster, member, || async { cluster.cut_off(member).unwrap() }).await;
}

/// The member that the holder talks to is removed from the cluster, reports it, and stops.
async fn the_member_is_removed() {
    let cluster = three().await;
    let leader = cluster.leader().await.unwrap();
    let member = (leader + 1) % 3;
    let (_, id) = plain(&cluster, member).status().await;
    let other = plain(&cluster, leader);
    holds_through(&cluster, member, || async {
        // A cluster is healthy when its members have been connected for a while.
        soon("the removal", async {
            while other.member_remove(&id).await.is_err() {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        })
        .await;
    })
    .await;
}

/// As operators do it for a new version of the server.
#[tokio::test]
async fn a_holder_outlives_a_rolling_restart() {
    let cluster = three().await;
    let (a, b) = (locks_from(&cluster, 0).await, locks_from(&cluster, 1).await);
    let guard = a.named("lock").unwrap().ttl(LONG).acquire().await.unwrap();
    let fence = guard.token().unwrap();
    let lock = b.named("lock").unwrap().ttl(LONG);
    let waiting = tokio::spawn(async move { lock.acquire().await });
    tokio::time::sleep(Duration::from_millis(300)).await;
    for member in 0..3 {
        cluster.restart(member).await.unwrap();
        // The cluster serves again before the next one is restarted.
        renewed(&guard).await;
    }
    let waiting = still_waiting(waiting).await;
    assert_eq!(guard.token().unwrap(), fence);
    let _ = guard.release().await;
    let next = soon("the hand-over", waiting).await.unwrap().unwrap();
    assert_exactly!(next.token().unwrap() > fence, "a fence falls: {next:?}");
}

/// Four clients take a lock in a loop, each over a member of its own.
async fn hammered(cluster: &EtcdCluster) -> Hammer {
    let mut clients = Vec::new();
    for member in [0, 1, 2, 0] {
        clients.push(locks_from(cluster, member).await);
    }
    let hammer = Hammer::start(clients, Duration::from_secs(10));
    hammer.take(20).await;
    hammer
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rolling_restart_under_load_breaks_no_promise() {
    let cluster = three().await;
    let hammer = hammered(&cluster).await;
    for member in 0..3 {
        cluster.restart(member).await.unwrap();
        hammer.take(20).await;
    }
    hammer.goes_on().await;
}

/// As operators replace a machine: its member is removed, and the cluster gets a new one without data.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_is_replaced_under_load_breaks_no_promise() {
    let cluster = three().await;
    let hammer = hammered(&cluster).await;
    let leader = cluster.leader().await.unwrap();
    for member in [(leader + 1) % 3, leader] {
        cluster.replace(member).await.unwrap();
        hammer.take(20).await;
    }
    hammer.goes_on().await;
}

/// At the same time, since most of it is waiting.
#[tokio::test]
async fn a_holder_outlives_what_befalls_the_leader() {
    tokio::join!(the_leader_dies(), the_leader_is_stopped(), the_leader_is_moved());
}

#[tokio::test]
async fn a_holder_leaves_a_member_that_is_of_no_use() {
    tokio::join!(
        the_member_is_cut_off(false),
        the_member_is_cut_off(true),
        the_member_is_removed()
    );
}

/// A client that knows no other member than the one that is cut off learns of its loss in time, and
/// the next one is granted only after that.
#[tokio::test]
async fn a_client_of_a_member_that_is_cut_off_loses_before_the_next_one_gets() {
    let cluster = three().await;
    let member = (cluster.leader().await.unwrap() + 1) % 3;
    let alone = format!("etcd://{}", cluster.address(member).unwrap());
    let a = Locks::new(lock_etcd::connect(&alone).await.unwrap());
    let b = locks_from(&cluster, (member + 1) % 3).await;
    let ttl = Duration::from_secs(3);
    let guard = a.named("lock").unwrap().ttl(ttl).acquire().await.unwrap();
    let lock = b.named("lock").unwrap().ttl(ttl);
    let waiting = tokio::spawn(async move { lock.acquire().await });
    tokio::time::sleep(Duration::from_millis(200)).await;
    cluster.cut_off(member).unwrap();
    let next = soon("the next holder", waiting).await.unwrap().unwrap();
    assert_exactly!(
        matches!(guard.state(), LockState::Lost(_)),
        "two guards hold: {:?}",
        guard.state()
    );
    drop(next);
}

#[tokio::test]
async fn with_all_members_down_a_call_says_so_within_its_deadline() {
    let cluster = EtcdCluster::builder().members(3).start().await.unwrap();
    let locks = locks_from(&cluster, 0).await;
    let guard = locks.named("held").unwrap().ttl(Duration::from_secs(3)).acquire().await.unwrap();
    for member in 0..3 {
        cluster.kill(member).unwrap();
    }
    let limit = Duration::from_secs(4);
    let start = tokio::time::Instant::now();
    let error = locks.named("lock").unwrap().acquire_timeout(limit).await.unwrap_err();
    assert!(start.elapsed() < limit + Duration::from_secs(2), "{:?}", start.elapsed());
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("cannot be reached"), "{error}");
    soon("the loss of what was held", guard.lost().wait()).await;
    let error = lock_etcd::connect(cluster.url()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    cluster.restart_all().await.unwrap();
    let again = soon("the lock afterwards", locks.named("held").unwrap().acquire()).await.unwrap();
    again.release().await.unwrap();
}

/// Loses the reply to the k-th request, for every k in the life of a waiter.
#[tokio::test]
async fn a_lost_answer_at_every_step_of_a_wait_leaves_nothing() {
    let cluster = one().await;
    let proxy = Proxy::start_http2(cluster.address(0).unwrap()).await.unwrap();
    let url = format!("etcd://{}", proxy.address());
    let other = plain(&cluster, 0);
    let holders = backend(&cluster).await;
    for step in 1..=12 {
        let mut holder = claim(&holders, "lock", false);
        let fence = granted(&mut *holder).await;
        let locks = Locks::new(lock_etcd::connect(&url).await.unwrap());
        proxy.cut_before_reply(step);
        let lock = locks.named("lock").unwrap().ttl(Duration::from_secs(30));
        let waiting = tokio::spawn(async move { lock.acquire().await });
        soon("the waiter has a place", async {
            while keys(&other, "lock/").await.len() < 2 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        if waiting.is_finished() {
            let granted = waiting.await.unwrap().unwrap();
            panic!("violated: two holders: step {step}: granted a lock that is held: {granted:?}");
        }
        holder.release().await.unwrap();
        let guard = pushed("the hand-over", waiting).await.unwrap().unwrap();
        assert_exactly!(guard.token().unwrap() > fence, "step {step}: a fence falls");
        let _ = guard.renew().await;
        let _ = guard.release().await;
        proxy.pass();
        soon("nothing is left", async {
            while !keys(&other, "lock/").await.is_empty() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await;
    }
}

/// A user whose auth token expires carries on: for requests, keep-alives and watches alike.
#[tokio::test]
async fn a_token_that_runs_out_is_renewed() {
    let (cluster, _root, with_user) = guarded(&[("auth-token-ttl", "1")]).await;
    let address = cluster.address(0).unwrap();
    let (a, b) = (
        Locks::new(lock_etcd::connect(&with_user).await.unwrap()),
        Locks::new(lock_etcd::connect(&with_user).await.unwrap()),
    );
    let ttl = Duration::from_secs(9);
    let guard = a.named("lock").unwrap().ttl(ttl).acquire().await.unwrap();
    let lock = b.named("lock").unwrap().ttl(ttl);
    let waiting = tokio::spawn(async move { lock.acquire().await });
    // Longer than many tokens, and than the lock would last without its renewals.
    tokio::time::sleep(ttl + Duration::from_secs(1)).await;
    assert!(!matches!(guard.state(), LockState::Lost(_)), "{:?}", guard.state());
    guard.release().await.unwrap();
    let next = pushed("the hand-over", waiting).await.unwrap().unwrap();
    tokio::time::sleep(Duration::from_millis(2500)).await;
    a.named("another").unwrap().acquire().await.unwrap().release().await.unwrap();
    next.release().await.unwrap();

    let outside =
        Locks::new(lock_etcd::connect(&format!("etcd://app:{PASSWORD}@{address}")).await.unwrap());
    let error = outside.named("lock").unwrap().try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    for url in [format!("etcd://app:wrong-{PASSWORD}@{address}"), format!("etcd://{address}")] {
        let error = lock_etcd::connect(&url).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        assert!(!format!("{error} {error:?}").contains(PASSWORD), "{error}");
    }
}

/// The users are switched off, as for maintenance, and on again. Clients connect again meanwhile.
#[tokio::test]
async fn a_holder_outlives_the_end_of_authentication() {
    let (cluster, root, with_user) = guarded(&[]).await;
    let locks = Locks::new(lock_etcd::connect(&with_user).await.unwrap());
    let ttl = Duration::from_secs(6);
    let guard = locks.named("lock").unwrap().ttl(ttl).acquire().await.unwrap();
    root.auth_disable().await;
    cluster.restart(0).await.unwrap();
    tokio::time::sleep(ttl + Duration::from_secs(1)).await;
    assert!(!matches!(guard.state(), LockState::Lost(_)), "{:?}", guard.state());
    locks.named("another").unwrap().acquire().await.unwrap().release().await.unwrap();
    plain(&cluster, 0).auth_enable().await;
    let again = soon("a lock", locks.named("another").unwrap().acquire()).await.unwrap();
    again.release().await.unwrap();
    guard.release().await.unwrap();
}
