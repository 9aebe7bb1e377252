//! What a claim must not believe: a silent watch, a live lease, a key with its name.

use std::time::Duration;

use conformance_tests::server::{Cut, Proxy};
use conformance_tests::{Fault, Faults};
use lock_core::{Claim, ErrorKind, LockBackend, Released, Renewal, Resume};

use crate::common::narrow::Narrow;
use crate::common::{
    LONG, PUSHED, backend, busy, claim, granted, guarded, keys, mistake, must, must_eq, one, plain,
    proxied, quiet, released, request, soon, take_rights, told, unless_refused,
};

/// A stream keeps the auth token it was opened with. When that has expired, the server refuses each
/// new watch on it, although requests have signed in again.
pub(crate) async fn a_watch_is_not_refused_unnoticed() {
    let (_cluster, _root, url) = guarded(&[("auth-token-ttl", "1")]).await;
    let (a, b) = (lock_etcd::connect(&url).await.unwrap(), lock_etcd::connect(&url).await.unwrap());
    let mut first = claim(&a, "first", false);
    granted(&mut *first).await;
    let mut early = claim(&b, "first", true);
    busy(&mut *early).await;
    quiet(&mut *early).await;
    // Its stream stands, and nothing else uses the token.
    tokio::time::sleep(Duration::from_millis(3500)).await;
    let mut second = claim(&a, "second", false);
    granted(&mut *second).await;
    let mut late = claim(&b, "second", true);
    busy(&mut *late).await;
    tokio::join!(told("the second lock is free", &mut *late), async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        second.release().await.unwrap();
    });
    granted(&mut *late).await;
    // The watches from before go on.
    first.release().await.unwrap();
    told("the first lock is free", &mut *early).await;
    granted(&mut *early).await;
}

/// The stream breaks, the key of the holder is deleted, and the next stream breaks too: before the
/// answer that the watch was created, or after it and before the news.
pub(crate) async fn a_stream_that_breaks_twice_hides_nothing() {
    let cluster = one().await;
    let narrow = Narrow::start(cluster.address(0).unwrap()).await;
    let proxy = Proxy::start_http2(narrow.address()).await.unwrap();
    let a = lock_etcd::connect(&format!("etcd://{}", proxy.address())).await.unwrap();
    let other = plain(&cluster, 0);
    for (name, pass) in [("early", 0), ("late", BEFORE_THE_NEWS)] {
        let mut holder = a.claim(request(name, LONG)).unwrap();
        soon("the lock", async { while holder.try_acquire().await.is_err() {} }).await;
        quiet(&mut *holder).await;
        proxy.refuse_new(true);
        proxy.cut(Cut::Reset);
        soon("the end of the stream", async { while !is_down(&mut *holder).await {} }).await;
        let place = keys(&other, &format!("{name}/")).await.remove(0).0;
        other.put(&place, &"x".repeat(LARGE)).await;
        other.delete(&place).await;
        narrow.pass_only(pass);
        let before = proxy.connections();
        proxy.refuse_new(false);
        if pass == 0 {
            soon("a stream", async {
                while proxy.connections() == before {
                    assert!(is_down(&mut *holder).await, "nobody has answered");
                }
            })
            .await;
        } else {
            soon("an answer", async { while is_down(&mut *holder).await {} }).await;
        }
        proxy.cut(Cut::Reset);
        narrow.pass_only(usize::MAX);
        told("the key has gone", &mut *holder).await;
        let gone = soon("the look", async {
            loop {
                if let Ok(answer) = holder.check().await {
                    return answer;
                }
            }
        });
        must_eq!(gone.await, Renewal::Lost);
    }
}

/// The news of a value that is [`LARGE`] do not fit into this, and what comes before them does.
const BEFORE_THE_NEWS: usize = 16 * 1024;
const LARGE: usize = 900_000;

/// Whether the claim knows of no stream that would tell it anything. It is told nothing.
async fn is_down(holder: &mut dyn Claim) -> bool {
    let told = tokio::time::timeout(Duration::from_millis(100), holder.changed()).await;
    tokio::time::sleep(Duration::from_millis(20)).await;
    match told {
        Ok(told) => told.map(|()| panic!("it was told at once")).is_err(),
        Err(_) => false,
    }
}

/// An old copy of the store is put back. The lease was there before the claim had its place, so it is
/// in the copy, and lives; the key is not. The watch waits for revisions that are still to come.
pub(crate) async fn a_holder_looks_although_its_watch_stands() {
    let cluster = one().await;
    let a = backend(&cluster).await;
    let mut first = claim(&a, "lock", false);
    granted(&mut *first).await;
    let mut holder = a.claim(request("lock", LONG)).unwrap();
    busy(&mut *holder).await;
    first.release().await.unwrap();
    cluster.back_up().await.unwrap();
    let other = plain(&cluster, 0);
    let leases = other.leases().await;
    soon("a new connection", async { while a.ping().await.is_err() {} }).await;
    for _ in 0..5 {
        other.put("noise", "").await;
    }
    granted(&mut *holder).await;
    let lease = keys(&other, "lock/").await[0].1;
    assert!(leases.contains(&lease), "a lease that is not copied");
    quiet(&mut *holder).await;
    cluster.restore().await.unwrap();
    let other = plain(&cluster, 0);
    assert_eq!(keys(&other, "lock/").await, [], "the copy has no such key");
    soon("a watch that stands", async {
        while let Ok(heard) =
            tokio::time::timeout(Duration::from_millis(1500), holder.changed()).await
        {
            assert!(heard.is_err(), "the watch has nothing to tell");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    let mut answers = Vec::new();
    while answers.len() < 7 && answers.last() != Some(&Renewal::Lost) {
        answers.extend(holder.renew().await);
    }
    must_eq!(answers.last(), Some(&Renewal::Lost), "{answers:?}");
}

/// The old copy has the key and its lease, too. The watch waits for revisions that are still to come: that of a holder, and
/// that of a waiter which is granted the lock later.
pub(crate) async fn a_restored_snapshot_hides_no_loss() {
    let cluster = one().await;
    let (a, b, other) = (backend(&cluster).await, backend(&cluster).await, plain(&cluster, 0));
    let mut holder = a.claim(request("held", LONG)).unwrap();
    granted(&mut *holder).await;
    let mut first = b.claim(request("awaited", LONG)).unwrap();
    granted(&mut *first).await;
    let mut waiter = a.claim(request("awaited", LONG).with_wait(true)).unwrap();
    busy(&mut *waiter).await;
    cluster.back_up().await.unwrap();
    for _ in 0..50 {
        other.put("noise", "").await;
    }
    soon("a new connection", async { while a.ping().await.is_err() {} }).await;
    renewed_and_watched(&mut *holder).await;
    busy(&mut *waiter).await;
    let _ = tokio::time::timeout(Duration::from_millis(300), waiter.changed()).await;
    cluster.restore().await.unwrap();
    for client in [&a, &b] {
        soon("a new connection", async { while client.ping().await.is_err() {} }).await;
    }
    must_eq!(first.release().await.unwrap(), Released::Freed);
    granted(&mut *waiter).await;
    for (name, mut claim) in [("held/", holder), ("awaited/", waiter)] {
        // The first renewals read the key.
        for _ in 0..3 {
            renewed_and_watched(&mut *claim).await;
        }
        // As an operator does who takes the lock away.
        other.delete(&keys(&other, name).await[0].0).await;
        told("its key has gone", &mut *claim).await;
        must_eq!(claim.renew().await.unwrap(), Renewal::Lost, "{name}");
    }
}

/// The first answer of the restored store is that to the waiter's look, and it sends nothing more.
pub(crate) async fn the_look_that_shows_a_restore_is_followed_by_watches() {
    let cluster = one().await;
    let (a, b, other) = (backend(&cluster).await, backend(&cluster).await, plain(&cluster, 0));
    let mut first = b.claim(request("lock", LONG)).unwrap();
    granted(&mut *first).await;
    let mut waiter = a.claim(request("lock", LONG).with_wait(true)).unwrap();
    busy(&mut *waiter).await;
    cluster.back_up().await.unwrap();
    for _ in 0..50 {
        other.put("noise", "").await;
    }
    soon("a new connection", async { while a.ping().await.is_err() {} }).await;
    busy(&mut *waiter).await;
    let _ = tokio::time::timeout(Duration::from_millis(300), waiter.changed()).await;
    cluster.restore().await.unwrap();
    soon("a look", async { while waiter.try_acquire().await.is_err() {} }).await;
    tokio::join!(told("the lock is free", &mut *waiter), async {
        // By then its watches stand.
        tokio::time::sleep(Duration::from_secs(1)).await;
        released(&mut *first).await;
    });
    granted(&mut *waiter).await;
}

/// Renews until that is answered, and listens for a while.
async fn renewed_and_watched(holder: &mut dyn Claim) {
    soon("a renewal", async {
        loop {
            if let Ok(answer) = holder.renew().await {
                must!(matches!(answer, Renewal::Alive { .. }), "it holds the lock");
                return;
            }
        }
    })
    .await;
    let _ = tokio::time::timeout(Duration::from_millis(300), holder.changed()).await;
}

/// The lease lives, and the key cannot be read: the lock may belong to another client by now, both
/// for a holder and for a claim that attaches.
pub(crate) async fn a_renewal_needs_to_see_the_key() {
    let (_cluster, root, url) = guarded(&[]).await;
    let a = lock_etcd::connect(&url).await.unwrap();
    let lock = request("lock", LONG);
    let mut holder = a.claim(lock.clone()).unwrap();
    let fence = granted(&mut *holder).await;
    let data = holder.detach().await.unwrap();
    let place = keys(&root, "jobs/lock/").await.remove(0).0;
    root.delete(&place).await;
    take_rights(&root).await;
    let attached = a.claim(lock.with_resume(Resume::new(fence, data))).unwrap();
    for mut claim in [holder, attached] {
        // Listening proves nothing either.
        for _ in 0..2 {
            let answer = claim.renew().await;
            let Err(error) = answer else { mistake(&format!("the lock is gone: {answer:?}")) };
            must_eq!(error.kind(), ErrorKind::Denied, "{error}");
            let _ = tokio::time::timeout(Duration::from_millis(300), claim.changed()).await;
        }
    }
}

/// The server says that the lease has ended, and nothing else can be learned.
pub(crate) async fn a_lease_that_has_ended_is_enough_to_know() {
    let (_cluster, root, url) = guarded(&[]).await;
    let a = lock_etcd::connect(&url).await.unwrap();
    let mut holder = a.claim(request("lock", LONG)).unwrap();
    granted(&mut *holder).await;
    let lease = keys(&root, "jobs/lock/").await[0].1;
    take_rights(&root).await;
    root.lease_revoke(lease).await;
    let answer = soon("the renewal", holder.renew()).await;
    must_eq!(unless_refused(answer, "permission denied"), Renewal::Lost);
}

/// A key is ours by its create revision and its value, not by its name.
pub(crate) async fn a_release_leaves_what_others_have_written() {
    let cluster = one().await;
    let a = backend(&cluster).await;
    let other = plain(&cluster, 0);
    // Deleted and made again, and written over, with the lease and without.
    for (at, (made_again, attached)) in
        [(true, false), (false, false), (true, true), (false, true)].into_iter().enumerate()
    {
        let name = format!("lock{at}");
        let lock = request(&name, LONG);
        let mut holder = a.claim(lock.clone()).unwrap();
        let fence = granted(&mut *holder).await;
        if attached {
            let data = holder.detach().await.unwrap();
            holder = a.claim(lock.with_resume(Resume::new(fence, data))).unwrap();
            must!(matches!(holder.renew().await.unwrap(), Renewal::Alive { .. }));
        }
        let places = format!("{name}/");
        let (place, lease) = keys(&other, &places).await.remove(0);
        if made_again {
            other.delete(&place).await;
        }
        let spare = other.lease_grant(60).await;
        assert_ne!(spare, lease);
        other.put_with(&place, "somebody else", spare).await;
        must_eq!(holder.release().await.unwrap(), Released::AlreadyGone, "{name}");
        must_eq!(keys(&other, &places).await, [(place, spare)], "{name}");
    }
}

/// The answer to a keep-alive is late, and the renewal that waited for it was given up. The next
/// one hears the answer, and must count from the request that it answers.
pub(crate) async fn an_answer_counts_from_its_own_request() {
    let cluster = one().await;
    let (proxy, a) = proxied(&cluster).await;
    let mut holder =
        a.claim(request("lock", LONG).with_call_timeout(Duration::from_secs(10))).unwrap();
    granted(&mut *holder).await;
    // The keep-alive stream is open, and the watch is set.
    holder.renew().await.unwrap();
    quiet(&mut *holder).await;
    let (given_up, delay) = (Duration::from_secs(1), Duration::from_millis(1900));
    proxy.inject(Fault::DelayNextReply(delay)).await.unwrap();
    let first = tokio::time::timeout(given_up, holder.renew()).await;
    assert!(first.is_err(), "the answer is late, and it was {first:?}");
    let start = tokio::time::Instant::now();
    let second = holder.renew().await.unwrap();
    must!(start.elapsed() < PUSHED, "it takes the answer that is on its way");
    let Renewal::Alive { valid_for: Some(left) } = second else { mistake(&format!("{second:?}")) };
    must!(left <= LONG - given_up / 2, "{left:?} after a request that is {given_up:?} old");
}
