//! What a claim must not believe of a lease token (clause C14), and what it must ask the store for.

use std::time::Duration;

use conformance_tests::server::Proxy;
use conformance_tests::{Fault, Faults};
use lock_core::{
    Attempt, Bytes, Claim, ClaimRequest, FencingToken, LockBackend, OsRng, OwnerId, Released,
    Renewal, Resume,
};
use lock_etcd::EtcdBackend;
use lock_testkit::servers::EtcdCluster;

use crate::common::{
    LONG, backend, busy, claim, granted, keys, mistake, must, must_eq, one, plain, proxied,
    proxied_and_direct, released, request, soon, unless_refused, warm_up,
};

fn data(lease: i64) -> Bytes {
    Bytes::copy_from_slice(&lease.to_be_bytes())
}

fn above(fence: FencingToken) -> FencingToken {
    FencingToken::new(fence.get() + 1).unwrap()
}

/// A claim that takes over what it was told of, altered: it is refused, and has done nothing.
async fn refused(backend: &EtcdBackend, what: &str, altered: ClaimRequest) {
    for step in ["renew", "check", "nothing"] {
        // To refuse it without asking is good, too.
        let Ok(mut claim) = backend.claim(altered.clone()) else { return };
        let answer = match step {
            "renew" => claim.renew().await,
            "check" => claim.check().await,
            _ => Ok(Renewal::Lost),
        };
        // No lease is asked for, unless it is there.
        let answer = unless_refused(answer, "does not know the lease");
        must_eq!(answer, Renewal::Lost, "{what}");
        must_eq!(claim.release().await.unwrap(), Released::AlreadyGone, "{what} after {step}");
        let Ok(mut claim) = backend.claim(altered.clone()) else { return };
        let _ = claim.renew().await;
        drop(claim);
    }
}

/// The bearer of a lease token can edit its text: whatever is altered, the true holder keeps its
/// lock, and no lease is renewed or revoked.
pub(crate) async fn an_altered_token_touches_no_lease() {
    let cluster = one().await;
    let (a, b) = (backend(&cluster).await, backend(&cluster).await);
    let other = plain(&cluster, 0);
    let (mine, theirs) = (request("mine", LONG), request("theirs", LONG));
    let mut holder = a.claim(mine.clone()).unwrap();
    let fence = granted(&mut *holder).await;
    let mut victim = a.claim(theirs.clone()).unwrap();
    let victims = granted(&mut *victim).await;
    let lease = keys(&other, "mine/").await[0].1;
    let victims_lease = keys(&other, "theirs/").await[0].1;
    let bare = other.lease_grant(60).await;
    tokio::time::sleep(Duration::from_millis(2500)).await;
    let (owner, key) = (mine.owner, mine.key.clone());
    let stranger = OwnerId::generate(&OsRng).unwrap();
    let request = |owner| ClaimRequest::new(key.clone(), owner, LONG);
    let lower = FencingToken::new(fence.get() - 1).unwrap();
    for (what, altered) in [
        ("a higher fence", request(owner).with_resume(Resume::new(above(fence), data(lease)))),
        ("a lower fence", request(owner).with_resume(Resume::new(lower, data(lease)))),
        (
            "the highest fence",
            request(owner).with_resume(Resume::new(FencingToken::MAX, data(lease))),
        ),
        ("another owner", request(stranger).with_resume(Resume::new(fence, data(lease)))),
        (
            "the lease of another lock",
            request(owner).with_resume(Resume::new(fence, data(victims_lease))),
        ),
        (
            "the token of another lock",
            request(theirs.owner).with_resume(Resume::new(victims, data(victims_lease))),
        ),
        ("a lease of no lock", request(owner).with_resume(Resume::new(fence, data(bare)))),
        ("no lease", request(owner).with_resume(Resume::new(fence, Bytes::from_static(b"lease")))),
        ("lease 0", request(owner).with_resume(Resume::new(fence, data(0)))),
    ] {
        refused(&b, what, altered).await;
        // What is done in the background has its time.
        tokio::time::sleep(Duration::from_millis(200)).await;
        for (lease, whose) in [(lease, "holder"), (victims_lease, "victim"), (bare, "nobody")] {
            let left = other.left(lease).await;
            must!(left >= 0, "{what}: the lease of {whose} was revoked");
            must!(left <= 58, "{what}: the lease of {whose} was renewed, it has {left} s");
        }
    }
    // A lease keeps its ttl: another one is refused, and the release needs none.
    for ttl in [Duration::from_secs(30), Duration::from_secs(90)] {
        let altered = ClaimRequest::new(key.clone(), owner, ttl);
        let mut claim = b.claim(altered.with_resume(Resume::new(fence, data(lease)))).unwrap();
        let error = claim.renew().await.unwrap_err();
        must!(!error.is_retryable() && error.to_string().contains("60s"), "{error}");
        must_eq!(claim.renew().await.unwrap(), Renewal::Lost);
        must_eq!(claim.release().await.unwrap(), Released::AlreadyGone);
    }
    must!((0..=58).contains(&other.left(lease).await), "renewed or revoked");
    for holder in [&mut holder, &mut victim] {
        must!(matches!(holder.check().await.unwrap(), Renewal::Alive { .. }));
        must!(matches!(holder.renew().await.unwrap(), Renewal::Alive { .. }));
    }
    // The true token is good.
    let mut attached =
        b.claim(request(owner).with_resume(Resume::new(fence, data(lease)))).unwrap();
    let Renewal::Alive { valid_for: Some(left) } = attached.renew().await.unwrap() else {
        mistake("the true token is refused");
    };
    must!(left <= LONG && left > LONG - Duration::from_secs(5), "{left:?}");
    must_eq!(attached.release().await.unwrap(), Released::Freed);
    must_eq!(keys(&other, "mine/").await, []);
}

/// A release by a true token needs no renewal before it.
pub(crate) async fn a_true_token_releases_at_once() {
    let cluster = one().await;
    let a = backend(&cluster).await;
    let other = plain(&cluster, 0);
    let lock = request("lock", LONG).with_label(Some("first".to_owned()));
    let mut holder = a.claim(lock.clone()).unwrap();
    let fence = granted(&mut *holder).await;
    let data = holder.detach().await.unwrap();
    drop(holder);
    // The label is not compared: another process has its own.
    let again = lock.with_label(Some("second".to_owned())).with_resume(Resume::new(fence, data));
    let mut attached = a.claim(again).unwrap();
    must_eq!(attached.release().await.unwrap(), Released::Freed);
    must_eq!(attached.release().await.unwrap(), Released::AlreadyGone);
    must_eq!(keys(&other, "lock/").await, []);
}

/// A token is made up of what the key of a waiter shows. Its place is there, and it is not the
/// lock.
pub(crate) async fn a_place_that_waits_is_no_hold() {
    let cluster = one().await;
    let (a, b) = (backend(&cluster).await, backend(&cluster).await);
    let other = plain(&cluster, 0);
    let mut holder = claim(&a, "lock", false);
    let fence = granted(&mut *holder).await;
    let waits = request("lock", LONG).with_wait(true);
    let mut waiter = b.claim(waits.clone()).unwrap();
    busy(&mut *waiter).await;
    let places = keys(&other, "lock/").await;
    let key = other.get(&places[1].0).await.unwrap();
    let base = key.value.split_once('+').unwrap().1;
    let made_up = base.parse::<i64>().unwrap() + key.created;
    let made_up = FencingToken::answered(made_up).unwrap();
    assert!(made_up > fence);
    let resume = Resume::new(made_up, data(places[1].1));
    refused(&b, "a place that waits", waits.with_resume(resume)).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    must_eq!(keys(&other, "lock/").await, places);
    holder.release().await.unwrap();
    must_eq!(granted(&mut *waiter).await, made_up, "the fence was the true one");
}

/// The key exists as created, but was bound to another lease: the one that the token names keeps
/// nothing alive.
pub(crate) async fn a_token_is_refused_where_the_lease_is_another() {
    let cluster = one().await;
    let a = backend(&cluster).await;
    let other = plain(&cluster, 0);
    let lock = request("lock", LONG);
    let mut holder = a.claim(lock.clone()).unwrap();
    let fence = granted(&mut *holder).await;
    let bytes = holder.detach().await.unwrap();
    let (place, lease) = keys(&other, "lock/").await.remove(0);
    let value = other.get(&place).await.unwrap().value;
    let another = other.lease_grant(60).await;
    other.put_with(&place, &value, another).await;
    refused(&a, "another lease", lock.with_resume(Resume::new(fence, bytes))).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    must!(other.left(lease).await >= 0, "the lease of the token was revoked");
    must_eq!(keys(&other, "lock/").await, [(place, another)]);
}

/// A claim whose first try has taken a place and got no answer, and what it needs to go on.
async fn unknown(cluster: &EtcdCluster) -> (Box<dyn Claim>, (Proxy, EtcdBackend)) {
    let (proxy, backend) = proxied(cluster).await;
    warm_up(&backend).await;
    proxy.inject(Fault::LoseNextReply).await.unwrap();
    let mut claim = claim(&backend, "lock", false);
    let answer = claim.try_acquire().await;
    assert!(answer.is_err(), "the answer was lost: {answer:?}");
    (claim, (proxy, backend))
}

/// The answer to a try is lost. A check asks the store, which has the place.
pub(crate) async fn a_check_after_an_unknown_try_asks_the_store() {
    let cluster = one().await;
    let ((mut holder, _client), other) = (unknown(&cluster).await, plain(&cluster, 0));
    assert_eq!(keys(&other, "lock/").await.len(), 1, "the place was taken");
    let answer = soon("the check", async {
        loop {
            if let Ok(answer) = holder.check().await {
                return answer;
            }
        }
    });
    must_eq!(answer.await, Renewal::Alive { valid_for: None });
    granted(&mut *holder).await;
    must!(matches!(holder.renew().await.unwrap(), Renewal::Alive { .. }));
    must_eq!(holder.release().await.unwrap(), Released::Freed);
    must_eq!(keys(&other, "lock/").await, []);
}

/// The answer to a try is lost, and the next one finds the place. Then the key is deleted, and another client has the
/// lock. The lease lives, but the release is told that the lock was taken.
pub(crate) async fn a_release_after_an_unknown_try_says_what_has_become_of_the_lock() {
    let cluster = one().await;
    let ((mut holder, _client), other) = (unknown(&cluster).await, plain(&cluster, 0));
    soon("the grant", async {
        while !matches!(holder.try_acquire().await, Ok(Attempt::Granted { .. })) {}
    })
    .await;
    let (place, lease) = keys(&other, "lock/").await.remove(0);
    other.delete(&place).await;
    let mut next = claim(&backend(&cluster).await, "lock", false);
    granted(&mut *next).await;
    assert!(other.left(lease).await > 0, "the lease is there");
    must_eq!(holder.release().await.unwrap(), Released::AlreadyGone);
    must!(other.left(lease).await < 0, "a request may still arrive and find the lease");
    must_eq!(next.check().await.unwrap(), Renewal::Alive { valid_for: None });
    must_eq!(holder.release().await.unwrap(), Released::AlreadyGone, "again");
}

/// A check finds nothing of an attempt still in flight: the release still undoes it.
pub(crate) async fn a_check_before_the_try_arrives_settles_nothing() {
    let cluster = one().await;
    let (proxy, a) = proxied_and_direct(&cluster).await;
    let other = plain(&cluster, 0);
    warm_up(&a).await;
    proxy.inject(Fault::HoldNextRequest(Duration::from_secs(1))).await.unwrap();
    let short =
        request("lock", Duration::from_secs(10)).with_call_timeout(Duration::from_millis(200));
    let mut late = a.claim(short).unwrap();
    late.try_acquire().await.unwrap_err();
    soon("the check", async {
        while late.check().await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    released(&mut *late).await;
    tokio::time::sleep(Duration::from_millis(1500)).await;
    must_eq!(keys(&other, "lock/").await, [], "the late try has left a place");
    let mut next = claim(&a, "lock", false);
    granted(&mut *next).await;
    busy(&mut *claim(&a, "lock", false)).await;
}
