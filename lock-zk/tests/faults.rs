//! Servers of an ensemble that die or fall silent.

#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

mod common;

use std::time::Duration;

use common::{SLACK, children, connect, hosts, locks, plain, until};
use conformance_tests::server::Proxy;
use lock_core::Locks;
use lock_testkit::assert_exactly;
use lock_testkit::hammer::Hammer;
use lock_testkit::servers::ZooKeeper;

/// An ensemble, a client of all its servers, and a session that outlasts an election.
async fn ensemble() -> (ZooKeeper, Vec<Proxy>, Locks) {
    let servers = ZooKeeper::ensemble().await.unwrap();
    let mut proxies = Vec::new();
    for member in 0..servers.len() {
        proxies.push(Proxy::start(servers.address(member).unwrap()).await.unwrap());
    }
    let hosts: Vec<_> = proxies.iter().map(|proxy| proxy.address().to_string()).collect();
    let ours = connect(hosts.join(","), "lock_session_timeout=12s").await;
    (servers, proxies, locks(ours, Duration::from_secs(12)))
}

/// The leader dies under a holder, under a queue, and under those who are just about to enter it.
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
    // A write goes through the new leader.
    until("a renewal is answered", SLACK * 2, async || holder.renew().await.is_ok()).await;
    assert_eq!(holder.token().unwrap(), last);
    assert_ne!(servers.leader().unwrap(), leader);
    let plain = plain(&servers).await;
    until("all wait", SLACK * 2, async || children(&plain, "lock").await.len() == 10).await;
    holder.release().await.unwrap();
    for turn in 0..9 {
        let next = tokio::time::timeout(SLACK * 2, serving.recv()).await.unwrap().unwrap();
        let (n, guard) = (next.0, next.1.unwrap());
        assert!(turn >= 4 || n == turn, "{n} was served in turn {turn}");
        assert_exactly!(guard.token().unwrap() > last, "a fence falls: {guard:?}");
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

/// As operators do it for a new version of the server: the holder keeps the lock, and the waiter its place.
#[tokio::test(flavor = "multi_thread")]
async fn a_rolling_restart_costs_neither_hold_nor_place() {
    let (servers, _proxies, locks) = ensemble().await;
    let holder = locks.named("lock").unwrap().acquire().await.unwrap();
    let fence = holder.token().unwrap();
    let waiter = locks.named("lock").unwrap();
    let waiter = tokio::spawn(async move { waiter.acquire().await });
    let outside = plain(&servers).await;
    until("it waits", SLACK, async || children(&outside, "lock").await.len() == 2).await;
    let queue = children(&outside, "lock").await;
    drop(outside);
    for member in 0..servers.len() {
        servers.kill_one(member).unwrap();
        servers.start_one(member).await.unwrap();
        until("a renewal is answered", SLACK * 8, async || holder.renew().await.is_ok()).await;
    }
    assert_eq!(holder.token().unwrap(), fence);
    if waiter.is_finished() {
        let granted = waiter.await.unwrap().unwrap();
        panic!("violated: two holders: the waiter was granted a lock that is held: {granted:?}");
    }
    assert_eq!(children(&plain(&servers).await, "lock").await, queue);
    holder.release().await.unwrap();
    let next = tokio::time::timeout(SLACK * 2, waiter).await.unwrap().unwrap().unwrap();
    assert_exactly!(next.token().unwrap() > fence, "a fence falls: {next:?}");
    next.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rolling_restart_under_load_breaks_no_promise() {
    let servers = ZooKeeper::ensemble().await.unwrap();
    let mut clients = Vec::new();
    for _ in 0..4 {
        let client = connect(hosts(&servers), "lock_session_timeout=12s").await;
        clients.push(locks(client, Duration::from_secs(12)));
    }
    let hammer = Hammer::start(clients, Duration::from_secs(12));
    hammer.take(20).await;
    for member in 0..servers.len() {
        servers.kill_one(member).unwrap();
        servers.start_one(member).await.unwrap();
        hammer.take(20).await;
    }
    hammer.goes_on().await;
}
