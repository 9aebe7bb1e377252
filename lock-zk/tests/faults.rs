//! Servers that stop, connections that break, sessions and nodes that somebody takes away.

#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

mod common;

use std::time::Duration;

use common::{
    SESSION, SLACK, acquired, backend, behind_proxy, busy, children, claim, granted, plain,
    scenarios, server, until,
};
use conformance_tests::proxy::{Cut, Proxy};
use conformance_tests::servers::ZooKeeper;
use lock_core::{LockBackend, LockState, Locks, LostReason, Renewal};
use lock_zk::ZkBackend;
use zookeeper_client as zk;

#[tokio::test(flavor = "multi_thread")]
async fn the_fences_rise_over_a_new_queue() {
    scenarios::fences_rise_over_a_new_queue().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_of_an_old_session_is_not_trusted() {
    scenarios::a_node_of_an_old_session_is_not_trusted().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_needs_the_leader() {
    scenarios::a_renewal_needs_the_leader().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_behind_confirms_nothing() {
    scenarios::a_server_that_is_behind_confirms_nothing().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_reply_leaves_one_node() {
    scenarios::a_lost_reply_leaves_one_node().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_server_that_comes_back_in_time_costs_no_lock() {
    let servers = server().await;
    let url = format!("{}?lock_session_timeout=20s", servers.url());
    let locks = Locks::builder(lock_zk::connect(&url).await.unwrap());
    let locks = locks.default_ttl(Duration::from_secs(20)).build();
    let guard = locks.lock("lock").unwrap().acquire().await.unwrap();
    let waiting = locks.lock("lock").unwrap();
    let waiting = tokio::spawn(async move { waiting.acquire().await });
    tokio::time::sleep(Duration::from_millis(200)).await;
    servers.restart().await.unwrap();
    until("the lock is confirmed", SLACK, async || guard.check().await.is_ok()).await;
    guard.renew().await.unwrap();
    let fence = guard.token().unwrap();
    guard.release().await.unwrap();
    let next = tokio::time::timeout(SLACK, waiting).await.unwrap().unwrap().unwrap();
    assert!(next.token().unwrap() > fence, "the waiter's watch has survived the restart");
    next.release().await.unwrap();
}

/// The server is stopped for longer than the session timeout, and goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_stopped_for_longer_than_the_session_ends_it() {
    let servers = server().await;
    let locks = Locks::builder(backend(&servers).await).default_ttl(SESSION).build();
    let guard = locks.lock("lock").unwrap().acquire().await.unwrap();
    let other = locks.lock("other").unwrap().acquire().await.unwrap();
    let fence = guard.token().unwrap();
    servers.freeze().unwrap();
    let reason = tokio::time::timeout(SESSION + SLACK, guard.lost().wait()).await.unwrap();
    assert_eq!(reason, LostReason::Expired, "the guard has counted down by itself");
    tokio::time::sleep(SESSION).await;
    servers.thaw().unwrap();
    // The same client goes on, with a new session.
    let again = tokio::time::timeout(SESSION + SLACK, async {
        locks.lock("lock").unwrap().acquire().await
    });
    let again = again.await.unwrap().unwrap();
    assert!(again.token().unwrap() > fence);
    assert!(matches!(other.state(), LockState::Lost(_)), "all locks of the session are lost");
    assert_eq!(guard.state(), LockState::Lost(LostReason::Expired), "the reason stays");
    again.release().await.unwrap();
}

/// An ensemble, a client of all its servers, and a session that outlasts an election.
async fn ensemble() -> (ZooKeeper, Vec<Proxy>, Locks) {
    let servers = ZooKeeper::ensemble().await.unwrap();
    let mut proxies = Vec::new();
    for member in 0..servers.len() {
        proxies.push(Proxy::start(servers.address(member).unwrap()).await.unwrap());
    }
    let hosts: Vec<_> = proxies.iter().map(|proxy| proxy.address().to_string()).collect();
    let url = format!("zookeeper://{}?lock_session_timeout=12s", hosts.join(","));
    let backend = lock_zk::connect(&url).await.unwrap();
    let locks = Locks::builder(backend).default_ttl(Duration::from_secs(12)).build();
    (servers, proxies, locks)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_leader_costs_no_lock() {
    let (servers, _proxies, locks) = ensemble().await;
    let guard = locks.lock("lock").unwrap().acquire().await.unwrap();
    let fence = guard.token().unwrap();
    let leader = servers.leader().unwrap();
    servers.kill_one(leader).unwrap();
    // A write goes through the new leader.
    until("a renewal is answered", SLACK * 2, async || guard.renew().await.is_ok()).await;
    assert_eq!(guard.token().unwrap(), fence);
    assert_ne!(servers.leader().unwrap(), leader);
    guard.release().await.unwrap();
    let next = locks.lock("lock").unwrap().acquire().await.unwrap();
    assert!(next.token().unwrap() > fence, "the fence rises over a change of the leader");
    next.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_server_is_left_for_another_one() {
    let (_servers, proxies, locks) = ensemble().await;
    let guard = locks.lock("lock").unwrap().acquire().await.unwrap();
    // The one that is in use is not known, so all present connections fall silent.
    for proxy in &proxies {
        proxy.stall_present();
    }
    until("a renewal is answered", Duration::from_secs(11), async || guard.renew().await.is_ok())
        .await;
    guard.release().await.unwrap();
}

/// Somebody who knows the id and the password of a session closes it.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_closed_by_somebody_else_is_lost_at_once() {
    let servers = server().await;
    let direct = servers.address(0).unwrap();
    let proxy = Proxy::start(direct).await.unwrap();
    let connector = zk::Client::connector().with_session_timeout(SESSION * 10);
    let client = connector.connect(&proxy.address().to_string()).await.unwrap();
    let session = client.session().clone();
    let ours = ZkBackend::from_client(client).await.unwrap();
    let ttl = ours.capabilities().min_ttl;
    let locks = Locks::builder(ours.clone()).default_ttl(ttl).build();
    let mut guards = Vec::new();
    for name in ["a", "b", "c"] {
        guards.push(locks.lock(name).unwrap().acquire().await.unwrap());
    }
    let mut waiter = claim(&ours, "a", true);
    busy(&mut *waiter).await;
    // Two connections of one session would take it from each other in turn.
    proxy.refuse_new(true);
    proxy.cut(Cut::Reset);
    let thief = zk::Client::connector().with_session(session);
    drop(thief.connect(&direct.to_string()).await.unwrap());
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
    // A given client has one session, and says so.
    let error = waiter.try_acquire().await.unwrap_err();
    assert!(
        !error.is_retryable() && error.to_string().contains("cannot be opened again"),
        "{error}"
    );
}

/// As above for a client that can open a new session: here the server ends the old one, since it was
/// cut off for too long.
#[tokio::test(flavor = "multi_thread")]
async fn after_an_expiry_the_next_claim_has_a_new_session() {
    let servers = server().await;
    let (ours, proxy) = behind_proxy(&servers).await;
    let locks = Locks::builder(ours.clone()).default_ttl(SESSION).build();
    let mut held = claim(&ours, "held", true);
    let fence = granted(&mut *held).await;
    let guard = locks.lock("guarded").unwrap().acquire().await.unwrap();
    proxy.refuse_new(true);
    proxy.cut(Cut::Reset);
    // The server has ended it then, and the client has not given it up yet.
    tokio::time::sleep(SESSION + Duration::from_millis(400)).await;
    proxy.refuse_new(false);
    tokio::time::timeout(SLACK, held.changed()).await.expect("the end of a session wakes").unwrap();
    assert_eq!(held.renew().await.unwrap(), Renewal::Lost);
    assert!(matches!(guard.state(), LockState::Lost(_)));
    let mut next = claim(&ours, "held", true);
    assert!(acquired(&mut *next).await > fence);
    held.release().await.unwrap();
    assert!(matches!(next.check().await.unwrap(), Renewal::Alive { .. }), "not of the new holder");
    next.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_an_operator_deletes_is_lost_at_once() {
    let servers = server().await;
    let plain = plain(&servers).await;
    let url = format!("{}?lock_session_timeout=30s", servers.url());
    let ours = lock_zk::connect(&url).await.unwrap();
    let locks = Locks::new(ours.clone());
    let guard = locks.lock("lock").unwrap().acquire().await.unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    let mut waiter = claim(&ours, "lock", true);
    busy(&mut *waiter).await;
    let nodes = children(&plain, "lock").await;
    assert_eq!(nodes.len(), 2);
    // First the waiter's place: it takes a new one.
    let sequence = |name: &String| name[name.len() - 10..].to_owned();
    let place = nodes.iter().max_by_key(|name| sequence(name)).unwrap();
    plain.delete(&format!("/locks/lock/{place}"), None).await.unwrap();
    tokio::time::timeout(SLACK, waiter.changed()).await.expect("its own node is watched").unwrap();
    assert_eq!(waiter.renew().await.unwrap(), Renewal::Lost);
    busy(&mut *waiter).await;
    let holder = nodes.iter().min_by_key(|name| sequence(name)).unwrap();
    plain.delete(&format!("/locks/lock/{holder}"), None).await.unwrap();
    let reason = tokio::time::timeout(SLACK, guard.lost().wait()).await;
    assert_eq!(reason.expect("long before a renewal"), LostReason::Taken);
    acquired(&mut *waiter).await;
    waiter.release().await.unwrap();
}

/// The connection is cut after every request and before every reply, one after the other.
#[tokio::test(flavor = "multi_thread")]
async fn a_cut_at_any_point_leaves_nothing_behind() {
    let servers = server().await;
    let plain = plain(&servers).await;
    let (ours, proxy) = behind_proxy(&servers).await;
    let locks = Locks::builder(ours).default_ttl(SESSION).build();
    for k in 1..=8 {
        for after_request in [true, false] {
            let name = format!("lock-{k}-{after_request}");
            let (requests, replies) = (proxy.requests(), proxy.replies());
            if after_request {
                proxy.cut_after_request(k);
            } else {
                proxy.cut_before_reply(k);
            }
            let lock = locks.lock(name.as_str()).unwrap();
            if let Ok(guard) = lock.acquire_timeout(SLACK).await {
                let _ = guard.renew().await;
                let _ = guard.check().await;
                let _ = guard.release().await;
            }
            // The plan takes effect at last with one of the requests that keep the session.
            until("the plan has been carried out", SLACK, async || {
                if after_request {
                    proxy.requests() > requests + k
                } else {
                    proxy.replies() > replies + k
                }
            })
            .await;
            until("nothing is left", SLACK, async || children(&plain, &name).await.is_empty())
                .await;
            let next = locks.lock(name.as_str()).unwrap().acquire_timeout(SLACK).await.unwrap();
            next.release().await.unwrap();
        }
    }
}

/// The predecessor leaves while the waiter is disconnected: the watch tells of it afterwards.
#[tokio::test(flavor = "multi_thread")]
async fn a_hand_over_during_a_cut_is_not_missed() {
    let servers = server().await;
    let holder = backend(&servers).await;
    let (ours, proxy) = behind_proxy(&servers).await;
    let mut first = claim(&holder, "lock", true);
    let fence = granted(&mut *first).await;
    let mut second = claim(&ours, "lock", true);
    busy(&mut *second).await;
    // The watch is set, and this call is given up.
    let quiet = tokio::time::timeout(Duration::from_millis(200), second.changed()).await;
    assert!(quiet.is_err(), "nothing has changed");
    proxy.refuse_new(true);
    proxy.cut(Cut::Reset);
    first.release().await.unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    proxy.refuse_new(false);
    tokio::time::timeout(SESSION, second.changed()).await.expect("it is replayed").unwrap();
    assert!(granted(&mut *second).await > fence);
    second.release().await.unwrap();
}
