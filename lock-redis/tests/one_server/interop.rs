//! Clients in other languages, which use a plain `SET NX PX`, and this one exclude each other.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::common::{
    self, backend, busy, claim, commands, is_granted, keys, locks, plain, run, scenes, scenes_hold,
    server, set_nx, until,
};
use lock_core::{Attempt, FencingToken, Released, Renewal};
use lock_testkit::servers::RedisServer;
use redis::Value;
use tokio::task::JoinHandle;
use tokio::time::Instant;

scenes_hold! {
    #[tokio::test]
    scenes:
    a_long_value_names_one_hold
    long_holds_leave_a_turn_to_plain_clients
}

#[tokio::test]
async fn a_plain_holder_excludes_us_and_we_notice_its_release() {
    let server = server().await;
    let (locks, mut plain) = (locks(&server).await, plain(&server).await);
    assert!(set_nx(&mut plain, "job", 60_000).await);
    assert!(locks.named("job").unwrap().try_acquire().await.unwrap().is_none());

    let lock = locks.named("job").unwrap();
    let waiter = tokio::spawn(async move { lock.acquire().await.unwrap() });
    tokio::time::sleep(Duration::from_millis(300)).await;
    let released = Instant::now();
    run(&mut plain, &["DEL", "job"]).await;
    let guard = waiter.await.unwrap();
    let took = released.elapsed();
    assert!(took < Duration::from_secs(2), "noticed after {took:?}");
    println!("plain release noticed after {took:?}");
    assert_eq!(guard.release().await.unwrap(), Released::Freed);
}

#[tokio::test]
async fn we_notice_the_expiry_of_a_plain_holder() {
    let server = server().await;
    let (locks, mut plain) = (locks(&server).await, plain(&server).await);
    assert!(set_nx(&mut plain, "job", 1_500).await);
    let start = Instant::now();
    let guard = locks.named("job").unwrap().acquire().await.unwrap();
    let late = start.elapsed().saturating_sub(Duration::from_millis(1_500));
    assert!(start.elapsed() >= Duration::from_millis(1_490), "taken before its end");
    assert!(late < Duration::from_secs(1), "noticed {late:?} late");
    println!("plain expiry noticed {late:?} late");
    drop(guard);
}

#[tokio::test]
async fn we_exclude_a_plain_client() {
    let server = server().await;
    let (locks, mut plain) = (locks(&server).await, plain(&server).await);
    let guard = locks.named("job").unwrap().acquire().await.unwrap();
    assert!(!set_nx(&mut plain, "job", 1_000).await);
    // What it reads is our record, and its own careful release does not touch us.
    let Value::BulkString(value) = run(&mut plain, &["GET", "job"]).await else {
        panic!("a string")
    };
    let start = format!("distlock1n|{}|", guard.held().owner().to_hex());
    assert!(String::from_utf8(value).unwrap().starts_with(&start));
    guard.check().await.unwrap();
    guard.release().await.unwrap();
    assert!(set_nx(&mut plain, "job", 1_000).await);
}

#[tokio::test]
async fn a_foreign_lock_of_another_type_is_busy() {
    let server = server().await;
    let (locks, mut plain) = (locks(&server).await, plain(&server).await);
    run(&mut plain, &["HSET", "job", "redisson:1", "1"]).await;
    run(&mut plain, &["SET", "forever", "x"]).await;
    for name in ["job", "forever"] {
        assert!(locks.named(name).unwrap().try_acquire().await.unwrap().is_none(), "{name}");
        let info = locks.inspect(name).await.unwrap().unwrap();
        let holder = info.holder.unwrap();
        assert_eq!((holder.owner, holder.fence, holder.expires_in), (None, None, None), "{name}");
        assert!(holder.label.is_some());
        let short = locks.named(name).unwrap().acquire_timeout(Duration::from_millis(200)).await;
        let error = short.unwrap_err();
        assert_eq!(error.kind(), lock_core::ErrorKind::NotAcquired);
        assert_eq!(error.holder(), Some(&holder), "{name}");
    }
    let waiter = tokio::spawn({
        let lock = locks.named("job").unwrap();
        async move { lock.acquire().await.unwrap() }
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    run(&mut plain, &["DEL", "job"]).await;
    let released = Instant::now();
    waiter.await.unwrap().release().await.unwrap();
    assert!(released.elapsed() < Duration::from_secs(2));
    assert_eq!(locks.force_release_any("forever").await.unwrap(), Released::Freed);
    assert!(
        locks.named("forever").unwrap().try_acquire().await.unwrap().is_some(),
        "it was forced"
    );
}

/// All strings of the database are met, and those of others are left out, unless one of us waits for them.
#[tokio::test]
async fn a_list_has_our_locks_among_other_keys() {
    let server = server().await;
    let (locks, mut plain) = (locks(&server).await, plain(&server).await);
    for n in 0..2_500 {
        run(&mut plain, &["SET", &format!("job:{n}"), "cached"]).await;
    }
    run(&mut plain, &["HSET", "job:hash", "a", "b"]).await;
    let _held = locks.named("job:held").unwrap().acquire().await.unwrap();
    let lock = locks.named("job:7").unwrap();
    let waiter = tokio::spawn(async move { lock.acquire().await });
    until("it waits", Duration::from_secs(20), async || {
        common::queued(&mut plain, "job:7").await.len() == 1
    })
    .await;
    let listed = locks.list("job:").await.unwrap();
    let shown: Vec<_> =
        listed.iter().map(|info| (info.key.name(), info.holder.is_some(), info.waiters)).collect();
    assert_eq!(shown, [("job:7", true, Some(1)), ("job:held", true, Some(0))]);
    waiter.abort();
}

/// What another version has written is not understood, and so is neither waited for nor taken for a plain client's.
#[tokio::test]
async fn a_lock_of_another_version_is_a_clear_error() {
    let server = server().await;
    let (locks, mut plain) = (locks(&server).await, plain(&server).await);
    for value in ["distlock2n|00112233445566778899aabbccddeeff|1|1|1|", "distlock1x|", "distlock1"]
    {
        run(&mut plain, &["SET", "job", value]).await;
        for wait in [false, true] {
            let lock = locks.named("job").unwrap();
            let limit = Duration::from_secs(5);
            let error = if wait {
                lock.acquire_timeout(limit).await.unwrap_err()
            } else {
                lock.try_acquire().await.unwrap_err()
            };
            assert_eq!(error.kind(), lock_core::ErrorKind::Store, "{error}");
            assert!(error.to_string().contains("another version of distlock"), "{error}");
        }
        assert_eq!(common::queued(&mut plain, "job").await, [], "it leaves no place");
        let holder = locks.inspect("job").await.unwrap().unwrap().holder.unwrap();
        assert_eq!(holder.label.as_deref(), Some("another version of distlock"));
        assert_eq!(run(&mut plain, &["GET", "job"]).await, Value::BulkString(value.into()));
    }
    assert_eq!(locks.force_release_any("job").await.unwrap(), Released::Freed);
    assert!(locks.named("job").unwrap().try_acquire().await.unwrap().is_some());
}

/// A claim whose hold ran out, and that queues behind a plain client, has a place: renewing it renews
/// the place, and not a lock that it no longer has.
#[tokio::test]
async fn a_place_after_a_hold_that_ended_is_renewed_as_a_place() {
    let server = server().await;
    let (backend, mut plain) = (backend(&server).await, plain(&server).await);
    let mut claim = claim(&backend, "job", Duration::from_secs(1), true);
    let granted = claim.try_acquire().await.unwrap();
    assert!(matches!(granted, Attempt::Granted { .. }), "{granted:?}");
    tokio::time::sleep(Duration::from_millis(1100)).await;
    assert!(set_nx(&mut plain, "job", 60_000).await);
    let busy = claim.try_acquire().await.unwrap();
    assert!(matches!(&busy, Attempt::Busy(busy) if busy.valid_for.is_some()), "{busy:?}");
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_millis(400)).await;
        let renewal = claim.renew().await.unwrap();
        assert!(matches!(renewal, Renewal::Alive { valid_for: Some(_) }), "{renewal:?}");
    }
    claim.release().await.unwrap();
}

#[tokio::test]
async fn a_forced_release_of_a_foreign_lock_hits_that_lock_only() {
    let server = server().await;
    let (locks, mut plain) = (locks(&server).await, plain(&server).await);
    for first in ["a", ""] {
        run(&mut plain, &["SET", "job", first]).await;
        let shown = locks.inspect("job").await.unwrap().unwrap().holder.unwrap().mark;
        // Somebody else takes it before the operator has said yes.
        run(&mut plain, &["SET", "job", "another"]).await;
        let answer = locks.force_release("job", &shown).await.unwrap();
        assert_eq!(answer, Released::AlreadyGone, "{first:?}");
        let shown = locks.inspect("job").await.unwrap().unwrap().holder.unwrap().mark;
        assert_eq!(locks.force_release("job", &shown).await.unwrap(), Released::Freed);
    }
}

/// Four clients that take the lock in turn without a pause, so that its queue is never empty.
async fn keep_busy(server: &RedisServer) -> Vec<JoinHandle<()>> {
    let mut busy = Vec::new();
    for _ in 0..4 {
        let locks = locks(server).await;
        busy.push(tokio::spawn(async move {
            let lock = locks.named("job").unwrap();
            loop {
                let guard = lock.acquire().await.unwrap();
                tokio::time::sleep(Duration::from_millis(3)).await;
                guard.release().await.unwrap();
            }
        }));
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    busy
}

/// While our queue is never empty, a client that polls every 250 ms still gets its turn.
#[tokio::test]
async fn a_polling_client_is_not_starved() {
    let server = server().await;
    let mut plain = plain(&server).await;
    // It was there first, so it is known from the beginning.
    assert!(set_nx(&mut plain, "job", 60_000).await);
    let busy = keep_busy(&server).await;
    run(&mut plain, &["DEL", "job"]).await;
    let (start, mut turns) = (Instant::now(), 0);
    while start.elapsed() < Duration::from_secs(8) {
        tokio::time::sleep(Duration::from_millis(250)).await;
        if set_nx(&mut plain, "job", 5_000).await {
            turns += 1;
            run(&mut plain, &["DEL", "job"]).await;
        }
    }
    busy.iter().for_each(JoinHandle::abort);
    println!("{turns} turns in 8 s");
    assert!(turns >= 3, "a polling client got {turns} turns in 8 s");
}

/// A client that never had a turn cannot be seen, and still gets one.
#[tokio::test]
#[ignore = "takes 15 seconds; run with --ignored"]
async fn a_polling_client_that_was_never_seen_is_not_starved() {
    let server = server().await;
    let mut plain = plain(&server).await;
    let busy = keep_busy(&server).await;
    let start = Instant::now();
    while !set_nx(&mut plain, "job", 1_000).await {
        assert!(start.elapsed() < Duration::from_secs(15), "it never got a turn");
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
    println!("a turn after {:?}", start.elapsed());
    busy.iter().for_each(JoinHandle::abort);
}

/// The next turn of such a client was written when the server's clock was an hour ahead.
#[tokio::test]
async fn a_clock_that_is_set_back_starves_no_polling_client() {
    let server = server().await;
    let mut plain = plain(&server).await;
    let busy = keep_busy(&server).await;
    let ahead = SystemTime::now().duration_since(UNIX_EPOCH).unwrap() + Duration::from_secs(3600);
    let next = ["HSET", "{job}\u{1e}waiters", "next", &ahead.as_micros().to_string()];
    assert_eq!(run(&mut plain, &next).await, Value::Int(0), "it was there");
    until("a turn", Duration::from_secs(15), async || set_nx(&mut plain, "job", 1_000).await).await;
    busy.iter().for_each(JoinHandle::abort);
}

/// Locks and releases `tasks` × `each` names, and says what is left.
async fn lock_names(tasks: usize, each: usize) -> Vec<String> {
    let server = server().await;
    let (locks, mut plain) = (locks(&server).await, plain(&server).await);
    let mut running = tokio::task::JoinSet::new();
    for task in 0..tasks {
        let locks = locks.clone();
        running.spawn(async move {
            for n in 0..each {
                let guard = locks.named(format!("n{task}-{n}")).unwrap().acquire().await.unwrap();
                guard.release().await.unwrap();
            }
        });
    }
    while let Some(done) = running.join_next().await {
        done.unwrap();
    }
    keys(&mut plain).await
}

#[tokio::test]
async fn many_names_leave_a_bounded_number_of_keys() {
    assert_eq!(
        lock_names(16, 500).await,
        ["distlock\u{1e}fence"],
        "free locks leave the mark alone"
    );
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "the full size: a minute with --release"]
async fn a_million_names_leave_a_bounded_number_of_keys() {
    let start = Instant::now();
    assert_eq!(lock_names(64, 15_625).await, ["distlock\u{1e}fence"]);
    println!("a million names in {:?}, one key left", start.elapsed());
}

#[tokio::test]
async fn an_uncontended_cycle_costs_two_requests() {
    let server = server().await;
    let (backend, mut plain) = (backend(&server).await, plain(&server).await);
    let ttl = Duration::from_secs(30);
    let mut last = 0;
    let before = commands(&mut plain).await;
    for n in 0..100 {
        let mut claim = claim(&backend, &format!("n{n}"), ttl, true);
        match claim.try_acquire().await.unwrap() {
            Attempt::Granted { token, .. } => {
                lock_testkit::assert_exactly!(token.get() > last, "{token} after {last}");
                last = token.get();
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(claim.release().await.unwrap(), Released::Freed);
        assert_eq!(claim.release().await.unwrap(), Released::AlreadyGone);
    }
    let all = commands(&mut plain).await - before;
    println!("{} commands per cycle of three calls, those inside scripts included", all / 100);
    // Four and two for a lock that is free, two to find nothing to release, and one for each call.
    assert!(all / 100 <= 11, "{all}");
}

/// What a hand-over costs the server must not grow by itself: all that wait for the lock pay for it.
#[tokio::test]
async fn a_hand_over_costs_few_commands() {
    const ROUNDS: u64 = 30;
    let (server, ttl) = (server().await, Duration::from_secs(30));
    let clients = [backend(&server).await, backend(&server).await];
    let mut plain = plain(&server).await;
    let (mut handed, mut queued) = (0, 0);
    let mut holder = claim(&clients[0], "a", ttl, true);
    assert!(is_granted(&mut *holder).await);
    for client in clients.iter().cycle().skip(1).take(usize::try_from(ROUNDS).unwrap()) {
        let mut next = claim(client, "a", ttl, true);
        let before = commands(&mut plain).await;
        busy(&mut *next).await;
        let waits = commands(&mut plain).await;
        holder.release().await.unwrap();
        assert!(is_granted(&mut *next).await);
        queued += waits - before;
        handed += commands(&mut plain).await - waits;
        holder = next;
    }
    println!("{} commands to queue, {} to hand over", queued / ROUNDS, handed / ROUNDS);
    // Eight to release, four to take it up, and one for each call.
    assert!(handed / ROUNDS <= 14, "{handed}");
    assert!(queued / ROUNDS <= 15, "{queued}");
}

#[tokio::test]
async fn a_fence_mark_at_its_end_is_a_clear_error() {
    let server = server().await;
    let (locks, mut plain) = (locks(&server).await, plain(&server).await);
    let mark = "distlock\u{1e}fence";
    run(&mut plain, &["SET", mark, "1700000000000000"]).await;
    let token = |guard: lock_core::LockGuard| guard.token().unwrap();
    let first = token(locks.named("a").unwrap().acquire().await.unwrap());
    assert!(first > FencingToken::new(1_700_000_000_000_000).unwrap());
    // Ahead of the clock by a year: every digit counts.
    run(&mut plain, &["SET", mark, "4102444800000001"]).await;
    let second = token(locks.named("b").unwrap().acquire().await.unwrap());
    assert_eq!(second.get(), 4_102_444_800_000_002);
    for spoilt in ["9007199254740991", "x", "-1"] {
        run(&mut plain, &["SET", mark, spoilt]).await;
        let error = locks.named("c").unwrap().try_acquire().await.unwrap_err();
        assert!(error.to_string().contains("fence mark"), "{error}");
        assert_eq!(run(&mut plain, &["EXISTS", "c"]).await, Value::Int(0), "no half-made lock");
    }
}
