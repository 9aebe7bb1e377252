//! What a look shows, on any database: each scene ends with an error that says what it saw.

#![allow(dead_code, reason = "each test target uses a part of it")]

use std::time::Duration;

use lock_core::{
    Attempt, Claim, ClaimRequest, FencingToken, LockBackend, LockKey, OsRng, OwnerId, Released,
    Seen,
};
use lock_sql::SqlBackend;
use tokio::time::Instant;

const TTL: Duration = Duration::from_secs(60);
/// How many fences a hold has whose label is this.
const FENCES: u32 = 5;
const LABEL: &str = "a label";

pub(crate) fn key(name: &str) -> LockKey {
    LockKey::new("", name).unwrap()
}

pub(crate) async fn look(backend: &SqlBackend, name: &str) -> Seen {
    backend.look(&[key(name)]).await.unwrap().remove(0)
}

/// A hold, and its first fence.
async fn taken(backend: &SqlBackend, name: &str, ttl: Duration) -> (Box<dyn Claim>, FencingToken) {
    let owner = OwnerId::generate(&OsRng).unwrap();
    let request = ClaimRequest::new(key(name), owner, ttl).with_fences(FENCES);
    let mut claim = backend.claim(request.with_label(Some(LABEL.to_owned()))).unwrap();
    match claim.try_acquire().await.unwrap() {
        Attempt::Granted { token, .. } => (claim, token),
        other => panic!("{name} is not granted: {other:?}"),
    }
}

async fn released(mut claim: Box<dyn Claim>) {
    assert_eq!(claim.release().await.unwrap(), Released::Freed);
}

/// What is seen of a name whose last hold began with the fence `first`, and has ended, is that and below
/// all that comes.
async fn is_free(backend: &SqlBackend, name: &str, first: FencingToken) -> Result<(), String> {
    let seen = look(backend, name).await;
    let Seen::Free { floor: Some(floor) } = seen else {
        return Err(format!(
            "the hold of {name} from {first} on has ended, and is seen as {seen:?}"
        ));
    };
    let last = first.get() + u64::from(FENCES) - 1;
    let (next, fence) = taken(backend, name, TTL).await;
    released(next).await;
    if floor.get() < last || floor >= fence {
        return Err(format!(
            "{name} had the fence {last}, and then {fence}, and in between the floor {floor}"
        ));
    }
    Ok(())
}

/// A client looks at what another one does.
pub(crate) async fn looks(url: &str) -> Result<(), String> {
    let (a, b) = (lock_sql::connect(url).await.unwrap(), lock_sql::connect(url).await.unwrap());
    for round in 0..20 {
        let name = format!("lock {}", round % 3);
        let (claim, first) = taken(&a, &name, TTL).await;
        let held = Seen::Held { fence: Some(first), label: Some(LABEL.to_owned()) };
        for client in [&a, &b] {
            let seen = look(client, &name).await;
            if seen != held {
                return Err(format!("{held:?} is seen as {seen:?}"));
            }
        }
        released(claim).await;
        is_free(&b, &name, first).await?;
    }
    let ttl = Duration::from_millis(200);
    let (_abandoned, first) = taken(&a, "abandoned", ttl).await;
    tokio::time::sleep(ttl * 3 / 2).await;
    is_free(&b, "abandoned", first).await?;
    removed(url, &b).await
}

/// The row of a name is removed, as is shown by a floor that rises with the fences of other names.
async fn removed(url: &str, other: &SqlBackend) -> Result<(), String> {
    let more = if url.contains('?') { '&' } else { '?' };
    let sweeping = lock_sql::connect(&format!("{url}{more}lock_retention=1ms")).await.unwrap();
    let (old, first) = taken(&sweeping, "old", TTL).await;
    released(old).await;
    // Swept with it or after it, it raises the floor: a name that was just released is left.
    released(taken(&sweeping, "young", TTL).await.0).await;
    let (last, begun) = (first.get() + u64::from(FENCES) - 1, Instant::now());
    loop {
        // A sweep that has failed on a busy machine comes again after a minute.
        assert!(begun.elapsed() < Duration::from_secs(150), "the row is still there");
        // A grant begins a sweep when one is due.
        released(taken(&sweeping, "busy", TTL).await.0).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        match look(other, "old").await {
            Seen::Free { floor: Some(floor) } if floor.get() == last => {}
            Seen::Free { floor: Some(floor) } if floor.get() > last => break,
            seen => return Err(format!("a name that had the fence {last} is seen as {seen:?}")),
        }
    }
    is_free(other, "old", first).await
}

/// Of two who each take a lock and then look at the other's, one sees the other.
pub(crate) async fn crossed_looks(url: &str) -> Result<(), String> {
    let (a, b) = (lock_sql::connect(url).await.unwrap(), lock_sql::connect(url).await.unwrap());
    let is_seen = |seen: &Seen| matches!(seen, Seen::Held { .. });
    for round in 0..200 {
        let cross = async |client: &SqlBackend, own: &str, other: &str| {
            let (claim, _) = taken(client, own, TTL).await;
            (claim, look(client, other).await)
        };
        let (slot, gate) = (format!("slot {}", round % 5), format!("gate {}", round % 7));
        let ((reader, gate_seen), (writer, slot_seen)) =
            tokio::join!(cross(&a, &slot, &gate), cross(&b, &gate, &slot));
        if !is_seen(&gate_seen) && !is_seen(&slot_seen) {
            return Err(format!("violated: round {round}: neither sees the other"));
        }
        released(reader).await;
        released(writer).await;
    }
    Ok(())
}

/// Many names at once, in their places; `requests`: how many were sent so far.
pub(crate) async fn many_names(backend: &SqlBackend, requests: impl Fn() -> u64) {
    let mut held = Vec::new();
    for n in (0..64).step_by(3) {
        held.push(taken(backend, &format!("n{n}"), TTL).await);
    }
    let keys: Vec<_> = (0..64).map(|n| key(&format!("n{n}"))).collect();
    let mut sent = Vec::new();
    // The first ones prepare their statements, and something else may be sent at the same time.
    while sent.last() != Some(&(1, 1)) {
        assert!(sent.len() < 5, "requests for 64 names, and for one: {sent:?}");
        let before = requests();
        let seen = backend.look(&keys).await.unwrap();
        let between = requests();
        look(backend, "n0").await;
        sent.push((between - before, requests() - between));
        for (n, seen) in seen.into_iter().enumerate() {
            let fence = match seen {
                Seen::Held { fence, .. } => fence,
                _ => None,
            };
            let wanted = (n % 3 == 0).then(|| held[n / 3].1);
            assert_eq!(fence, wanted, "n{n}");
        }
    }
}
