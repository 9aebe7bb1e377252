//! Many waiters and many holders: what they cost the store.
//!
//! The full sizes: `cargo test --release -p lock-etcd --test scale -- --ignored --nocapture`

#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

mod common;

use std::time::Duration;

use lock_core::{LockBackend, LockGuard, LockKey, LockState, Locks};
use lock_testkit::servers::EtcdCluster;
use lock_testkit::turns::Turns;
use tokio::task::JoinSet;

use common::{backend, keys, locks, locks_from, metrics, one, plain, proxied, soon};

const TTL: Duration = Duration::from_secs(60);

/// The requests of the lock clients so far: messages that the server has received, by all methods
/// that a lock uses.
fn received(cluster: &EtcdCluster) -> u64 {
    let methods = ["Txn", "Range", "Watch", "LeaseGrant", "LeaseRevoke", "LeaseKeepAlive"];
    methods.iter().map(|method| received_by(cluster, method)).sum()
}

/// The messages that the server has received by one method.
fn received_by(cluster: &EtcdCluster, method: &str) -> u64 {
    let text = metrics(cluster);
    let method = format!("grpc_method=\"{method}\"");
    let counted = text.lines().filter(|line| {
        line.starts_with("grpc_server_msg_received_total{") && line.contains(&method)
    });
    // Numbers of this size are printed without an exponent.
    counted.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
}

/// Established connections to the client port of the server, as the machine lists them.
fn connections(cluster: &EtcdCluster) -> usize {
    let port = format!("{:04X}", cluster.address(0).unwrap().port());
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    table
        .lines()
        .filter(|line| {
            let fields: Vec<_> = line.split_whitespace().collect();
            fields.get(1).is_some_and(|local| local.ends_with(&port))
                && fields.get(3) == Some(&"01")
        })
        .count()
}

/// Returns when so many wait for the lock that somebody holds.
async fn all_wait(cluster: &EtcdCluster, waiters: usize) {
    let client = plain(cluster, 0);
    soon("all wait", async {
        while keys(&client, "lock/").await.len() <= waiters {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
}

/// Requests for each hand-over of a lock for which `waiters` wait.
async fn cost_of_a_hand_over(waiters: usize) -> f64 {
    let cluster = one().await;
    let holder = locks(&cluster).await;
    let mut clients = Vec::new();
    for _ in 0..8 {
        clients.push(locks(&cluster).await);
    }
    let guard = holder.named("lock").unwrap().ttl(TTL).acquire().await.unwrap();
    let (granted, mut grants) = tokio::sync::mpsc::unbounded_channel();
    let mut tasks = Vec::new();
    for at in 0..waiters {
        let lock = clients[at % clients.len()].named("lock").unwrap().ttl(TTL);
        let granted = granted.clone();
        tasks.push(tokio::spawn(async move {
            let guard = lock.acquire().await.unwrap();
            granted.send(guard).unwrap();
        }));
    }
    all_wait(&cluster, waiters).await;
    // Their watches and spare leases have settled.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let rounds = 40;
    let before = received(&cluster);
    let mut guard = guard;
    for _ in 0..rounds {
        let fence = guard.token().unwrap();
        guard.release().await.unwrap();
        guard = soon("the next one", grants.recv()).await.unwrap();
        lock_testkit::assert_exactly!(guard.token().unwrap() > fence, "a fence falls: {guard:?}");
    }
    let spent = received(&cluster) - before;
    tasks.iter().for_each(tokio::task::JoinHandle::abort);
    f64::from(u32::try_from(spent).unwrap()) / f64::from(rounds)
}

/// What one hand-over costs the server, on average over many, where each holder queues again behind `waiting` others.
#[derive(Debug)]
struct Cost {
    transactions: f64,
    watches: f64,
    /// Sent by the server.
    bytes: f64,
    processor: Duration,
}

/// The same number of tasks waits in each of several processes, as the store sees them.
async fn cost_among(processes: usize, waiting: usize) -> Cost {
    let cluster = one().await;
    let mut clients = Vec::new();
    for _ in 0..processes {
        let client = locks(&cluster).await;
        // A new client may raise the base of the fences, which refuses what others enter meanwhile.
        drop(client.named("warm").unwrap().ttl(TTL).acquire().await.unwrap());
        clients.push(client);
    }
    let lock = |at: usize| clients[at % processes].named("lock").unwrap().ttl(TTL);
    let turns = Turns::begin((0..=waiting).map(lock));
    all_wait(&cluster, waiting).await;
    // Each has had a turn: its watches and spare leases have settled.
    soon("all have had a turn", async {
        while turns.taken() < 2 * waiting as u64 + 50 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    let rounds = 200;
    let seen = || {
        let counts = ["Txn", "Watch"].map(|method| received_by(&cluster, method));
        (turns.taken(), counts, sent(&cluster), cluster.cpu_time(0).unwrap())
    };
    let (from, before, sent_before, used) = seen();
    soon("they take turns", async {
        while turns.taken() < from + rounds {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    let (to, after, sent_after, used_after) = seen();
    turns.end().await;
    let turns = (to - from) as f64;
    let each = |at: usize| (after[at] - before[at]) as f64 / turns;
    Cost {
        transactions: each(0),
        watches: each(1),
        bytes: (sent_after - sent_before) / turns,
        processor: (used_after - used).div_f64(turns),
    }
}

/// Bytes that the server has sent to clients.
fn sent(cluster: &EtcdCluster) -> f64 {
    let text = metrics(cluster);
    let name = "etcd_network_client_grpc_sent_bytes_total ";
    text.lines().find_map(|line| line.strip_prefix(name)).unwrap().parse().unwrap()
}

/// Tasks of one process, each of which queues again when it has had the lock: a release proves the
/// next grant, so that neither a look nor, since the keys are used again, a watch is needed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_over_within_a_process_is_a_release_and_a_new_place() {
    let cost = cost_among(1, 7).await;
    assert!(cost.transactions <= 2.5 && cost.watches <= 0.5, "{cost:?}");
}

/// Nor does any of that, nor the look of the next one in another process, read the queue. Who enters reads it together
/// with others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_over_in_a_long_queue_is_no_more() {
    for (processes, transactions) in [(1, 2.5), (2, 3.5)] {
        let cost = cost_among(processes, 300).await;
        assert!(cost.transactions <= transactions && cost.watches <= 0.5, "{cost:?}");
        // A list has about 16 kB.
        assert!(cost.bytes < 4_000.0, "{cost:?}");
    }
}

/// As for one name, whoever has the locks.
#[tokio::test]
async fn a_look_at_many_names_is_one_request() {
    let cluster = one().await;
    let backend = backend(&cluster).await;
    let locks = Locks::new(backend.clone());
    let mut guards = Vec::new();
    for at in 0..10 {
        guards.push(locks.named(format!("lock{at}")).unwrap().ttl(TTL).acquire().await.unwrap());
    }
    // Their spare leases have settled.
    tokio::time::sleep(Duration::from_millis(500)).await;
    for names in [1, 64, 100] {
        let name = |at| LockKey::new("", format!("lock{at}")).unwrap();
        let names: Vec<_> = (0..names).map(name).collect();
        let before = received(&cluster);
        let seen = backend.look(&names).await.unwrap();
        let requests = received(&cluster) - before;
        assert_eq!((requests, seen.len()), (1, names.len()));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a minute, and only measures"]
async fn what_a_hand_over_costs() {
    for (processes, waiting) in [(1, 10), (4, 10), (1, 1000), (4, 1000), (250, 1000)] {
        let Cost { transactions, watches, bytes, processor } = cost_among(processes, waiting).await;
        println!(
            "{waiting} waiting, {processes} processes: {transactions:.2} transactions, {watches:.2} watches, {bytes:.0} bytes, {processor:?}"
        );
    }
}

/// Renewals of places and slow second looks are counted too, and fall into the measured time by
/// chance, so a queue twenty times as long may cost a little more, not twenty times as much.
fn assert_constant(few: f64, many: f64) {
    println!("requests for each hand-over: {few:.1} with few waiters, {many:.1} with many");
    assert!(few >= 1.0, "nothing was counted");
    assert!(many <= few * 2.0 + 6.0, "{few} requests with few waiters, {many} with many");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_over_costs_the_same_however_many_wait() {
    let few = cost_of_a_hand_over(45).await;
    let many = cost_of_a_hand_over(250).await;
    assert_constant(few, many);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a minute, and meant for a release build"]
async fn a_hand_over_costs_the_same_with_a_thousand_waiters() {
    let few = cost_of_a_hand_over(45).await;
    let many = cost_of_a_hand_over(1000).await;
    assert_constant(few, many);
}

/// Nothing of a new client may make its waiters refuse each other. One of them reads the base of the
/// fences and raises it; the others enter by one transaction each. A second one is left for a claim
/// whose entry was not answered in time on a busy machine.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_waiters_of_a_new_client_enter_by_a_few_requests_each() {
    const WAITERS: usize = 600;
    let cluster = one().await;
    let holder = locks(&cluster).await;
    let guard = holder.named("lock").unwrap().ttl(TTL).acquire().await.unwrap();
    // A new client finds the base behind its clock.
    tokio::time::sleep(Duration::from_millis(200)).await;
    let fresh = locks(&cluster).await;
    let before = received_by(&cluster, "Txn");
    let mut tasks = JoinSet::new();
    for _ in 0..WAITERS {
        let lock = fresh.named("lock").unwrap().ttl(TTL);
        tasks.spawn(async move { lock.acquire().await.unwrap() });
    }
    all_wait(&cluster, WAITERS).await;
    let spent = received_by(&cluster, "Txn") - before;
    println!("{WAITERS} waiters entered by {spent} transactions");
    assert!(
        spent <= 2 * u64::try_from(WAITERS).unwrap(),
        "{spent} transactions for {WAITERS} waiters"
    );
    drop(guard);
}

/// They have entered before the first watch of their client stood, so what they saw then lets no neighbour prove anything.
/// One list makes up for it, but for those who came before there were many.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_waiters_of_a_new_client_hand_the_lock_on_without_a_look_each() {
    const WAITERS: usize = 200;
    let cluster = one().await;
    let holder = locks(&cluster).await;
    let guard = holder.named("lock").unwrap().ttl(TTL).acquire().await.unwrap();
    let fresh = locks(&cluster).await;
    let mut tasks = JoinSet::new();
    for _ in 0..WAITERS {
        let lock = fresh.named("lock").unwrap().ttl(TTL);
        tasks.spawn(async move { lock.acquire().await.unwrap().release().await.unwrap() });
    }
    all_wait(&cluster, WAITERS).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let before = received_by(&cluster, "Txn");
    guard.release().await.unwrap();
    tasks.join_all().await;
    let spent = received_by(&cluster, "Txn") - before;
    println!("{WAITERS} waiters handed the lock on by {spent} transactions");
    assert!(
        spent <= 3 * u64::try_from(WAITERS).unwrap() / 2,
        "{spent} transactions for {WAITERS} hand-overs"
    );
}

/// Holds `count` locks for `time`; how many connections that took.
async fn hold_many(count: usize, ttl: Duration, time: Duration) -> usize {
    let cluster = one().await;
    let locks: Locks = locks(&cluster).await;
    let before = connections(&cluster);
    let guards = take(&locks, count, ttl).await;
    let used = process_time();
    let sent = received(&cluster);
    tokio::time::sleep(time).await;
    let cpu = (process_time() - used).as_secs_f64() / time.as_secs_f64() * 100.0;
    let rate = f64::from(u32::try_from(received(&cluster) - sent).unwrap()) / time.as_secs_f64();
    let after = connections(&cluster);
    println!(
        "{count} locks of {ttl:?} held for {time:?}: {rate:.0} requests/s, {cpu:.1} % of a CPU for this client, {before} connections before and {after} after"
    );
    assert_held(&guards);
    after
}

/// Takes `count` locks.
async fn take(locks: &Locks, count: usize, ttl: Duration) -> Vec<LockGuard> {
    let mut guards = Vec::with_capacity(count);
    for start in (0..count).step_by(64) {
        let mut round = JoinSet::new();
        for at in start..count.min(start + 64) {
            let lock = locks.named(format!("lock{at}")).unwrap().ttl(ttl);
            round.spawn(async move { lock.acquire().await.unwrap() });
        }
        guards.extend(round.join_all().await);
    }
    guards
}

fn assert_held(guards: &[LockGuard]) {
    let lost = guards.iter().map(|guard| guard.state());
    let lost: Vec<_> = lost.filter(|state| matches!(state, LockState::Lost(_))).collect();
    let count = guards.len();
    assert!(lost.is_empty(), "{} of {count} locks were lost: {:?}", lost.len(), lost.first());
}

/// User and system time of this process.
fn process_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<_> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    Duration::from_millis(ticks * 10)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_locks_are_kept_alive_over_one_connection() {
    let connections = hold_many(500, Duration::from_secs(12), Duration::from_secs(14)).await;
    assert!(connections <= 2, "{connections} connections");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "two minutes, and meant for a release build"]
async fn ten_thousand_locks_are_kept_alive_over_one_connection() {
    let connections = hold_many(10_000, Duration::from_secs(30), Duration::from_secs(60)).await;
    assert!(connections <= 2, "{connections} connections");
}

/// 20 ms to the server and back: if each of a few streams waited for an answer before it sent the
/// next request, it would carry fifty renewals in a second.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_locks_are_kept_alive_by_a_server_far_away() {
    let cluster = one().await;
    let (proxy, backend) = proxied(&cluster).await;
    let (locks, ttl) = (Locks::new(backend), Duration::from_secs(9));
    let guards = take(&locks, 1_200, ttl).await;
    proxy.delay(Duration::from_millis(10), Duration::ZERO);
    tokio::time::sleep(ttl * 2 + Duration::from_secs(2)).await;
    assert_held(&guards);
}

/// A follower asks the leader for each renewal, one after another on each stream: with 20 ms to the
/// leader and back, four streams would carry two hundred in a second, and half of these locks would
/// end. Then the follower stands still, with all keep-alives that it has: another member takes them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_locks_are_kept_alive_by_a_follower_far_from_its_leader() {
    let apart = Duration::from_millis(10);
    let cluster = EtcdCluster::builder().members(3).apart(apart).start().await.unwrap();
    let leader = cluster.leader().await.unwrap();
    let follower = (leader + 1) % 3;
    let locks = locks_from(&cluster, follower).await;
    let ttl = Duration::from_secs(12);
    let guards = take(&locks, 1_600, ttl).await;
    tokio::time::sleep(ttl + Duration::from_secs(2)).await;
    assert_held(&guards);
    cluster.freeze(follower).unwrap();
    tokio::time::sleep(ttl + Duration::from_secs(2)).await;
    assert_held(&guards);
    cluster.thaw(follower).unwrap();
}
