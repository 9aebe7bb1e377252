//! What a claim may do that took a lock over with a fence that is not the hold's: nothing.

#![allow(clippy::unwrap_used, reason = "a test whose surroundings fail has failed")]

use std::time::Duration;

use lock_core::{
    Attempt, Bytes, Claim, ClaimRequest, FencingToken, LockBackend, LockKey, OsRng, OwnerId,
    Released, Renewal, Resume,
};
use redis::Value;

use crate::common::{backend, plain, run, server};

pub(crate) const TTL: Duration = Duration::from_secs(30);

/// The name of [`tampered`] as a scene.
#[allow(dead_code, reason = "for the test of the tests")]
pub(crate) const TAMPERED: &str = "tampered";

/// A hold of `name`, its owner and its fence.
pub(crate) async fn hold(
    backend: &impl LockBackend,
    name: &str,
) -> (Box<dyn Claim>, OwnerId, FencingToken) {
    let owner = OwnerId::generate(&OsRng).unwrap();
    let key = LockKey::new("", name).unwrap();
    let mut claim = backend.claim(ClaimRequest::new(key, owner, TTL)).unwrap();
    match claim.try_acquire().await.unwrap() {
        Attempt::Granted { token, .. } => (claim, owner, token),
        other => panic!("not granted: {other:?}"),
    }
}

/// A claim that takes the hold of `owner` over, for `ttl`.
pub(crate) fn attach(
    backend: &impl LockBackend,
    name: &str,
    owner: OwnerId,
    fence: u64,
    ttl: Duration,
) -> Box<dyn Claim> {
    let fence = FencingToken::new(fence).unwrap();
    let key = LockKey::new("", name).unwrap();
    let request = ClaimRequest::new(key, owner, ttl).with_resume(Resume::new(fence, Bytes::new()));
    backend.claim(request).unwrap()
}

/// Whoever shows the owner of a lock with another fence is refused, and the lock stays as it was.
pub(crate) async fn tampered() -> Result<(), String> {
    let server = server().await;
    let (here, there) = (backend(&server).await, backend(&server).await);
    let mut plain = plain(&server).await;
    let (mut holder, owner, token) = hold(&here, "a").await;
    let fence = token.get();
    for wrong in [1, fence - 1, fence + 1, fence / 10, fence * 10, (1 << 63) - 1] {
        for backend in [&here, &there] {
            let mut claim = attach(backend, "a", owner, wrong, TTL * 10);
            for seen in [claim.renew().await.unwrap(), claim.check().await.unwrap()] {
                if seen != Renewal::Lost {
                    return Err(format!("{seen:?} with the fence {wrong} in place of {fence}"));
                }
            }
            let released = claim.release().await.unwrap();
            if released != Released::AlreadyGone {
                return Err(format!("{released:?} with the fence {wrong} in place of {fence}"));
            }
        }
        let Value::Int(left) = run(&mut plain, &["PTTL", "a"]).await else { panic!("no number") };
        if !(1..=i64::try_from(TTL.as_millis()).unwrap()).contains(&left) {
            return Err(format!("{left} ms are left after the fence {wrong}"));
        }
        match holder.renew().await.unwrap() {
            Renewal::Alive { .. } => {}
            seen => return Err(format!("{seen:?}: the true holder")),
        }
    }
    Ok(())
}
