//! Many waiters and many locks.

#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

mod common;

use std::time::Duration;

use common::{connect, hosts, locks, scenes, server};

/// `cargo test --release -p lock-zk --test queue -- --ignored --nocapture`
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a soak: two thousand waiters"]
async fn a_hand_over_wakes_one_of_two_thousand() {
    scenes::a_hand_over_wakes_one_waiter(2000).await.unwrap();
}

/// All locks of a session are renewed by one transaction.
#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_locks_live_in_one_session() {
    const LOCKS: usize = 1000;
    // So long that a busy machine is in time with its renewals.
    const SESSION: Duration = Duration::from_secs(15);
    let servers = server().await;
    let locks = locks(connect(hosts(&servers), "lock_session_timeout=15s").await, SESSION);
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..LOCKS {
        let lock = locks.named(format!("lock-{n}")).unwrap();
        tasks.spawn(async move { lock.acquire().await.unwrap() });
    }
    let guards = tasks.join_all().await;
    let mut fences: Vec<_> = guards.iter().map(|guard| guard.token().unwrap().get()).collect();
    fences.sort_unstable();
    fences.dedup();
    assert_eq!(fences.len(), LOCKS, "one session, and every lock has a fence of its own");
    tokio::time::sleep(SESSION / 3).await;
    let before = scenes::requests(&servers);
    tokio::time::sleep(SESSION).await;
    let requests = scenes::requests(&servers) - before;
    // A late renewal is no loss.
    let lost: Vec<_> = guards.iter().filter(|guard| guard.token().is_err()).collect();
    assert!(lost.is_empty(), "{} are lost, one of them {:?}", lost.len(), lost[0].state());
    println!("{LOCKS} locks: {requests} requests in {:?}", SESSION);
    // Twenty of them keep the session; the renewals come in a few transactions each third of it.
    assert!(requests < 400, "{requests} requests for {LOCKS} locks in {:?}", SESSION);
    drop(guards);
    locks.close(Duration::from_secs(30)).await.unwrap();
}
