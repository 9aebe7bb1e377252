//! Who holds a lock on a quorum when nodes answer late, locks end early and tokens cannot be
//! trusted.

use std::time::Duration;

use crate::redlock_common::common::stored::stored;
use crate::redlock_common::common::{calls, scenes_hold, until};
use crate::redlock_common::scenarios;
use crate::redlock_common::{ADOPTED, COUNTER, Masters, claim, granted, request};
use conformance_tests::server::Cut;
use lock_core::{
    Attempt, Bytes, Claim, ClaimRequest, ErrorKind, FencingToken, LockBackend, Locks, OsRng,
    OwnerId, Released, Renewal, Resume,
};
use lock_redis::RedlockBackend;
use lock_testkit::golden;
use tokio::time::{Instant, sleep, timeout};

const TTL: Duration = Duration::from_secs(20);

scenes_hold! {
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    scenarios:
    an_old_fence_does_not_come_back
    a_hold_that_was_interrupted_is_not_renewed
    a_grant_that_is_over_is_given_back
    no_fence_of_a_block_is_given_again
    only_its_own_block_is_taken_over
}

/// Each node does so much for each lock that everybody takes.
#[tokio::test]
async fn an_uncontended_cycle_costs_a_node_few_commands() {
    const ROUNDS: u64 = 50;
    let masters = Masters::start().await.unwrap();
    let client = masters.client("").await.unwrap();
    let mut plain = masters.plain(0).await;
    let cycle = async || {
        let mut claim = claim(&client, "lock", TTL);
        granted(&mut *claim).await;
        assert_eq!(claim.release().await.unwrap(), Released::Freed);
    };
    cycle().await;
    let before = calls(&mut plain, |_| true).await;
    for _ in 0..ROUNDS {
        cycle().await;
    }
    let all = calls(&mut plain, |_| true).await - before;
    println!(
        "{} commands for each cycle of two calls, those inside scripts included",
        all / ROUNDS
    );
    // Five to vote, three to give the vote up, and one for each call.
    assert!(all / ROUNDS <= 10, "{all}");
}

/// A node that joined later counts after a renewal, whatever its counter: then one of the first two may
/// be lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_joined_later_is_adopted_by_a_renewal() {
    let (masters, links, backend) = Masters::proxied().await;
    links.0[2].stall();
    let mut holder = claim(&backend, "lock", TTL);
    let fence = granted(&mut *holder).await;
    // Another name has raised the node's mark since.
    let mark = (fence + 1_000_000).to_string();
    masters.command(2, &["HSET", "distlock\u{1e}quorum", "mark", &mark]).await;
    links.0[2].pass();
    let end = Instant::now() + Duration::from_secs(10);
    let fence = fence.to_string();
    while masters.vote(2, "lock").await.get(ADOPTED) != Some(&fence) {
        assert!(matches!(holder.renew().await.unwrap(), Renewal::Alive { .. }));
        assert!(Instant::now() < end, "the third node was not adopted");
        sleep(Duration::from_millis(50)).await;
    }
    assert_ne!(masters.vote(2, "lock").await[COUNTER], fence);
    masters.command(0, &["DEL", "lock"]).await;
    let renewal = holder.renew().await.unwrap();
    assert!(matches!(renewal, Renewal::Alive { .. }), "{renewal:?}");
    assert_eq!(holder.release().await.unwrap(), Released::Freed);
}

/// What a held lock, a waiter and a released lock leave on a node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_stored_is_what_was_stored() {
    let masters = Masters::start().await.unwrap();
    let (a, b) = (masters.client("").await.unwrap(), masters.client("").await.unwrap());
    let (a, b) = (Locks::new(a), Locks::new(b));
    let held = a.named("held").unwrap().label("a label").ttl(TTL).cohort(4);
    let guard = held.acquire().await.unwrap();
    a.named("released").unwrap().acquire().await.unwrap().release().await.unwrap();
    let waiter = b.named("held").unwrap().ttl(TTL);
    let waiting = tokio::spawn(async move { waiter.acquire().await });
    let mut node = masters.plain(0).await;
    let queue = "{held}\u{1e}channels";
    until("it waits", TTL, async || masters.has(0, queue).await).await;
    // Two nodes have freed it, and the third one soon will.
    until("it goes", TTL, async || !masters.has(0, "released").await).await;
    golden::check(env!("CARGO_MANIFEST_DIR"), "redlock", &stored(&mut node).await);
    waiting.abort();
    drop(guard);
}

/// And a node that has lost its data, and waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_stored_after_a_loss_is_what_was_stored() {
    let masters = Masters::start().await.unwrap();
    let client = masters.client("").await.unwrap();
    granted(&mut *claim(&client, "lock", TTL)).await;
    masters.command(0, &["FLUSHALL"]).await;
    until("it is found out", TTL, async || {
        let mut asks = claim(&client, "other", TTL);
        granted(&mut *asks).await;
        asks.release().await.unwrap();
        masters.has(0, "distlock\u{1e}quorum").await
    })
    .await;
    let stored = stored(&mut masters.plain(0).await).await;
    golden::check(env!("CARGO_MANIFEST_DIR"), "redlock-lost", &stored);
}

/// A claim whose hold has ended waits like any other: it is woken by the next release.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_whose_hold_has_ended_is_woken() {
    let masters = Masters::start().await.unwrap();
    let (a, b) = (masters.client("").await.unwrap(), masters.client("").await.unwrap());
    let mut ended = a.claim(request("lock", TTL).with_wait(true)).unwrap();
    granted(&mut *ended).await;
    masters.each(0..3, &["DEL", "lock"]).await;
    let mut holder = claim(&b, "lock", TTL);
    granted(&mut *holder).await;
    assert!(matches!(ended.try_acquire().await.unwrap(), Attempt::Busy { .. }));
    holder.release().await.unwrap();
    timeout(Duration::from_secs(3), ended.changed()).await.expect("nothing was heard").unwrap();
    granted(&mut *ended).await;
}

async fn until_all_have(masters: &Masters, name: &str) {
    for node in 0..3 {
        let has = async || masters.has(node, name).await;
        until("the request has arrived", Duration::from_secs(5), has).await;
    }
}

/// A dropped try may have taken the lock: a check asks, and writes nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_check_after_a_dropped_try_asks_the_nodes() {
    let (masters, links, backend) = Masters::proxied().await;
    // All nodes know the script from then on, so one request is the whole try.
    let mut other = claim(&backend, "other", TTL);
    granted(&mut *other).await;
    until_all_have(&masters, "other").await;
    for proxy in &links.0 {
        proxy.stall_replies();
    }
    let mut dropped = claim(&backend, "lock", TTL);
    let tried = timeout(Duration::from_millis(400), dropped.try_acquire()).await;
    assert!(tried.is_err(), "{tried:?}");
    until_all_have(&masters, "lock").await;
    for proxy in &links.0 {
        proxy.pass();
    }
    let seen = dropped.check().await.unwrap();
    assert!(matches!(seen, Renewal::Alive { .. }), "{seen:?}");
    assert_eq!(dropped.release().await.unwrap(), Released::Freed);
}

/// The margin for clocks that disagree applies to a check as it does to a renewal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_check_knows_the_drift() {
    let masters = Masters::start().await.unwrap();
    let backend = masters.client("&lock_drift=0.4").await.unwrap();
    let mut holder = claim(&backend, "lock", TTL);
    granted(&mut *holder).await;
    for look in [holder.renew().await, holder.check().await] {
        let Ok(Renewal::Alive { valid_for: Some(valid_for) }) = look else { panic!("{look:?}") };
        assert!(valid_for <= TTL.mul_f64(0.61), "{valid_for:?} of {TTL:?}");
    }
}

/// A node is to be raised, and cannot be reached at this moment: its vote is given back when it can.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_vote_is_given_back_when_its_raise_could_not_be_sent() {
    let masters = Masters::start().await.unwrap();
    let links = masters.links().await.unwrap();
    let config = links.config().unwrap().node_timeout(Duration::from_secs(2));
    let backend = RedlockBackend::connect(config).await.unwrap();
    // The nodes know the scripts from then on.
    let mut other = claim(&backend, "other", TTL);
    granted(&mut *other).await;
    other.release().await.unwrap();
    masters.occupy(2..3).await;
    let ahead = scenarios::micros() + 3_600_000_000;
    masters.command(1, &["HSET", "distlock\u{1e}quorum", "mark", &ahead.to_string()]).await;
    links.0[1].delay(Duration::from_millis(400), Duration::ZERO);
    let mut contender = claim(&backend, "lock", TTL);
    let trying = tokio::spawn(async move {
        let seen = contender.try_acquire().await;
        (seen, contender)
    });
    let has = async || masters.has(0, "lock").await;
    until("the first node votes", Duration::from_secs(2), has).await;
    sleep(Duration::from_millis(50)).await;
    links.0[0].refuse_new(true);
    links.0[0].cut(Cut::Reset);
    let (seen, _contender) = trying.await.unwrap();
    assert!(!matches!(seen, Ok(Attempt::Granted { .. })), "{seen:?}");
    assert!(has().await, "the vote was never there");
    links.0[0].refuse_new(false);
    until("the vote is given back", Duration::from_secs(6), async || !has().await).await;
}

/// A key that is not a string, or is empty, is another client's lock: it is not polled without a
/// pause.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_is_no_string_is_not_asked_for_in_a_loop() {
    let masters = Masters::start().await.unwrap();
    let backend = masters.client("").await.unwrap();
    for (name, words) in
        [("hash", &["HSET", "hash", "a", "b"][..]), ("empty", &["SET", "empty", ""][..])]
    {
        masters.each(0..3, words).await;
        let mut contender = claim(&backend, name, TTL);
        match contender.try_acquire().await.unwrap() {
            Attempt::Busy(busy) => {
                let retry_after = busy.retry_after;
                assert!(
                    retry_after.is_none_or(|pause| pause >= Duration::from_millis(100)),
                    "{name}: again after {retry_after:?}"
                );
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Foreign values can be of any length and no text at all. A mark names one of them, and not another one that
/// begins alike.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forced_release_of_a_foreign_lock_hits_that_lock_only() {
    let masters = Masters::start().await.unwrap();
    let locks = Locks::new(masters.client("").await.unwrap());
    let long = |end: u8| [vec![b'x'; 1000], vec![end]].concat();
    for (value, other) in [(long(b'1'), long(b'2')), (vec![0xff, 0xfe], vec![0xff, 0xfd])] {
        let set = async |value: &[u8]| {
            for node in 0..3 {
                let mut command = redis::cmd("SET");
                command.arg("lock").arg(value);
                command.exec_async(&mut masters.plain(node).await).await.unwrap();
            }
        };
        set(&value).await;
        let mark = locks.inspect("lock").await.unwrap().unwrap().holder.unwrap().mark;
        assert!(mark.as_bytes().len() <= 41);
        set(&other).await;
        assert_eq!(locks.force_release("lock", &mark).await.unwrap(), Released::AlreadyGone);
        set(&value).await;
        assert_eq!(locks.force_release("lock", &mark).await.unwrap(), Released::Freed);
    }
}

/// A forced release is heard at once, by a claim that acquired the lock and by one that took it
/// over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forced_release_reaches_the_holder_at_once() {
    let masters = Masters::start().await.unwrap();
    let backend = masters.client("").await.unwrap();
    let (a, b) = (Locks::new(backend), Locks::new(masters.client("").await.unwrap()));
    let mut shortest = Duration::MAX;
    for _ in 0..5 {
        let guard = a.named("lock").unwrap().ttl(TTL).acquire().await.unwrap();
        sleep(Duration::from_millis(100)).await;
        let forced = Instant::now();
        assert_eq!(b.force_release_any("lock").await.unwrap(), Released::Freed);
        timeout(Duration::from_secs(3), guard.lost()).await.expect("the holder heard nothing");
        shortest = shortest.min(forced.elapsed());
        drop(guard);
    }
    // The renewal comes after 6.7 s.
    assert!(shortest < Duration::from_millis(500), "{shortest:?}");
    let other = masters.client("").await.unwrap();
    let request = request("taken over", TTL);
    let owner = request.owner;
    let mut first = other.claim(request).unwrap();
    let fence = granted(&mut *first).await;
    let data = first.detach().await.unwrap();
    drop(first);
    let third = masters.client("").await.unwrap();
    let mut second = resumed(&third, "taken over", &owner, fence, data);
    assert!(matches!(second.renew().await.unwrap(), Renewal::Alive { .. }));
    b.force_release_any("taken over").await.unwrap();
    timeout(Duration::from_secs(3), second.changed()).await.expect("nothing was heard").unwrap();
    assert_eq!(second.check().await.unwrap(), Renewal::Lost);
}

fn resumed(
    backend: &RedlockBackend,
    name: &str,
    owner: &OwnerId,
    fence: u64,
    data: Bytes,
) -> Box<dyn Claim> {
    let mut request: ClaimRequest = request(name, TTL);
    request.owner = *owner;
    request.resume = Some(Resume::new(FencingToken::new(fence).unwrap(), data));
    backend.claim(request).unwrap()
}

/// Nothing that a lease token says is believed: neither another fence nor another owner is renewed, and
/// giving such a claim up leaves the holder what it has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tampered_token_is_lost_and_harms_nobody() {
    let masters = Masters::start().await.unwrap();
    let backend = masters.client("").await.unwrap();
    let mut first = claim(&backend, "other", TTL);
    granted(&mut *first).await;
    let request = request("lock", TTL);
    let owner = request.owner;
    let mut holder = backend.claim(request).unwrap();
    let fence = granted(&mut *holder).await;
    let data = holder.detach().await.unwrap();
    let stranger = OwnerId::generate(&OsRng).unwrap();
    let most = (1_u64 << 63) - 1;
    for (owner, fence) in [(&owner, most), (&owner, fence + 1), (&owner, 1), (&stranger, fence)] {
        let mut forged = resumed(&backend, "lock", owner, fence, data.clone());
        assert_eq!(forged.check().await.unwrap(), Renewal::Lost, "{fence}");
        assert_eq!(forged.renew().await.unwrap(), Renewal::Lost, "{fence}");
        assert_eq!(forged.release().await.unwrap(), Released::AlreadyGone, "{fence}");
    }
    for data in [&b"7 1,2,3"[..], b"\xff"] {
        let mut request = crate::redlock_common::request("lock", TTL);
        request.owner = owner;
        let fence = FencingToken::new(fence).unwrap();
        request.resume = Some(Resume::new(fence, Bytes::copy_from_slice(data)));
        assert_eq!(backend.claim(request).unwrap_err().kind(), ErrorKind::InvalidInput);
    }
    // Without a renewal before, and with the right fence, it is released.
    let mut right = resumed(&backend, "lock", &owner, fence, data.clone());
    assert!(matches!(right.check().await.unwrap(), Renewal::Alive { .. }));
    assert!(matches!(right.renew().await.unwrap(), Renewal::Alive { .. }));
    drop(right);
    let mut right = resumed(&backend, "lock", &owner, fence, data);
    assert_eq!(right.release().await.unwrap(), Released::Freed);
}

/// Closing may take the time that the caller gives it, even if a call to a node may take less.
#[tokio::test]
async fn closing_is_not_cut_short_by_the_limit_of_a_call() {
    let (masters, links, backend) = Masters::proxied().await;
    let locks = Locks::builder(backend).call_timeout(Duration::from_millis(150)).build().unwrap();
    masters.occupy(0..2).await;
    // The third node's vote has to be given back, and it does not answer.
    links.0[2].stall();
    assert!(locks.named("lock").unwrap().try_acquire().await.unwrap().is_none());
    locks.close(Duration::from_secs(2)).await.unwrap();
}

/// A claim that waits is told that the lock is taken, not that it cannot wait, and gets the lock when it is free.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_waits_where_the_memory_is_used_up() {
    let masters = Masters::start().await.unwrap();
    let backend = masters.client("").await.unwrap();
    let ttl = Duration::from_secs(10);
    let mut holder = claim(&backend, "lock", ttl);
    granted(&mut *holder).await;
    masters.each(0..3, &["CONFIG", "SET", "maxmemory", "1"]).await;
    let mut waiting = backend.claim(request("lock", ttl).with_wait(true)).unwrap();
    let seen = waiting.try_acquire().await;
    assert!(matches!(seen, Ok(Attempt::Busy(_))), "{seen:?}");
    masters.each(0..3, &["CONFIG", "SET", "maxmemory", "0"]).await;
    holder.release().await.unwrap();
    granted(&mut *waiting).await;
}

/// What a lock on one node keeps beside a name is not in the way of a quorum that has the node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_is_taken_over_from_a_lock_on_one_node() {
    let masters = Masters::start().await.unwrap();
    for part in ["hold", "queue", "waiters", "pauses"] {
        masters.each(0..3, &["HSET", &format!("{{lock}}\u{1e}{part}"), "a", "b"]).await;
    }
    let backend = masters.client("").await.unwrap();
    let ttl = Duration::from_secs(10);
    let mut holder = claim(&backend, "lock", ttl);
    granted(&mut *holder).await;
    let mut waiting = backend.claim(request("lock", ttl).with_wait(true)).unwrap();
    let seen = waiting.try_acquire().await;
    assert!(matches!(seen, Ok(Attempt::Busy(_))), "{seen:?}");
    holder.release().await.unwrap();
    granted(&mut *waiting).await;
}
