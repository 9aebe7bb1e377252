//! Who is named to those who ask for a lock in vain.

use std::time::Duration;

use crate::common::{backend, claim, granted, locks, server};
use lock_core::{Attempt, Claim, HolderInfo};

const NAME: &str = "job";
const TTL: Duration = Duration::from_secs(30);

/// Whom a try names that must not succeed.
async fn named(claim: &mut dyn Claim) -> HolderInfo {
    match claim.try_acquire().await.unwrap() {
        Attempt::Busy(busy) => *busy.holder.expect("nobody is named"),
        other => panic!("not busy: {other:?}"),
    }
}

/// Without the times, which go on.
fn who(holder: &HolderInfo) -> HolderInfo {
    let mut who = holder.clone();
    (who.expires_in, who.held_for) = (None, None);
    who
}

#[tokio::test]
async fn a_try_in_vain_names_whom_an_inspection_shows() {
    let server = server().await;
    let (locks, backend) = (locks(&server).await, backend(&server).await);
    let guard = locks.named(NAME).unwrap().ttl(TTL).label("host-7|ünï").acquire().await.unwrap();
    for wait in [false, true] {
        let holder = named(&mut *claim(&backend, NAME, TTL, wait)).await;
        assert_eq!(holder.label.as_deref(), Some("host-7|ünï"));
        assert_eq!(holder.owner, Some(guard.held().owner()));
        assert_eq!(holder.fence, Some(guard.token().unwrap()));
        assert!(holder.expires_in.is_some_and(|left| left <= TTL), "{holder:?}");
        assert!(holder.held_for.is_some_and(|held| held < TTL / 3), "{holder:?}");
        let shown = locks.inspect(NAME).await.unwrap().unwrap().holder.unwrap();
        assert_eq!(who(&holder), who(&shown));
    }
    guard.release().await.unwrap();
}

/// A waiter has the lock from the moment when it is handed over, and keeps its fence when it takes it up.
#[tokio::test]
async fn a_waiter_that_was_chosen_is_named() {
    let server = server().await;
    let (locks, backend) = (locks(&server).await, backend(&server).await);
    let guard = locks.named(NAME).unwrap().label("host-7").acquire().await.unwrap();
    let mut waiter = claim(&backend, NAME, TTL, true);
    assert_eq!(named(&mut *waiter).await.label.as_deref(), Some("host-7"));
    guard.release().await.unwrap();
    let chosen = named(&mut *claim(&backend, NAME, TTL, false)).await;
    assert_eq!(chosen.label, None, "it is the last holder's");
    assert!(chosen.expires_in.is_some_and(|left| left < TTL / 2), "the grace: {chosen:?}");
    assert_eq!(chosen.fence, Some(granted(&mut *waiter).await));
    let holder = named(&mut *claim(&backend, NAME, TTL, false)).await;
    assert_eq!(who(&holder), who(&chosen));
    waiter.release().await.unwrap();
}
