//! What the tests of all databases share.

#![allow(dead_code, reason = "each test target uses a part of it")]

use std::time::Duration;

use lock_core::{Attempt, Claim, ClaimRequest, Error, ErrorKind, FencingToken, LockBackend};
use lock_core::{LockKey, Locks, OsRng, OwnerId};
pub(crate) use lock_testkit::hammer::Hammer;

pub(crate) const TTL: Duration = Duration::from_secs(30);
/// The limit of a call.
pub(crate) const CALL: Duration = Duration::from_secs(2);

pub(crate) fn claim_within(
    backend: &impl LockBackend,
    name: &str,
    (ttl, call_timeout): (Duration, Duration),
    wait: bool,
) -> Box<dyn Claim> {
    let key = LockKey::new("", name).unwrap();
    let owner = OwnerId::generate(&OsRng).unwrap();
    let request =
        ClaimRequest::new(key, owner, ttl).with_wait(wait).with_call_timeout(call_timeout);
    backend.claim(request).unwrap()
}

pub(crate) async fn granted(claim: &mut dyn Claim) -> FencingToken {
    match claim.try_acquire().await.unwrap() {
        Attempt::Granted { token, .. } => token,
        other => panic!("not granted: {other:?}"),
    }
}

pub(crate) fn assert_says(error: &Error, kind: ErrorKind, words: &[&str]) {
    assert_eq!(error.kind(), kind, "{error}");
    for word in words {
        assert!(error.to_string().contains(word), "{word:?} is missing in: {error}");
    }
}

pub(crate) async fn busy(claim: &mut dyn Claim) {
    match claim.try_acquire().await.unwrap() {
        Attempt::Busy { .. } => {}
        other => panic!("not busy: {other:?}"),
    }
}

/// `rows` is the number of those in the table of locks, whose rows are kept for a moment only.
pub(crate) async fn rows_go_by_themselves(locks: &Locks, rows: impl AsyncFn() -> i64) {
    for n in 0..100 {
        locks.named(format!("n{n}")).unwrap().acquire().await.unwrap().release().await.unwrap();
    }
    for _ in 0..100 {
        locks.named("last").unwrap().acquire().await.unwrap().release().await.unwrap();
        // The mark, the last one, and what came after the last sweep.
        if rows().await <= 3 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("the rows are still there after 10 s");
}
