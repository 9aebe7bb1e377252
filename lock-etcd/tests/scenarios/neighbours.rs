//! Claims of one client in one queue: a release proves who is next.

use std::task::Poll;
use std::time::Duration;

use lock_core::{Attempt, Claim, LockBackend, Released};

use crate::common::{backend, busy, claim, granted, keys, must, must_eq, one, plain, soon, told};

/// A holder, and a waiter of the same client behind it.
async fn two(backend: &impl LockBackend) -> (Box<dyn Claim>, Box<dyn Claim>) {
    let (mut holder, mut waiter) = (claim(backend, "lock", false), claim(backend, "lock", true));
    granted(&mut *holder).await;
    busy(&mut *waiter).await;
    (holder, waiter)
}

/// The answer to a release proves the grant of the first in the queue, and of nobody else.
pub(crate) async fn a_release_hands_the_lock_to_the_next() {
    let cluster = one().await;
    let backend = backend(&cluster).await;
    let other = plain(&cluster, 0);
    let mut holder = claim(&backend, "lock", false);
    let fence = granted(&mut *holder).await;
    let (mut second, mut third) = (claim(&backend, "lock", true), claim(&backend, "lock", true));
    busy(&mut *second).await;
    busy(&mut *third).await;
    must_eq!(holder.release().await.unwrap(), Released::Freed);
    busy(&mut *third).await;
    told("the holder has gone", &mut *second).await;
    let next = granted(&mut *second).await;
    must!(next > fence);
    must_eq!(granted(&mut *second).await, next, "found again");
    // One that gives up passes nothing on.
    let mut fourth = claim(&backend, "lock", true);
    busy(&mut *fourth).await;
    must_eq!(third.release().await.unwrap(), Released::Freed);
    told("the place before it has gone", &mut *fourth).await;
    busy(&mut *fourth).await;
    must_eq!(second.release().await.unwrap(), Released::Freed);
    // Nor is anything left of a proof that nobody takes.
    must_eq!(fourth.release().await.unwrap(), Released::Freed);
    must_eq!(keys(&other, "lock/").await, []);
}

/// The first key of the queue is that of a neighbour's place, but another client has written it.
pub(crate) async fn a_release_proves_no_place_that_others_have_written() {
    let cluster = one().await;
    let backend = backend(&cluster).await;
    let other = plain(&cluster, 0);
    let (mut holder, mut waiter) = two(&backend).await;
    let place = keys(&other, "lock/").await.remove(1).0;
    let lease = other.lease_grant(60).await;
    other.put_with(&place, "somebody else", lease).await;
    holder.release().await.unwrap();
    busy(&mut *waiter).await;
    must_eq!(keys(&other, "lock/").await[0], (place, lease), "it waits behind the other client");
}

/// A neighbour has proven the grant, but the claim takes it only when its place has gone.
pub(crate) async fn a_proof_that_nobody_took_is_not_believed_later() {
    let cluster = one().await;
    let backend = backend(&cluster).await;
    let other = plain(&cluster, 0);
    let (mut holder, mut waiter) = two(&backend).await;
    holder.release().await.unwrap();
    tokio::time::sleep(Duration::from_millis(2500)).await;
    other.delete(&keys(&other, "lock/").await[0].0).await;
    granted(&mut *waiter).await;
    must_eq!(keys(&other, "lock/").await.len(), 1, "it is granted what the store has");
}

/// A release was sent, and nobody takes its answer. The waiter behind it asks for itself.
pub(crate) async fn a_release_that_stands_still_keeps_nobody_waiting() {
    let cluster = one().await;
    let backend = backend(&cluster).await;
    let other = plain(&cluster, 0);
    let (mut holder, mut waiter) = two(&backend).await;
    let mut release = holder.release();
    let sent = std::future::poll_fn(|cx| Poll::Ready(release.as_mut().poll(cx).is_pending())).await;
    assert!(sent, "nobody has answered yet");
    soon("the release arrives", async {
        while keys(&other, "lock/").await.len() > 1 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    told("the holder has gone", &mut *waiter).await;
    let attempt = waiter.try_acquire().await.unwrap();
    must!(matches!(attempt, Attempt::Granted { .. }), "{attempt:?}");
    drop(release);
}
