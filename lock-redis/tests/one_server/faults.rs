//! Late requests, connections that break or fall silent, renewals that travel together, and servers that
//! are flushed.

use std::time::Duration;

use crate::common::{
    self, backend, claim, granted, locks, plain, proxied, run, scenes as of_one_node, scenes_hold,
    server,
};
use conformance_tests::{Fault, Faults};
use lock_core::{Attempt, Effect, ErrorKind, LockState, Locks, LostReason, Released, Renewal};
use lock_redis::RedisBackend;
use lock_testkit::hammer::Hammer;
use lock_testkit::scenes;
use lock_testkit::servers::RedisServer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::Instant;

const TTL: Duration = Duration::from_secs(30);

scenes_hold! {
    #[tokio::test]
    of_one_node:
    a_try_that_arrives_after_the_release_takes_nothing
}

#[tokio::test]
async fn a_late_request_ends_no_hold_sooner() {
    let server = server().await;
    let backend = backend(&server).await;
    of_one_node::a_late_request_ends_no_hold_sooner(&backend, &[server]).await.unwrap();
}

/// The same, where a second try of the same claim had got the lock and given it back.
#[tokio::test]
async fn a_first_try_that_arrives_after_all_takes_nothing() {
    let server = server().await;
    let observer = backend(&server).await;
    let (proxy, config) = proxied(&server).await;
    let client = RedisBackend::connect(config).await.unwrap();
    let mut claim = claim(&client, "late", TTL, true);
    proxy.inject(Fault::HoldNextRequest(Duration::from_millis(1_500))).await.unwrap();
    claim.try_acquire().await.unwrap_err();
    granted(&mut *claim).await;
    assert_eq!(claim.release().await.unwrap(), Released::Freed);
    tokio::time::sleep(Duration::from_millis(1_800)).await;
    let mut next = common::claim(&observer, "late", TTL, false);
    granted(&mut *next).await;
}

/// A firewall has forgotten the connection: nothing comes back on it, and a new one works.
#[tokio::test]
async fn a_black_hole_is_replaced() {
    let server = server().await;
    let (proxy, config) = proxied(&server).await;
    let locks = Locks::new(RedisBackend::connect(config).await.unwrap());
    let guard = locks.named("a").unwrap().ttl(Duration::from_secs(6)).acquire().await.unwrap();
    proxy.stall_present();
    // The renewal after 2 s meets the black hole, the one after it does not.
    tokio::time::sleep(Duration::from_secs(7)).await;
    assert_eq!(guard.state(), LockState::Secure);
    guard.release().await.unwrap();
}

/// A waiter in a black hole is not forgotten: its client notices the silence.
#[tokio::test]
async fn a_waiter_in_a_black_hole_is_found_again() {
    let server = server().await;
    let (proxy, config) = proxied(&server).await;
    let waiting = Locks::new(RedisBackend::connect(config).await.unwrap());
    let holder = locks(&server).await;
    let guard = holder.named("a").unwrap().acquire().await.unwrap();
    let waiter = tokio::spawn(async move { waiting.named("a").unwrap().acquire().await.unwrap() });
    tokio::time::sleep(Duration::from_millis(300)).await;
    proxy.stall_present();
    guard.release().await.unwrap();
    let start = Instant::now();
    drop(waiter.await.unwrap());
    println!("a black-holed waiter got the lock after {:?}", start.elapsed());
    assert!(start.elapsed() < Duration::from_secs(5));
}

/// A runtime that ends while renewals are being collected, or that is no longer driven, takes only
/// its own renewals with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewals_survive_the_end_and_the_standstill_of_another_runtime() {
    let server = server().await;
    let backend = backend(&server).await;
    scenes::renewals_survive_the_end_and_the_standstill_of_another_runtime(|name| {
        claim(&backend, name, TTL, false)
    })
    .await;
}

#[tokio::test]
async fn each_renewal_of_a_batch_ends_in_its_own_time() {
    let server = server().await;
    let (proxy, config) = proxied(&server).await;
    let client = RedisBackend::connect(config).await.unwrap();
    let fall_silent = || proxy.stall();
    of_one_node::each_renewal_of_a_batch_ends_in_its_own_time(&client, fall_silent).await;
}

/// A key that the server refuses to work on does not affect the other renewals of its request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broken_entry_spoils_no_other_renewal() {
    const OTHERS: usize = 20;
    let server = server().await;
    let backend = backend(&server).await;
    let mut plain = plain(&server).await;
    // A holder, and a waiter whose queue is no queue any more.
    let mut holder = claim(&backend, "broken", TTL, false);
    granted(&mut *holder).await;
    let mut waiter = claim(&backend, "broken", TTL, true);
    assert!(matches!(waiter.try_acquire().await.unwrap(), Attempt::Busy { .. }));
    for key in common::keys(&mut plain).await {
        if key.starts_with("{broken}") {
            run(&mut plain, &["SET", &key, "nonsense"]).await;
        }
    }
    let mut others = Vec::new();
    for n in 0..OTHERS {
        let mut other = claim(&backend, &format!("other{n}"), TTL, false);
        granted(&mut *other).await;
        others.push(other);
    }
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(async move {
        let error = waiter.renew().await.unwrap_err();
        assert!(error.to_string().contains("{broken}"), "{error}");
    });
    for mut other in others {
        tasks.spawn(async move {
            let renewal = other.renew().await.unwrap();
            assert!(matches!(renewal, Renewal::Alive { .. }), "{renewal:?}");
        });
    }
    tasks.join_all().await;
}

/// A link to the server through which an answer comes that belongs to no request, before the next one.
async fn with_one_answer_too_many(server: &RedisServer, extra: watch::Receiver<Vec<u8>>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (url, upstream) =
        (format!("redis://{}", listener.local_addr().unwrap()), server.address().unwrap());
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let mut extra = extra.clone();
            extra.mark_unchanged();
            tokio::spawn(async move {
                let (mut from, mut to) = client.into_split();
                let (mut answers, mut requests) =
                    TcpStream::connect(upstream).await.unwrap().into_split();
                tokio::spawn(async move { tokio::io::copy(&mut from, &mut requests).await });
                let mut buffer = vec![0; 65_536];
                while let Ok(length @ 1..) = answers.read(&mut buffer).await {
                    if extra.has_changed().unwrap() {
                        let extra = extra.borrow_and_update().clone();
                        to.write_all(&extra).await.unwrap();
                    }
                    to.write_all(&buffer[..length]).await.unwrap();
                }
            });
        }
    });
    url
}

/// From then on each answer would belong to the request after its own: a claim would be told that it has the
/// lock which another one has asked for.
#[tokio::test]
async fn no_answer_is_believed_after_one_that_makes_no_sense() {
    let grant_of_another = b"*4\r\n:1\r\n$3\r\n777\r\n:0\r\n$8\r\n00000000\r\n";
    for extra in [&b":0\r\n"[..], grant_of_another] {
        let server = server().await;
        let (sender, receiver) = watch::channel(Vec::new());
        let url = with_one_answer_too_many(&server, receiver).await;
        let client = lock_redis::connect(&url).await.unwrap();
        let mut theirs = claim(&backend(&server).await, "theirs", TTL, false);
        granted(&mut *theirs).await;
        // The scripts are known, so each try is one request.
        granted(&mut *claim(&client, "before", TTL, false)).await;
        sender.send(extra.to_vec()).unwrap();
        let error = claim(&client, "ours", TTL, false).try_acquire().await.unwrap_err();
        assert_eq!((error.kind(), error.effect()), (ErrorKind::Store, Effect::Unknown), "{error}");
        let second = claim(&client, "theirs", TTL, false).try_acquire().await.unwrap();
        assert!(matches!(second, Attempt::Busy(_)), "{second:?}");
    }
}

/// Acquires and releases in a loop while `disturb` runs, and checks exclusion and fences.
async fn hammer(server: &RedisServer, limit: Duration, disturb: impl Future<Output = ()>) -> u64 {
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(locks(server).await);
    }
    let hammer = Hammer::start(clients, Duration::from_secs(5));
    let _ = tokio::time::timeout(limit, disturb).await;
    let rounds = hammer.rounds();
    hammer.stop().await;
    rounds
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
    assert!(rounds > 10, "{rounds} rounds");
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
    assert!(rounds > 10, "{rounds} rounds");
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
    lock_testkit::assert_exactly!(
        next.token().unwrap() > before,
        "the clock carries the fence over the flush"
    );
    // The old holder hears of it at its next renewal.
    assert_eq!(guard.lost().wait().await, LostReason::Taken);
    assert_eq!(guard.token().unwrap_err().kind(), ErrorKind::Lost(LostReason::Taken));
    next.check().await.unwrap();
}
