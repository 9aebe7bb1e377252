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

use super::{
    backend, busy, claim, granted, is_granted, locks, plain, proxied, queued, run, server,
};

pub(crate) type Seen = Result<(), String>;

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
    for _ in 0..16 {
        busy(&mut *claim(&dead, NAME, Duration::from_secs(60), true)).await;
    }
    let lock = living.named(NAME).unwrap();
    let guard = lock.acquire_timeout(Duration::from_secs(20)).await.unwrap();
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
        busy(&mut *claim(&backend, NAME, ttl, true)).await;
        stopped.push(backend);
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

/// The foreign value of a lock can be of any length. What names its hold is short, in a busy answer too, and
/// names no other hold whose value begins alike.
pub(crate) async fn a_long_value_names_one_hold() -> Seen {
    const BEGINNING: usize = 100_000;
    let server = server().await;
    let (locks, mut plain) = (locks(&server).await, plain(&server).await);
    let values = ["one", "other"].map(|end| "x".repeat(BEGINNING) + end);
    run(&mut plain, &["SET", NAME, &values[0]]).await;
    let shown = locks.inspect(NAME).await.unwrap().unwrap().holder.unwrap();
    let short = locks.named(NAME).unwrap().acquire_timeout(Duration::from_millis(50)).await;
    let error = short.unwrap_err();
    assert_eq!(error.holder(), Some(&shown));
    let mark = shown.mark.unwrap();
    if mark.as_bytes().len() > 41 {
        return Err(format!("a mark of {} bytes", mark.as_bytes().len()));
    }
    // Somebody else takes it before the operator has said yes.
    run(&mut plain, &["SET", NAME, &values[1]]).await;
    let released = locks.force_release(NAME, Some(mark.clone())).await.unwrap();
    if released != Released::AlreadyGone {
        return Err("the lock was taken from another holder".to_owned());
    }
    run(&mut plain, &["SET", NAME, &values[0]]).await;
    if locks.force_release(NAME, Some(mark)).await.unwrap() != Released::Freed {
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
