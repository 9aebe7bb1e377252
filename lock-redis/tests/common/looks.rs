//! What a look at one node must show, as scenes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use conformance_tests::server::Port;
use lock_core::{
    Attempt, ClaimRequest, ErrorKind, LockBackend, LockKey, OsRng, OwnerId, Seen as Shown,
};

use tokio::task::JoinSet;
use tokio::time::Instant;

use super::scenes::Seen;
use super::{backend, busy, claim, floor, granted, is_granted, look, plain, run, server, set_nx};

const TTL: Duration = Duration::from_secs(30);
/// As many as there are microseconds in ten seconds: nobody gets above them by waiting.
const MANY: u32 = 10_000_000;

fn with_label(name: &str, label: &str, fences: u32) -> ClaimRequest {
    let (key, owner) = (LockKey::new("", name).unwrap(), OwnerId::generate(&OsRng).unwrap());
    ClaimRequest::new(key, owner, TTL).with_label(Some(label.to_owned())).with_fences(fences)
}

fn is(seen: &Shown, right: &Shown) -> Seen {
    if seen == right { Ok(()) } else { Err(format!("a look shows {seen:?} instead of {right:?}")) }
}

/// A holder, also of a block; a client of another kind, also with a key of another type; a waiter that was handed the
/// lock, before and after it takes it up; nobody, also where somebody waits behind a lease that has ended.
pub(crate) async fn a_look_shows_whoever_has_a_lock() -> Seen {
    let server = server().await;
    let (a, b, mut plain) = (backend(&server).await, backend(&server).await, plain(&server).await);
    let foreign = Shown::Held { fence: None, label: None };
    let mut one = a.claim(with_label("one", "host-7|ünï", 1)).unwrap();
    let mut block = a.claim(with_label("block", "b", 3)).unwrap();
    let (one_fence, block_fence) = (granted(&mut *one).await, granted(&mut *block).await);
    assert!(set_nx(&mut plain, "plain", 30_000).await);
    run(&mut plain, &["LPUSH", "list", "x"]).await;
    let seen = look(&b, &["list", "one", "nobody", "plain", "block", "one"]).await.unwrap();
    let [list, one_seen, nobody, plain_seen, block_seen, again] = &seen[..] else {
        panic!("{seen:?}")
    };
    is(one_seen, &Shown::Held { fence: Some(one_fence), label: Some("host-7|ünï".into()) })?;
    is(block_seen, &Shown::Held { fence: Some(block_fence), label: Some("b".into()) })?;
    is(again, one_seen)?;
    is(list, &foreign)?;
    is(plain_seen, &foreign)?;
    let Shown::Free { floor: Some(last) } = nobody else { panic!("{nobody:?}") };
    assert_eq!(last.get(), block_fence.get() + 2);

    let mut waiter = claim(&b, "one", TTL, true);
    busy(&mut *waiter).await;
    one.release().await.unwrap();
    let handed = look(&a, &["one"]).await.unwrap().remove(0);
    let fence = granted(&mut *waiter).await;
    is(&handed, &Shown::Held { fence: Some(fence), label: None })?;
    is(&look(&a, &["one"]).await.unwrap()[0], &handed)?;
    waiter.release().await.unwrap();

    let mut short = claim(&a, "short", Duration::from_millis(200), false);
    assert!(is_granted(&mut *short).await);
    let mut waiter = claim(&b, "short", TTL, true);
    busy(&mut *waiter).await;
    tokio::time::sleep(Duration::from_millis(250)).await;
    let floor = floor(&a, "short").await?;
    let fence = granted(&mut *waiter).await.get();
    if fence <= floor {
        Err(format!("the waiter gets {fence} above a floor of {floor}"))
    } else {
        Ok(())
    }
}

/// A name that never had one, one whose fences are lost, and one that was granted in blocks.
pub(crate) async fn a_floor_parts_earlier_fences_from_later_ones() -> Seen {
    let server = server().await;
    let (backend, mut plain) = (backend(&server).await, plain(&server).await);
    let mut last = 0;
    for (what, fences) in [("new", 1), ("lost", 1), ("kept", MANY), ("after a block", 1)] {
        if what == "lost" {
            run(&mut plain, &["FLUSHALL"]).await;
        }
        for name in ["lock", "other"] {
            let floor = floor(&backend, name).await?;
            if floor < last {
                return Err(format!("{what}: the floor {floor} is below the fence {last}"));
            }
            let mut claim = backend.claim(with_label(name, "", fences)).unwrap();
            let first = granted(&mut *claim).await.get();
            if first <= floor {
                return Err(format!("{what}: the fence {first} is not above the floor {floor}"));
            }
            last = first + u64::from(fences) - 1;
            claim.release().await.unwrap();
        }
    }
    Ok(())
}

/// A server that has become a replica does not know what its master grants. It is tried again.
pub(crate) async fn a_replica_shows_nothing() -> Seen {
    let server = server().await;
    let (backend, mut plain) = (backend(&server).await, plain(&server).await);
    let mut holder = claim(&backend, "lock", TTL, false);
    let held = Shown::Held { fence: Some(granted(&mut *holder).await), label: None };
    // Of a master that is not there, so that the data stay.
    let nobody = Port::reserve().unwrap();
    run(&mut plain, &["REPLICAOF", "127.0.0.1", &nobody.to_string()]).await;
    for name in ["lock", "free"] {
        let seen = look(&backend, &[name]).await;
        let Err(error) = seen else { return Err(format!("a replica shows {seen:?}")) };
        assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Unavailable, true), "{error}");
    }
    run(&mut plain, &["REPLICAOF", "NO", "ONE"]).await;
    is(&look(&backend, &["lock"]).await.unwrap()[0], &held)
}

/// Clients that all want one lock look at it before they try and while they hold it, each by the eyes of another one.
pub(crate) async fn looks_beside_grants_are_right(clients: Vec<Arc<dyn LockBackend>>) {
    let given = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    for at in 0..clients.len() {
        let [own, other] = [at, at + 1].map(|at| Arc::clone(&clients[at % clients.len()]));
        let given = Arc::clone(&given);
        tasks.spawn(async move {
            let (mut grants, mut seen) = (0, 0);
            let end = Instant::now() + Duration::from_secs(3);
            while Instant::now() < end {
                let before = given.load(SeqCst);
                let floor = floor(&other, "lock").await.ok();
                assert!(floor.is_none_or(|floor| floor >= before), "{floor:?} after {before}");
                let mut claim = claim(&own, "lock", TTL, false);
                let Ok(Attempt::Granted { token, .. }) = claim.try_acquire().await else {
                    continue;
                };
                let fence = token.get();
                assert!(floor.is_none_or(|floor| fence > floor), "{fence} after {floor:?}");
                match look(&other, &["lock"]).await.unwrap().remove(0) {
                    // Only where a node is slow.
                    Shown::Held { fence: None, .. } => {}
                    Shown::Held { fence: Some(shown), .. } if shown == token => seen += 1,
                    wrong => panic!("{wrong:?} while {fence} is held"),
                }
                given.fetch_max(fence, SeqCst);
                claim.release().await.unwrap();
                grants += 1;
            }
            (grants, seen)
        });
    }
    let counts = tasks.join_all().await;
    println!("grants, and looks that have shown them: {counts:?}");
    let (grants, seen): (Vec<u32>, Vec<u32>) = counts.into_iter().unzip();
    let (grants, seen): (u32, u32) = (grants.iter().sum(), seen.iter().sum());
    assert!(grants > 20 && seen * 10 > grants * 9, "{seen} of {grants}");
}
