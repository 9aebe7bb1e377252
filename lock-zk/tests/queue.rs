//! Many waiters and many locks.

#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

mod common;

use std::time::Duration;

use common::{SESSION, backend, scenarios, server};
use lock_core::{LockState, Locks};

#[tokio::test(flavor = "multi_thread")]
async fn a_hand_over_wakes_one_waiter() {
    scenarios::a_hand_over_wakes_one_waiter(100).await.unwrap();
}

/// `cargo test --release -p lock-zk --test queue -- --ignored --nocapture`
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a soak: a thousand waiters"]
async fn a_hand_over_wakes_one_of_a_thousand() {
    scenarios::a_hand_over_wakes_one_waiter(1000).await.unwrap();
}

/// All locks of a session are renewed by one transaction.
#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_locks_live_in_one_session() {
    const LOCKS: usize = 1000;
    let servers = server().await;
    let locks = Locks::builder(backend(&servers).await).default_ttl(SESSION).build();
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..LOCKS {
        let lock = locks.lock(format!("lock-{n}")).unwrap();
        tasks.spawn(async move { lock.acquire().await.unwrap() });
    }
    let guards = tasks.join_all().await;
    let mut fences: Vec<_> = guards.iter().map(|guard| guard.token().unwrap().get()).collect();
    fences.sort_unstable();
    fences.dedup();
    assert_eq!(fences.len(), LOCKS, "one session, and every lock has a fence of its own");
    tokio::time::sleep(SESSION).await;
    let received = || -> u64 {
        let answer = servers.ask(0, "srvr").unwrap();
        answer
            .lines()
            .find_map(|line| line.strip_prefix("Received: ")?.trim().parse().ok())
            .unwrap()
    };
    let before = received();
    let periods = 2;
    tokio::time::sleep(SESSION * periods).await;
    let requests = received() - before;
    for guard in &guards {
        assert_eq!(guard.state(), LockState::Held);
        assert!(guard.remaining() > Duration::ZERO);
    }
    println!("{LOCKS} locks: {requests} requests in {:?}", SESSION * periods);
    // Twenty of them keep the session; the renewals come in a few transactions each third of it.
    assert!(requests < 400, "{requests} requests for {LOCKS} locks in {:?}", SESSION * periods);
    drop(guards);
    locks.close(Duration::from_secs(30)).await.unwrap();
}
