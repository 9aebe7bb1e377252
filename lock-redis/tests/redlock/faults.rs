//! Redlock on three real masters that fail one after the other, and two at a time.

use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use crate::redlock_common::common::{scenes_hold, until};
use crate::redlock_common::scenarios::{self, acquire};
use crate::redlock_common::{Masters, claim, granted, request};
use lock_core::{Attempt, ErrorKind, LockBackend, Locks};
use lock_redis::RedlockBackend;
use lock_testkit::assert_exactly;
use redis::Value;
use tokio::time::{Instant, sleep};

scenes_hold! {
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    scenarios:
    a_minority_grants_nothing
    a_fence_stands_on_a_quorum
    partial_votes_are_given_back
    a_late_vote_is_given_back
    an_unanswered_node_is_released
    a_restarted_node_gives_no_vote
    a_flushed_node_gives_no_vote
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_minority_that_is_down_or_frozen_costs_nothing() {
    let masters = Masters::start().await.unwrap();
    let locks = Locks::new(masters.client("").await.unwrap());
    let mut last = acquire(&locks, "a", Duration::from_secs(5)).await;
    for disturb in ["freeze", "thaw and kill"] {
        if disturb == "freeze" {
            masters.0[0].freeze().unwrap();
        } else {
            masters.0[0].thaw().unwrap();
            masters.0[0].kill().unwrap();
        }
        let begin = Instant::now();
        for _ in 0..20 {
            let next = acquire(&locks, "a", Duration::from_secs(5)).await;
            assert_exactly!(next > last, "{disturb}: {next} after {last}");
            last = next;
        }
        assert!(begin.elapsed() < Duration::from_secs(5), "{disturb}: {:?}", begin.elapsed());
    }
    // A hold is renewed by the other two.
    let guard = locks.named("b").unwrap().ttl(Duration::from_secs(2)).acquire().await.unwrap();
    sleep(Duration::from_secs(5)).await;
    assert!(guard.check().await.is_ok());
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_majority_that_is_down_is_refused_in_time_with_every_answer() {
    let masters = Masters::start().await.unwrap();
    let locks = Locks::new(masters.client("").await.unwrap());
    acquire(&locks, "a", Duration::from_secs(5)).await;
    masters.0[1].kill().unwrap();
    masters.0[2].freeze().unwrap();
    let begin = Instant::now();
    let lock = locks.named("a").unwrap().ttl(Duration::from_secs(3));
    let error = lock.acquire_timeout(Duration::from_secs(2)).await.unwrap_err();
    assert!(begin.elapsed() < Duration::from_secs(3), "{:?}", begin.elapsed());
    assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::NoAnswer), "{error:?}");
    // Its last call has gone on behind it, for a call timeout at most, and what it was granted is given back then.
    sleep(Duration::from_millis(1500)).await;
    let begin = Instant::now();
    let error = lock.try_acquire().await.unwrap_err();
    assert!(begin.elapsed() < Duration::from_secs(6), "{:?}", begin.elapsed());
    let text = error.to_string();
    // A frozen node is slow, or cannot be reached where its connection was given up already.
    for (node, answers) in
        [&["granted it"][..], &["unreachable"], &["slow", "unreachable"]].iter().enumerate()
    {
        let endpoint = masters.0[node].address().unwrap().to_string();
        let named = answers.iter().any(|answer| text.contains(&format!("{endpoint}: {answer}")));
        assert!(named, "{answers:?}: {text}");
    }
    assert_ne!(error.kind(), ErrorKind::NotAcquired);
    // What the first node granted is given back, so nobody waits for it when the others come back.
    masters.0[2].thaw().unwrap();
    acquire(&locks, "a", Duration::from_secs(5)).await;
}

/// Before its first vote over a connection, a call asks which process that leads to: each for itself, so that none waits for
/// one that nobody polls.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_is_not_polled_stops_no_other() {
    let (_masters, links, backend) = Masters::proxied().await;
    links.0.iter().for_each(|link| link.stall_replies());
    let mut left = claim(&backend, "a", Duration::from_secs(30));
    let mut unpolled = left.try_acquire();
    let polled = unpolled.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(polled.is_pending(), "{polled:?}");
    links.0.iter().for_each(|link| link.pass());
    let begun = Instant::now();
    granted(&mut *claim(&backend, "b", Duration::from_secs(30))).await;
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
    drop(unpolled);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_did_not_grant_are_topped_up() {
    let masters = Masters::start().await.unwrap();
    let backend = masters.client("").await.unwrap();
    // It must still be there when the others grant, so a machine that is slow gets more turns.
    let mut kept = None;
    for _ in 0..20 {
        masters.command(2, &["SET", "lock", "foreign", "PX", "200"]).await;
        let mut holder = claim(&backend, "lock", Duration::from_secs(10));
        granted(&mut *holder).await;
        if masters.command(2, &["GET", "lock"]).await == Value::BulkString(b"foreign".to_vec()) {
            kept = Some(holder);
            break;
        }
        holder.release().await.unwrap();
    }
    let mut holder = kept.expect("a foreign lock of 200 ms was always over");
    // What comes behind the first bar may differ: the time at which the hold began there.
    let value = async |node| match masters.command(node, &["GET", "lock"]).await {
        Value::BulkString(value) => value.split(|byte| *byte == b'|').next().map(<[u8]>::to_vec),
        _ => None,
    };
    until("the third node is topped up", Duration::from_secs(3), async || {
        value(2).await == value(1).await
    })
    .await;
    // So the loss of one of the first two nodes is survived.
    masters.command(0, &["DEL", "lock"]).await;
    let renewal = holder.renew().await.unwrap();
    assert!(matches!(renewal, lock_core::Renewal::Alive { .. }), "{renewal:?}");
    holder.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plain_clients_exclude_us_and_are_noticed() {
    let masters = Masters::start().await.unwrap();
    let locks = Locks::new(masters.client("").await.unwrap());
    let set = async |ttl: &str| {
        for node in 0..3 {
            let set = masters.command(node, &["SET", "lock", "redsync", "NX", "PX", ttl]).await;
            assert_eq!(set, Value::Okay);
        }
    };
    set("30000").await;
    assert!(locks.named("lock").unwrap().try_acquire().await.unwrap().is_none());
    // It looks like any other string, and so do those that only begin like a lock of ours.
    masters.each(0..3, &["SET", "text", "ab.1|2"]).await;
    masters.each(0..3, &["LPUSH", "list", "ab.1"]).await;
    assert!(locks.list("").await.unwrap().is_empty());
    // Its release publishes nothing.
    let waiter = locks.named("lock").unwrap();
    let waiting = tokio::spawn(async move {
        let guard = waiter.acquire_timeout(Duration::from_secs(10)).await.unwrap();
        (Instant::now(), guard)
    });
    sleep(Duration::from_millis(700)).await;
    let released = Instant::now();
    masters.each(0..3, &["DEL", "lock"]).await;
    let (got, guard) = waiting.await.unwrap();
    assert!(got - released < Duration::from_secs(2), "release noticed after {:?}", got - released);
    // We exclude it.
    let set_nx = masters.command(0, &["SET", "lock", "redsync", "NX", "PX", "1000"]).await;
    assert_eq!(set_nx, Value::Nil);
    guard.release().await.unwrap();
    // Its expiry.
    set("1500").await;
    let begin = Instant::now();
    acquire(&locks, "lock", Duration::from_secs(10)).await;
    let took = begin.elapsed();
    assert!(took < Duration::from_millis(2500), "expiry after 1.5 s noticed after {took:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flushed_scripts_and_killed_connections_are_made_good() {
    let masters = Masters::start().await.unwrap();
    let locks = Locks::new(masters.client("").await.unwrap());
    let mut last = None;
    let mut killed = 0;
    for round in 0..20 {
        for node in 0..3 {
            masters.command(node, &["SCRIPT", "FLUSH"]).await;
            if round % 4 == 3 {
                // Our connections are subscribed, so they are no "normal" ones.
                let kill = ["CLIENT", "KILL", "TYPE", "pubsub", "SKIPME", "yes"];
                let Value::Int(count) = masters.command(node, &kill).await else { panic!() };
                killed += count;
            }
        }
        let token = Some(acquire(&locks, "lock", Duration::from_secs(5)).await);
        assert_exactly!(token > last, "{token:?} after {last:?}");
        last = token;
    }
    assert!(killed >= 3, "{killed} connections were killed");
}

/// Where a node does not know the scripts, each request to it is sent twice, and the release that
/// follows the grant of the others often overtakes the acquire.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_that_overtook_its_acquire_is_repeated() {
    let masters = Masters::start().await.unwrap();
    let backend = Arc::new(masters.client("").await.unwrap());
    let tasks: Vec<_> = (0..8)
        .map(|task| {
            let backend = Arc::clone(&backend);
            tokio::spawn(async move {
                for round in 0..100 {
                    let name = format!("lock {task} {round}");
                    let mut claim = claim(&*backend, &name, Duration::from_secs(30));
                    granted(&mut *claim).await;
                    claim.release().await.unwrap();
                }
            })
        })
        .collect();
    let mut third = masters.plain(2).await;
    while !tasks.iter().all(tokio::task::JoinHandle::is_finished) {
        redis::cmd("SCRIPT").arg("FLUSH").exec_async(&mut third).await.unwrap();
    }
    for task in tasks {
        task.await.unwrap();
    }
    sleep(Duration::from_secs(2)).await;
    for node in 0..3 {
        let left = masters.command(node, &["KEYS", "lock*"]).await;
        assert_eq!(left, Value::Array(Vec::new()), "node {node} kept votes");
    }
}

/// A client that ends right after a try has failed, as a command line does, leaves no vote behind.
#[tokio::test]
async fn closing_waits_for_the_votes_that_are_given_back() {
    let (masters, links, backend) = Masters::proxied().await;
    masters.occupy(0..2).await;
    // The nodes know the scripts from here on, so that one request is the whole try.
    let mut other = claim(&backend, "other", Duration::from_secs(10));
    granted(&mut *other).await;
    other.release().await.unwrap();
    // The try gets through, and the way back and to the release is a new connection.
    links.0[2].cut_after_request(1);
    let mut claim = claim(&backend, "lock", Duration::from_secs(30));
    assert!(matches!(claim.try_acquire().await.unwrap(), Attempt::Busy { .. }));
    backend.close().await.unwrap();
    sleep(Duration::from_millis(500)).await;
    assert!(!masters.has(2, "lock").await, "the vote was kept");
}

/// The pause after a try that split the votes is part of the call (clause C12).
#[tokio::test]
async fn a_long_pause_between_tries_does_not_outlast_the_call() {
    let masters = Masters::start().await.unwrap();
    let links = masters.links().await.unwrap();
    let pause = (Duration::from_millis(1_500), Duration::from_millis(1_600));
    let config = links.config().unwrap().retry_delay(pause.0, pause.1);
    let backend = RedlockBackend::connect(config).await.unwrap();
    for (node, holder) in ["one", "another"].into_iter().enumerate() {
        masters.command(node, &["SET", "lock", holder, "PX", "30000"]).await;
    }
    let limit = Duration::from_secs(1);
    let request = request("lock", Duration::from_secs(10)).with_call_timeout(limit);
    let mut claim = backend.claim(request).unwrap();
    let called = Instant::now();
    let seen = claim.try_acquire().await.unwrap();
    assert!(matches!(seen, Attempt::Busy { .. }), "{seen:?}");
    assert!(called.elapsed() < limit, "{:?}", called.elapsed());
}

/// A late undo of a failed try must not take a newer try's lock away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn undoing_an_old_try_leaves_the_newer_one() {
    let (masters, links, backend) = Masters::proxied().await;
    masters.occupy(0..2).await;
    links.0[2].stall_present();
    let mut claim =
        backend.claim(request("lock", Duration::from_secs(10)).with_wait(true)).unwrap();
    assert!(matches!(claim.try_acquire().await.unwrap(), Attempt::Busy { .. }));
    masters.each(0..2, &["DEL", "lock"]).await;
    sleep(Duration::from_millis(500)).await;
    granted(&mut *claim).await;
    sleep(Duration::from_millis(700)).await;
    links.0[2].pass();
    sleep(Duration::from_millis(1500)).await;
    for node in 0..2 {
        assert!(masters.has(node, "lock").await, "node {node}");
    }
    assert!(matches!(claim.renew().await.unwrap(), lock_core::Renewal::Alive { .. }));
    claim.release().await.unwrap();
    sleep(Duration::from_millis(300)).await;
    for node in 0..3 {
        assert!(!masters.has(node, "lock").await, "node {node}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_names_leave_a_bounded_number_of_keys() {
    let masters = Masters::start().await.unwrap();
    let backend = masters.client("").await.unwrap();
    for name in 0..2000 {
        let mut claim = claim(&backend, &format!("name {name}"), Duration::from_secs(10));
        granted(&mut *claim).await;
        claim.release().await.unwrap();
    }
    sleep(Duration::from_millis(2500)).await;
    for node in 0..3 {
        let keys = masters.command(node, &["DBSIZE"]).await;
        assert!(matches!(keys, Value::Int(count) if count <= 5), "node {node} keeps {keys:?} keys");
    }
}

/// A node that does not answer costs a listing a moment, and not a second for each lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_are_listed_while_a_node_is_silent() {
    let (_masters, links, backend) = Masters::proxied().await;
    let locks = Locks::new(backend);
    let mut guards = Vec::new();
    for number in 0..150 {
        guards.push(locks.named(format!("l{number}")).unwrap().acquire().await.unwrap());
    }
    links.0[2].stall();
    let started = Instant::now();
    assert_eq!(locks.list("l").await.unwrap().len(), guards.len());
    let took = started.elapsed();
    assert!(took < Duration::from_secs(5), "{took:?}");
    let holder = locks.inspect("l7").await.unwrap().unwrap().holder.unwrap();
    assert_eq!(holder.fence, Some(guards[7].token().unwrap()));
}
