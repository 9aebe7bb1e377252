//! A master that changes: real servers and sentinels, and failovers of every kind.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod common;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use conformance_tests::server::{Port, Proxy};
use lock_core::{Clock, ClockInstant, ErrorKind, LockBackend, LockGuard, Locks, SystemClock};
use lock_redis::{SentinelBackend, connect_sentinel};
use lock_testkit::servers::{
    RedisGroup, RedisServer, follow, has_replicas, member, order, sentinel,
};
use lock_testkit::{assert_exactly, golden};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

const TTL: Duration = Duration::from_secs(1);
/// A server that says that it is there once a second needs some time to be missed.
const SETTINGS: &[(&str, &str)] = &[("min-replicas-to-write", "1"), ("min-replicas-max-lag", "1")];
const TERMS: &str = "lock_max_ttl=1s&lock_max_lag=1s";
/// Detection, election, the wait and a slow machine.
const LIMIT: Duration = Duration::from_secs(90);

async fn connected(url: &str) -> SentinelBackend {
    connect_sentinel(url).await.unwrap()
}

fn locks(backend: SentinelBackend) -> Locks {
    Locks::builder(backend).default_ttl(TTL).unavailable_after(LIMIT).build().unwrap()
}

async fn acquired(locks: &Locks, name: &str) -> LockGuard {
    locks.named(name).unwrap().acquire_timeout(LIMIT).await.unwrap()
}

/// What all holders of one name in this process have in common: there is one at a time, and each fence is above the
/// one before.
#[derive(Debug, Default)]
struct History {
    last: Mutex<LastHold>,
    holds: AtomicU64,
    is_over: AtomicBool,
}

#[derive(Debug, Default)]
struct LastHold {
    fence: u64,
    /// Until when its holder may believe; `None` once it has begun to release.
    believes: Option<ClockInstant>,
}

impl History {
    /// Contends for the lock until the history is over.
    async fn contend(self: Arc<Self>, locks: Locks) {
        while !self.is_over.load(SeqCst) {
            let lock = locks.named("contended").unwrap();
            let Ok(guard) = lock.acquire_timeout(Duration::from_secs(2)).await else { continue };
            let Ok(token) = guard.token() else { continue };
            self.begins(token.get(), guard.valid_until());
            for _ in 0..4 {
                sleep(Duration::from_millis(50)).await;
                self.goes_on_until(token.get(), Some(guard.valid_until()));
            }
            self.goes_on_until(token.get(), None);
            let _ = guard.release().await;
        }
    }

    fn begins(&self, fence: u64, until: ClockInstant) {
        let now = SystemClock::default().now();
        let mut last = self.last.lock();
        assert_exactly!(last.believes.is_none_or(|other| other <= now), "two holders");
        assert_exactly!(last.fence < fence, "the fence falls from {} to {fence}", last.fence);
        *last = LastHold { fence, believes: Some(until) };
        self.holds.fetch_add(1, SeqCst);
    }

    /// A hold that was lost long ago changes nothing.
    fn goes_on_until(&self, fence: u64, until: Option<ClockInstant>) {
        let mut last = self.last.lock();
        if last.fence == fence {
            last.believes = until;
        }
    }

    /// Waits until the lock was held some more times.
    async fn goes_on(&self) {
        let (enough, deadline) = (self.holds.load(SeqCst) + 5, Instant::now() + LIMIT);
        while self.holds.load(SeqCst) < enough {
            assert!(Instant::now() < deadline, "nobody gets the lock any more");
            sleep(Duration::from_millis(20)).await;
        }
    }
}

/// A group of three, contended for while `fail` is done to it, which returns the last server that is the master no
/// more, and until the lock has holders again.
async fn contended_while<F: Future<Output = usize>>(fail: impl FnOnce(Arc<RedisGroup>) -> F) {
    let group = Arc::new(RedisGroup::start(2, SETTINGS).await.unwrap());
    let url = group.url(&format!("{TERMS}&lock_bootstrap=now"));
    let history = Arc::new(History::default());
    let mut contenders = Vec::new();
    for _ in 0..3 {
        let locks = locks(connected(&url).await);
        contenders.push(tokio::spawn(Arc::clone(&history).contend(locks)));
    }
    history.goes_on().await;
    let last = fail(Arc::clone(&group)).await;
    group.successor(last).await.unwrap();
    history.goes_on().await;
    history.is_over.store(true, SeqCst);
    for contender in contenders {
        contender.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_master_has_a_successor() {
    contended_while(async |group| {
        group.servers()[0].kill().unwrap();
        0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_stands_still_has_a_successor_and_comes_back() {
    contended_while(async |group| {
        group.servers()[0].freeze().unwrap();
        group.successor(0).await.unwrap();
        // It takes itself for the master until a sentinel tells it otherwise.
        group.servers()[0].thaw().unwrap();
        0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_planned_failover_and_one_more() {
    contended_while(async |group| {
        group.fail_over().await.unwrap();
        let second = group.successor(0).await.unwrap();
        group.fail_over().await.unwrap();
        second
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_trusts_follows_a_failover_at_once() {
    let group = RedisGroup::start(1, &[]).await.unwrap();
    let backend = connected(&group.url("lock_failover=trust")).await;
    assert!(backend.capabilities().fair);
    let locks = Locks::builder(backend).unavailable_after(LIMIT).build().unwrap();
    let first = acquired(&locks, "lock").await.token().unwrap();
    group.fail_over().await.unwrap();
    group.successor(0).await.unwrap();
    let second = acquired(&locks, "lock").await.token().unwrap();
    assert_exactly!(second > first, "{second} after {first}");
}

/// What a group knows of its master beside the locks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_stored_is_what_was_stored() {
    let group = RedisGroup::start(1, SETTINGS).await.unwrap();
    let url = group.url("lock_max_ttl=60s&lock_bootstrap=now");
    let locks = Locks::new(connected(&url).await);
    let lock = locks.named("held").unwrap().label("a label").ttl(Duration::from_secs(60));
    let guard = lock.acquire_timeout(LIMIT).await.unwrap();
    let mut master = common::plain(&group.servers()[0]).await;
    let stored = common::stored::stored(&mut master).await;
    golden::check(env!("CARGO_MANIFEST_DIR"), "sentinel", &stored);
    drop(guard);
}

/// Three servers, and the links between them. Sentinels of the test's own name to each side who its master is.
struct Split {
    /// The master, and two replicas.
    servers: Vec<RedisServer>,
    /// The ways of the replicas to the master.
    links: Vec<Proxy>,
}

impl Split {
    async fn start() -> Self {
        Self::with(SETTINGS).await
    }

    async fn with(settings: &[(&str, &str)]) -> Self {
        let (mut servers, mut links) = (Vec::new(), Vec::new());
        for _ in 0..3 {
            servers.push(member(settings).await.unwrap());
        }
        for _ in 0..2 {
            links.push(Proxy::start(servers[0].address().unwrap()).await.unwrap());
        }
        let split = Self { servers, links };
        split.follow(1, split.links[0].address());
        split.follow(2, split.links[1].address());
        split.has_replicas(0, 2).await;
        split
    }

    fn address(&self, server: usize) -> SocketAddr {
        self.servers[server].address().unwrap()
    }

    fn follow(&self, replica: usize, master: SocketAddr) {
        follow(self.address(replica), master).unwrap();
    }

    async fn has_replicas(&self, server: usize, number: usize) {
        has_replicas(self.address(server), number).await.unwrap();
    }

    /// Cuts the first replica off, and makes it a master.
    fn promote(&self) {
        self.links[0].stall();
        assert_eq!(order(self.address(1), "REPLICAOF NO ONE").unwrap(), "+OK\r\n");
    }

    /// The second replica leaves the master for the new one.
    async fn takes_a_replica(&self) {
        self.links[1].stall();
        self.follow(2, self.address(1));
        self.has_replicas(1, 1).await;
    }

    /// Waits until a server says this of its replication.
    async fn says(&self, server: usize, what: &str, is_so: impl Fn(&str) -> bool) {
        let says = || order(self.address(server), "INFO replication").unwrap();
        common::until(what, LIMIT, async || is_so(&says())).await;
    }

    /// A client whose sentinel names this server.
    async fn client(&self, server: usize, parameters: &str) -> Locks {
        let sentinel = sentinel(self.address(server)).await.unwrap();
        locks(connected(&format!("redis+sentinel://{sentinel}/orders?{parameters}")).await)
    }
}

/// What `lock_failover=trust` allows, and the reason for the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_trust_a_grant_that_the_new_master_has_not_received_is_given_again() {
    let split = Split::start().await;
    let old = split.client(0, "lock_failover=trust").await;
    split.links.iter().for_each(Proxy::stall);
    let guard = old.named("lock").unwrap().ttl(LIMIT).acquire().await.unwrap();
    split.promote();
    split.takes_a_replica().await;
    let new = split.client(1, "lock_failover=trust").await;
    let second = acquired(&new, "lock").await;
    assert_exactly!(second.token().unwrap() > guard.token().unwrap(), "a fence falls: {second:?}");
    assert!(SystemClock::default().now() < guard.valid_until(), "it was lost before");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_is_cut_off_stops_before_the_new_one_begins() {
    let split = Split::start().await;
    let old = split.client(0, &format!("{TERMS}&lock_bootstrap=now")).await;
    drop(acquired(&old, "warm").await);
    split.links.iter().for_each(Proxy::stall);
    let held = acquired(&old, "lock").await;
    let first = held.token().unwrap();
    split.promote();
    split.takes_a_replica().await;
    let new = split.client(1, TERMS).await;
    let error = new.named("lock").unwrap().try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.is_retryable() && error.to_string().contains("of the old one"), "{error}");
    let second = acquired(&new, "lock").await;
    assert_exactly!(held.valid_until() <= SystemClock::default().now(), "two holders");
    assert_exactly!(second.token().unwrap() > first, "a fence falls: {second:?}");
    // The old one has no replicas any more.
    let error = old.named("other").unwrap().try_acquire().await.unwrap_err();
    assert!(error.is_retryable() && error.to_string().contains("NOREPLICAS"), "{error}");
}

/// A master that was a replica for a moment has lost what that one has not received, and the marker of its own process is
/// back with the data.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_was_a_replica_in_between_waits_too() {
    let split = Split::start().await;
    let terms = "lock_max_ttl=60s&lock_max_lag=1s";
    let old = split.client(0, &format!("{terms}&lock_bootstrap=now")).await;
    drop(acquired(&old, "warm").await);
    // The replica has the marker, but not the lock.
    sleep(Duration::from_millis(1500)).await;
    split.links[0].stall();
    let held = old.named("lock").unwrap().ttl(Duration::from_secs(60)).acquire().await.unwrap();
    split.promote();
    for (server, master) in [(0, 1), (2, 1)] {
        split.follow(server, split.address(master));
    }
    split.has_replicas(1, 2).await;
    for order_to in ["REPLICAOF NO ONE", "CLIENT KILL TYPE normal SKIPME yes"] {
        order(split.address(0), order_to).unwrap();
    }
    split.follow(2, split.address(0));
    split.has_replicas(0, 1).await;
    let again = split.client(0, terms).await;
    let tried = again.named("lock").unwrap().try_acquire().await;
    assert!(SystemClock::default().now() < held.valid_until(), "it was lost before");
    let error = tried.unwrap_err();
    assert!(error.to_string().contains("of the old one"), "{error}");
}

/// Without replicas for long, a master changes its `master_replid`, by which clients know since which promotion it is one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_had_no_replicas_for_long_still_serves_the_clients_that_it_had() {
    let split = Split::with(&[SETTINGS, &[("repl-backlog-ttl", "1")]].concat()).await;
    let old = split.client(0, &format!("{TERMS}&lock_bootstrap=now")).await;
    drop(acquired(&old, "lock").await);
    let replication = order(split.address(0), "INFO replication").unwrap();
    let before = replication.lines().find(|line| line.starts_with("master_replid:")).unwrap();
    split.links.iter().for_each(Proxy::stall);
    order(split.address(0), "CLIENT KILL TYPE replica").unwrap();
    split.says(0, "it has another id", |now| !now.contains(before)).await;
    split.links.iter().for_each(Proxy::pass);
    split.has_replicas(0, 2).await;
    // To a client that comes now it is another master, which has to wait.
    let new = split.client(0, TERMS).await;
    let error = new.named("lock").unwrap().try_acquire().await.unwrap_err();
    assert!(error.to_string().contains("of the old one"), "{error}");
    drop(acquired(&new, "lock").await);
    drop(acquired(&old, "lock").await);
}

/// Each side has a master, and one has a replica: only that grants locks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_masters_the_one_with_a_majority_grants_locks() {
    let split = Split::start().await;
    let old = split.client(0, &format!("{TERMS}&lock_bootstrap=now")).await;
    let held = acquired(&old, "lock").await;
    split.promote();
    sleep(Duration::from_secs(2)).await;
    let sentinel = sentinel(split.address(1)).await.unwrap();
    let url = format!("redis+sentinel://{sentinel}/orders?{TERMS}");
    let until = Instant::now() + Duration::from_secs(6);
    while Instant::now() < until {
        let error = connect_sentinel(&url).await.unwrap_err();
        assert!(error.is_retryable() && error.to_string().contains("NOREPLICAS"), "{error}");
        sleep(Duration::from_millis(300)).await;
    }
    assert!(held.check().await.is_ok(), "the old one has a majority");
    split.takes_a_replica().await;
    let second = acquired(&locks(connected(&url).await), "lock").await;
    assert_exactly!(held.valid_until() <= SystemClock::default().now(), "two holders");
    drop(second);
}

/// Some sentinels may be cut off together with a master.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_leave_a_master_that_is_cut_off() {
    let split = Split::start().await;
    let behind = sentinel(split.address(0)).await.unwrap();
    let ahead = sentinel(split.address(1)).await.unwrap();
    let url = format!("redis+sentinel://{behind},{ahead}/orders?{TERMS}");
    let old = locks(connected(&format!("{url}&lock_bootstrap=now")).await);
    drop(acquired(&old, "lock").await);
    split.promote();
    split.takes_a_replica().await;
    split.says(0, "it has stopped", |now| now.contains("min_slaves_good_slaves:0")).await;
    drop(acquired(&old, "lock").await);
    drop(acquired(&locks(connected(&url).await), "lock").await);
}

/// Some replicas are left, but not enough: nobody asks it for a lock before it has them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_with_too_few_replicas_is_left_alone_until_it_has_them() {
    let split = Split::with(&[("min-replicas-to-write", "2"), ("min-replicas-max-lag", "1")]).await;
    let sentinel = sentinel(split.address(0)).await.unwrap();
    let url = format!("redis+sentinel://{sentinel}/orders?lock_failover=trust");
    let client = locks(connected(&url).await);
    drop(acquired(&client, "warm").await);
    split.links[1].stall();
    split.says(0, "one is missed", |now| now.contains("min_slaves_good_slaves:1")).await;
    // A connection of less than a second stays, whatever is answered over it.
    sleep(Duration::from_secs(1)).await;
    let lock = client.named("lock").unwrap();
    let error = lock.try_acquire().await.unwrap_err();
    assert!(error.to_string().contains("NOREPLICAS"), "{error}");
    let mut master = common::plain(&split.servers[0]).await;
    let before = common::requests(&mut master).await;
    lock.acquire_timeout(Duration::from_secs(3)).await.unwrap_err();
    let asked = common::requests(&mut master).await - before;
    assert_eq!(asked, 0, "it was asked for a lock");
    let error = connect_sentinel(&url).await.unwrap_err();
    assert!(error.to_string().contains("of 1 replicas and needs 2"), "{error}");
    split.links[1].pass();
    drop(acquired(&client, "lock").await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sentinel_that_is_behind_or_away_is_passed_over() {
    let split = Split::start().await;
    let behind = sentinel(split.address(1)).await.unwrap();
    let good = sentinel(split.address(0)).await.unwrap();
    let url = format!("redis+sentinel://127.0.0.1:1,{behind},{good}/orders?lock_failover=trust");
    drop(acquired(&locks(connected(&url).await), "lock").await);
    let url = format!("redis+sentinel://127.0.0.1:1,{behind}/orders?lock_failover=trust");
    let error = connect_sentinel(&url).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    for part in ["no sentinel led to a master of orders", "127.0.0.1:1", "it is a slave"] {
        assert!(error.to_string().contains(part), "{part}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_keep_the_promise_is_refused() {
    let group = RedisGroup::start(1, &[]).await.unwrap();
    let refused = async |url: String, kind, part: &str| {
        let error = connect_sentinel(&url).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(part), "{part}: {error}");
    };
    refused(group.url(TERMS), ErrorKind::Config, "min-replicas-to-write 0").await;
    let master = group.servers()[0].address().unwrap();
    for setting in ["min-replicas-to-write 1", "min-replicas-max-lag 3"] {
        assert_eq!(order(master, &format!("CONFIG SET {setting}")).unwrap(), "+OK\r\n");
    }
    refused(group.url(TERMS), ErrorKind::Config, "lock_max_lag=3s").await;
    let right = TERMS.replace("lock_max_lag=1s", "lock_max_lag=3s");
    let first = connected(&group.url(&right)).await;
    // What the group is known by is in its data.
    let other = right.replace("lock_max_ttl=1s", "lock_max_ttl=2s");
    refused(group.url(&other), ErrorKind::Config, "belongs to the quorum").await;
    drop(first);
    let unknown = group.url(&right).replace("/orders?", "/nothing?");
    refused(unknown, ErrorKind::Config, "knows no group \"nothing\"").await;
    let sentinel = group.sentinels()[0].url();
    let error = lock_redis::connect(&format!("redis://{sentinel}")).await.unwrap_err();
    assert!(error.to_string().contains("redis+sentinel://"), "{error}");
    let server = format!("redis+sentinel://{master}/orders?{right}");
    refused(server, ErrorKind::Config, "is not a sentinel").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_of_a_cluster_is_refused() {
    let bus = Port::reserve().unwrap();
    let node = RedisServer::builder().option("cluster-enabled", "yes");
    let node = node.option("cluster-port", &bus.to_string()).start().await.unwrap();
    let all = order(node.address().unwrap(), "CLUSTER ADDSLOTSRANGE 0 16383").unwrap();
    assert_eq!(all, "+OK\r\n");
    let deadline = Instant::now() + LIMIT;
    loop {
        let error = lock_redis::connect(node.url()).await.unwrap_err();
        if error.kind() == ErrorKind::Config {
            assert!(error.to_string().contains("redis+sentinel:// for a master"), "{error}");
            return;
        }
        // It takes a moment to find that all slots are there.
        assert!(error.is_retryable() && Instant::now() < deadline, "{error}");
        sleep(Duration::from_millis(200)).await;
    }
}

/// Exactly the rights that `SENTINEL.md` names, at a sentinel that wants a password.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_documented_rights_at_a_sentinel_are_enough() {
    let group = RedisGroup::start(1, SETTINGS).await.unwrap();
    let page = include_str!("../SENTINEL.md");
    let rights = page.lines().find_map(|line| line.strip_prefix("On the sentinels, `")).unwrap();
    let rights = rights.trim_end_matches("`.");
    for sentinel in group.sentinels() {
        let at = sentinel.address().unwrap();
        let user = format!("ACL SETUSER app on >secret -@all {rights}");
        assert_eq!(order(at, &user).unwrap(), "+OK\r\n", "{user}");
        assert_eq!(order(at, "ACL SETUSER default off").unwrap(), "+OK\r\n");
    }
    let error = connect_sentinel(&group.url(TERMS)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    let user = "&lock_sentinel_user=app&lock_sentinel_password=secret&lock_bootstrap=now";
    let wrong = group.url(&format!("{TERMS}{}", user.replace("=secret", "=wrong")));
    let error = connect_sentinel(&wrong).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(!error.to_string().contains("wrong"), "{error}");
    drop(acquired(&locks(connected(&group.url(&format!("{TERMS}{user}"))).await), "lock").await);
}
