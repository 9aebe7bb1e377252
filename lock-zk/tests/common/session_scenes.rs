//! Scenes of the sessions and the fences: see [`scenes`](super::scenes).

#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

use std::time::Duration;

use conformance_tests::server::Cut;
use lock_core::{Attempt, Claim, Locks, Renewal};
use lock_testkit::servers::ZooKeeper;
use lock_zk::{ZkBackend, ZkConfig};
use tokio::time::Instant;

use super::crossing::Crossing;
use super::scenes::Seen;
use super::{
    DEFAULT, SESSION, SLACK, acquired, backend, behind_proxy, children, claim, granted, hosts,
    plain,
};

/// Sessions with room for some 2 kB of paths, and an idle limit.
pub(crate) async fn small(servers: &ZooKeeper, paths: usize, idle: Duration) -> ZkBackend {
    let config = ZkConfig::new(hosts(servers)).unwrap().session_timeout(SESSION);
    ZkBackend::connect(config.limits(paths, idle, i64::MAX)).await.unwrap()
}

/// No session gets more paths than the transaction that ends it can hold.
pub(crate) async fn a_full_session_is_followed_by_another() -> Seen {
    let servers = super::server().await;
    let ours = small(&servers, 2000, Duration::from_secs(60)).await;
    let plain = plain(&servers).await;
    let mut holders: Vec<Box<dyn Claim>> = Vec::new();
    for n in 0..10 {
        holders.push(super::held(&ours, &format!("{n:0500}")).await);
    }
    let mut owners = std::collections::HashMap::<i64, usize>::new();
    for n in 0..10 {
        let name = format!("{n:0500}");
        let node = children(&plain, &name).await.pop().unwrap();
        let stat = plain.check_stat(&format!("/locks/{name}/{node}")).await.unwrap().unwrap();
        *owners.entry(stat.ephemeral_owner).or_default() += 1;
    }
    // Each path has some 570 bytes.
    if owners.values().any(|count| *count > 3) {
        return Err(format!("the sessions have {:?} nodes each", owners.values()));
    }
    for holder in &mut holders {
        holder.release().await.unwrap();
    }
    Ok(())
}

/// An ensemble recreated without its data starts counting again, and its fences still rise.
pub(crate) async fn fences_rise_over_an_ensemble_without_its_data() -> Seen {
    let servers = super::server().await;
    let (early, late) = (backend(&servers).await, backend(&servers).await);
    let mut last = 0;
    for _ in 0..20 {
        let mut holder = claim(&early, "lock", true);
        last = granted(&mut *holder).await.get();
        holder.release().await.unwrap();
    }
    granted(&mut *claim(&late, "other", true)).await;
    servers.restart_without_data().await.unwrap();
    // First the client that knew the old ensemble.
    for ours in [&early, &late] {
        let mut holder = claim(ours, "lock", true);
        let fence = acquired(&mut *holder).await.get();
        if fence <= last {
            return Err(format!("violated: the fence {fence} came after {last}"));
        }
        last = fence;
        holder.release().await.unwrap();
    }
    Ok(())
}

/// The base was removed and made anew. The server of another client has not heard of it, and shows
/// the old one.
pub(crate) async fn a_server_that_is_behind_shows_no_base() -> Seen {
    let servers = super::server().await;
    let crossing = Crossing::start(servers.address(0).unwrap()).await;
    let early = super::connect(crossing.address(), DEFAULT).await;
    super::held(&early, "lock").await.release().await.unwrap();
    let late = super::connect(crossing.address(), DEFAULT).await;
    plain(&servers).await.delete("/locks/%fence", None).await.unwrap();
    let mut holder = super::held(&backend(&servers).await, "other").await;
    let last = acquired(&mut *holder).await;
    crossing.fall_behind();
    let mut holder = claim(&late, "lock", true);
    let fence = granted(&mut *holder).await;
    if fence <= last {
        return Err(format!("violated: the fence {fence} came after {last}"));
    }
    holder.release().await.unwrap();
    Ok(())
}

/// A server that comes back with a lower `maxSessionTimeout` keeps a session for less than it did.
/// Then the client is cut off: its guard must not outlive the session.
pub(crate) async fn a_session_that_was_shortened_is_not_believed() -> Seen {
    const TIMES: usize = 3;
    for _ in 0..TIMES {
        if let Some(seen) = shortened().await {
            return seen;
        }
    }
    panic!("the server was started again too late, {TIMES} times")
}

/// Nothing if the restart took so long that the session may have ended by itself.
async fn shortened() -> Option<Seen> {
    const LONG: Duration = Duration::from_secs(10);
    let servers = super::server().await;
    let (ours, proxy) = behind_proxy(&servers, "lock_session_timeout=10s").await;
    let locks = super::locks(ours, LONG);
    let guard = locks.named("lock").unwrap().acquire().await.unwrap();
    servers.allow_sessions(Duration::from_millis(500), SESSION).unwrap();
    let begun = Instant::now();
    servers.restart().await.unwrap();
    super::until("it is renewed or lost", LONG, async || {
        guard.renew().await.is_ok() || guard.token().is_err()
    })
    .await;
    let (until, took) = (guard.remaining(), begun.elapsed());
    proxy.stall();
    let cut = Instant::now();
    let other = backend(&servers).await;
    let mut next = claim(&other, "lock", true);
    acquired(&mut *next).await;
    if let Ok(token) = guard.token() {
        return Some(Err(format!(
            "after a cut of {:?} the lock was granted again, and {token} was still given out (it had {until:?} left)",
            cut.elapsed()
        )));
    }
    next.release().await.unwrap();
    (took < LONG / 2).then_some(Ok(()))
}

/// The server that shows its limit is not the one that resumes the session, and that one grants less:
/// the session is given up, and its nodes stay for what was granted, so that a holder who is about
/// to hear of it has time to stop.
pub(crate) async fn a_session_that_is_given_up_is_not_closed() -> Seen {
    const LONG: Duration = Duration::from_secs(6);
    let servers = ZooKeeper::ensemble().await.unwrap();
    let stricter = (servers.leader().unwrap() + 1) % 3;
    servers.kill_one(stricter).unwrap();
    let limit = format!("maxSessionTimeout={}\n", SESSION.as_millis());
    servers.configure_one(stricter, &limit).unwrap();
    servers.start_one(stricter).await.unwrap();
    let usual = servers.address((stricter + 1) % 3).unwrap();
    let crossing = Crossing::start(usual).await;
    let ours = super::connect(crossing.address(), "lock_session_timeout=6s").await;
    let guard = super::locks(ours, LONG).named("lock").unwrap().acquire().await.unwrap();
    let other = super::connect(usual, "lock_session_timeout=6s").await;
    let mut next = claim(&other, "lock", true);
    super::busy(&mut *next).await;
    let cut = Instant::now();
    crossing.cut(servers.address(stricter).unwrap(), 0);
    let lost = tokio::time::timeout(LONG, guard.lost().wait()).await;
    lost.map_err(|_| "nobody is told that the session is given up")?;
    acquired(&mut *next).await;
    let free = cut.elapsed();
    next.release().await.unwrap();
    if free < SESSION {
        return Err(format!("violated: the lock was granted again {free:?} after the cut"));
    }
    Ok(())
}

/// A server that resumes a session and then refuses a `sync` is left, and the session is not.
pub(crate) async fn a_refused_sync_ends_no_session() -> Seen {
    const LONG: Duration = Duration::from_secs(12);
    let servers = super::server().await;
    let crossing = Crossing::start(servers.address(0).unwrap()).await;
    let ours = super::connect(crossing.address(), "lock_session_timeout=12s").await;
    let guard = super::locks(ours, LONG).named("lock").unwrap().acquire().await.unwrap();
    let other = backend(&servers).await;
    crossing.cut(servers.address(0).unwrap(), 2);
    super::until("both are refused", SLACK, async || {
        crossing.to_refuse() == 0 || guard.token().is_err()
    })
    .await;
    super::until("it is renewed or lost", SLACK, async || {
        guard.renew().await.is_ok() || guard.token().is_err()
    })
    .await;
    if let Err(error) = guard.token() {
        return Err(format!("the lock is lost: {error}"));
    }
    super::busy(&mut *claim(&other, "lock", false)).await;
    guard.release().await.unwrap();
    Ok(())
}

/// A server takes no more connections from a client's address than it has. A session that is cut
/// needs only its own place to be resumed.
pub(crate) async fn a_full_address_costs_no_session() -> Seen {
    const LONG: Duration = Duration::from_secs(4);
    let servers = super::server().await;
    servers.configure_one(0, "maxClientCnxns=2\n").unwrap();
    servers.restart().await.unwrap();
    let (ours, proxy) = behind_proxy(&servers, "lock_session_timeout=4s").await;
    let guard = super::locks(ours, LONG).named("lock").unwrap().acquire().await.unwrap();
    // The other place is taken, and stays so.
    let other = plain(&servers).await;
    for cut in 0..3 {
        proxy.cut(Cut::Reset);
        super::until("it is renewed or lost", LONG + SLACK, async || {
            guard.renew().await.is_ok() || guard.token().is_err()
        })
        .await;
        if let Err(error) = guard.token() {
            return Err(format!("at cut {cut} the session is not resumed: {error}"));
        }
    }
    assert_eq!(children(&other, "lock").await.len(), 1);
    guard.release().await.unwrap();
    Ok(())
}

/// Each lock has the ttl that it asks for: when its holder falls silent, the next one gets it then.
pub(crate) async fn a_lock_of_a_silent_holder_is_free_after_its_own_ttl() -> Seen {
    let servers = super::server().await;
    let (ours, proxy) = behind_proxy(&servers, "").await;
    let (ours, others) = (Locks::new(ours), Locks::new(super::connect(hosts(&servers), "").await));
    let long = ours.named("long").unwrap().acquire().await.unwrap();
    let short = ours.named("short").unwrap().ttl(SESSION).acquire().await.unwrap();
    if (long.ttl(), short.ttl()) != (Duration::from_secs(30), SESSION) {
        return Err(format!("a ttl of 30 s is {:?}, one of 2 s {:?}", long.ttl(), short.ttl()));
    }
    proxy.stall();
    let next = others.named("short").unwrap().acquire_timeout(SESSION + SLACK).await;
    let next = next.map_err(|error| format!("after its ttl the lock is not free: {error}"))?;
    assert!(short.token().is_err(), "its guard knew before");
    assert!(long.token().is_ok());
    assert!(others.named("long").unwrap().try_acquire().await.unwrap().is_none());
    next.release().await.unwrap();
    Ok(())
}

/// The predecessor leaves while the waiter is disconnected: the watch reports it afterwards.
pub(crate) async fn a_hand_over_during_a_cut_is_not_missed() -> Seen {
    let servers = super::server().await;
    let holder = backend(&servers).await;
    let (ours, proxy) = behind_proxy(&servers, DEFAULT).await;
    let mut first = claim(&holder, "lock", true);
    let fence = granted(&mut *first).await;
    let mut second = claim(&ours, "lock", true);
    super::busy(&mut *second).await;
    // The watch is set, and this call is given up.
    let quiet = tokio::time::timeout(Duration::from_millis(200), second.changed()).await;
    assert!(quiet.is_err(), "nothing has changed");
    proxy.refuse_new(true);
    proxy.cut(Cut::Reset);
    first.release().await.unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    proxy.refuse_new(false);
    match tokio::time::timeout(SESSION, second.changed()).await {
        Ok(changed) => changed.unwrap(),
        Err(_) => return Err("the waiter is not woken".into()),
    }
    assert!(granted(&mut *second).await > fence);
    second.release().await.unwrap();
    Ok(())
}

/// A check after a try without an answer asks the store what has become of it.
pub(crate) async fn a_check_after_a_lost_reply_asks() -> Seen {
    let servers = super::server().await;
    let (ours, proxy) = behind_proxy(&servers, DEFAULT).await;
    let plain = plain(&servers).await;
    // The node of the lock is there, so that the next write makes ours.
    let mut first = super::held(&ours, "lock").await;
    let mut asked = 0;
    for round in 0..10 {
        let mut second = claim(&ours, "lock", true);
        proxy.cut_before_reply(1);
        let answer = second.try_acquire().await;
        let there = children(&plain, "lock").await.len() == 2;
        if answer.is_err() && there {
            asked += 1;
            let mut said = None;
            super::until("a check is answered", SLACK, async || {
                said = second.check().await.ok();
                said.is_some()
            })
            .await;
            if !matches!(said, Some(Renewal::Alive { .. })) {
                return Err(format!(
                    "in round {round} the node is there, and a check says {said:?}"
                ));
            }
        }
        super::until("it is answered again", SLACK, async || {
            matches!(second.try_acquire().await, Ok(Attempt::Busy { .. }))
        })
        .await;
        second.release().await.unwrap();
    }
    first.release().await.unwrap();
    assert!(asked > 0, "no try was left without its answer");
    Ok(())
}
