//! Claims of one client in one queue: a release proves who is next.

use std::task::Poll;
use std::time::Duration;

use lock_core::{Attempt, Claim, LockBackend, Released};

use lock_etcd::EtcdBackend;

use crate::common::{
    LONG, backend, busy, claim, granted, keys, must, must_eq, must_exactly, one, plain, quiet,
    request, soon, told, watches,
};

/// A holder, and a waiter of the same client behind it.
async fn two(backend: &impl LockBackend) -> (Box<dyn Claim>, Box<dyn Claim>) {
    let (mut holder, mut waiter) = (claim(backend, "lock", false), claim(backend, "lock", true));
    granted(&mut *holder).await;
    busy(&mut *waiter).await;
    (holder, waiter)
}

/// Its place lasts for as long as a scene.
fn wait(backend: &EtcdBackend) -> Box<dyn Claim> {
    backend.claim(request("lock", LONG).with_wait(true)).unwrap()
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
    must_exactly!(next > fence);
    must_eq!(granted(&mut *second).await, next, "found again");
    // One that gives up passes nothing on.
    let mut fourth = claim(&backend, "lock", true);
    busy(&mut *fourth).await;
    watches(&mut *fourth).await;
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

/// The store went back to when another one was before the holder: that one is before its neighbour, too.
pub(crate) async fn a_restored_snapshot_is_no_proof() {
    let cluster = one().await;
    let (a, b) = (backend(&cluster).await, backend(&cluster).await);
    let other = plain(&cluster, 0);
    let (mut first, mut holder, mut waiter) = (wait(&b), wait(&a), wait(&a));
    granted(&mut *first).await;
    busy(&mut *holder).await;
    busy(&mut *waiter).await;
    cluster.back_up().await.unwrap();
    for client in [&a, &b] {
        soon("a new connection", async { while client.ping().await.is_err() {} }).await;
    }
    must_eq!(first.release().await.unwrap(), Released::Freed);
    granted(&mut *holder).await;
    busy(&mut *waiter).await;
    for _ in 0..50 {
        other.put("noise", "").await;
    }
    cluster.restore().await.unwrap();
    soon("a new connection", async { while a.ping().await.is_err() {} }).await;
    must_eq!(keys(&other, "lock/").await.len(), 3, "the copy has the first one");
    must_eq!(holder.release().await.unwrap(), Released::Freed);
    busy(&mut *waiter).await;
}

/// Many claims of a client wait, which has listed the queue for one of them. It knows who of another client is behind
/// its holder, and tells it, also when others have left between the two.
pub(crate) async fn a_holder_in_a_long_queue_tells_the_next_of_another_client() {
    let cluster = one().await;
    let (a, b) = (backend(&cluster).await, backend(&cluster).await);
    let other = plain(&cluster, 0);
    let (mut holder, mut second, mut third) = (wait(&a), wait(&b), wait(&b));
    let fence = granted(&mut *holder).await;
    busy(&mut *second).await;
    busy(&mut *third).await;
    let mut many: Vec<_> = (0..70).map(|_| wait(&a)).collect();
    for waiter in &mut many {
        busy(&mut **waiter).await;
    }
    // The last one did not look at the queue when it entered. Both clients watch from now on.
    quiet(&mut **many.last_mut().unwrap()).await;
    must_eq!(granted(&mut *holder).await, fence);
    watches(&mut *second).await;
    tokio::join!(told("the holder has gone", &mut *second), async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        must_eq!(holder.release().await.unwrap(), Released::Freed);
    });
    let place = other.all("lock/").await.remove(0);
    assert!(place.written > place.created, "the next one was not told");
    let next = granted(&mut *second).await;
    must_exactly!(next > fence);
    busy(&mut *third).await;
    // The other client has no list, and the one behind its last claim is not its own.
    must_eq!(second.release().await.unwrap(), Released::Freed);
    granted(&mut *third).await;
    must_eq!(third.release().await.unwrap(), Released::Freed);
    granted(&mut *many[0]).await;
    busy(&mut *many[69]).await;
    for waiter in &mut many {
        must_eq!(waiter.release().await.unwrap(), Released::Freed);
    }
    must_eq!(keys(&other, "lock/").await, []);
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
