//! Sessions by ttl, and of a bounded size; fences that are counted from a base.

#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

mod common;

use std::time::Duration;

use common::{SESSION, SLACK, claim, granted, more, plain, server, until};
use lock_core::{ClaimRequest, LockAdmin, LockBackend, LockKey, Locks, OsRng, OwnerId};
use lock_testkit::proxy::Proxy;
use lock_testkit::servers::ZooKeeper;
use lock_zk::ZkBackend;
use tokio::time::Instant;

/// How many sessions the server has.
fn sessions(servers: &ZooKeeper) -> usize {
    let answer = servers.ask(0, "dump").unwrap();
    let line = answer.lines().find(|line| line.starts_with("Session Sets"));
    assert!(line.is_some(), "{answer}");
    answer
        .lines()
        .filter(|line| line.trim_start().starts_with("0x") && !line.ends_with(':'))
        .count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_session_is_followed_by_another() {
    more::a_full_session_is_followed_by_another().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn fences_rise_over_an_ensemble_without_its_data() {
    more::fences_rise_over_an_ensemble_without_its_data().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_check_after_a_lost_reply_asks() {
    more::a_check_after_a_lost_reply_asks().await.unwrap();
}

/// Each lock has the ttl that it asks for: when its holder falls silent, the next one gets it then.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_of_a_silent_holder_is_free_after_its_own_ttl() {
    let servers = server().await;
    let proxy = Proxy::start(servers.address(0).unwrap()).await.unwrap();
    let url = format!("zookeeper://{}", proxy.address());
    let locks = Locks::new(lock_zk::connect(&url).await.unwrap());
    let others = Locks::new(lock_zk::connect(servers.url()).await.unwrap());
    let long = locks.lock("long").unwrap().acquire().await.unwrap();
    let short = locks.lock("short").unwrap().ttl(SESSION).acquire().await.unwrap();
    assert_eq!((long.ttl(), short.ttl()), (Duration::from_secs(30), SESSION));
    proxy.stall();
    let cut = Instant::now();
    let lock = others.lock("short").unwrap();
    let next = lock.acquire_timeout(SESSION + SLACK).await.unwrap();
    assert!(short.token().is_err(), "its guard knew before");
    assert!(cut.elapsed() < SESSION + SLACK, "{:?}", cut.elapsed());
    assert!(
        long.token().is_ok() && others.lock("long").unwrap().try_acquire().await.unwrap().is_none()
    );
    next.release().await.unwrap();
    proxy.pass();
}

/// A session that nobody uses is closed after a while, and one that is used is not.
#[tokio::test(flavor = "multi_thread")]
async fn an_idle_session_is_closed() {
    let servers = server().await;
    let before = sessions(&servers);
    let ours = more::small(&servers, 2000, Duration::from_millis(300)).await;
    let mut holders = Vec::new();
    for n in 0..6 {
        let mut holder = claim(&ours, &format!("{n:0500}"), true);
        granted(&mut *holder).await;
        holders.push(holder);
    }
    assert!(sessions(&servers) >= before + 2, "{}", sessions(&servers));
    let mut kept = holders.pop().unwrap();
    for mut holder in holders {
        holder.release().await.unwrap();
    }
    until("those without a lock are closed", SLACK, async || sessions(&servers) == before + 1)
        .await;
    kept.renew().await.unwrap();
    kept.release().await.unwrap();
    drop(kept);
    until("all are closed", SLACK, async || sessions(&servers) == before).await;
    // The next claim opens one.
    let mut again = claim(&ours, "lock", true);
    granted(&mut *again).await;
    ours.close().await.unwrap();
    assert_eq!(sessions(&servers), before);
}

/// The fences of the store that was used before, and of the bare transactions.
#[tokio::test(flavor = "multi_thread")]
async fn fences_are_counted_from_the_clock_or_not() {
    let servers = server().await;
    let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let clock = u64::try_from(clock.as_micros()).unwrap();
    let ours = common::backend(&servers).await;
    let mut last = clock;
    for name in ["one", "two", "one"] {
        let mut holder = claim(&ours, name, true);
        let fence = granted(&mut *holder).await.get();
        assert!(fence > last, "{fence} came after {last}");
        last = fence;
        let key = LockKey::new("", name).unwrap();
        let shown = ours.inspect(&key).await.unwrap().unwrap().holder.unwrap();
        assert_eq!(shown.fence.unwrap().get(), fence);
        holder.release().await.unwrap();
    }
    // Another client, and the base is no lock.
    let other = common::backend(&servers).await;
    let mut holder = claim(&other, "one", true);
    assert!(granted(&mut *holder).await.get() > last);
    assert_eq!(other.list("", "").await.unwrap().len(), 1);
    holder.release().await.unwrap();
    let bare = format!("{}?lock_fence=revision", servers.url());
    let bare: ZkBackend = lock_zk::connect(&bare).await.unwrap();
    let mut holder = claim(&bare, "one", true);
    let fence = granted(&mut *holder).await.get();
    let plain = plain(&servers).await;
    let node = common::children(&plain, "one").await.pop().unwrap();
    let stat = plain.check_stat(&format!("/locks/one/{node}")).await.unwrap().unwrap();
    assert_eq!(fence, u64::try_from(stat.czxid).unwrap());
    holder.release().await.unwrap();
}

/// An ensemble with a leader has used up billions of numbers before the first lock. Its fences begin at the
/// clock all the same, so that the store that is used next can give greater ones.
#[tokio::test(flavor = "multi_thread")]
async fn fences_do_not_run_ahead_of_the_clock() {
    let servers = ZooKeeper::ensemble().await.unwrap();
    let ours = common::backend(&servers).await;
    let mut holder = claim(&ours, "lock", true);
    let fence = granted(&mut *holder).await.get();
    let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    assert!(u128::from(fence) < clock.as_micros(), "{fence} at {clock:?}");
    holder.release().await.unwrap();
}

/// A base that somebody has written over is named, and nothing is granted.
#[tokio::test(flavor = "multi_thread")]
async fn a_base_that_is_no_number_is_refused() {
    let servers = server().await;
    let plain = plain(&servers).await;
    let mut first = claim(&common::backend(&servers).await, "lock", true);
    granted(&mut *first).await;
    first.release().await.unwrap();
    plain.set_data("/locks/%fence", b"much", None).await.unwrap();
    let ours = common::backend(&servers).await;
    let error = claim(&ours, "lock", true).try_acquire().await.unwrap_err();
    assert!(error.to_string().contains("/locks/%fence has \"much\""), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reconnect_keeps_a_session_that_watches_much() {
    more::a_reconnect_keeps_a_session_that_watches_much().await.unwrap();
}

/// The sessions of a client end with all their nodes, and the server can read what it has written of that.
///
/// `cargo test -p lock-zk --test sessions -- --ignored`
#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes a minute: ten thousand locks"]
async fn a_server_starts_again_after_ten_thousand_locks() {
    const LOCKS: usize = 10_000;
    let servers = server().await;
    let before = sessions(&servers);
    let url = format!("{}?lock_session_timeout=40s", servers.url());
    let ours = lock_zk::connect(&url).await.unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..LOCKS {
        let key = LockKey::new("", format!("{n:0150}")).unwrap();
        let owner = OwnerId::generate(&OsRng).unwrap();
        let request = ClaimRequest::new(key, owner, Duration::from_secs(40));
        let mut holder = ours.claim(request.with_wait(true).with_call_timeout(SLACK * 20)).unwrap();
        tasks.spawn(async move {
            granted(&mut *holder).await;
            holder
        });
    }
    let holders = tasks.join_all().await;
    println!("{LOCKS} locks in {} sessions", sessions(&servers) - before);
    ours.close().await.unwrap();
    assert_eq!(sessions(&servers), before);
    drop(holders);
    servers.restart().await.unwrap();
    let again = Locks::new(lock_zk::connect(servers.url()).await.unwrap());
    again.lock("lock").unwrap().acquire().await.unwrap().release().await.unwrap();
}
