//! The queue inside the store among processes: order of arrival, the dead and the stopped, cost per
//! hand-over.
//!
//! The full size is `cargo test --release -p lock-redis --test queue -- --ignored --nocapture`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod common;

use std::time::Duration;

use common::children::{self, Children};
use common::{backend, commands, locks, plain, queued, requests, run, scenes, scenes_hold, server};
use lock_core::{Lock, Locks, OwnerId, Released};
use lock_testkit::servers::RedisServer;
use redis::aio::MultiplexedConnection;
use tokio::time::Instant;

/// A busy machine is not what these tests are about.
const PATIENT: &str = "lock_connect_timeout=10s&lock_response_timeout=10s";
const NAME: &str = "line";
const GRACE: Duration = Duration::from_millis(500);

scenes_hold! {
    #[tokio::test]
    scenes:
    waiters_behind_the_block_of_another_client_read_no_queue
}

/// Ordered by a URL and a number, it waits with so many tasks and prints owner and fence of each turn.
#[test]
#[ignore = "the child process of the other tests"]
fn child() {
    let Some(order) = children::order() else { return };
    let (url, count) = order.rsplit_once(' ').expect("a URL and a number");
    let count: usize = count.parse().expect("a number");
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.spawn({
        let url = url.to_owned();
        async move {
            let locks = Locks::new(lock_redis::connect(&url).await.unwrap());
            for _ in 0..count {
                let lock = locks.named(NAME).unwrap().ttl(Duration::from_secs(60));
                tokio::spawn(async move {
                    let guard = lock.acquire().await.unwrap();
                    let (owner, fence) = (guard.held().owner().to_hex(), guard.token().unwrap());
                    guard.release().await.unwrap();
                    println!("@{owner} {fence}");
                });
            }
        }
    });
    // Ends with the parent, whatever happens to it.
    for _ in std::io::stdin().lines() {}
}

struct Waiting(Children);

impl Waiting {
    /// `processes` processes with `waiters` waiters in all.
    fn start(server: &RedisServer, processes: usize, waiters: usize) -> Self {
        let order = format!("{}?{PATIENT} {}", server.url(), waiters / processes);
        Self(Children::start(processes, &order))
    }

    /// Owner and fence of so many turns, if they come in time.
    async fn turns(&self, count: usize, limit: Duration) -> Vec<(OwnerId, u64)> {
        let deadline = Instant::now() + limit;
        let mut turns = Vec::new();
        while turns.len() < count {
            match self.0.lines.try_recv() {
                Ok((_, turn)) => {
                    let (owner, fence) = turn.split_once(' ').unwrap();
                    turns.push((owner.parse().unwrap(), fence.parse().unwrap()));
                }
                Err(_) if Instant::now() >= deadline => break,
                Err(_) => tokio::time::sleep(Duration::from_millis(1)).await,
            }
        }
        turns
    }
}

async fn until_queued(connection: &mut MultiplexedConnection, count: usize) -> Vec<OwnerId> {
    let start = Instant::now();
    loop {
        let owners = queued(connection, NAME).await;
        if owners.len() == count {
            return owners;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "{} of {count} have come", owners.len());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// So many tasks that wait for `lock`, and release it when they have it.
async fn line_up(
    plain: &mut MultiplexedConnection,
    lock: &Lock,
    waiters: usize,
) -> tokio::task::JoinSet<Released> {
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..waiters {
        let lock = lock.clone();
        tasks.spawn(async move { lock.acquire().await.unwrap().release().await.unwrap() });
    }
    until_queued(plain, waiters).await;
    tasks
}

/// After a break, places are asked for all together: each waiter that looked by itself would keep the server
/// busy, and so break the next connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_connection_costs_few_requests_however_many_wait() {
    const WAITERS: usize = 1_000;
    let server = server().await;
    let mut plain = plain(&server).await;
    let locks = locks(&server).await;
    let guard = locks.named(NAME).unwrap().ttl(Duration::from_secs(300)).acquire().await.unwrap();
    let waiting = backend(&server).await;
    let lock = Locks::new(waiting).named(NAME).unwrap().ttl(Duration::from_secs(300));
    let tasks = line_up(&mut plain, &lock, WAITERS).await;
    let before = requests(&mut plain).await;
    run(&mut plain, &["CLIENT", "KILL", "TYPE", "pubsub"]).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let sent = requests(&mut plain).await - before;
    println!("{WAITERS} waiters sent {sent} requests after their connection had broken");
    assert!(sent < 60, "{sent} requests");
    // Nothing was lost by that.
    guard.release().await.unwrap();
    tasks.join_all().await;
}

/// Those that are not to look for others leave the server in peace while the holder goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_of_one_process_do_not_poll() {
    const WAITERS: usize = 200;
    let server = server().await;
    let mut plain = plain(&server).await;
    let ttl = Duration::from_secs(120);
    let holder = locks(&server).await;
    let guard = holder.named(NAME).unwrap().ttl(ttl).acquire().await.unwrap();
    let lock = locks(&server).await.named(NAME).unwrap().ttl(ttl);
    let tasks = line_up(&mut plain, &lock, WAITERS).await;
    let before = requests(&mut plain).await;
    tokio::time::sleep(Duration::from_secs(22)).await;
    let sent = requests(&mut plain).await - before;
    println!("{WAITERS} waiters sent {sent} requests in 22 s");
    // One looks every 0.9 s, and places are renewed together.
    assert!(sent < 60, "{sent} requests");
    guard.release().await.unwrap();
    tasks.join_all().await;
}

/// All waiters are served once, in order of arrival. Returns requests and commands per
/// hand-over: the first without, the second with those inside of scripts.
async fn in_order(processes: usize, waiters: usize) -> (f64, f64) {
    let server = server().await;
    let (holder, mut plain) = (locks(&server).await, plain(&server).await);
    let guard = holder.named(NAME).unwrap().ttl(Duration::from_secs(300)).acquire().await.unwrap();
    let waiting = Waiting::start(&server, processes, waiters);
    let arrived = until_queued(&mut plain, waiters).await;
    let (sent, all) = (requests(&mut plain).await, commands(&mut plain).await);
    let start = Instant::now();
    guard.release().await.unwrap();
    let mut turns = waiting.turns(waiters, Duration::from_secs(60)).await;
    let took = start.elapsed();
    let (sent, all) = (requests(&mut plain).await - sent, commands(&mut plain).await - all);
    assert_eq!(turns.len(), waiters, "a waiter was not served");
    turns.sort_by_key(|(_, fence)| *fence);
    let served: Vec<_> = turns.iter().map(|(owner, _)| *owner).collect();
    assert!(served == arrived, "not served in order of arrival");
    #[allow(clippy::cast_precision_loss, reason = "small numbers")]
    let per = |count: u64| count as f64 / waiters as f64;
    println!(
        "{waiters} waiters in {processes} processes: {:?} per hand-over, {:.2} requests and {:.1} commands each",
        took / u32::try_from(waiters).unwrap(),
        per(sent),
        per(all)
    );
    (per(sent), per(all))
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_of_four_processes_are_served_in_the_order_of_arrival() {
    let (few, few_all) = in_order(2, 10).await;
    let (many, many_all) = in_order(4, 200).await;
    assert!(many <= few * 1.2 + 0.5, "requests per hand-over grow with the queue: {few} to {many}");
    assert!(
        many_all <= few_all * 1.2 + 5.0,
        "commands grow with the queue: {few_all} to {many_all}"
    );
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "the full size"]
async fn a_thousand_waiters_are_served_in_the_order_of_arrival() {
    let (ten, ten_all) = in_order(2, 10).await;
    let (hundred, hundred_all) = in_order(4, 100).await;
    let (thousand, thousand_all) = in_order(4, 1000).await;
    assert!(hundred <= ten * 1.2 + 0.5 && thousand <= ten * 1.2 + 0.5);
    assert!(hundred_all <= ten_all * 1.2 + 5.0 && thousand_all <= ten_all * 1.2 + 5.0);
}

/// Two processes queue one after the other behind a long holder: then nothing goes on.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "the full size"]
async fn four_thousand_waiters_of_two_processes_settle() {
    const EACH: usize = 2_000;
    const WATCHED: Duration = Duration::from_secs(20);
    let server = server().await;
    let (holder, mut plain) = (locks(&server).await, plain(&server).await);
    let _guard = holder.named(NAME).unwrap().ttl(Duration::from_secs(300)).acquire().await.unwrap();
    let start = Instant::now();
    let _one = Waiting::start(&server, 1, EACH);
    until_queued(&mut plain, EACH).await;
    let _other = Waiting::start(&server, 1, EACH);
    until_queued(&mut plain, 2 * EACH).await;
    println!(
        "{EACH} waiters and then {EACH} of another process have queued after {:?}",
        start.elapsed()
    );
    let figures = async |plain: &mut MultiplexedConnection| {
        let info: String = redis::cmd("INFO").query_async(plain).await.unwrap();
        let field = |name: &str| -> f64 {
            let line = info.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap().trim().parse().unwrap()
        };
        (field("used_cpu_user:") + field("used_cpu_sys:"), field("total_connections_received:"))
    };
    let (before, sent) = (figures(&mut plain).await, requests(&mut plain).await);
    tokio::time::sleep(WATCHED).await;
    let (after, sent) = (figures(&mut plain).await, requests(&mut plain).await - sent);
    let busy = (after.0 - before.0) / WATCHED.as_secs_f64();
    println!(
        "then {:.1} % of a core, {sent} requests and {} connections in {WATCHED:?}",
        busy * 100.0,
        after.1 - before.1
    );
    assert!(busy < 0.2 && sent < 2_000);
}

/// Half of the waiting processes are stopped, or killed: the others are delayed by one grace per
/// process at most. Those that were stopped are served when they go on.
async fn half_gone(waiters: usize, signal: &str) -> Duration {
    let server = server().await;
    let (holder, mut plain) = (locks(&server).await, plain(&server).await);
    let guard = holder.named(NAME).unwrap().ttl(Duration::from_secs(300)).acquire().await.unwrap();
    let waiting = Waiting::start(&server, 4, waiters);
    let arrived = until_queued(&mut plain, waiters).await;
    for number in 0..2 {
        waiting.0.signal(number, signal);
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    let start = Instant::now();
    guard.release().await.unwrap();
    let mut turns = waiting.turns(waiters / 2, Duration::from_secs(30)).await;
    let took = start.elapsed();
    println!(
        "{signal} to two of four processes: {waiters} waiters, the other half was served after {took:?}"
    );
    assert_eq!(turns.len(), waiters / 2, "a live waiter was not served");
    turns.sort_by_key(|(_, fence)| *fence);
    let mut alive: Vec<_> = arrived.clone();
    let served: Vec<_> = turns.iter().map(|(owner, _)| *owner).collect();
    alive.retain(|owner| served.contains(owner));
    assert!(served == alive, "the live waiters are not served in order of arrival");
    // One grace for each of forty waiters would be 20 s.
    assert!(took < GRACE * 2 + Duration::from_secs(8), "{took:?}");
    if signal == "-STOP" {
        for number in 0..2 {
            waiting.0.signal(number, "-CONT");
        }
        let late = waiting.turns(waiters / 2, Duration::from_secs(30)).await;
        assert_eq!(late.len(), waiters / 2, "those that were stopped were not served afterwards");
        assert!(queued(&mut plain, NAME).await.is_empty());
    }
    took
}

#[tokio::test(flavor = "multi_thread")]
async fn stopped_processes_cost_one_grace_each() {
    half_gone(80, "-STOP").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_processes_cost_nothing() {
    let took = half_gone(80, "-KILL").await;
    assert!(
        took < Duration::from_secs(8),
        "nobody hears a killed process, which is known at once: {took:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "the full size"]
async fn half_of_a_thousand_waiters_are_gone() {
    half_gone(1000, "-STOP").await;
    half_gone(1000, "-KILL").await;
}
