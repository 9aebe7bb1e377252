//! What a look shows of a lock, and where its floor lies.

use std::time::Duration;

use lock_core::{Attempt, FencingToken, LockBackend, LockKey, Seen};
use lock_etcd::EtcdBackend;

use crate::common::{
    LONG, backend, busy, claim, granted, keys, must, must_eq, must_exactly, one, plain, request,
    soon, starting_at, three,
};

async fn look(backend: &EtcdBackend, name: &str) -> Seen {
    try_look(backend, name).await.unwrap()
}

async fn try_look(backend: &EtcdBackend, name: &str) -> lock_core::Result<Seen> {
    let seen = backend.look(&[LockKey::new("", name).unwrap()]).await?;
    assert_eq!(seen.len(), 1);
    Ok(seen.into_iter().next().unwrap())
}

fn held_by(fence: FencingToken) -> Seen {
    Seen::Held { fence: Some(fence), label: None }
}

/// The floor of a lock that is free.
fn floor(seen: &Seen) -> FencingToken {
    match seen {
        Seen::Free { floor: Some(floor) } => *floor,
        other => crate::common::mistake(&format!("the lock is free, and a look shows {other:?}")),
    }
}

async fn floor_of(backend: &EtcdBackend, name: &str) -> FencingToken {
    floor(&look(backend, name).await)
}

/// Takes and releases the lock.
async fn hold(backend: &EtcdBackend) -> FencingToken {
    let mut holder = claim(backend, "lock", false);
    let fence = granted(&mut *holder).await;
    holder.release().await.unwrap();
    fence
}

/// From the grant to the release, also where the lock was handed to one who does not know it yet.
pub(crate) async fn a_look_shows_the_first_in_the_queue() {
    let cluster = one().await;
    let (a, b) = (backend(&cluster).await, backend(&cluster).await);
    floor_of(&a, "lock").await;
    let labelled = request("lock", LONG).with_label(Some("ci-7".to_owned()));
    let mut holder = a.claim(labelled).unwrap();
    let fence = granted(&mut *holder).await;
    let mut waiters = [claim(&b, "lock", true), claim(&b, "lock", true)];
    for waiter in &mut waiters {
        busy(&mut **waiter).await;
    }
    let label = Some("ci-7".to_owned());
    must_eq!(look(&b, "lock").await, Seen::Held { fence: Some(fence), label });
    holder.release().await.unwrap();
    let handed = look(&a, "lock").await;
    must_eq!(handed, held_by(granted(&mut *waiters[0]).await));
    // One who gives up his place changes nothing.
    waiters[1].release().await.unwrap();
    must_eq!(look(&a, "lock").await, handed);
    waiters[0].release().await.unwrap();
    floor_of(&a, "lock").await;
}

/// Each name has its own answer, in the order of the names, more of them than one request reads.
pub(crate) async fn a_look_at_many_names_has_an_answer_for_each() {
    const NAMES: usize = 230;
    let cluster = one().await;
    let backend = backend(&cluster).await;
    let mut holders = Vec::new();
    for at in (0..NAMES).step_by(7) {
        let mut holder = claim(&backend, &format!("lock{at}"), false);
        let fence = granted(&mut *holder).await;
        holders.push((at, fence, holder));
    }
    let name = |at: usize| LockKey::new("", format!("lock{at}")).unwrap();
    let names: Vec<_> = (0..NAMES).map(name).collect();
    let seen = backend.look(&names).await.unwrap();
    must_eq!(seen.len(), NAMES);
    let mut holders = holders.iter().peekable();
    for (at, seen) in seen.iter().enumerate() {
        match holders.next_if(|holder| holder.0 == at) {
            Some((_, fence, _)) => must_eq!(*seen, held_by(*fence), "name {at}"),
            None => must!(matches!(seen, Seen::Free { .. }), "name {at}: {seen:?}"),
        }
    }
    must_eq!(backend.look(&[]).await.unwrap(), []);
}

/// A floor is above all fences before it, and below all after it: with any client, also when one has raised the
/// base, after a compaction, and after a restart.
pub(crate) async fn a_floor_lies_between_the_fences() {
    let cluster = one().await;
    let (a, b) = (backend(&cluster).await, backend(&cluster).await);
    let mut last = hold(&a).await;
    for round in 0..8 {
        let fresh = backend(&cluster).await;
        match round {
            2 => {
                let other = plain(&cluster, 0);
                other.compact(other.revision().await).await;
            }
            4 => {
                cluster.restart_all().await.unwrap();
                for client in [&a, &b, &fresh] {
                    soon("a new connection", async { while client.ping().await.is_err() {} }).await;
                }
            }
            // The next one to take a lock raises the base.
            6 => tokio::time::sleep(Duration::from_millis(150)).await,
            _ => {}
        }
        for client in [&a, &b, &fresh] {
            let floor = floor_of(client, "lock").await;
            must_exactly!(floor >= last, "round {round}: the floor is {floor} after {last}");
            last = hold(if round == 6 { &fresh } else { &a }).await;
            must_exactly!(
                last > floor,
                "round {round}: {last} was given, and the floor was {floor}"
            );
        }
    }
}

/// By the server's clock: until it has removed the entry, the lock is held.
pub(crate) async fn a_lease_that_ends_frees_the_lock_for_a_look() {
    let cluster = one().await;
    let (a, b) = (backend(&cluster).await, backend(&cluster).await);
    let mut holder = a.claim(request("lock", Duration::from_secs(2))).unwrap();
    let fence = granted(&mut *holder).await;
    // Nobody renews it.
    let seen = soon("its lease ends", async {
        loop {
            match look(&b, "lock").await {
                seen @ Seen::Held { .. } => must_eq!(seen, held_by(fence)),
                seen => return seen,
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    must_exactly!(floor(&seen.await) >= fence);
}

/// Go programs and `etcdctl` stand in the same queue. A queue below ours belongs to another lock.
pub(crate) async fn a_look_shows_others_in_the_queue() {
    let cluster = one().await;
    let backend = backend(&cluster).await;
    let other = plain(&cluster, 0);
    let before = hold(&backend).await;
    let lease = other.lease_grant(60).await;
    let below = format!("lock/b/{lease:x}");
    other.put_with(&below, "", lease).await;
    must_exactly!(floor_of(&backend, "lock").await >= before);
    let key = format!("lock/{lease:x}");
    other.put_with(&key, "a secret", lease).await;
    let mut waiter = claim(&backend, "lock", true);
    busy(&mut *waiter).await;
    let created = other.get(&key).await.unwrap().created;
    let fence = FencingToken::answered(created).unwrap();
    must_eq!(look(&backend, "lock").await, held_by(fence));
    other.delete(&key).await;
    let seen = look(&backend, "lock").await;
    let fence = granted(&mut *waiter).await;
    must_eq!(seen, held_by(fence));
    waiter.release().await.unwrap();
    must_exactly!(floor_of(&backend, "lock").await >= fence);
}

/// Fences that count from 0 have such a floor, too.
pub(crate) async fn a_floor_of_bare_revisions_is_one() {
    let cluster = one().await;
    let backend =
        lock_etcd::connect(&format!("{}?lock_fence=revision", cluster.url())).await.unwrap();
    let other = plain(&cluster, 0);
    let fence = hold(&backend).await;
    let floor = floor_of(&backend, "lock").await;
    must_exactly!(floor >= fence && i64::try_from(floor.get()).unwrap() == other.revision().await);
    must_exactly!(hold(&backend).await > floor);
}

/// A copy of the store has a lower base and a lower revision. The floor is not below what this client was given, and
/// the next fences are still above it.
pub(crate) async fn a_restored_snapshot_lowers_no_floor() {
    let cluster = one().await;
    let (a, b) = (backend(&cluster).await, backend(&cluster).await);
    hold(&a).await;
    hold(&b).await;
    cluster.back_up().await.unwrap();
    let other = plain(&cluster, 0);
    for _ in 0..50 {
        other.put("noise", "").await;
    }
    let last = hold(&a).await;
    cluster.restore().await.unwrap();
    for client in [&a, &b] {
        soon("a new connection", async { while client.ping().await.is_err() {} }).await;
    }
    let floor = floor_of(&a, "lock").await;
    must_exactly!(floor >= last, "the floor is {floor} after {last}");
    for client in [&b, &a] {
        let fence = next_fence(client).await;
        must_exactly!(fence > floor, "{fence} was given, and the floor was {floor}");
    }
}

/// As [`hold`], after a restore: an entry may be given up, and is taken away in the background.
async fn next_fence(backend: &EtcdBackend) -> FencingToken {
    let mut holder = claim(backend, "lock", false);
    let fence = soon("the lock", async {
        loop {
            if let Ok(Attempt::Granted { token, .. }) = holder.try_acquire().await {
                return token;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    holder.release().await.unwrap();
    fence
}

/// A member that is cut off does not know of a lock that was granted since, and believes in its leader for a second.
pub(crate) async fn a_look_does_not_believe_a_member_that_is_cut_off() {
    let cluster = three().await;
    let leader = cluster.leader().await.unwrap();
    let member = (leader + 1) % 3;
    let alone = format!("etcd://{}", cluster.address(member).unwrap());
    let a = lock_etcd::connect(&alone).await.unwrap();
    let b = lock_etcd::connect(&format!("etcd://{}", cluster.address(leader).unwrap())).await;
    let b = b.unwrap();
    hold(&b).await;
    floor_of(&a, "lock").await;
    cluster.cut_off(member).unwrap();
    let mut holder = b.claim(request("lock", LONG)).unwrap();
    granted(&mut *holder).await;
    let seen = try_look(&a, "lock").await;
    must_exactly!(
        !matches!(seen, Ok(Seen::Free { .. })),
        "the lock is held, and a look shows {seen:?}"
    );
}

/// What has been answered through one member is seen through another one at once.
pub(crate) async fn a_look_through_another_member_sees_each_grant() {
    let cluster = three().await;
    let mut clients = Vec::new();
    for member in 0..3 {
        let address = cluster.address(member).unwrap().to_string();
        clients.push(starting_at(cluster.url(), &address).await);
    }
    for round in 0..60 {
        let (a, b) = (&clients[round % 3], &clients[(round + 1 + round / 3 % 2) % 3]);
        let mut holder = claim(a, "lock", false);
        let fence = granted(&mut *holder).await;
        must_eq!(look(b, "lock").await, held_by(fence), "round {round}");
        holder.release().await.unwrap();
        let floor = floor_of(b, "lock").await;
        must_exactly!(floor >= fence, "round {round}: the floor is {floor} after {fence}");
    }
    must_eq!(keys(&plain(&cluster, 0), "lock/").await, [], "a look leaves nothing");
}
