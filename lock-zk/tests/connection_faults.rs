//! Connections that are cut or stall, at every point.

#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

mod common;

use std::time::Duration;

use common::{
    DEFAULT, SESSION, SLACK, backend, behind_proxy, children, claim, held, locks, make, plain,
    server, until,
};
use conformance_tests::server::{Cut, Proxy};
use lock_core::{ErrorKind, LockBackend, LockState};
use lock_zk::{ZkBackend, ZkConfig};

/// A session that was idle for longer than its timeout, and a lock whose create has no answer: the
/// node that is found is granted with its own validity.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_reply_after_a_long_rest_blocks_nobody() {
    let servers = server().await;
    let plain = plain(&servers).await;
    let (ours, proxy) = behind_proxy(&servers, DEFAULT).await;
    let locks = locks(ours, SESSION);
    // The node of the lock is there and stays, so that the next write makes ours.
    make(&plain, "/locks/lock").await;
    for round in 0..2 {
        tokio::time::sleep(SESSION * 5 / 4).await;
        proxy.cut_before_reply(1);
        let lock = locks.named("lock").unwrap();
        let guard = if round == 0 {
            tokio::time::timeout(SLACK, lock.acquire()).await.expect("it is free").unwrap()
        } else {
            lock.try_acquire().await.unwrap().expect("it is free")
        };
        assert!(guard.remaining() > SESSION / 5, "{:?}", guard.remaining());
        guard.release().await.unwrap();
    }
}

/// Closing waits for the server's answer, whatever else the client asks meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn closing_waits_for_a_server_that_is_slow() {
    let servers = server().await;
    let plain = plain(&servers).await;
    let (ours, proxy) = behind_proxy(&servers, DEFAULT).await;
    let _holder = held(&ours, "lock").await;
    proxy.stall();
    let closing = tokio::spawn(async move { ours.close().await });
    // Time for several of the requests that keep the session.
    tokio::time::sleep(SESSION * 2 / 5).await;
    assert!(!closing.is_finished(), "nothing has told the server");
    proxy.pass();
    tokio::time::timeout(SLACK, closing).await.unwrap().unwrap().unwrap();
    assert!(children(&plain, "lock").await.is_empty());
}

/// The connection is cut after every request and before every reply of a waiter, from when it enters the queue, and
/// from when the lock is released. The suite cuts it at each request of each call.
#[tokio::test(flavor = "multi_thread")]
async fn a_cut_at_any_point_of_a_hand_over_loses_no_turn() {
    let servers = server().await;
    let plain = plain(&servers).await;
    let (holders, (ours, proxy)) = (backend(&servers).await, behind_proxy(&servers, DEFAULT).await);
    let holders = locks(holders, SESSION);
    let locks = locks(ours, SESSION);
    for k in 1..=6 {
        for (after_request, queued) in [(true, true), (false, true), (true, false), (false, false)]
        {
            let name = format!("lock-{k}-{after_request}-{queued}");
            let holder = holders.named(name.as_str()).unwrap().acquire().await.unwrap();
            let fence = holder.token().unwrap();
            let early = (!queued).then(|| Planned::cut(&proxy, k, after_request));
            let lock = locks.named(name.as_str()).unwrap();
            let waiter = tokio::spawn(async move { lock.acquire_timeout(SLACK * 2).await });
            until("it waits", SLACK, async || children(&plain, &name).await.len() == 2).await;
            let planned = early.unwrap_or_else(|| Planned::cut(&proxy, k, after_request));
            holder.release().await.unwrap();
            let guard = waiter.await.unwrap().unwrap();
            lock_testkit::assert_exactly!(
                guard.token().unwrap() > fence,
                "a fence falls: {guard:?}"
            );
            planned.wait(&proxy).await;
            assert!(is_held(guard.state()), "{:?}", guard.state());
            assert_eq!(children(&plain, &name).await.len(), 1, "one node, and not two");
            guard.release().await.unwrap();
            assert!(children(&plain, &name).await.is_empty());
        }
    }
}

/// A place near the end of the sequence numbers is refused, also where it could not be given up at
/// once.
#[tokio::test(flavor = "multi_thread")]
async fn a_cut_at_any_point_grants_no_used_up_place() {
    let servers = server().await;
    let proxy = Proxy::start(servers.address(0).unwrap()).await.unwrap();
    let config = ZkConfig::new(&proxy.address().to_string()).unwrap();
    let config = config.session_timeout(SESSION).limits(usize::MAX, SESSION * 9, 0);
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
    matches!(state, LockState::Secure | LockState::AtRisk)
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

/// A session that watches more than one request of the driver can set again survives a reconnect,
/// with all that it holds, and its queue moves on.
#[tokio::test(flavor = "multi_thread")]
async fn a_reconnect_keeps_a_session_that_watches_much() {
    let servers = server().await;
    let (ours, proxy) = behind_proxy(&servers, "lock_session_timeout=20s").await;
    let locks = locks(ours, Duration::from_secs(20));
    // 150 holders, and 250 who wait for one lock: nodes with names of 225 kB in all.
    let mut holders = tokio::task::JoinSet::new();
    for n in 0..150 {
        let lock = locks.named(format!("{n:0500}")).unwrap();
        holders.spawn(async move { lock.acquire().await.unwrap() });
    }
    let guards = holders.join_all().await;
    let queue = "q".repeat(500);
    let mut head = locks.named(queue.as_str()).unwrap().acquire().await.unwrap();
    let (served, mut serving) = tokio::sync::mpsc::unbounded_channel();
    let mut waiters = tokio::task::JoinSet::new();
    for _ in 0..250 {
        let (lock, served) = (locks.named(queue.as_str()).unwrap(), served.clone());
        waiters.spawn(async move { served.send(lock.acquire().await) });
    }
    let plain = plain(&servers).await;
    until("all wait", SLACK * 6, async || children(&plain, &queue).await.len() == 251).await;
    // Their watches are set.
    tokio::time::sleep(Duration::from_secs(1)).await;
    proxy.cut(Cut::Reset);
    until("the session survives", SLACK * 2, async || head.check().await.is_ok()).await;
    for _ in 0..5 {
        let fence = head.token().unwrap();
        head.release().await.unwrap();
        head = tokio::time::timeout(SLACK, serving.recv())
            .await
            .expect("the next one is woken")
            .unwrap()
            .unwrap();
        lock_testkit::assert_exactly!(head.token().unwrap() > fence, "a fence falls: {head:?}");
    }
    for guard in &guards {
        assert!(guard.token().is_ok(), "{:?}", guard.state());
    }
}
