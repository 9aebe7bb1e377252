//! Lost replies, late requests, connections that break or fall silent, and renewals that travel
//! together.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod common;

use std::time::Duration;

use common::{backend, claim, granted, locks, plain, proxied, run, server};
use conformance_tests::{Fault, Faults};
use lock_core::{Attempt, Effect, ErrorKind, LockBackend, LockState, Locks, Released, Renewal};
use lock_redis::RedisBackend;
use lock_testkit::proxy::Cut;
use lock_testkit::scenes;
use tokio::time::Instant;

const TTL: Duration = Duration::from_secs(30);

/// Repeats a call until it is answered, as the core does, and says how often it failed.
macro_rules! until_answered {
    ($call:expr) => {{
        let mut failures = 0;
        loop {
            match $call.await {
                Ok(answer) => break (answer, failures),
                Err(error) => {
                    assert!(error.is_retryable(), "{error}");
                    failures += 1;
                    assert!(failures < 20, "{error}");
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            }
        }
    }};
}

/// Row 9 of the fault matrix: the connection breaks after each request, or before each reply, of a
/// whole life of a claim. Every effect is found again, and nothing is left behind.
#[tokio::test]
async fn every_request_and_every_reply_can_be_lost() {
    let server = server().await;
    let observer = backend(&server).await;
    let mut last = 0;
    let mut broken = 0;
    for lost_reply in [false, true] {
        for k in 1..=6 {
            let (proxy, config) = proxied(&server).await;
            let client = RedisBackend::connect(config).await.unwrap();
            if lost_reply {
                proxy.cut_before_reply(k)
            } else {
                proxy.cut_after_request(k)
            }
            let name = format!("n{lost_reply}{k}");
            let mut claim = claim(&client, &name, TTL, true);
            let (first, failures) = until_answered!(claim.try_acquire());
            broken += failures;
            let Attempt::Granted { token, .. } = first else { panic!("{first:?}") };
            let (again, failures) = until_answered!(claim.try_acquire());
            broken += failures;
            let Attempt::Granted { token: same, .. } = again else { panic!("{again:?}") };
            assert_eq!(token, same, "a repeated call returns the same token");
            assert!(token.get() > last);
            last = token.get();
            let (alive, failures) = until_answered!(claim.renew());
            broken += failures;
            assert!(matches!(alive, Renewal::Alive { .. }), "{alive:?}");
            let (alive, failures) = until_answered!(claim.check());
            broken += failures;
            assert!(matches!(alive, Renewal::Alive { .. }), "{alive:?}");
            let (_, failures) = until_answered!(claim.release());
            broken += failures;
            let mut next = common::claim(&observer, &name, TTL, false);
            assert!(granted(&mut *next).await.get() > last, "the lock is free, and fences rise");
        }
    }
    assert!(broken >= 8, "the proxy broke only {broken} calls");
}

/// The acquire stalls on one connection, the release overtakes it on another, then the acquire
/// arrives: it must not take the lock for a whole ttl.
#[tokio::test]
async fn a_try_that_arrives_after_the_release_takes_nothing() {
    let server = server().await;
    let observer = backend(&server).await;
    for wait in [false, true] {
        let (proxy, config) = proxied(&server).await;
        let client = RedisBackend::connect(config).await.unwrap();
        let name = format!("late{wait}");
        let mut claim = claim(&client, &name, TTL, wait);
        proxy.inject(Fault::HoldNextRequest(Duration::from_millis(1_500))).await.unwrap();
        let error = claim.try_acquire().await.unwrap_err();
        assert_eq!(
            (error.kind(), error.effect()),
            (ErrorKind::NoAnswer, Effect::Unknown),
            "{error}"
        );
        assert_eq!(claim.release().await.unwrap(), Released::AlreadyGone);
        drop(claim);
        let before = proxy.requests();
        tokio::time::sleep(Duration::from_millis(1_800)).await;
        let info = observer
            .admin()
            .unwrap()
            .inspect(&lock_core::LockKey::new("", name.as_str()).unwrap())
            .await;
        assert_eq!(info.unwrap(), None, "a late try left something behind");
        assert!(before >= 3, "the release went over a connection of its own: {before} requests");
        let mut next = common::claim(&observer, &name, TTL, false);
        granted(&mut *next).await;
    }
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

/// A waiter in a black hole is not forgotten: its client notices the silence by itself.
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

#[tokio::test]
async fn a_cut_link_is_made_again() {
    let server = server().await;
    let (proxy, config) = proxied(&server).await;
    let locks = Locks::new(RedisBackend::connect(config).await.unwrap());
    for how in [Cut::Fin, Cut::Reset] {
        let guard = locks.named("a").unwrap().acquire().await.unwrap();
        proxy.cut(how);
        tokio::time::sleep(Duration::from_millis(50)).await;
        guard.renew().await.unwrap();
        proxy.refuse_new(true);
        proxy.cut(how);
        tokio::time::sleep(Duration::from_millis(50)).await;
        guard.renew().await.unwrap_err();
        assert_eq!(guard.state(), LockState::AtRisk);
        proxy.refuse_new(false);
        guard.renew().await.unwrap();
        guard.release().await.unwrap();
    }
}

/// 150 ± 150 ms in both directions, and a ttl of 3 s.
#[tokio::test]
async fn a_slow_link_works() {
    let server = server().await;
    let (proxy, config) = proxied(&server).await;
    let config =
        config.connect_timeout(Duration::from_secs(3)).response_timeout(Duration::from_secs(2));
    let locks = Locks::builder(RedisBackend::connect(config).await.unwrap())
        .call_timeout(Duration::from_secs(2))
        .build()
        .unwrap();
    proxy.delay(Duration::from_millis(150), Duration::from_millis(150));
    let lock = locks.named("a").unwrap().ttl(Duration::from_secs(3));
    let mut last = None;
    for _ in 0..4 {
        let guard = lock.acquire_timeout(Duration::from_secs(10)).await.unwrap();
        assert!(Some(guard.token().unwrap()) > last);
        last = guard.token().ok();
        guard.release().await.unwrap();
    }
}

/// A runtime that ends while renewals are being collected, or that nobody drives any more, takes none
/// of them with it but its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewals_survive_the_end_and_the_standstill_of_another_runtime() {
    let server = server().await;
    let backend = backend(&server).await;
    scenes::renewals_survive_the_end_and_the_standstill_of_another_runtime(|name| {
        claim(&backend, name, TTL, false)
    })
    .await;
}

/// A key that the server refuses to work on concerns nobody else whose renewal travels with it.
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
