//! What the end of a session means, and of its nodes; fences that are counted from a base.

#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

mod common;

use std::time::Duration;

use common::{
    DEFAULT, SESSION, SLACK, acquired, backend, behind_proxy, busy, children, claim, connect,
    granted, held, hosts, locks, plain, server, session_scenes, until,
};
use conformance_tests::server::Cut;
use conformance_tests::shared::{self, drop_after};
use lock_core::{LockAdmin, LockBackend, LockKey, LockState, Locks, LostReason, Released, Renewal};
use lock_testkit::scenes;
use lock_testkit::servers::ZooKeeper;
use zookeeper_client as zk;

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

/// An unused session is closed after a while, and one in use is not.
#[tokio::test(flavor = "multi_thread")]
async fn an_idle_session_is_closed() {
    let servers = server().await;
    let before = sessions(&servers);
    let ours = session_scenes::small(&servers, 2000, Duration::from_millis(300)).await;
    let mut holders = Vec::new();
    for n in 0..6 {
        holders.push(held(&ours, &format!("{n:0500}")).await);
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
    held(&ours, "lock").await;
    ours.close().await.unwrap();
    assert_eq!(sessions(&servers), before);
}

/// A claim is dropped as a whole, as with its runtime, while other locks keep the session alive.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_dropped_claim_has_left_ends_with_its_ttl() {
    let servers = server().await;
    let (ours, plain) = (backend(&servers).await, plain(&servers).await);
    let mut kept = held(&ours, "other").await;
    let left = held(&ours, "lock").await;
    let dropped = tokio::time::Instant::now();
    drop(left);
    until("its node is removed", SESSION + SLACK, async || {
        children(&plain, "lock").await.is_empty()
    })
    .await;
    let took = dropped.elapsed();
    assert!(took >= SESSION, "a holder may have counted on it after {took:?}");
    assert!(matches!(kept.check().await, Ok(Renewal::Alive { .. })));
}

/// All claims of a runtime that has ended, one of which may not be removed.
#[tokio::test(flavor = "multi_thread")]
async fn what_many_dropped_claims_have_left_ends_at_the_same_time() {
    const CLAIMS: usize = 100;
    let servers = server().await;
    let (ours, plain) = (backend(&servers).await, plain(&servers).await);
    let mut kept = held(&ours, "other").await;
    let mut names: Vec<_> = (0..CLAIMS).map(|n| format!("lock-{n}")).collect();
    let mut left = Vec::new();
    for name in &names {
        left.push(held(&ours, name).await);
    }
    let first = names.remove(0);
    let node = format!("/locks/{first}");
    let rights = |rights| [zk::Acl::new(rights, zk::AuthId::anyone())];
    let without_delete = zk::Permission::READ | zk::Permission::CREATE | zk::Permission::ADMIN;
    plain.set_acl(&node, &rights(without_delete), None).await.unwrap();
    drop(left);
    until("the others are removed", SESSION + SLACK, async || {
        while let Some(name) = names.last() {
            if !children(&plain, name).await.is_empty() {
                return false;
            }
            names.pop();
        }
        true
    })
    .await;
    assert_eq!(children(&plain, &first).await.len(), 1, "it was removed without the right");
    plain.set_acl(&node, &rights(zk::Permission::ALL), None).await.unwrap();
    until("the first is removed, too", SLACK, async || children(&plain, &first).await.is_empty())
        .await;
    assert!(matches!(kept.check().await, Ok(Renewal::Alive { .. })));
}

/// A list for each of them would be as long as all of them.
#[tokio::test(flavor = "multi_thread")]
async fn a_queue_that_many_dropped_claims_have_left_is_listed_once() {
    const CLAIMS: usize = 100;
    let servers = server().await;
    let ((ours, proxy), plain) = (behind_proxy(&servers, DEFAULT).await, plain(&servers).await);
    let _kept = held(&ours, "other").await;
    let mut left = vec![held(&ours, "lock").await];
    while left.len() < CLAIMS {
        let mut waiter = claim(&ours, "lock", true);
        busy(&mut *waiter).await;
        left.push(waiter);
    }
    assert_eq!(children(&plain, "lock").await.len(), CLAIMS);
    let before = proxy.requests();
    drop(left);
    until("all are removed", SESSION + SLACK, async || children(&plain, "lock").await.is_empty())
        .await;
    let requests = usize::try_from(proxy.requests() - before).unwrap();
    // One for each of them, and those that keep the session alive.
    assert!((CLAIMS..CLAIMS * 3 / 2).contains(&requests), "{requests}");
}

/// The server ends a session with the paths of dropped claims as well, for as long as their nodes are there.
#[tokio::test(flavor = "multi_thread")]
async fn the_paths_that_dropped_claims_have_left_are_counted() {
    let servers = server().await;
    let (ours, plain) = (
        session_scenes::small(&servers, 2000, Duration::from_secs(60)).await,
        plain(&servers).await,
    );
    let name = |n: usize| format!("{n:0500}");
    for n in 0..3 {
        drop(held(&ours, &name(n)).await);
    }
    assert_eq!(ours.sessions().len(), 1);
    let mut kept = vec![held(&ours, &name(3)).await];
    assert_eq!(ours.sessions().len(), 2, "it has room, with three paths that were left");
    for n in 0..3 {
        until("its node is removed", SESSION + SLACK, async || {
            children(&plain, &name(n)).await.is_empty()
        })
        .await;
    }
    // The room is noted a moment after the server has removed the last one.
    tokio::time::sleep(SESSION / 4).await;
    for n in 4..9 {
        kept.push(held(&ours, &name(n)).await);
    }
    assert_eq!(ours.sessions().len(), 2, "what was removed is counted still");
    for mut holder in kept {
        holder.release().await.unwrap();
    }
}

/// The fences of the store that was used before, and of the bare transactions.
#[tokio::test(flavor = "multi_thread")]
async fn fences_are_counted_from_the_clock_or_not() {
    let servers = server().await;
    let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let clock = u64::try_from(clock.as_micros()).unwrap();
    let ours = backend(&servers).await;
    let mut last = clock;
    for name in ["one", "two", "one"] {
        let mut holder = claim(&ours, name, true);
        let fence = granted(&mut *holder).await.get();
        lock_testkit::assert_exactly!(fence > last, "{fence} came after {last}");
        last = fence;
        let key = LockKey::new("", name).unwrap();
        let shown = ours.inspect(&key).await.unwrap().unwrap().holder.unwrap();
        assert_eq!(shown.fence.unwrap().get(), fence);
        holder.release().await.unwrap();
    }
    // Another client, and the base is no lock.
    let other = backend(&servers).await;
    let mut holder = claim(&other, "one", true);
    assert!(granted(&mut *holder).await.get() > last);
    assert_eq!(other.list("", "").await.unwrap().len(), 1);
    holder.release().await.unwrap();
    let bare = connect(hosts(&servers), "lock_fence=revision").await;
    let mut holder = claim(&bare, "one", true);
    let fence = granted(&mut *holder).await.get();
    let plain = plain(&servers).await;
    let node = children(&plain, "one").await.pop().unwrap();
    let stat = plain.check_stat(&format!("/locks/one/{node}")).await.unwrap().unwrap();
    assert_eq!(fence, u64::try_from(stat.czxid).unwrap());
    holder.release().await.unwrap();
}

/// An ensemble with a leader has used up billions of numbers before the first lock. Its fences
/// begin at the clock all the same, so the store used next can issue greater ones.
#[tokio::test(flavor = "multi_thread")]
async fn fences_do_not_run_ahead_of_the_clock() {
    let servers = ZooKeeper::ensemble().await.unwrap();
    let ours = backend(&servers).await;
    let mut holder = claim(&ours, "lock", true);
    let fence = granted(&mut *holder).await.get();
    let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    assert!(u128::from(fence) < clock.as_micros(), "{fence} at {clock:?}");
    holder.release().await.unwrap();
}

/// An overwritten base is named in the error, and nothing is granted.
#[tokio::test(flavor = "multi_thread")]
async fn a_base_that_is_no_number_is_refused() {
    let servers = server().await;
    let plain = plain(&servers).await;
    let mut first = claim(&backend(&servers).await, "lock", true);
    granted(&mut *first).await;
    first.release().await.unwrap();
    plain.set_data("/locks/%fence", b"much", None).await.unwrap();
    let ours = backend(&servers).await;
    let error = claim(&ours, "lock", true).try_acquire().await.unwrap_err();
    assert!(error.to_string().contains("/locks/%fence has \"much\""), "{error}");
}

/// The sessions of a client end with all their nodes, and the server can read what it has written
/// of that.
///
/// `cargo test -p lock-zk --test sessions -- --ignored`
#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes a minute: ten thousand locks"]
async fn a_server_starts_again_after_ten_thousand_locks() {
    const LOCKS: usize = 10_000;
    let servers = server().await;
    let before = sessions(&servers);
    let ours = connect(hosts(&servers), "lock_session_timeout=40s").await;
    let locks = Locks::builder(ours.clone()).default_ttl(Duration::from_secs(40));
    let locks = locks.call_timeout(SLACK * 4).build().unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..LOCKS {
        let lock = locks.named(format!("{n:0150}")).unwrap();
        tasks.spawn(async move { lock.acquire().await.unwrap() });
    }
    let guards = tasks.join_all().await;
    println!("{LOCKS} locks in {} sessions", sessions(&servers) - before);
    ours.close().await.unwrap();
    assert_eq!(sessions(&servers), before);
    drop(guards);
    servers.restart().await.unwrap();
    let again = Locks::new(lock_zk::connect(servers.url()).await.unwrap());
    again.named("lock").unwrap().acquire().await.unwrap().release().await.unwrap();
}

/// While no session can be opened, the end of the last one is reported once, not repeatedly.
#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_session_wakes_a_waiter_once() {
    let servers = server().await;
    let holder = backend(&servers).await;
    let ours = backend(&servers).await;
    granted(&mut *claim(&holder, "lock", true)).await;
    let mut waiter = claim(&ours, "lock", true);
    busy(&mut *waiter).await;
    // The client gives its session up to a server that would shorten it, and gets no other one there.
    servers.allow_sessions(Duration::from_millis(500), SESSION / 2).unwrap();
    servers.restart().await.unwrap();
    tokio::time::timeout(SESSION * 2 + SLACK, waiter.changed()).await.expect("it ends").unwrap();
    assert!(waiter.try_acquire().await.is_err());
    let quiet = tokio::time::timeout(Duration::from_millis(300), waiter.changed()).await;
    assert!(quiet.is_err(), "there is nothing new");
    // The node of the old session may be there still.
    assert!(waiter.release().await.is_err());
    servers.allow_sessions(Duration::from_millis(500), SESSION * 2).unwrap();
    servers.restart().await.unwrap();
    until("it is released", SESSION + SLACK, async || waiter.release().await.is_ok()).await;
}

/// A server that is down ends no session: it has them all when it is back, however long that takes. A
/// client that does not know says so, and never that a lock is lost.
#[tokio::test(flavor = "multi_thread")]
async fn a_hold_outlives_a_server_that_is_down_for_longer_than_its_session() {
    const LONG: Duration = Duration::from_secs(4);
    let servers = server().await;
    let ours = connect(hosts(&servers), "lock_session_timeout=4s").await;
    let closed = backend(&servers).await;
    let mut holder = claim(&ours, "lock", true);
    let fence = granted(&mut *holder).await;
    servers.kill().unwrap();
    let down = tokio::time::Instant::now();
    while down.elapsed() < LONG * 2 {
        let answer = holder.renew().await;
        assert!(answer.is_err(), "nobody is there to answer, and a renewal says {answer:?}");
    }
    // A session that is closed is not resumed for ever.
    closed.close().await.unwrap();
    servers.restart().await.unwrap();
    until("the session is resumed", SLACK, async || holder.renew().await.is_ok()).await;
    assert!(matches!(holder.renew().await.unwrap(), Renewal::Alive { .. }));
    assert_eq!(acquired(&mut *holder).await, fence, "it is the same hold");
    busy(&mut *claim(&backend(&servers).await, "lock", false)).await;
    assert_eq!(holder.release().await.unwrap(), Released::Freed);
}

/// Somebody who knows the id and the password of a session closes it.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_closed_by_somebody_else_is_lost_at_once() {
    let servers = server().await;
    let (ours, proxy) = behind_proxy(&servers, "lock_session_timeout=20s").await;
    let locks = locks(ours.clone(), Duration::from_secs(20));
    let mut guards = Vec::new();
    for name in ["a", "b", "c"] {
        guards.push(locks.named(name).unwrap().acquire().await.unwrap());
    }
    let mut waiter = claim(&ours, "a", true);
    busy(&mut *waiter).await;
    let session = ours.sessions().pop().unwrap();
    // Two connections of one session would take it from each other in turn.
    proxy.refuse_new(true);
    proxy.cut(Cut::Reset);
    let thief = zk::Client::connector().with_session(session);
    drop(thief.connect(hosts(&servers)).await.unwrap());
    let plain = plain(&servers).await;
    until("the session is closed", SLACK, async || children(&plain, "a").await.is_empty()).await;
    proxy.refuse_new(false);
    for guard in &guards {
        let reason = tokio::time::timeout(SLACK, guard.lost().wait()).await;
        assert_eq!(reason.expect("long before the ttl of 20 s"), LostReason::Taken);
    }
    assert_eq!(waiter.renew().await.unwrap(), Renewal::Lost, "the place went with the session");
    assert_eq!(waiter.check().await.unwrap(), Renewal::Lost);
    let other = backend(&servers).await;
    granted(&mut *claim(&other, "a", true)).await;
    // The next try has a session of its own, and waits for the new holder.
    busy(&mut *waiter).await;
    assert_eq!(waiter.release().await.unwrap(), Released::Freed);
    drop(guards);
    locks.close(SLACK).await.unwrap();
}

/// As above for a client that can open a new session: here the server ends the old one, since it
/// was cut off for too long.
#[tokio::test(flavor = "multi_thread")]
async fn after_an_expiry_the_next_claim_has_a_new_session() {
    let servers = server().await;
    let (ours, proxy) = behind_proxy(&servers, DEFAULT).await;
    let locks = locks(ours.clone(), SESSION);
    let mut held = claim(&ours, "held", true);
    let fence = granted(&mut *held).await;
    let guard = locks.named("guarded").unwrap().acquire().await.unwrap();
    let plain = plain(&servers).await;
    proxy.refuse_new(true);
    proxy.cut(Cut::Reset);
    // The server ends it before the client gives it up, if the machine is not too busy.
    until("the server has ended it", SESSION + SLACK, async || {
        children(&plain, "held").await.is_empty()
    })
    .await;
    proxy.refuse_new(false);
    tokio::time::timeout(SESSION + SLACK, held.changed())
        .await
        .expect("the end of a session wakes")
        .unwrap();
    assert_eq!(held.renew().await.unwrap(), Renewal::Lost);
    assert!(matches!(guard.state(), LockState::Lost(_)));
    let mut next = claim(&ours, "held", true);
    lock_testkit::assert_exactly!(
        acquired(&mut *next).await > fence,
        "a fence falls below {fence}"
    );
    held.release().await.unwrap();
    assert!(matches!(next.check().await.unwrap(), Renewal::Alive { .. }), "not of the new holder");
    next.release().await.unwrap();
}

/// A holder's node, or a waiter's, that an operator deletes. The waiter takes a new place.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_an_operator_deletes_is_missed_at_once() {
    let servers = server().await;
    let plain = plain(&servers).await;
    let ours = connect(hosts(&servers), "lock_session_timeout=30s").await;
    let guard = Locks::new(ours.clone()).named("lock").unwrap().acquire().await.unwrap();
    let holder = children(&plain, "lock").await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let mut waiter = claim(&ours, "lock", true);
    busy(&mut *waiter).await;
    let nodes = children(&plain, "lock").await;
    let place = nodes.iter().find(|node| !holder.contains(node)).unwrap();
    plain.delete(&format!("/locks/lock/{place}"), None).await.unwrap();
    tokio::time::timeout(SLACK, waiter.changed()).await.expect("its own node is watched").unwrap();
    assert_eq!(waiter.renew().await.unwrap(), Renewal::Lost);
    busy(&mut *waiter).await;
    plain.delete(&format!("/locks/lock/{}", holder[0]), None).await.unwrap();
    let reason = tokio::time::timeout(SLACK, guard.lost().wait()).await;
    assert_eq!(reason.expect("long before a renewal"), LostReason::Taken);
    acquired(&mut *waiter).await;
    waiter.release().await.unwrap();
}

/// A runtime that ends while renewals are being collected, or is no longer driven, takes only its
/// own renewals with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewals_survive_the_end_and_the_standstill_of_another_runtime() {
    let servers = server().await;
    let backend = backend(&servers).await;
    scenes::renewals_survive_the_end_and_the_standstill_of_another_runtime(|name| {
        claim(&backend, name, false)
    })
    .await;
}

/// Nodes that are missing, or that an operator has closed to us, fail the transaction of all
/// renewals, but only their own renewals.
#[tokio::test(flavor = "multi_thread")]
async fn missing_and_closed_nodes_cost_no_other_lock_its_renewal() {
    let servers = server().await;
    let (ours, plain) = (backend(&servers).await, plain(&servers).await);
    let is_missing = |n: usize| [0, 3, 4, 9, 19].contains(&n);
    let is_closed = |n: usize| [1, 5, 11, 18].contains(&n);
    let closed = [zk::Acl::new(zk::Permission::CREATE, zk::AuthId::anyone())];
    let mut holders = Vec::new();
    for n in 0..20 {
        let mut holder = claim(&ours, &format!("lock-{n}"), true);
        granted(&mut *holder).await;
        holders.push(holder);
    }
    for n in 0..20 {
        let node = children(&plain, &format!("lock-{n}")).await.pop().unwrap();
        let node = format!("/locks/lock-{n}/{node}");
        if is_missing(n) {
            plain.delete(&node, None).await.unwrap();
        } else if is_closed(n) {
            plain.set_acl(&node, &closed, None).await.unwrap();
        }
    }
    let mut renewals = tokio::task::JoinSet::new();
    for (n, mut holder) in holders.into_iter().enumerate() {
        renewals.spawn(async move { (n, holder.renew().await) });
    }
    for (n, renewal) in renewals.join_all().await {
        match renewal {
            Ok(Renewal::Alive { .. }) => assert!(!is_missing(n) && !is_closed(n), "lock-{n}"),
            Ok(_) => assert!(is_missing(n), "lock-{n}"),
            Err(error) => {
                let is_its_own = error.to_string().contains(&format!("/locks/lock-{n}/"));
                assert!(is_closed(n) && is_its_own, "lock-{n}: {error}");
            }
        }
    }
}

/// A claim that nobody drives any more, at whichever await of its first try, keeps no other one of its session
/// waiting.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_stands_still_stops_no_other() {
    let servers = server().await;
    for polls in 1.. {
        let ours = backend(&servers).await;
        let (mut still, mut other) = (claim(&ours, "still", false), claim(&ours, "other", false));
        let mut call = still.try_acquire();
        let cut = drop_after(polls, call.as_mut()).await;
        granted(&mut *other).await;
        other.release().await.unwrap();
        let is_done = matches!(cut, shared::Cut::Done(_));
        drop(call);
        ours.close().await.unwrap();
        if is_done {
            assert!(polls > 3, "it has met few awaits");
            break;
        }
    }
}
