//! Scenes of the sessions and the fences: see [`scenes`](super::scenes).

#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

use std::time::Duration;

use lock_core::{Attempt, Claim, Renewal};
use lock_testkit::proxy::{Cut, Proxy};
use lock_testkit::servers::ZooKeeper;
use lock_zk::{ZkBackend, ZkConfig};
use tokio::time::Instant;

use super::scenes::Seen;
use super::{SESSION, SLACK, acquired, backend, behind_proxy, children, claim, granted, plain};

/// Sessions with room for some 2 kB of paths, and an idle limit.
pub(crate) async fn small(servers: &ZooKeeper, paths: usize, idle: Duration) -> ZkBackend {
    let hosts = servers.url().trim_start_matches("zookeeper://");
    let config = ZkConfig::new(hosts).unwrap().session_timeout(SESSION);
    ZkBackend::connect(config.session_limits(paths, idle)).await.unwrap()
}

/// No session gets more paths than the transaction that ends it can have.
pub(crate) async fn a_full_session_is_followed_by_another() -> Seen {
    let servers = super::server().await;
    let ours = small(&servers, 2000, Duration::from_secs(60)).await;
    let plain = plain(&servers).await;
    let mut holders: Vec<Box<dyn Claim>> = Vec::new();
    for n in 0..10 {
        let mut holder = claim(&ours, &format!("{n:0500}"), true);
        granted(&mut *holder).await;
        holders.push(holder);
    }
    let mut owners = std::collections::HashMap::<i64, usize>::new();
    for n in 0..10 {
        let name = format!("{n:0500}");
        let node = children(&plain, &name).await.pop().unwrap();
        let stat = plain.check_stat(&format!("/locks/{name}/{node}")).await.unwrap().unwrap();
        *owners.entry(stat.ephemeral_owner).or_default() += 1;
    }
    // Each path has some 570 bytes.
    if owners.values().any(|count| *count > 3) {
        return Err(format!("the sessions have {:?} nodes each", owners.values()));
    }
    for holder in &mut holders {
        holder.release().await.unwrap();
    }
    Ok(())
}

/// An ensemble that is made again without its data begins to count again, and its fences rise all the same.
pub(crate) async fn fences_rise_over_an_ensemble_without_its_data() -> Seen {
    let servers = super::server().await;
    let (early, late) = (backend(&servers).await, backend(&servers).await);
    let mut last = 0;
    for _ in 0..20 {
        let mut holder = claim(&early, "lock", true);
        last = granted(&mut *holder).await.get();
        holder.release().await.unwrap();
    }
    granted(&mut *claim(&late, "other", true)).await;
    servers.restart_without_data().await.unwrap();
    // First the client that knew the old ensemble.
    for ours in [&early, &late] {
        let mut holder = claim(ours, "lock", true);
        let fence = acquired(&mut *holder).await.get();
        if fence <= last {
            return Err(format!("the fence {fence} came after {last}"));
        }
        last = fence;
        holder.release().await.unwrap();
    }
    Ok(())
}

/// A check after a try without an answer asks the store what has become of it.
pub(crate) async fn a_check_after_a_lost_reply_asks() -> Seen {
    let servers = super::server().await;
    let (ours, proxy) = behind_proxy(&servers).await;
    let plain = plain(&servers).await;
    // The node of the lock is there, so that the next write makes ours.
    let mut first = claim(&ours, "lock", true);
    granted(&mut *first).await;
    let mut asked = 0;
    for round in 0..10 {
        let mut second = claim(&ours, "lock", true);
        proxy.cut_before_reply(1);
        let answer = second.try_acquire().await;
        let there = children(&plain, "lock").await.len() == 2;
        if answer.is_err() && there {
            asked += 1;
            let mut said = None;
            super::until("a check is answered", SLACK, async || {
                said = second.check().await.ok();
                said.is_some()
            })
            .await;
            if !matches!(said, Some(Renewal::Alive { .. })) {
                return Err(format!(
                    "in round {round} the node is there, and a check says {said:?}"
                ));
            }
        }
        super::until("it is answered again", SLACK, async || {
            matches!(second.try_acquire().await, Ok(Attempt::Busy { .. }))
        })
        .await;
        second.release().await.unwrap();
    }
    first.release().await.unwrap();
    assert!(asked > 0, "no try was left without its answer");
    Ok(())
}

/// A session that watches more than one request of the driver can set again survives a reconnect, with all
/// that it holds, and its queue moves on.
pub(crate) async fn a_reconnect_keeps_a_session_that_watches_much() -> Seen {
    let servers = super::server().await;
    let proxy = Proxy::start(servers.address(0).unwrap()).await.unwrap();
    let url = format!("zookeeper://{}?lock_session_timeout=20s", proxy.address());
    let ours = lock_zk::connect(&url).await.unwrap();
    let locks =
        lock_core::Locks::builder(ours).default_ttl(Duration::from_secs(20)).build().unwrap();
    // 150 holders, and 250 who wait for one lock: nodes with names of 225 kB in all.
    let mut holders = tokio::task::JoinSet::new();
    for n in 0..150 {
        let lock = locks.named(format!("{n:0500}")).unwrap();
        holders.spawn(async move { lock.acquire().await.unwrap() });
    }
    let guards = holders.join_all().await;
    let queue = "q".repeat(500);
    let mut head = locks.named(queue.as_str()).unwrap().acquire().await.unwrap();
    let (served, mut serving) = tokio::sync::mpsc::unbounded_channel();
    let mut waiters = tokio::task::JoinSet::new();
    for _ in 0..250 {
        let (lock, served) = (locks.named(queue.as_str()).unwrap(), served.clone());
        waiters.spawn(async move { served.send(lock.acquire().await) });
    }
    let plain = plain(&servers).await;
    super::until("all wait", SLACK * 6, async || children(&plain, &queue).await.len() == 251).await;
    // Their watches are set.
    tokio::time::sleep(Duration::from_secs(1)).await;
    proxy.cut(Cut::Reset);
    let end = Instant::now() + SLACK * 2;
    while let Err(error) = head.check().await {
        if Instant::now() > end {
            return Err(format!("the session has not survived a reconnect: {error}"));
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for _ in 0..5 {
        let fence = head.token().unwrap();
        head.release().await.unwrap();
        head = tokio::time::timeout(SLACK, serving.recv())
            .await
            .expect("the next one is woken")
            .unwrap()
            .unwrap();
        assert!(head.token().unwrap() > fence);
    }
    for guard in &guards {
        assert!(guard.token().is_ok(), "{:?}", guard.state());
    }
    Ok(())
}
