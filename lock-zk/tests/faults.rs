//! Servers that die, stop, or fall silent.

#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

mod common;

use std::time::Duration;

use common::{SESSION, SLACK, backend, children, plain, server, until};
use lock_core::{LockState, Locks, LostReason};
use lock_testkit::proxy::Proxy;
use lock_testkit::servers::ZooKeeper;

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_server_that_comes_back_in_time_costs_no_lock() {
    let servers = server().await;
    let url = format!("{}?lock_session_timeout=40s", servers.url());
    let locks = Locks::builder(lock_zk::connect(&url).await.unwrap());
    let locks = locks.default_ttl(Duration::from_secs(40)).build().unwrap();
    let guard = locks.named("lock").unwrap().acquire().await.unwrap();
    let waiting = locks.named("lock").unwrap();
    let waiting = tokio::spawn(async move { waiting.acquire().await });
    tokio::time::sleep(Duration::from_millis(200)).await;
    servers.restart().await.unwrap();
    // The client's pauses between two attempts to connect double without an end.
    let patience = Duration::from_secs(18);
    until("the lock is confirmed", patience, async || guard.check().await.is_ok()).await;
    until("it is renewed", SLACK, async || guard.renew().await.is_ok()).await;
    let fence = guard.token().unwrap();
    guard.release().await.unwrap();
    let next = tokio::time::timeout(SLACK, waiting).await.unwrap().unwrap().unwrap();
    assert!(next.token().unwrap() > fence, "the waiter's watch has survived the restart");
    next.release().await.unwrap();
}

/// The server is stopped for longer than the session timeout, and goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_stopped_for_longer_than_the_session_ends_it() {
    let servers = server().await;
    let locks = Locks::builder(backend(&servers).await).default_ttl(SESSION).build().unwrap();
    let guard = locks.named("lock").unwrap().acquire().await.unwrap();
    let other = locks.named("other").unwrap().acquire().await.unwrap();
    let fence = guard.token().unwrap();
    servers.freeze().unwrap();
    let reason = tokio::time::timeout(SESSION + SLACK, guard.lost().wait()).await.unwrap();
    assert_eq!(reason, LostReason::Expired, "the guard has counted down by itself");
    tokio::time::sleep(SESSION).await;
    servers.thaw().unwrap();
    // The same client goes on, with a new session.
    let again = tokio::time::timeout(SESSION + SLACK, async {
        locks.named("lock").unwrap().acquire().await
    });
    let again = again.await.unwrap().unwrap();
    assert!(again.token().unwrap() > fence);
    assert!(matches!(other.state(), LockState::Lost(_)), "all locks of the session are lost");
    assert_eq!(guard.state(), LockState::Lost(LostReason::Expired), "the reason stays");
    again.release().await.unwrap();
}

/// An ensemble, a client of all its servers, and a session that outlasts an election.
async fn ensemble() -> (ZooKeeper, Vec<Proxy>, Locks) {
    let servers = ZooKeeper::ensemble().await.unwrap();
    let mut proxies = Vec::new();
    for member in 0..servers.len() {
        proxies.push(Proxy::start(servers.address(member).unwrap()).await.unwrap());
    }
    let hosts: Vec<_> = proxies.iter().map(|proxy| proxy.address().to_string()).collect();
    let url = format!("zookeeper://{}?lock_session_timeout=12s", hosts.join(","));
    let backend = lock_zk::connect(&url).await.unwrap();
    let locks = Locks::builder(backend).default_ttl(Duration::from_secs(12)).build().unwrap();
    (servers, proxies, locks)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_leader_costs_no_lock() {
    let (servers, _proxies, locks) = ensemble().await;
    let guard = locks.named("lock").unwrap().acquire().await.unwrap();
    let fence = guard.token().unwrap();
    let leader = servers.leader().unwrap();
    servers.kill_one(leader).unwrap();
    // A write goes through the new leader.
    until("a renewal is answered", SLACK * 2, async || guard.renew().await.is_ok()).await;
    assert_eq!(guard.token().unwrap(), fence);
    assert_ne!(servers.leader().unwrap(), leader);
    guard.release().await.unwrap();
    let next = locks.named("lock").unwrap().acquire().await.unwrap();
    assert!(next.token().unwrap() > fence, "the fence rises over a change of the leader");
    next.release().await.unwrap();
}

/// The leader dies under a queue, and under those who are just about to enter it.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_leader_loses_no_place_in_the_queue() {
    let (servers, _proxies, locks) = ensemble().await;
    let holder = locks.named("lock").unwrap().acquire().await.unwrap();
    let mut last = holder.token().unwrap();
    let (served, mut serving) = tokio::sync::mpsc::unbounded_channel();
    let enter = |n: u32| {
        let (lock, served) = (locks.named("lock").unwrap(), served.clone());
        tokio::spawn(async move {
            let guard = lock.acquire_timeout(Duration::from_secs(60)).await;
            let _ = served.send((n, guard));
        })
    };
    let outside = plain(&servers).await;
    for n in 0..4_usize {
        enter(u32::try_from(n).unwrap());
        until("it waits", SLACK, async || children(&outside, "lock").await.len() == n + 2).await;
    }
    drop(outside);
    for n in 4..8 {
        enter(n);
    }
    let leader = servers.leader().unwrap();
    servers.kill_one(leader).unwrap();
    enter(8);
    until("a renewal is answered", SLACK * 2, async || holder.renew().await.is_ok()).await;
    let plain = plain(&servers).await;
    until("all wait", SLACK * 2, async || children(&plain, "lock").await.len() == 10).await;
    holder.release().await.unwrap();
    for turn in 0..9 {
        let next = tokio::time::timeout(SLACK * 2, serving.recv()).await.unwrap().unwrap();
        let (n, guard) = (next.0, next.1.unwrap());
        assert!(turn >= 4 || n == turn, "{n} was served in turn {turn}");
        assert!(guard.token().unwrap() > last);
        last = guard.token().unwrap();
        guard.release().await.unwrap();
    }
    until("nothing is left", SLACK, async || children(&plain, "lock").await.is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_server_is_left_for_another_one() {
    let (_servers, proxies, locks) = ensemble().await;
    let guard = locks.named("lock").unwrap().acquire().await.unwrap();
    // The one that is in use is not known, so all present connections fall silent.
    for proxy in &proxies {
        proxy.stall_present();
    }
    until("a renewal is answered", Duration::from_secs(11), async || guard.renew().await.is_ok())
        .await;
    guard.release().await.unwrap();
}
