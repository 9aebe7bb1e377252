//! The connection that all calls share, and claims and callers that leave before their answer comes.

use std::time::Duration;

use crate::common::{self, backend, claim, connections, plain, run, server};
use conformance_tests::server::{Port, Proxy};
use lock_core::{Attempt, LockBackend, LockKey, Locks};
use lock_redis::RedisBackend;

const TTL: Duration = Duration::from_secs(30);

/// A claim that is dropped before a slow answer comes does not break the connection for the others: a
/// waiter whose channel is not heard for a moment loses its turn.
#[tokio::test]
async fn a_dropped_claim_leaves_the_link_to_the_others() {
    let server = server().await;
    let mut plain = plain(&server).await;
    let proxy = Proxy::start(server.address().unwrap()).await.unwrap();
    let client = lock_redis::connect(&format!("redis://{}", proxy.address())).await.unwrap();
    let mut holder = claim(&backend(&server).await, "a", TTL, false);
    assert!(matches!(holder.try_acquire().await.unwrap(), Attempt::Granted { .. }));
    let mut waiter = claim(&client, "a", TTL, true);
    assert!(matches!(waiter.try_acquire().await.unwrap(), Attempt::Busy { .. }));
    let before = connections(&mut plain).await;
    // An answer takes 800 ms, and the limit for one is 2 s.
    proxy.delay(Duration::from_millis(400), Duration::ZERO);
    for n in 0..4 {
        let mut other = claim(&client, &format!("other{n}"), TTL, false);
        let answer = tokio::time::timeout(Duration::from_millis(400), other.try_acquire()).await;
        assert!(answer.is_err(), "sooner than the link allows: {answer:?}");
    }
    proxy.pass();
    holder.release().await.unwrap();
    let turn = tokio::time::timeout(Duration::from_secs(10), async {
        loop {
            if let Attempt::Granted { .. } = waiter.try_acquire().await.unwrap() {
                return;
            }
            waiter.changed().await.unwrap();
        }
    });
    turn.await.expect("the waiter has lost its turn");
    assert_eq!(connections(&mut plain).await, before, "the shared connection was given up");
}

/// A lock with a short ttl is in a hurry, and says nothing about the connection of all others.
#[tokio::test]
async fn a_short_ttl_gives_no_connection_up() {
    let server = server().await;
    let mut plain = plain(&server).await;
    let client = backend(&server).await;
    let mut holder = claim(&client, "long", TTL, false);
    assert!(matches!(holder.try_acquire().await.unwrap(), Attempt::Granted { .. }));
    let locks = Locks::new(client.clone());
    let before = connections(&mut plain).await;
    let short = locks.named("short").unwrap().ttl(Duration::from_millis(300));
    for _ in 0..5 {
        let guard = short.acquire().await.unwrap();
        // As with a snapshot that begins, or somebody's KEYS.
        server.freeze().unwrap();
        tokio::time::sleep(Duration::from_millis(250)).await;
        server.thaw().unwrap();
        drop(guard);
    }
    assert_eq!(connections(&mut plain).await, before, "the shared connection was given up");
    holder.check().await.unwrap();
}

/// Answers come, but late: a connection that is busy is not a dead one.
#[tokio::test]
async fn a_server_that_is_behind_keeps_its_connection() {
    let server = server().await;
    let mut plain = plain(&server).await;
    let proxy = Proxy::start(server.address().unwrap()).await.unwrap();
    let client = lock_redis::connect(&format!("redis://{}", proxy.address())).await.unwrap();
    let mut holder = claim(&client, "a", TTL, false);
    assert!(matches!(holder.try_acquire().await.unwrap(), Attempt::Granted { .. }));
    let before = connections(&mut plain).await;
    let mut late = tokio::task::JoinSet::new();
    for delay in [700, 900, 1_100].map(Duration::from_millis) {
        // An answer takes twice as long. The last callers have left by then.
        proxy.delay(delay, Duration::ZERO);
        for _ in 0..6 {
            let mut other = claim(&client, "a", TTL, false);
            late.spawn(async move { other.try_acquire().await.is_err() });
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
    proxy.pass();
    let late = late.join_all().await.into_iter().filter(|is_late| *is_late).count();
    assert!(late >= 3, "{late} callers did not wait for their answer");
    assert_eq!(connections(&mut plain).await, before, "the shared connection was given up");
}

/// Nothing comes back on the connection, and no caller waits long enough to find out.
#[tokio::test]
async fn a_black_hole_is_found_by_callers_who_do_not_wait() {
    let server = server().await;
    let proxy = Proxy::start(server.address().unwrap()).await.unwrap();
    let url = format!("redis://{}?lock_response_timeout=500ms", proxy.address());
    let client: RedisBackend = lock_redis::connect(&url).await.unwrap();
    let key = LockKey::new("", "a").unwrap();
    // An inspection: where nobody waits for a lock, nobody watches the connection either.
    let look = async || {
        let look = client.admin().unwrap().inspect(&key);
        tokio::time::timeout(Duration::from_millis(200), look).await.is_ok_and(|seen| seen.is_ok())
    };
    // The first one makes the server know the script.
    while !look().await {}
    proxy.stall_present();
    for _ in 0..30 {
        if look().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    panic!("the connection is silent, and was never replaced");
}

/// The connection is kept up on the runtime of one waiter, for those of all others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_outlives_the_runtime_that_kept_the_connection_up() {
    let server = server().await;
    let (mut plain, client) = (plain(&server).await, backend(&server).await);
    let mut holder = claim(&backend(&server).await, "a", TTL, false);
    assert!(matches!(holder.try_acquire().await.unwrap(), Attempt::Granted { .. }));
    let ending = tokio::runtime::Runtime::new().unwrap();
    let mut first = claim(&client, "other", TTL, true);
    // It stays, as one that is between two calls.
    let first = ending.spawn(async move {
        first.try_acquire().await.unwrap();
        first
    });
    let _first = first.await.unwrap();
    let mut waiter = claim(&client, "a", TTL, true);
    assert!(matches!(waiter.try_acquire().await.unwrap(), Attempt::Busy { .. }));
    ending.shutdown_background();
    tokio::time::sleep(Duration::from_millis(200)).await;
    run(&mut plain, &["CLIENT", "KILL", "TYPE", "pubsub"]).await;
    let told = tokio::time::timeout(Duration::from_secs(8), waiter.changed()).await;
    told.expect("nobody has opened a connection again").unwrap();
}

/// Each refusal makes a new connection, and each new connection wakes the waiters: that must not
/// become a loop.
#[tokio::test]
async fn a_server_that_cannot_write_is_not_hammered() {
    let server = server().await;
    let mut plain = plain(&server).await;
    let mut holder = claim(&backend(&server).await, "a", TTL, false);
    assert!(matches!(holder.try_acquire().await.unwrap(), Attempt::Granted { .. }));
    let locks = Locks::new(backend(&server).await);
    let mut waiters = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let lock = locks.named("a").unwrap();
        waiters.spawn(async move { lock.acquire_timeout(Duration::from_secs(60)).await.map(drop) });
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    let nobody = Port::reserve().unwrap();
    run(&mut plain, &["REPLICAOF", "127.0.0.1", &nobody.to_string()]).await;
    let before = (connections(&mut plain).await, common::commands(&mut plain).await);
    tokio::time::sleep(Duration::from_secs(5)).await;
    let after = (connections(&mut plain).await, common::commands(&mut plain).await);
    let (connections, commands) = (after.0 - before.0, after.1 - before.1);
    println!("20 waiters made {connections} connections and {commands} commands in 5 s");
    assert!(connections <= 12, "{connections} connections");
    // Each try counts with all commands of its script.
    assert!(commands <= 5_000, "{commands} commands");
    assert!(waiters.try_join_next().is_none());
    run(&mut plain, &["REPLICAOF", "NO", "ONE"]).await;
    holder.release().await.unwrap();
    while let Some(waiter) = waiters.join_next().await {
        waiter.unwrap().unwrap();
    }
}
