//! Clause C14: what a claim says that it takes over is compared with the row.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod postgres_common;

use std::time::Duration;

use lock_core::{
    Bytes, Claim, ClaimRequest, FencingToken, LockBackend, LockKey, OsRng, OwnerId, Released,
    Renewal, Resume,
};
use lock_sql::SqlBackend;
use postgres_common::{TTL, backend, busy, claim, granted, server};

/// A claim that says that it takes over the hold `fence` of `owner`.
fn taking_over(
    backend: &SqlBackend,
    name: &str,
    owner: OwnerId,
    fence: FencingToken,
    ttl: Duration,
) -> Box<dyn Claim> {
    let key = LockKey::new("", name).unwrap();
    let resume = Resume::new(fence, Bytes::new());
    backend.claim(ClaimRequest::new(key, owner, ttl).with_resume(resume)).unwrap()
}

/// The text of a hold is its bearer's to edit.
#[tokio::test]
async fn another_fence_takes_over_nothing_and_gives_up_nothing() {
    let server = server().await;
    let backend = backend(&server).await;
    let owner = OwnerId::generate(&OsRng).unwrap();
    let key = LockKey::new("", "x").unwrap();
    let mut held = backend.claim(ClaimRequest::new(key, owner, TTL)).unwrap();
    let fence = granted(&mut *held).await;
    for (name, number) in [
        ("x", fence.as_i64() - 1),
        ("x", fence.as_i64() + 1),
        ("x", i64::MAX),
        ("other", fence.as_i64()),
    ] {
        let wrong = FencingToken::try_from(number).unwrap();
        let mut other = taking_over(&backend, name, owner, wrong, TTL * 100);
        assert_eq!(other.check().await.unwrap(), Renewal::Lost, "{name} {number}");
        assert_eq!(other.renew().await.unwrap(), Renewal::Lost, "{name} {number}");
        assert_eq!(other.release().await.unwrap(), Released::AlreadyGone, "{name} {number}");
        let Renewal::Alive { valid_for: Some(left) } = held.check().await.unwrap() else {
            panic!("the hold was touched by {name} {number}")
        };
        assert!(left <= TTL, "its lease was prolonged by {name} {number}: {left:?}");
        busy(&mut *claim(&backend, "x", TTL, false)).await;
    }
    // The true one takes it over, for as long as it asks for itself, and gives it up.
    let mut next = taking_over(&backend, "x", owner, fence, TTL * 2);
    assert_eq!(next.renew().await.unwrap(), Renewal::Alive { valid_for: Some(TTL * 2) });
    assert_eq!(granted(&mut *next).await, fence);
    assert_eq!(next.release().await.unwrap(), Released::Freed);
    granted(&mut *claim(&backend, "x", TTL, false)).await;
}
