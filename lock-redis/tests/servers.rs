//! Servers that are flushed, restarted, stopped or killed, and whose connections are.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use common::{config, locks, plain, run, server};
use lock_core::{ErrorKind, LockState, Locks, LostReason};
use lock_redis::RedisBackend;
use lock_testkit::servers::{Data, RedisServer};
use tokio::time::Instant;

/// Acquires and releases in a loop while `disturb` runs, and checks exclusion and fences.
async fn hammer(server: &RedisServer, limit: Duration, disturb: impl Future<Output = ()>) -> u64 {
    let (stop, rounds) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let (inside, last) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let locks = locks(server).await;
        let (stop, rounds) = (Arc::clone(&stop), Arc::clone(&rounds));
        let (inside, last) = (Arc::clone(&inside), Arc::clone(&last));
        tasks.spawn(async move {
            let lock = locks.named("hot").unwrap().ttl(Duration::from_secs(5));
            while !stop.load(SeqCst) {
                let Ok(guard) = lock.acquire_timeout(Duration::from_secs(15)).await else {
                    continue;
                };
                assert!(!inside.swap(true, SeqCst), "two holders at once");
                let fence = guard.token().unwrap().get();
                assert!(last.swap(fence, SeqCst) < fence, "a fence went back");
                tokio::task::yield_now().await;
                assert!(inside.swap(false, SeqCst));
                rounds.fetch_add(1, SeqCst);
                // An unknown release is cleaned up by the keeper.
                let _ = guard.release().await;
            }
        });
    }
    tokio::select! {
        () = disturb => {}
        () = tokio::time::sleep(limit) => {}
    }
    stop.store(true, SeqCst);
    while let Some(task) = tasks.join_next().await {
        task.unwrap();
    }
    rounds.load(SeqCst)
}

#[tokio::test]
async fn flushing_the_scripts_in_a_loop_disturbs_nothing() {
    let server = server().await;
    let mut plain = plain(&server).await;
    let rounds = hammer(&server, Duration::from_secs(2), async {
        loop {
            run(&mut plain, &["SCRIPT", "FLUSH"]).await;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    println!("{rounds} rounds under SCRIPT FLUSH");
    assert!(rounds > 50, "{rounds} rounds");
}

#[tokio::test]
async fn killing_connections_in_a_loop_breaks_no_promise() {
    let server = server().await;
    let mut plain = plain(&server).await;
    let rounds = hammer(&server, Duration::from_secs(4), async {
        loop {
            tokio::time::sleep(Duration::from_millis(100)).await;
            // Our connections are subscribed, so Redis counts them as pub/sub.
            run(&mut plain, &["CLIENT", "KILL", "TYPE", "pubsub"]).await;
            run(&mut plain, &["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).await;
        }
    })
    .await;
    println!("{rounds} rounds under CLIENT KILL");
    assert!(rounds > 20, "{rounds} rounds");
}

#[tokio::test]
async fn a_flushed_server_is_noticed_and_fences_still_rise() {
    let server = server().await;
    let (locks, mut plain) = (locks(&server).await, plain(&server).await);
    let lock = locks.named("a").unwrap().ttl(Duration::from_secs(3));
    let guard = lock.acquire().await.unwrap();
    let before = guard.token().unwrap();
    run(&mut plain, &["FLUSHALL"]).await;
    let next = locks
        .named("a")
        .unwrap()
        .try_acquire()
        .await
        .unwrap()
        .expect("nobody knows the old holder");
    assert!(next.token().unwrap() > before, "the clock carries the fence over the flush");
    // The old holder hears of it at its next renewal.
    assert_eq!(guard.lost().wait().await, LostReason::Taken);
    assert_eq!(guard.token().unwrap_err().kind(), ErrorKind::Lost(LostReason::Taken));
    next.check().await.unwrap();
}

#[tokio::test]
async fn a_restart_with_the_data_keeps_the_lock_and_without_them_the_fence_rises() {
    let server = server().await;
    let (holder, other) = (locks(&server).await, locks(&server).await);
    let guard = holder.named("a").unwrap().ttl(Duration::from_secs(10)).acquire().await.unwrap();
    let first = guard.token().unwrap();
    let waiter = tokio::spawn({
        let lock = other.named("a").unwrap();
        async move { lock.acquire().await.unwrap() }
    });
    tokio::time::sleep(Duration::from_millis(200)).await;
    server.restart(Data::Keep).await.unwrap();
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(!waiter.is_finished());
    guard.renew().await.unwrap();
    guard.release().await.unwrap();
    let start = Instant::now();
    let second = waiter.await.unwrap();
    println!("handed over {:?} after the release, on a restarted server", start.elapsed());
    assert!(start.elapsed() < Duration::from_secs(2));
    assert!(second.token().unwrap() > first);
    server.restart(Data::Lose).await.unwrap();
    let third = other.named("a").unwrap().acquire_timeout(Duration::from_secs(5)).await.unwrap();
    assert!(third.token().unwrap() > second.token().unwrap_or(first));
}

#[tokio::test]
async fn nothing_hangs_when_the_server_is_stopped_or_down() {
    let server = server().await;
    let locks = Locks::new(RedisBackend::connect(config(&server)).await.unwrap());
    let guard = locks.named("held").unwrap().ttl(Duration::from_secs(2)).acquire().await.unwrap();
    let waiting = tokio::spawn({
        let lock = locks.named("held").unwrap();
        async move { lock.acquire_timeout(Duration::from_secs(3)).await.map(drop) }
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    server.freeze().unwrap();
    let start = Instant::now();
    let limit = Duration::from_millis(700);
    let error = locks.named("x").unwrap().acquire_timeout(limit).await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::NoAnswer), "{error}");
    assert!(start.elapsed() < limit + Duration::from_secs(2), "{:?}", start.elapsed());
    let start = Instant::now();
    locks.named("y").unwrap().try_acquire().await.unwrap_err();
    locks.health().await.unwrap_err();
    assert!(start.elapsed() < Duration::from_secs(13), "{:?}", start.elapsed());
    // The holder is told before the lease can end.
    assert_eq!(guard.lost().wait().await, LostReason::Expired);
    assert!(matches!(guard.state(), LockState::Lost(_)));
    assert!(waiting.await.unwrap().is_err());
    return_to_work(&server, &locks).await;
    server.kill().unwrap();
    let start = Instant::now();
    let error = locks.named("x").unwrap().try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(start.elapsed() < Duration::from_secs(3), "a refused connection is known at once");
    server.restart(Data::Keep).await.unwrap();
    drop(locks.named("x").unwrap().acquire_timeout(Duration::from_secs(5)).await.unwrap());
}

async fn return_to_work(server: &RedisServer, locks: &Locks) {
    server.thaw().unwrap();
    let start = Instant::now();
    drop(locks.named("after").unwrap().acquire_timeout(Duration::from_secs(5)).await.unwrap());
    println!("back after {:?}", start.elapsed());
    assert!(start.elapsed() < Duration::from_secs(2));
}
