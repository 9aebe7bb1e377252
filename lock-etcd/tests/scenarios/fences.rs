//! Fences, whatever happens to the base from which they count.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use conformance_tests::shared::{Cut, drop_after};
use conformance_tests::{Fault, Faults};
use lock_core::{
    Attempt, FencingToken, LockAdmin, LockBackend, LockKey, Released, Renewal, Resume,
};
use lock_etcd::EtcdBackend;
use lock_testkit::servers::EtcdCluster;

use crate::common::client::Client;
use crate::common::{
    backend, busy, claim, granted, keys, must, must_eq, must_exactly, one, plain, proxied, request,
    soon,
};

/// µs since 1970, which fences of other stores are about.
fn clock() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    u64::try_from(now.as_micros()).unwrap()
}

/// The fence of one hold.
async fn hold(backend: &EtcdBackend) -> FencingToken {
    let mut holder = claim(backend, "lock", false);
    let fence = soon("the lock", async {
        loop {
            match holder.try_acquire().await {
                Ok(Attempt::Granted { token, .. }) => return token,
                // A place that was given up is taken away in the background.
                Ok(_) => {}
                Err(error) => must!(error.is_retryable(), "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    must_eq!(granted(&mut *holder).await, fence, "the same token again");
    soon("the release", async { while holder.release().await.is_err() {} }).await;
    fence
}

/// What makes revisions rise, so that those of a copy are far behind.
async fn noise(client: &Client) {
    for _ in 0..50 {
        client.put("noise", "").await;
    }
}

async fn base_of(client: &Client, folder: &str) -> Option<u64> {
    let found = client.get(&format!("distlock-fence:{folder}")).await;
    found.map(|found| found.value.parse().unwrap())
}

async fn restored(cluster: &EtcdCluster, clients: &[&EtcdBackend]) {
    cluster.restore().await.unwrap();
    for client in clients {
        soon("a new connection", async { while client.ping().await.is_err() {} }).await;
    }
}

/// These clients hold the lock one after the other, each with a greater fence than the one before. If not, the error ends
/// with `what`.
async fn rise_in(order: &[&EtcdBackend], mut last: FencingToken, what: &str) {
    for backend in order {
        let fence = hold(backend).await;
        must_exactly!(fence > last, "{fence} after {last}{what}");
        last = fence;
    }
}

/// All stores count in µs since 1970 or above: a resource that has seen their fences takes ours,
/// and theirs again when the next one serves, since the revision adds little.
pub(crate) async fn fences_are_above_those_of_other_stores() {
    let cluster = one().await;
    let other = plain(&cluster, 0);
    noise(&other).await;
    for round in 0..2 {
        // The store before this one has given its last fence, and its time has passed.
        let before = clock();
        tokio::time::sleep(Duration::from_millis(200)).await;
        let backend = backend(&cluster).await;
        let fence = hold(&backend).await.get();
        must_exactly!(fence > before, "round {round}: {fence} after {before} elsewhere");
        must!(fence <= clock() + 1000, "round {round}: {fence} is ahead of the clock");
    }
}

/// Each holder has a greater fence than the one before, with any client, old or new.
pub(crate) async fn fences_rise_over_clients() {
    let cluster = one().await;
    let (a, b) = (backend(&cluster).await, backend(&cluster).await);
    let mut last = hold(&a).await;
    for round in 0..6 {
        // Each of these raises the base, and a and b must notice.
        tokio::time::sleep(Duration::from_millis(150)).await;
        let fresh = backend(&cluster).await;
        for backend in [&fresh, &a, &b] {
            let fence = hold(backend).await;
            must_exactly!(fence > last, "round {round}: {fence} after {last}");
            last = fence;
        }
    }
    // At the same time, too.
    let mut tries = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let fresh = backend(&cluster).await;
        tries.spawn(async move { hold(&fresh).await });
    }
    let mut fences = soon("all of them", tries.join_all()).await;
    fences.sort_unstable();
    must_exactly!(fences[0] > last && fences.windows(2).all(|two| two[0] < two[1]), "{fences:?}");
}

/// A raise refuses the entries of all clients that do not know of it yet. If each of them raised the
/// base in its turn because it is behind the clock by then, a crowd of them would never get in.
pub(crate) async fn a_base_in_use_is_not_raised_again() {
    let cluster = one().await;
    let a = backend(&cluster).await;
    let other = plain(&cluster, 0);
    let fence = hold(&a).await;
    // Another client has raised it, and that was longer ago than a new client would put up with.
    let raised = base_of(&other, "").await.unwrap() + 1;
    tokio::time::sleep(Duration::from_millis(200)).await;
    other.put("distlock-fence:", &raised.to_string()).await;
    must_exactly!(hold(&a).await > fence);
    must_eq!(base_of(&other, "").await, Some(raised), "it is in use, and was raised again");
}

/// An entry keeps the fence that its key shows, even if the base has changed since.
pub(crate) async fn a_hold_keeps_its_fence_when_the_base_is_lifted() {
    let cluster = one().await;
    let a = backend(&cluster).await;
    let other = plain(&cluster, 0);
    let lock = request("lock", Duration::from_secs(60)).with_label(Some("ci-7".to_owned()));
    let mut holder = a.claim(lock.clone()).unwrap();
    let fence = granted(&mut *holder).await;
    let base = base_of(&other, "").await.unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    granted(&mut *claim(&backend(&cluster).await, "another", false)).await;
    assert!(base_of(&other, "").await.unwrap() > base, "the base was lifted");
    must_eq!(granted(&mut *holder).await, fence);
    let key = LockKey::new("", "lock").unwrap();
    let info = a.inspect(&key).await.unwrap().unwrap().holder.unwrap();
    must_eq!((info.fence, info.label.as_deref()), (Some(fence), Some("ci-7")));
    let data = holder.detach().await.unwrap();
    let b = backend(&cluster).await;
    let mut attached = b.claim(lock.with_resume(Resume::new(fence, data))).unwrap();
    must!(matches!(attached.renew().await.unwrap(), Renewal::Alive { .. }));
    must_eq!(attached.release().await.unwrap(), Released::Freed);
    let mut next = claim(&a, "lock", false);
    must_exactly!(granted(&mut *next).await > fence);
}

/// The cluster is wiped, and so is the base. A client that has known it, and one that has not, each
/// as the first to take the lock.
pub(crate) async fn a_wiped_cluster_gives_no_lower_fence() {
    for known_first in [true, false] {
        let cluster = one().await;
        cluster.back_up().await.unwrap();
        let a = backend(&cluster).await;
        let other = plain(&cluster, 0);
        assert_eq!(base_of(&other, "").await, None, "the copy is of a new cluster");
        noise(&other).await;
        let last = hold(&a).await;
        restored(&cluster, &[&a]).await;
        let other = plain(&cluster, 0);
        assert_eq!(base_of(&other, "").await, None, "the cluster was wiped");
        let b = backend(&cluster).await;
        let order = if known_first { [&a, &b, &a] } else { [&b, &a, &b] };
        rise_in(&order, last, &format!(", known first: {known_first}")).await;
    }
}

/// A snapshot is restored in which the base is. Revisions go back, and fences do not: neither those
/// of a client that has seen higher ones, nor those of a new client.
pub(crate) async fn a_restored_snapshot_gives_no_lower_fence() {
    for known_first in [true, false] {
        let cluster = one().await;
        let a = backend(&cluster).await;
        hold(&a).await;
        cluster.back_up().await.unwrap();
        let other = plain(&cluster, 0);
        noise(&other).await;
        let last = hold(&a).await;
        let highest = other.revision().await;
        restored(&cluster, &[&a]).await;
        let other = plain(&cluster, 0);
        assert!(base_of(&other, "").await.is_some(), "the base is in the copy");
        assert!(other.revision().await < highest, "revisions have gone back");
        let b = backend(&cluster).await;
        let order = if known_first { [&a, &b, &a] } else { [&b, &a, &b] };
        rise_in(&order, last, &format!(", known first: {known_first}")).await;
    }
}

/// A client that has missed the last fences before a restore is the first to take the lock after it.
/// All clocks are right.
pub(crate) async fn who_missed_the_last_fences_gives_no_lower_one() {
    let cluster = one().await;
    let (a, c) = (backend(&cluster).await, backend(&cluster).await);
    hold(&c).await;
    hold(&a).await;
    cluster.back_up().await.unwrap();
    noise(&plain(&cluster, 0)).await;
    let last = hold(&a).await;
    restored(&cluster, &[]).await;
    rise_in(&[&c, &a], last, "").await;
}

/// After a restore the first attempt takes the lock, and its answer is lost.
pub(crate) async fn a_fence_that_was_found_is_not_below_earlier_ones() {
    let cluster = one().await;
    let (proxy, a) = proxied(&cluster).await;
    hold(&a).await;
    cluster.back_up().await.unwrap();
    noise(&plain(&cluster, 0)).await;
    let last = hold(&a).await;
    restored(&cluster, &[]).await;
    proxy.inject(Fault::LoseNextReply).await.unwrap();
    let fence = hold(&a).await;
    assert_eq!(proxy.struck(), Some(1), "an answer was lost");
    must_exactly!(fence > last, "{fence} after {last}");
}

/// A lease had a lock when the snapshot was taken, and is a spare one by now. After the restore it
/// has that lock again, which nobody holds: a lock that takes it, too, keeps both.
pub(crate) async fn a_spare_lease_keeps_no_lock_of_the_past() {
    // No lease gets too old meanwhile, and none is renewed.
    const TTL: Duration = Duration::from_secs(600);
    let cluster = one().await;
    let a = backend(&cluster).await;
    let other = plain(&cluster, 0);
    let long =
        |name| a.claim(request(name, TTL).with_call_timeout(Duration::from_secs(20))).unwrap();
    let mut holder = long("lock");
    granted(&mut *holder).await;
    let past = keys(&other, "lock/").await;
    soon("the spare lease of the pool", async { while long_leases(&other).await < 2 {} }).await;
    cluster.back_up().await.unwrap();
    soon("a new connection", async { while a.ping().await.is_err() {} }).await;
    must_eq!(holder.release().await.unwrap(), Released::Freed);
    restored(&cluster, &[&a]).await;
    assert_eq!(keys(&other, "lock/").await, past, "the copy has that lock");
    // The client hears of the restore by another pool: what is taken when it does not know yet is given
    // up.
    granted(&mut *claim(&a, "news", false)).await;
    let mut holders = [long("one"), long("another")];
    for holder in &mut holders {
        granted(&mut **holder).await;
    }
    for name in ["one/", "another/"] {
        let taken = keys(&other, name).await;
        assert_eq!(taken.len(), 1, "{name} is held");
        must!(taken[0].1 != past[0].1, "{name} has the lease of a lock that nobody holds");
    }
}

/// How many leases last for longer than those of the other pools, and than a probe.
async fn long_leases(client: &Client) -> usize {
    let mut long = 0;
    for lease in client.leases().await {
        long += usize::from(client.left(lease).await > 60);
    }
    long
}

/// An operator deletes the base, or overwrites it with something that is not a number.
pub(crate) async fn a_base_that_was_tampered_with_lowers_no_fence() {
    let cluster = one().await;
    let a = backend(&cluster).await;
    let other = plain(&cluster, 0);
    let first = hold(&a).await;
    other.delete("distlock-fence:").await;
    let second = hold(&a).await;
    must_exactly!(second > first);
    other.put("distlock-fence:", "1000").await;
    let third = hold(&a).await;
    must_exactly!(third > second);
    other.put("distlock-fence:", "much").await;
    let error = claim(&a, "lock", false).try_acquire().await.unwrap_err();
    must!(error.to_string().contains("distlock-fence:"), "{error}");
    other.delete("distlock-fence:").await;
    must_exactly!(hold(&a).await > third);
}

/// As Go clients count.
pub(crate) async fn bare_revisions_are_to_be_had() {
    let cluster = one().await;
    let url = format!("{}/jobs?lock_fence=revision", cluster.url());
    let a = lock_etcd::connect(&url).await.unwrap();
    let other = plain(&cluster, 0);
    let lock = request("lock", Duration::from_secs(60));
    let mut holder = a.claim(lock.clone()).unwrap();
    let fence = granted(&mut *holder).await;
    let rev = other.all("jobs/lock/").await[0].created;
    must_eq!(i64::try_from(fence.get()).unwrap(), rev);
    must_eq!(base_of(&other, "jobs").await, None, "an unneeded base was created");
    let data = holder.detach().await.unwrap();
    let mut attached = a.claim(lock.with_resume(Resume::new(fence, data))).unwrap();
    must!(matches!(attached.renew().await.unwrap(), Renewal::Alive { .. }));
}

/// The base is no lock and no place, for us and for Go: a lock has a folder's name, and a queue
/// below it.
pub(crate) async fn the_base_is_seen_by_nobody() {
    let cluster = one().await;
    let (plain_names, jobs) = (
        backend(&cluster).await,
        lock_etcd::connect(&format!("{}/jobs", cluster.url())).await.unwrap(),
    );
    let other = plain(&cluster, 0);
    hold(&jobs).await;
    hold(&plain_names).await;
    for folder in ["", "jobs"] {
        must!(base_of(&other, folder).await.is_some(), "{folder}");
    }
    must_eq!(plain_names.list("", "").await.unwrap(), []);
    must_eq!(jobs.list("", "").await.unwrap(), []);
    for name in ["jobs", "distlock-fence:", "distlock-fence:jobs"] {
        let key = LockKey::new("", name).unwrap();
        must_eq!(plain_names.inspect(&key).await.unwrap(), None, "{name}");
        let mut holder = claim(&plain_names, name, false);
        granted(&mut *holder).await;
        busy(&mut *claim(&plain_names, name, false)).await;
        holder.release().await.unwrap();
    }
}

/// The claim that finds out the base is driven no more, at whichever await. The others of its client do not
/// lose their calls to it, although these have no more time than a request.
pub(crate) async fn a_claim_that_stands_still_stops_no_other() {
    let cluster = one().await;
    for polls in 1.. {
        let backend = backend(&cluster).await;
        let (mut still, mut other) =
            (claim(&backend, "still", false), claim(&backend, "other", false));
        let mut call = still.try_acquire();
        let cut = drop_after(polls, call.as_mut()).await;
        granted(&mut *other).await;
        other.release().await.unwrap();
        if matches!(cut, Cut::Done(_)) {
            assert!(polls > 2, "it has met few awaits");
            break;
        }
    }
}
