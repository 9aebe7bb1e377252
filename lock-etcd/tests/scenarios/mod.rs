//! What only etcd can do to a lock. `tests/it` runs these, and `tests/mutants.rs` shows that
//! they fail for wrong backends.

#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]
#![allow(dead_code, reason = "each test target uses a part of it")]
#![allow(unused_imports, reason = "each test target uses a part of it")]

mod doubt;
mod fences;
mod look;
mod members;
mod neighbours;
mod proxy;
mod shared;
mod stale;
mod trust;

use std::time::Duration;

pub(crate) use doubt::*;
pub(crate) use fences::*;
pub(crate) use look::*;
pub(crate) use members::*;
pub(crate) use neighbours::*;
pub(crate) use proxy::*;
pub(crate) use shared::*;
pub(crate) use stale::*;
pub(crate) use trust::*;

use conformance_tests::server::Cut;
use lock_core::{LockAdmin, LockKey, Released};

use crate::common::{
    backend, busy, claim, granted, keys, must, must_eq, must_exactly, one, plain, proxied, quiet,
    told, watches,
};

/// A waiter whose own lease was revoked must not take the lock for its own when the one before it
/// goes, and must not wait forever either.
pub(crate) async fn a_waiter_sees_that_its_own_place_has_gone() {
    let cluster = one().await;
    let (a, b) = (backend(&cluster).await, backend(&cluster).await);
    let other = plain(&cluster, 0);
    let mut holder = claim(&a, "lock", false);
    granted(&mut *holder).await;
    let mut waiter = claim(&b, "lock", true);
    busy(&mut *waiter).await;
    let places = keys(&other, "lock/").await;
    assert_eq!(places.len(), 2);
    other.lease_revoke(places[1].1).await;
    told("the waiter hears of its own place", &mut *waiter).await;
    // It queues again, behind the holder.
    busy(&mut *waiter).await;
    must_eq!(keys(&other, "lock/").await.len(), 2, "the waiter has taken a new place");
    holder.release().await.unwrap();
    told("the waiter hears of the release", &mut *waiter).await;
    granted(&mut *waiter).await;
    must_eq!(keys(&other, "lock/").await.len(), 1);
}

/// The places before and after a waiter both go: what it was told before is out of date.
pub(crate) async fn a_waiter_looks_before_it_believes() {
    let cluster = one().await;
    let (a, b, c) = (backend(&cluster).await, backend(&cluster).await, backend(&cluster).await);
    let mut holder = claim(&a, "lock", false);
    granted(&mut *holder).await;
    let mut second = claim(&b, "lock", true);
    busy(&mut *second).await;
    let mut third = claim(&c, "lock", true);
    busy(&mut *third).await;
    watches(&mut *third).await;
    // The waiter before the third leaves; it was not the holder.
    tokio::join!(told("the third hears of it", &mut *third), async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        second.release().await.unwrap();
    });
    busy(&mut *third).await;
    holder.release().await.unwrap();
    told("the third hears of the holder", &mut *third).await;
    granted(&mut *third).await;
}

/// The history is compacted while a waiter's stream is cut off: the changes it missed are no longer
/// available, and it has to read the key.
pub(crate) async fn a_waiter_looks_after_a_compaction() {
    let cluster = one().await;
    let a = backend(&cluster).await;
    let (proxy, b) = proxied(&cluster).await;
    let other = plain(&cluster, 0);
    let mut holder = claim(&a, "lock", false);
    granted(&mut *holder).await;
    let mut waiter = claim(&b, "lock", true);
    busy(&mut *waiter).await;
    quiet(&mut *waiter).await;
    proxy.refuse_new(true);
    proxy.cut(Cut::Reset);
    holder.release().await.unwrap();
    for _ in 0..5 {
        other.put("noise", "").await;
    }
    let now = other.revision().await;
    other.compact(now).await;
    proxy.refuse_new(false);
    told("what was compacted is to be looked for", &mut *waiter).await;
    granted(&mut *waiter).await;
}

/// A client that does not escape names uses `a/b`: its places lie below the queue of our `a`.
pub(crate) async fn a_foreign_queue_below_ours_blocks_nobody() {
    let cluster = one().await;
    let (a, b) = (backend(&cluster).await, backend(&cluster).await);
    let other = plain(&cluster, 0);
    let lease = other.lease_grant(60).await;
    other.put_with(format!("a/b/{lease:x}"), "", lease).await;
    for wait in [false, true] {
        let mut holder = claim(&a, "a", wait);
        let fence = granted(&mut *holder).await;
        must_eq!(granted(&mut *holder).await, fence, "found again");
        let mut second = claim(&b, "a", true);
        busy(&mut *second).await;
        let mut refused = claim(&b, "a", false);
        busy(&mut *refused).await;
        holder.release().await.unwrap();
        must_exactly!(granted(&mut *second).await > fence);
        must_eq!(second.release().await.unwrap(), Released::Freed);
    }
    must_eq!(keys(&other, "a/").await.len(), 1, "only the foreign place is left");
    let key = LockKey::new("", "a").unwrap();
    must_eq!(a.inspect(&key).await.unwrap(), None, "`a` is free");
}

/// A client that does not use text for its keys is still in our queue: we wait for it.
pub(crate) async fn a_key_that_is_no_text_is_waited_for() {
    let cluster = one().await;
    let backend = backend(&cluster).await;
    let other = plain(&cluster, 0);
    let foreign = b"lock/\xff\xfe".to_vec();
    other.put(foreign.clone(), "").await;
    let mut refused = claim(&backend, "lock", false);
    busy(&mut *refused).await;
    let mut waiter = claim(&backend, "lock", true);
    busy(&mut *waiter).await;
    quiet(&mut *waiter).await;
    let mut next = claim(&backend, "lock", true);
    busy(&mut *next).await;
    other.delete(&foreign).await;
    told("the foreign key has gone", &mut *waiter).await;
    granted(&mut *waiter).await;
    busy(&mut *next).await;
}

/// Two claims of one client on one name have a lease each.
pub(crate) async fn every_claim_has_a_lease_of_its_own() {
    let cluster = one().await;
    let backend = backend(&cluster).await;
    // So that there is something in the pool.
    let mut first = claim(&backend, "first", false);
    granted(&mut *first).await;
    first.release().await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    let mut holder = claim(&backend, "lock", true);
    granted(&mut *holder).await;
    let mut waiter = claim(&backend, "lock", true);
    busy(&mut *waiter).await;
    let other = plain(&cluster, 0);
    let places = keys(&other, "lock/").await;
    assert_eq!(places.len(), 2);
    must!(places[0].1 != places[1].1, "one lease for two claims");
    holder.release().await.unwrap();
    granted(&mut *waiter).await;
}

/// The prefix is shared with other data, which is more than one answer holds by default.
pub(crate) async fn locks_are_listed_beside_large_values() {
    let cluster = one().await;
    let backend = backend(&cluster).await;
    let other = plain(&cluster, 0);
    for at in 0..6 {
        other.put(format!("data{at}"), &"x".repeat(900_000)).await;
    }
    let mut holder = claim(&backend, "lock", false);
    let fence = granted(&mut *holder).await;
    let list = backend.list("", "").await.unwrap();
    must_eq!(list.len(), 1, "{list:?}");
    must_eq!(list[0].holder.as_ref().unwrap().fence, Some(fence));
}
