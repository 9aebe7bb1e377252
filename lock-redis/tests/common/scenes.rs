//! What one node must do where only this store can, as scenes that also run on known mistakes.
//!
//! Each ends with what was seen if the promise does not hold. That the surroundings do not work is a
//! panic, so that a mistake cannot be "found" by a broken test.

use std::time::Duration;

use conformance_tests::{Fault, Faults};
use lock_core::{
    Bytes, Claim, ClaimRequest, Effect, ErrorKind, LockBackend, LockKey, OsRng, OwnerId, Released,
    Renewal, Resume,
};
use lock_redis::RedisBackend;
use lock_testkit::servers::RedisServer;
use redis::Value;
use tokio::time::Instant;

use super::looks::{
    a_floor_parts_earlier_fences_from_later_ones, a_look_shows_whoever_has_a_lock,
    a_replica_shows_nothing,
};
use super::{
    backend, busy, calls, claim, granted, is_granted, locks, plain, played_by_name, proxied,
    queued, run, server, set_nx,
};

pub(crate) type Seen = Result<(), String>;

played_by_name! {
    a_try_that_arrives_after_the_release_takes_nothing
    a_process_that_died_with_lock_and_waiters_costs_one_grace
    many_stopped_processes_cost_one_grace_each
    waiters_behind_the_block_of_another_client_read_no_queue
    whoever_speaks_first_tells_all_of_lost_places
    long_holds_leave_a_turn_to_plain_clients
    a_full_memory_refuses_newcomers_to_a_queue
    a_lock_that_is_handed_to_nobody_is_declined
    a_long_value_names_one_hold
    a_look_shows_whoever_has_a_lock
    a_floor_parts_earlier_fences_from_later_ones
    a_replica_shows_nothing
}

const NAME: &str = "line";
const GRACE: Duration = Duration::from_millis(500);
const TTL: Duration = Duration::from_secs(30);

fn in_time(took: Duration, limit: Duration) -> Seen {
    if took < limit { Ok(()) } else { Err(format!("{took:?}, and not {limit:?} at most")) }
}

/// The acquire stalls on one connection, the release overtakes it on another, then the acquire
/// arrives: it must not take the lock for a whole ttl.
pub(crate) async fn a_try_that_arrives_after_the_release_takes_nothing() -> Seen {
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
        let info =
            observer.admin().unwrap().inspect(&LockKey::new("", name.as_str()).unwrap()).await;
        let left = info.unwrap();
        if left.is_some() {
            return Err(format!("a late try left something behind: {left:?}"));
        }
        assert!(before >= 3, "the release went over a connection of its own: {before} requests");
        let mut next = super::claim(&observer, &name, TTL, false);
        granted(&mut *next).await;
    }
    Ok(())
}

/// No release comes: the holder's process has died, and it had many waiters at the head of the
/// queue. The next client is served at the end of the lease and one grace, not one for each waiter.
pub(crate) async fn a_process_that_died_with_lock_and_waiters_costs_one_grace() -> Seen {
    let server = server().await;
    let (dead, living) = (backend(&server).await, locks(&server).await);
    let ttl = Duration::from_secs(2);
    let mut holder = claim(&dead, NAME, ttl, false);
    let begin = Instant::now();
    assert!(is_granted(&mut *holder).await);
    // Its connection stays, as that of a stopped process does, so the pushes are heard.
    let mut silent = Vec::new();
    for _ in 0..16 {
        let mut waiter = claim(&dead, NAME, Duration::from_secs(60), true);
        busy(&mut *waiter).await;
        silent.push(waiter);
    }
    let lock = living.named(NAME).unwrap();
    let acquired = lock.acquire_timeout(Duration::from_secs(20)).await;
    let guard = acquired.map_err(|error| format!("the living one has no turn: {error}"))?;
    let took = begin.elapsed();
    assert!(took >= ttl, "before the lease was over: {took:?}");
    guard.release().await.unwrap();
    in_time(took, ttl + GRACE + Duration::from_millis(1_500))?;
    Ok(())
}

/// However many stopped processes are before it, the next waiter that lives comes after one grace for
/// each: the client that has released the lock passes it on, since neither those nor, after so many,
/// the living one looks.
pub(crate) async fn many_stopped_processes_cost_one_grace_each() -> Seen {
    const STOPPED: u32 = 6;
    let server = server().await;
    let (a, living, mut plain) =
        (backend(&server).await, locks(&server).await, plain(&server).await);
    let ttl = Duration::from_secs(60);
    let mut holder = claim(&a, NAME, ttl, false);
    assert!(is_granted(&mut *holder).await);
    // They hear what is pushed, and do nothing.
    let mut stopped = Vec::new();
    for _ in 0..STOPPED {
        let backend = backend(&server).await;
        let mut waiter = claim(&backend, NAME, ttl, true);
        busy(&mut *waiter).await;
        stopped.push(waiter);
    }
    let lock = living.named(NAME).unwrap().ttl(ttl);
    let waiter = tokio::spawn(async move { lock.acquire().await.unwrap() });
    while queued(&mut plain, NAME).await.len() <= stopped.len() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let start = Instant::now();
    holder.release().await.unwrap();
    let guard = waiter.await.unwrap();
    let took = start.elapsed();
    guard.release().await.unwrap();
    in_time(took, GRACE * STOPPED + Duration::from_secs(5))?;
    Ok(())
}

/// A client whose waiters stand behind those of another one: only its first one looks who is ahead.
pub(crate) async fn waiters_behind_the_block_of_another_client_read_no_queue() -> Seen {
    const BLOCK: usize = 300;
    let server = server().await;
    let mut plain = plain(&server).await;
    let reads = async |plain: &mut _| calls(plain, |command| command == "zrange").await;
    let mut holder = claim(&backend(&server).await, NAME, TTL, false);
    assert!(is_granted(&mut *holder).await);
    let (mut waiting, mut before) = (Vec::new(), 0);
    for _ in 0..2 {
        before = reads(&mut plain).await;
        let client = backend(&server).await;
        for _ in 0..BLOCK {
            let mut waiter = claim(&client, NAME, TTL, true);
            busy(&mut *waiter).await;
            waiting.push(waiter);
        }
    }
    for waiter in &mut waiting[BLOCK..] {
        busy(&mut **waiter).await;
    }
    let read = reads(&mut plain).await - before;
    if read > 20 {
        return Err(format!("{BLOCK} waiters read the queue {read} times"));
    }
    Ok(())
}

/// A client that was taken for dead has lost the places of other waiters, too: whichever of them speaks first,
/// all are told.
pub(crate) async fn whoever_speaks_first_tells_all_of_lost_places() -> Seen {
    let server = server().await;
    let (a, slow, other) = (backend(&server).await, backend(&server).await, backend(&server).await);
    let mut holder = claim(&a, NAME, TTL, false);
    assert!(is_granted(&mut *holder).await);
    let mut waiters = Vec::new();
    for client in [&slow, &slow, &other, &slow] {
        let mut waiter = claim(client, NAME, TTL, true);
        busy(&mut *waiter).await;
        waiters.push(waiter);
    }
    let [_first, second, living, last] = &mut waiters[..] else { panic!("four") };
    holder.release().await.unwrap();
    tokio::time::sleep(GRACE + Duration::from_millis(300)).await;
    assert!(is_granted(&mut **living).await, "the slow client was not passed over");
    renewed(&mut **last).await;
    let told = tokio::time::timeout(Duration::from_secs(2), second.changed()).await;
    told.map_err(|_| "a waiter does not know that its place is lost".to_owned())?.unwrap();
    Ok(())
}

/// A lock is held for longer than a minute each time, and its queue is never empty. As time does not pass faster
/// for a test, all that the server has of the lock is made older.
pub(crate) async fn long_holds_leave_a_turn_to_plain_clients() -> Seen {
    const HOUR: Duration = Duration::from_secs(3600);
    const HOLD: i64 = 61_000;
    let server = server().await;
    let (a, b, mut plain) = (backend(&server).await, backend(&server).await, plain(&server).await);
    let mut holder = claim(&a, NAME, HOUR, false);
    assert!(is_granted(&mut *holder).await);
    let (mut next, mut last) = (claim(&b, NAME, HOUR, true), claim(&a, NAME, HOUR, true));
    for waiter in [&mut next, &mut last] {
        busy(&mut **waiter).await;
    }
    holder.release().await.unwrap();
    assert!(is_granted(&mut *next).await);
    for key in super::keys(&mut plain).await.iter().filter(|key| key.contains(NAME)) {
        let Value::Int(left) = run(&mut plain, &["PTTL", key]).await else { panic!("{key:?}") };
        run(&mut plain, &["PEXPIRE", key, &(left - HOLD).to_string()]).await;
        let kind: String = redis::cmd("TYPE").arg(key).query_async(&mut plain).await.unwrap();
        if kind == "hash" {
            let due: Option<i64> =
                redis::cmd("HGET").arg(key).arg("next").query_async(&mut plain).await.unwrap();
            if let Some(due) = due {
                run(&mut plain, &["HSET", key, "next", &(due - HOLD * 1_000).to_string()]).await;
            }
        }
    }
    next.release().await.unwrap();
    if !set_nx(&mut plain, NAME, 1_000).await {
        return Err("the lock goes from waiter to waiter, and is never free".to_owned());
    }
    Ok(())
}

/// Who is in a queue stays there when the memory is full, and gets the lock; nobody else comes.
pub(crate) async fn a_full_memory_refuses_newcomers_to_a_queue() -> Seen {
    let server = server().await;
    let (backend, mut plain) = (backend(&server).await, plain(&server).await);
    let mut holder = claim(&backend, NAME, TTL, false);
    assert!(is_granted(&mut *holder).await);
    let mut waiter = claim(&backend, NAME, TTL, true);
    busy(&mut *waiter).await;
    run(&mut plain, &["SET", "ballast", &"x".repeat(1 << 20)]).await;
    run(&mut plain, &["CONFIG", "SET", "maxmemory", "100kb"]).await;
    let newcomer = claim(&backend, NAME, TTL, true).try_acquire().await;
    let Err(error) = newcomer else { return Err(format!("a newcomer got {newcomer:?}")) };
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::None), "{error}");
    busy(&mut *waiter).await;
    renewed(&mut *waiter).await;
    holder.release().await.unwrap();
    if !is_granted(&mut *waiter).await {
        return Err("the waiter did not get the lock".to_owned());
    }
    waiter.release().await.unwrap();
    Ok(())
}

/// A claim was dropped and has left its place behind. Its client passes the lock on at once, and is not taken for
/// dead: its next waiter has its turn. But what looks the same and is a lock that was taken up stays where it is.
pub(crate) async fn a_lock_that_is_handed_to_nobody_is_declined() -> Seen {
    let server = server().await;
    let (a, b, c) = (backend(&server).await, backend(&server).await, backend(&server).await);
    let mut plain = plain(&server).await;
    let mut holder = claim(&a, NAME, TTL, false);
    assert!(is_granted(&mut *holder).await);
    let mut waiters = Vec::new();
    for client in [&b, &b, &c] {
        let mut waiter = claim(client, NAME, TTL, true);
        busy(&mut *waiter).await;
        waiters.push(waiter);
    }
    drop(waiters.remove(0));
    holder.release().await.unwrap();
    let told = tokio::time::timeout(Duration::from_secs(5), waiters[0].changed()).await;
    let is_next = told.is_ok() && is_granted(&mut *waiters[0]).await;
    if !is_next {
        return Err("the next waiter of the same client has lost its turn".to_owned());
    }
    // As if the push for it had come to a client that has forgotten it.
    let value: String = redis::cmd("GET").arg(NAME).query_async(&mut plain).await.unwrap();
    let holder = value.split('|').nth(1).unwrap();
    let channels: Vec<String> =
        redis::cmd("PUBSUB").arg("CHANNELS").query_async(&mut plain).await.unwrap();
    for channel in channels {
        run(&mut plain, &["PUBLISH", &channel, &format!("g{holder}:{NAME}")]).await;
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    match waiters[0].renew().await.unwrap() {
        Renewal::Alive { .. } => Ok(()),
        lost => Err(format!("the renewal of the holder says {lost:?}")),
    }
}

/// The foreign value of a lock can be of any length. What names its hold is short, in a busy answer too, and
/// names no other hold whose value begins alike.
pub(crate) async fn a_long_value_names_one_hold() -> Seen {
    const BEGINNING: usize = 100_000;
    let server = server().await;
    let (locks, mut plain) = (locks(&server).await, plain(&server).await);
    let values = ["one", "other"].map(|end| "x".repeat(BEGINNING) + end);
    run(&mut plain, &["SET", NAME, &values[0]]).await;
    let shown = locks.inspect(NAME).await.unwrap().unwrap().holder.unwrap();
    let short = locks.named(NAME).unwrap().acquire_timeout(Duration::from_secs(1)).await;
    let error = short.unwrap_err();
    assert_eq!(error.holder(), Some(&shown));
    let mark = shown.mark;
    if mark.as_bytes().len() > 41 {
        return Err(format!("a mark of {} bytes", mark.as_bytes().len()));
    }
    // Somebody else takes it before the operator has said yes.
    run(&mut plain, &["SET", NAME, &values[1]]).await;
    let released = locks.force_release(NAME, &mark).await.unwrap();
    if released != Released::AlreadyGone {
        return Err("the lock was taken from another holder".to_owned());
    }
    run(&mut plain, &["SET", NAME, &values[0]]).await;
    if locks.force_release(NAME, &mark).await.unwrap() != Released::Freed {
        return Err("its own mark does not name the hold".to_owned());
    }
    Ok(())
}

/// Requests of a hold that were sent before it was given a longer ttl, and arrive after that: a repeated
/// try, a renewal, and the renewal of a claim that has taken the hold over. None of them ends it sooner, at
/// any of these `servers`.
pub(crate) async fn a_late_request_ends_no_hold_sooner(
    backend: &impl LockBackend,
    servers: &[RedisServer],
) -> Seen {
    const SHORT: Duration = Duration::from_millis(300);
    let (key, owner) = (LockKey::new("", NAME).unwrap(), OwnerId::generate(&OsRng).unwrap());
    let request = |ttl| ClaimRequest::new(key.clone(), owner, ttl);
    let mut holder = backend.claim(request(TTL)).unwrap();
    let token = granted(&mut *holder).await;
    renewed(&mut *holder).await;
    // To a server, what a claim with the same owner asks for is what the hold has asked for.
    let mut late = backend.claim(request(SHORT)).unwrap();
    assert_eq!(granted(&mut *late).await, token);
    still_lasts(servers, "a try").await?;
    renewed(&mut *late).await;
    still_lasts(servers, "a renewal").await?;
    let resumed = request(SHORT).with_resume(Resume::new(token, Bytes::new()));
    renewed(&mut *backend.claim(resumed).unwrap()).await;
    still_lasts(servers, "a renewal after a move").await?;
    renewed(&mut *holder).await;
    Ok(())
}

async fn renewed(claim: &mut dyn Claim) {
    let renewal = claim.renew().await.unwrap();
    assert!(matches!(renewal, Renewal::Alive { .. }), "{renewal:?}");
}

/// Whether everything that the servers have of the lock lasts for about its ttl.
async fn still_lasts(servers: &[RedisServer], after: &str) -> Seen {
    for server in servers {
        let mut plain = plain(server).await;
        let keys = super::keys(&mut plain).await;
        for key in keys.iter().filter(|key| key.contains(NAME)) {
            let left = run(&mut plain, &["PTTL", key]).await;
            let Value::Int(left) = left else { panic!("{left:?}") };
            if left < 20_000 {
                return Err(format!("after {after}, {key:?} ends in {left} ms"));
            }
        }
    }
    Ok(())
}

/// Two renewals travel together when the link falls silent: the one that has less time does not wait for
/// the other one (clause C12). Both are asked for before the runtime, of one thread, can send either.
pub(crate) async fn each_renewal_of_a_batch_ends_in_its_own_time(
    backend: &impl LockBackend,
    fall_silent: impl FnOnce(),
) {
    let mut claims = Vec::new();
    for (name, limit) in [("long", 4_000), ("short", 300)] {
        let key = LockKey::new("", name).unwrap();
        let owner = OwnerId::generate(&OsRng).unwrap();
        let request = ClaimRequest::new(key, owner, Duration::from_secs(30));
        let limit = Duration::from_millis(limit);
        let mut claim = backend.claim(request.with_call_timeout(limit)).unwrap();
        granted(&mut *claim).await;
        claims.push(claim);
    }
    fall_silent();
    let called = Instant::now();
    let [long, short] = &mut claims[..] else { panic!("there are two") };
    let answer = tokio::select! {
        biased;
        answer = long.renew() => panic!("after {:?}: {answer:?}", called.elapsed()),
        answer = short.renew() => answer,
    };
    assert!(answer.is_err(), "{answer:?}");
    assert!(called.elapsed() < Duration::from_millis(1_000), "{:?}", called.elapsed());
}
