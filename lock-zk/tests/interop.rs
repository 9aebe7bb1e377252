//! A Curator or kazoo client queues behind us, and we behind it.
//!
//! The peers are played by a plain client that follows their recipes: the same node names, the same
//! order, the same watch on the one before.

#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

mod common;

use std::time::Duration;

use common::{
    SESSION, SLACK, acquired, backend, busy, children, claim, granted, held, locks, plain, server,
    until,
};
use lock_core::{LockAdmin, LockKey, Released, Victim};
use lock_testkit::golden;
use zookeeper_client as zk;

/// A peer's recipe: how its nodes are named, and by what it orders them.
#[derive(Clone, Copy, Debug)]
struct Peer {
    prefix: &'static str,
    order: fn(&str) -> Option<&str>,
}

/// `StandardLockInternalsDriver#standardFixForSorting`: what stands behind the last `lock-`.
fn curator(name: &str) -> Option<&str> {
    let at = name.rfind("lock-")?;
    Some(&name[at + "lock-".len()..])
}

/// `kazoo.recipe.lock.Lock` with `extra_lock_patterns=["-lock-"]`: the ten digits behind a pattern.
fn kazoo(name: &str) -> Option<&str> {
    let (_, digits) = name.rsplit_once("__lock__").or_else(|| name.rsplit_once("-lock-"))?;
    (digits.len() == 10).then_some(digits)
}

/// With names that come before and after ours in the order of text.
const PEERS: [Peer; 4] = [
    Peer { prefix: "_c_00000000-0000-0000-0000-000000000000-lock-", order: curator },
    Peer { prefix: "_c_ffffffff-ffff-ffff-ffff-ffffffffffff-lock-", order: curator },
    Peer { prefix: "00000000000000000000000000000000__lock__", order: kazoo },
    Peer { prefix: "ffffffffffffffffffffffffffffffff__lock__", order: kazoo },
];

impl Peer {
    /// Enters the queue; the name of its node.
    async fn enter(&self, client: &zk::Client, queue: &str) -> String {
        let acls = zk::Acls::anyone_all();
        let parent = zk::CreateMode::Container.with_acls(acls);
        let mode = zk::CreateMode::EphemeralSequential.with_acls(acls);
        let path = format!("{queue}/{}", self.prefix);
        loop {
            client.mkdir(queue, &parent).await.unwrap();
            match client.create(&path, b"10.0.0.1", &mode).await {
                Ok((_, sequence)) => break format!("{}{sequence}", self.prefix),
                // The server has removed the container meanwhile, since it was empty again.
                Err(zk::Error::NoNode) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// The one before it, by its own order; `None` if it holds the lock.
    async fn before(&self, client: &zk::Client, queue: &str, own: &str) -> Option<String> {
        let mut names = client.list_children(queue).await.unwrap();
        names.retain(|name| (self.order)(name).is_some());
        names.sort_by(|a, b| (self.order)(a).cmp(&(self.order)(b)));
        let at = names.iter().position(|name| name == own).unwrap();
        at.checked_sub(1).map(|at| names[at].clone())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn we_queue_behind_a_peer() {
    let servers = server().await;
    let (ours, peer_client) = (backend(&servers).await, plain(&servers).await);
    for peer in PEERS {
        let node = peer.enter(&peer_client, "/locks/lock").await;
        assert_eq!(peer.before(&peer_client, "/locks/lock", &node).await, None, "{peer:?}");
        let mut waiter = claim(&ours, "lock", true);
        busy(&mut *waiter).await;
        busy(&mut *claim(&ours, "lock", false)).await;
        let quiet = tokio::time::timeout(Duration::from_millis(100), waiter.changed()).await;
        assert!(quiet.is_err(), "the peer holds it");
        peer_client.delete(&format!("/locks/lock/{node}"), None).await.unwrap();
        tokio::time::timeout(SLACK, waiter.changed()).await.expect("its release wakes").unwrap();
        granted(&mut *waiter).await;
        waiter.release().await.unwrap();
        assert!(children(&peer_client, "lock").await.is_empty());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_queues_behind_us() {
    let servers = server().await;
    let (ours, peer_client) = (backend(&servers).await, plain(&servers).await);
    for peer in PEERS {
        let mut holder = held(&ours, "lock").await;
        let node = peer.enter(&peer_client, "/locks/lock").await;
        let mut last = claim(&ours, "lock", true);
        busy(&mut *last).await;
        let before = peer.before(&peer_client, "/locks/lock", &node).await.expect("it must wait");
        assert!(before.starts_with("_c_"), "{peer:?} waits for {before}");
        let (_, watcher) =
            peer_client.check_and_watch_stat(&format!("/locks/lock/{before}")).await.unwrap();
        // A renewal wakes no waiter.
        let watcher = tokio::spawn(watcher.changed());
        for _ in 0..3 {
            holder.renew().await.unwrap();
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(!watcher.is_finished(), "a renewal has woken the peer");
        holder.release().await.unwrap();
        let event = tokio::time::timeout(SLACK, watcher).await.unwrap().unwrap();
        assert_eq!(event.event_type, zk::EventType::NodeDeleted);
        assert_eq!(peer.before(&peer_client, "/locks/lock", &node).await, None, "{peer:?}");
        busy(&mut *last).await;
        peer_client.delete(&format!("/locks/lock/{node}"), None).await.unwrap();
        acquired(&mut *last).await;
        last.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_is_shown_as_what_it_is_and_can_be_removed() {
    let servers = server().await;
    let (ours, peer_client) = (backend(&servers).await, plain(&servers).await);
    PEERS[3].enter(&peer_client, "/locks/lock").await;
    let mut waiter = claim(&ours, "lock", true);
    busy(&mut *waiter).await;
    let key = LockKey::new("", "lock").unwrap();
    let shown = ours.inspect(&key).await.unwrap().unwrap();
    let holder = shown.holder.unwrap();
    assert_eq!((holder.owner, shown.waiters), (None, Some(1)));
    assert!(holder.label.as_ref().unwrap().contains("not distlock"));
    assert_eq!(ours.list("", "").await.unwrap().len(), 1);
    let shown = Victim::Shown(holder.mark);
    assert_eq!(ours.force_release(&key, &shown).await.unwrap(), Released::Freed);
    acquired(&mut *waiter).await;
    // The peer that was shown is gone: its mark does not release another holder's lock.
    assert_eq!(ours.force_release(&key, &shown).await.unwrap(), Released::AlreadyGone);
    waiter.release().await.unwrap();
    until("nobody is shown", SLACK, async || ours.inspect(&key).await.unwrap().is_none()).await;
}

/// A node and all below it: its path, whether it lives as long as a session, and its data.
async fn told(client: &zk::Client, path: String, lines: &mut Vec<String>) {
    let (data, stat) = client.get_data(&path).await.unwrap();
    let lives = if stat.ephemeral_owner == 0 { "for ever" } else { "with its session" };
    let data = data.iter().map(|byte| byte.escape_ascii().to_string()).collect::<String>();
    lines.push(format!("{path} {lives}: {data:?}"));
    let mut children = client.list_children(&path).await.unwrap();
    // In the order of their sequence numbers.
    children
        .sort_unstable_by_key(|child| child.split_at(child.len().saturating_sub(10)).1.to_owned());
    for child in children.into_iter().filter(|child| child != "zookeeper") {
        let below = format!("{}/{child}", path.trim_end_matches('/'));
        Box::pin(told(client, below, lines)).await;
    }
}

/// What a held lock, a waiter and a released lock leave.
#[tokio::test]
async fn what_is_stored_is_what_was_stored() {
    let servers = server().await;
    let ours = locks(backend(&servers).await, SESSION);
    let guard = ours.named("held").unwrap().label("a label").acquire().await.unwrap();
    ours.named("released").unwrap().acquire().await.unwrap().release().await.unwrap();
    let forced = ours.named("forced").unwrap().acquire().await.unwrap();
    ours.force_release_any("forced").await.unwrap();
    let waiter = ours.named("held").unwrap().label("another");
    let waiting = tokio::spawn(async move { drop(waiter.acquire().await) });
    let plain = plain(&servers).await;
    until("it waits", SLACK, async || children(&plain, "held").await.len() == 2).await;
    // A container without children goes a moment later.
    let released = async || plain.check_stat("/locks/released").await.unwrap();
    until("it goes", SLACK, async || released().await.is_none()).await;
    let forced_one = async || plain.check_stat("/locks/forced").await.unwrap();
    until("it goes", SLACK, async || forced_one().await.is_none()).await;
    let mut lines = Vec::new();
    told(&plain, "/".to_owned(), &mut lines).await;
    golden::check(env!("CARGO_MANIFEST_DIR"), "zookeeper", &lines);
    waiting.abort();
    drop((guard, forced));
}
