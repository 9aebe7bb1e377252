//! Servers that stop, connections that break, sessions and nodes that somebody takes away.

#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

mod common;

use std::time::Duration;

use common::{
    SESSION, SLACK, acquired, backend, behind_proxy, busy, children, claim, granted, plain,
    scenarios, server, until,
};
use lock_core::{ErrorKind, LockBackend, LockState, Locks, LostReason, Released, Renewal};
use lock_testkit::proxy::{Cut, Proxy};
use lock_testkit::servers::ZooKeeper;
use lock_zk::{ZkBackend, ZkConfig};
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
async fn a_session_that_was_shortened_is_not_believed() {
    scenarios::a_session_that_was_shortened_is_not_believed().await.unwrap();
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
async fn a_server_that_is_behind_grants_nothing() {
    scenarios::a_server_that_is_behind_grants_nothing().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_prolongs_nothing() {
    scenarios::a_read_prolongs_nothing().await.unwrap();
}

/// A session that was idle for longer than its timeout, and a lock whose create has no answer: what is
/// found is granted with a validity of its own.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_reply_after_a_long_rest_blocks_nobody() {
    let servers = server().await;
    let plain = plain(&servers).await;
    let (ours, proxy) = behind_proxy(&servers).await;
    let locks = Locks::builder(ours).default_ttl(SESSION).build();
    // The node of the lock is there and stays, so that the next write makes ours.
    let mode = zk::CreateMode::Persistent.with_acls(zk::Acls::anyone_all());
    plain.mkdir("/locks/lock", &mode).await.unwrap();
    for round in 0..2 {
        tokio::time::sleep(SESSION * 5 / 4).await;
        proxy.cut_before_reply(1);
        let lock = locks.lock("lock").unwrap();
        let guard = if round == 0 {
            tokio::time::timeout(SLACK, lock.acquire()).await.expect("it is free").unwrap()
        } else {
            lock.try_acquire().await.unwrap().expect("nobody has it")
        };
        assert!(guard.remaining() > SESSION / 5, "{:?}", guard.remaining());
        guard.release().await.unwrap();
    }
}

/// While no session can be had, the end of the last one is told once, and not again and again.
#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_session_wakes_a_waiter_once() {
    let servers = server().await;
    let holder = backend(&servers).await;
    let ours = backend(&servers).await;
    granted(&mut *claim(&holder, "lock", true)).await;
    let mut waiter = claim(&ours, "lock", true);
    busy(&mut *waiter).await;
    servers.kill().unwrap();
    // The client of ZooKeeper gives up after 7/5 of the session timeout.
    tokio::time::timeout(SESSION * 2 + SLACK, waiter.changed()).await.expect("it ends").unwrap();
    assert!(waiter.try_acquire().await.is_err());
    let quiet = tokio::time::timeout(Duration::from_millis(300), waiter.changed()).await;
    assert!(quiet.is_err(), "there is nothing new");
    // The node of the old session may be there when the server comes back.
    assert!(waiter.release().await.is_err());
    servers.restart().await.unwrap();
    until("it is released", SESSION + SLACK, async || waiter.release().await.is_ok()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_reply_leaves_one_node() {
    scenarios::a_lost_reply_leaves_one_node().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_server_that_comes_back_in_time_costs_no_lock() {
    let servers = server().await;
    let url = format!("{}?lock_session_timeout=40s", servers.url());
    let locks = Locks::builder(lock_zk::connect(&url).await.unwrap());
    let locks = locks.default_ttl(Duration::from_secs(40)).build();
    let guard = locks.lock("lock").unwrap().acquire().await.unwrap();
    let waiting = locks.lock("lock").unwrap();
    let waiting = tokio::spawn(async move { waiting.acquire().await });
    tokio::time::sleep(Duration::from_millis(200)).await;
    servers.restart().await.unwrap();
    // The client's pauses between two attempts to connect double without an end.
    let patience = Duration::from_secs(18);
    until("the lock is confirmed", patience, async || guard.check().await.is_ok()).await;
    until("it is renewed", SLACK, async || guard.renew().await.is_ok()).await;
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

/// The leader dies under a queue, and under those who are just about to enter it.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_leader_loses_no_place_in_the_queue() {
    let (servers, _proxies, locks) = ensemble().await;
    let holder = locks.lock("lock").unwrap().acquire().await.unwrap();
    let mut last = holder.token().unwrap();
    let (served, mut serving) = tokio::sync::mpsc::unbounded_channel();
    let enter = |n: u32| {
        let (lock, served) = (locks.lock("lock").unwrap(), served.clone());
        tokio::spawn(async move {
            let guard = lock.acquire_timeout(Duration::from_secs(60)).await;
            let _ = served.send((n, guard));
        })
    };
    let outside = plain(&servers).await;
    for n in 0..4_usize {
        enter(u32::try_from(n).unwrap());
        until("it waits", SLACK, async || children(&outside, "lock").await.len() == n + 2).await;
    }
    drop(outside);
    for n in 4..8 {
        enter(n);
    }
    let leader = servers.leader().unwrap();
    servers.kill_one(leader).unwrap();
    enter(8);
    until("a renewal is answered", SLACK * 2, async || holder.renew().await.is_ok()).await;
    let plain = plain(&servers).await;
    until("all wait", SLACK * 2, async || children(&plain, "lock").await.len() == 10).await;
    holder.release().await.unwrap();
    for turn in 0..9 {
        let next = tokio::time::timeout(SLACK * 2, serving.recv()).await.unwrap().unwrap();
        let (n, guard) = (next.0, next.1.unwrap());
        assert!(turn >= 4 || n == turn, "{n} was served in turn {turn}");
        assert!(guard.token().unwrap() > last);
        last = guard.token().unwrap();
        guard.release().await.unwrap();
    }
    until("nothing is left", SLACK, async || children(&plain, "lock").await.is_empty()).await;
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
    let url = format!("zookeeper://{}?lock_session_timeout=20s", proxy.address());
    let ours = lock_zk::connect(&url).await.unwrap();
    let ttl = ours.capabilities().min_ttl;
    let locks = Locks::builder(ours.clone()).default_ttl(ttl).build();
    let mut guards = Vec::new();
    for name in ["a", "b", "c"] {
        guards.push(locks.lock(name).unwrap().acquire().await.unwrap());
    }
    let mut waiter = claim(&ours, "a", true);
    busy(&mut *waiter).await;
    let session = ours.sessions().pop().unwrap();
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
    // The next try has a session of its own, and waits for the new holder.
    busy(&mut *waiter).await;
    assert_eq!(waiter.release().await.unwrap(), Released::Freed);
    drop(guards);
    locks.close(SLACK).await.unwrap();
}

/// Closing waits for the server's answer, whatever else the client asks meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn closing_waits_for_a_server_that_is_slow() {
    let servers = server().await;
    let plain = plain(&servers).await;
    let (ours, proxy) = behind_proxy(&servers).await;
    let mut holder = claim(&ours, "lock", true);
    granted(&mut *holder).await;
    proxy.stall();
    let closing = tokio::spawn(async move { ours.close().await });
    // Time for several of the requests that keep the session.
    tokio::time::sleep(SESSION * 2 / 5).await;
    assert!(!closing.is_finished(), "nothing has told the server");
    proxy.pass();
    tokio::time::timeout(SLACK, closing).await.unwrap().unwrap().unwrap();
    assert!(children(&plain, "lock").await.is_empty());
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

/// The connection is cut after every request and before every reply, one after the other. One cut costs
/// no lock: what has no answer is repaired.
#[tokio::test(flavor = "multi_thread")]
async fn a_cut_at_any_point_leaves_nothing_behind() {
    let servers = server().await;
    let plain = plain(&servers).await;
    let (ours, proxy) = behind_proxy(&servers).await;
    let locks = Locks::builder(ours).default_ttl(SESSION).build();
    for k in 1..=8 {
        for after_request in [true, false] {
            let name = format!("lock-{k}-{after_request}");
            let done = Planned::cut(&proxy, k, after_request);
            let lock = locks.lock(name.as_str()).unwrap();
            let guard = lock.acquire_timeout(SLACK).await.unwrap();
            for answer in [guard.renew().await, guard.check().await] {
                assert!(answer.is_ok_and(is_held) || is_held(guard.state()), "{:?}", guard.state());
            }
            // It may be told that the outcome is unknown; the clean-up goes on.
            if let Err(error) = guard.release().await {
                assert!(error.is_retryable(), "{error}");
            }
            done.wait(&proxy).await;
            until("nothing is left", SLACK, async || children(&plain, &name).await.is_empty())
                .await;
            let next = locks.lock(name.as_str()).unwrap().acquire_timeout(SLACK).await.unwrap();
            next.release().await.unwrap();
        }
    }
}

/// The same for one who waits, from the moment that it enters the queue, and from the moment that the
/// lock is released.
#[tokio::test(flavor = "multi_thread")]
async fn a_cut_at_any_point_of_a_hand_over_loses_no_turn() {
    let servers = server().await;
    let plain = plain(&servers).await;
    let (holders, (ours, proxy)) = (backend(&servers).await, behind_proxy(&servers).await);
    let holders = Locks::builder(holders).default_ttl(SESSION).build();
    let locks = Locks::builder(ours).default_ttl(SESSION).build();
    for k in 1..=6 {
        for (after_request, queued) in [(true, true), (false, true), (true, false), (false, false)]
        {
            let name = format!("lock-{k}-{after_request}-{queued}");
            let holder = holders.lock(name.as_str()).unwrap().acquire().await.unwrap();
            let fence = holder.token().unwrap();
            let early = (!queued).then(|| Planned::cut(&proxy, k, after_request));
            let lock = locks.lock(name.as_str()).unwrap();
            let waiter = tokio::spawn(async move { lock.acquire_timeout(SLACK * 2).await });
            until("it waits", SLACK, async || children(&plain, &name).await.len() == 2).await;
            let planned = early.unwrap_or_else(|| Planned::cut(&proxy, k, after_request));
            holder.release().await.unwrap();
            let guard = waiter.await.unwrap().unwrap();
            assert!(guard.token().unwrap() > fence);
            planned.wait(&proxy).await;
            assert!(is_held(guard.state()), "{:?}", guard.state());
            assert_eq!(children(&plain, &name).await.len(), 1, "one node, and not two");
            guard.release().await.unwrap();
            assert!(children(&plain, &name).await.is_empty());
        }
    }
}

/// A place near the end of the sequence numbers is refused, also where it could not be given up at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_cut_at_any_point_grants_no_used_up_place() {
    let servers = server().await;
    let proxy = Proxy::start(servers.address(0).unwrap()).await.unwrap();
    let config = ZkConfig::new(&proxy.address().to_string()).unwrap();
    let config = config.session_timeout(SESSION).sequence_limit(0);
    let ours = ZkBackend::connect(config).await.unwrap();
    for k in 1..=6 {
        for after_request in [true, false] {
            let mut late = claim(&ours, &format!("lock-{k}-{after_request}"), true);
            let planned = Planned::cut(&proxy, k, after_request);
            // Often enough that one of them is refused without a cut.
            until("it is refused", SLACK, async || match late.try_acquire().await {
                Err(error) => error.kind() == ErrorKind::Store,
                Ok(answer) => panic!("cut {k}: a used-up place is answered with {answer:?}"),
            })
            .await;
            planned.wait(&proxy).await;
            until("it is given up", SLACK, async || late.release().await.is_ok()).await;
        }
    }
}

fn is_held(state: LockState) -> bool {
    matches!(state, LockState::Held | LockState::AtRisk)
}

/// A cut that is planned for the `k`-th request or reply from now.
struct Planned {
    after_request: bool,
    at: u64,
}

impl Planned {
    fn cut(proxy: &Proxy, k: u64, after_request: bool) -> Self {
        let count = if after_request { proxy.requests() } else { proxy.replies() };
        if after_request {
            proxy.cut_after_request(k);
        } else {
            proxy.cut_before_reply(k);
        }
        Self { after_request, at: count + k }
    }

    /// It takes effect at last with one of the requests that keep the session.
    async fn wait(&self, proxy: &Proxy) {
        until("the plan has been carried out", SLACK, async || {
            let count = if self.after_request { proxy.requests() } else { proxy.replies() };
            count > self.at
        })
        .await;
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

/// A runtime that ends while renewals are being collected, or that nobody drives any more, takes none
/// of them with it but its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewals_survive_the_end_and_the_standstill_of_another_runtime() {
    let servers = server().await;
    let backend = backend(&servers).await;
    let mut here = claim(&backend, "here", false);
    granted(&mut *here).await;
    for (name, ends) in [("ends", true), ("stands", false)] {
        let mut there = claim(&backend, name, false);
        granted(&mut *there).await;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let standing = std::thread::spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    biased;
                    answer = there.renew() => panic!("sooner than it is sent: {answer:?}"),
                    () = std::future::ready(()) => {}
                }
            });
            (!ends).then_some(runtime)
        })
        .join()
        .unwrap();
        for _ in 0..2 {
            let renewal = tokio::time::timeout(Duration::from_secs(10), here.renew()).await;
            let renewal = renewal.expect("the renewals are stuck").unwrap();
            assert!(matches!(renewal, Renewal::Alive { .. }), "{renewal:?}");
        }
        if let Some(standing) = standing {
            standing.shutdown_background();
        }
    }
}
