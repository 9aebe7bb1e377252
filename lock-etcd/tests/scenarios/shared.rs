//! Claims of one client that watch the same key.

use lock_core::Released;

use crate::common::{backend, busy, claim, granted, keys, must_eq, one, plain, quiet, told};

/// The place before a waiter goes after the waiter has looked, and is reported to the claim whose
/// place it was before the waiter listens: it must not join that watch.
pub(crate) async fn a_shared_watch_hides_nothing() {
    let cluster = one().await;
    let (a, b) = (backend(&cluster).await, backend(&cluster).await);
    let other = plain(&cluster, 0);
    let mut holder = claim(&a, "lock", false);
    granted(&mut *holder).await;
    let (mut first, mut second) = (claim(&b, "lock", true), claim(&b, "lock", true));
    busy(&mut *first).await;
    busy(&mut *second).await;
    quiet(&mut *first).await;
    other.delete(&keys(&other, "lock/").await[1].0).await;
    told("its own place has gone", &mut *first).await;
    told("the place before it has gone", &mut *second).await;
    busy(&mut *second).await;
    holder.release().await.unwrap();
    told("the holder has gone", &mut *second).await;
    granted(&mut *second).await;
}

/// A claim has the key of an earlier one, since it has its lease. What happened to that one is told
/// late: it is no loss of the later one.
pub(crate) async fn a_place_is_not_lost_with_the_one_before() {
    let cluster = one().await;
    let (a, b) = (backend(&cluster).await, backend(&cluster).await);
    let other = plain(&cluster, 0);
    let mut holder = claim(&a, "lock", false);
    granted(&mut *holder).await;
    let (mut early, mut second) = (claim(&b, "lock", true), claim(&b, "lock", true));
    busy(&mut *early).await;
    busy(&mut *second).await;
    let first = keys(&other, "lock/").await.remove(1);
    must_eq!(early.release().await.unwrap(), Released::Freed);
    let mut again = claim(&b, "lock", true);
    busy(&mut *again).await;
    let places = keys(&other, "lock/").await;
    assert_eq!(places[2], first, "the key is used again");
    // The one listens for the end of the earlier entry, which the server has to look up, and the
    // other for that of the later one.
    tokio::join!(told("the place before it has gone", &mut *second), quiet(&mut *again));
    busy(&mut *second).await;
    busy(&mut *again).await;
    must_eq!(keys(&other, "lock/").await, places, "nobody has lost its place");
    holder.release().await.unwrap();
    told("the holder has gone", &mut *second).await;
    granted(&mut *second).await;
    second.release().await.unwrap();
    told("the place before it has gone", &mut *again).await;
    granted(&mut *again).await;
}
