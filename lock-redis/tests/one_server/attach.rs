//! Taking a lock over: only the very hold, and never another client's lock.

use std::time::Duration;

use crate::common::{backend, claim, plain, run, server, set_nx};
use lock_core::{
    Attempt, Bytes, Claim, ClaimRequest, FencingToken, LockBackend, LockKey, OsRng, OwnerId,
    Released, Renewal, Resume, Victim,
};
use redis::Value;

const TTL: Duration = Duration::from_secs(30);

/// A hold of `name`, its owner and its fence.
async fn hold(backend: &impl LockBackend, name: &str) -> (Box<dyn Claim>, OwnerId, FencingToken) {
    let owner = OwnerId::generate(&OsRng).unwrap();
    let key = LockKey::new("", name).unwrap();
    let mut claim = backend.claim(ClaimRequest::new(key, owner, TTL)).unwrap();
    match claim.try_acquire().await.unwrap() {
        Attempt::Granted { token, .. } => (claim, owner, token),
        other => panic!("not granted: {other:?}"),
    }
}

/// A claim that takes the hold of `owner` over, for `ttl`.
fn attach(
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

/// A value that shows the owner, but not its fences, proves nothing.
#[tokio::test]
async fn a_hold_whose_record_was_spoilt_is_not_taken_over() {
    let server = server().await;
    let backend = backend(&server).await;
    let mut plain = plain(&server).await;
    let (mut holder, owner, token) = hold(&backend, "a").await;
    let whole = format!("distlock1n|{}|{token}|", owner.to_hex());
    for spoilt in [&whole[..44], &whole[..whole.len() - 1], &whole.replace("k1n", "k2n")] {
        run(&mut plain, &["SET", "a", spoilt]).await;
        let mut attached = attach(&backend, "a", owner, token.get(), TTL);
        assert_eq!(attached.renew().await.unwrap(), Renewal::Lost, "{spoilt:?}");
        assert_eq!(attached.release().await.unwrap(), Released::AlreadyGone);
    }
    run(&mut plain, &["SET", "a", &whole]).await;
    assert!(matches!(holder.renew().await.unwrap(), Renewal::Alive { .. }));
}

/// The holder hears at once that its lock was taken away, even after another claim in its process
/// has tried to take the lock over.
#[tokio::test]
async fn a_refused_claim_does_not_deafen_the_holder() {
    let server = server().await;
    let backend = backend(&server).await;
    let (mut holder, owner, token) = hold(&backend, "a").await;
    holder.renew().await.unwrap();
    let mut refused = attach(&backend, "a", owner, token.get() + 1, TTL);
    assert_eq!(refused.renew().await.unwrap(), Renewal::Lost);
    refused.release().await.unwrap();
    drop(refused);
    // Being connected counts as a change.
    while tokio::time::timeout(Duration::from_millis(200), holder.changed()).await.is_ok() {}
    let key = LockKey::new("", "a").unwrap();
    let freed = backend.admin().unwrap().force_release(&key, &Victim::Anybody).await.unwrap();
    assert_eq!(freed, Released::Freed);
    let heard = tokio::time::timeout(Duration::from_secs(5), holder.changed()).await;
    heard.expect("the holder was not told").unwrap();
    assert_eq!(holder.check().await.unwrap(), Renewal::Lost);
}

/// A forced release is told to the client that has taken the lock over, and to no earlier one. The
/// label and the time since when it is held stay.
#[tokio::test]
async fn who_has_taken_a_lock_over_is_told_of_its_loss() {
    let server = server().await;
    let (here, there) = (backend(&server).await, backend(&server).await);
    let owner = OwnerId::generate(&OsRng).unwrap();
    let key = LockKey::new("", "a").unwrap();
    let label = Some("a|label".to_owned());
    let request = ClaimRequest::new(key.clone(), owner, TTL).with_label(label.clone());
    let mut first = here.claim(request).unwrap();
    let Attempt::Granted { token, .. } = first.try_acquire().await.unwrap() else {
        panic!("it is free")
    };
    drop(first);
    tokio::time::sleep(Duration::from_millis(50)).await;
    let mut second = attach(&there, "a", owner, token.get(), TTL);
    assert!(matches!(second.renew().await.unwrap(), Renewal::Alive { .. }));
    let seen = here.admin().unwrap().inspect(&key).await.unwrap().unwrap();
    let holder = seen.holder.unwrap();
    assert_eq!((holder.fence, holder.label), (Some(token), label));
    assert!(holder.held_for.unwrap() >= Duration::from_millis(50));
    while tokio::time::timeout(Duration::from_millis(200), second.changed()).await.is_ok() {}
    here.admin().unwrap().force_release(&key, &Victim::Anybody).await.unwrap();
    let heard = tokio::time::timeout(Duration::from_secs(5), second.changed()).await;
    heard.expect("the holder was not told").unwrap();
    assert_eq!(second.check().await.unwrap(), Renewal::Lost);
}

/// Neither a string without an expiry nor a key of another type is changed by anything that a claim
/// does, whatever it believes to hold.
#[tokio::test]
async fn a_foreign_holder_is_never_touched() {
    let server = server().await;
    let backend = backend(&server).await;
    let mut plain = plain(&server).await;
    assert!(set_nx(&mut plain, "expires", 60_000).await);
    run(&mut plain, &["SET", "stays", "somebody", "NX"]).await;
    run(&mut plain, &["HSET", "hash", "somebody", "1"]).await;
    for name in ["expires", "stays", "hash"] {
        let before = run(&mut plain, &["DUMP", name]).await;
        // A hold of ours that somebody has taken by hand.
        let (mut held, owner, token) = {
            run(&mut plain, &["RENAME", name, "aside"]).await;
            let hold = hold(&backend, name).await;
            run(&mut plain, &["RENAME", "aside", name]).await;
            hold
        };
        let mut attached = attach(&backend, name, owner, token.get(), TTL);
        for claim in [&mut held, &mut attached] {
            assert_eq!(claim.renew().await.unwrap(), Renewal::Lost, "{name}");
            assert_eq!(claim.check().await.unwrap(), Renewal::Lost, "{name}");
            assert_eq!(claim.release().await.unwrap(), Released::AlreadyGone, "{name}");
        }
        for wait in [false, true] {
            let mut other = claim(&backend, name, TTL, wait);
            let busy = other.try_acquire().await.unwrap();
            assert!(matches!(busy, Attempt::Busy { .. }), "{name}: {busy:?}");
            if wait {
                other.renew().await.unwrap();
                other.check().await.unwrap();
            }
            other.release().await.unwrap();
        }
        let key = LockKey::new("", name).unwrap();
        let somebody = OwnerId::generate(&OsRng).unwrap();
        for expected in [owner, somebody] {
            let victim = Victim::Shown(expected.into());
            let freed = backend.admin().unwrap().force_release(&key, &victim).await;
            assert_eq!(freed.unwrap(), Released::AlreadyGone, "{name}");
        }
        assert_eq!(run(&mut plain, &["DUMP", name]).await, before, "{name}");
        let Value::Int(left) = run(&mut plain, &["PTTL", name]).await else { panic!("no number") };
        assert_eq!(left > 0, name == "expires", "{name}: {left} ms are left");
        assert!(left <= 60_000, "{name}: {left} ms are left");
    }
}

#[tokio::test]
async fn a_claim_does_not_show_its_owner() {
    let servers = [server().await, server().await, server().await];
    let single = backend(&servers[0]).await;
    let urls =
        servers.each_ref().map(|server| server.url().trim_start_matches("redis://").to_owned());
    let url = format!("redlock://{}?lock_bootstrap=now", urls.join(","));
    let quorum = lock_redis::connect_redlock(&url).await.unwrap();
    let backends: [&dyn LockBackend; 2] = [&single, &quorum];
    for backend in backends {
        let owner = OwnerId::generate(&OsRng).unwrap();
        let key = LockKey::new("", backend.name()).unwrap();
        let mut claim = backend.claim(ClaimRequest::new(key, owner, TTL).with_wait(true)).unwrap();
        for _ in 0..2 {
            let shown = format!("{claim:?} {claim:#?} {backend:?}");
            assert!(shown.contains(backend.name()), "{shown}");
            assert!(!shown.contains(&owner.to_hex()), "{shown}");
            claim.try_acquire().await.unwrap();
            claim.renew().await.unwrap();
        }
        claim.release().await.unwrap();
    }
}
