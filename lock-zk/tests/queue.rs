//! Many waiters and many locks.

#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

mod common;

use std::time::Duration;

use common::{behind_proxy, connect, hosts, locks, make, plain, scenes, server, until};
use lock_core::{LockBackend, LockKey, Locks, Seen};
use lock_testkit::servers::ZooKeeper;
use lock_testkit::turns::Turns;
use tokio::time::Instant;

/// `cargo test --release -p lock-zk --test queue -- --ignored --nocapture`
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a soak: two thousand waiters"]
async fn a_hand_over_wakes_one_of_two_thousand() {
    scenes::a_hand_over_wakes_one_waiter(2000).await.unwrap();
}

/// Requests for each hand-over within a process, where each holder queues again behind `waiting` others.
async fn requests_among(processes: usize, waiting: usize) -> f64 {
    const TTL: Duration = Duration::from_secs(60);
    let servers = server().await;
    let mut clients = Vec::new();
    for _ in 0..processes {
        clients.push(locks(connect(hosts(&servers), "lock_session_timeout=60s").await, TTL));
    }
    let lock = |at: usize| clients[at % processes].named("lock").unwrap();
    let turns = Turns::begin((0..=waiting).map(lock));
    let after = async |count: u64| {
        let done = async || turns.taken() >= count;
        until("they take turns", Duration::from_secs(120), done).await;
        let used = servers.cpu_time(0).unwrap();
        (turns.taken(), scenes::requests(&servers), used)
    };
    // Each has had a turn.
    let (from, before, used_before) = after(2 * waiting as u64 + 50).await;
    let (to, spent, used) = after(from + 300).await;
    turns.end().await;
    let turns = (to - from) as f64;
    let each = (spent - before) as f64 / turns;
    let used = (used - used_before).div_f64(turns);
    println!(
        "{waiting} waiting, {processes} processes: {each:.2} requests, {used:?} of the server"
    );
    each
}

/// The holder's release proves the next grant. Besides, there is the new place of the former holder, and its watches: on
/// the node in front of it and, after a while, on its own. To sync and to list would make seven.
#[tokio::test(flavor = "multi_thread")]
async fn a_hand_over_within_a_process_lists_nothing() {
    for waiting in [7, 300] {
        let requests = requests_among(1, waiting).await;
        assert!(requests < 6.0, "{requests} requests, {waiting} waiting");
    }
}

/// How long an acquire takes, and how many requests.
async fn cost(locks: &Locks, servers: &ZooKeeper, name: &str) -> (Duration, u64) {
    let (begun, before) = (Instant::now(), scenes::requests(servers));
    let guard = locks.named(name).unwrap().acquire().await.unwrap();
    let (took, after) = (begun.elapsed(), scenes::requests(servers));
    guard.release().await.unwrap();
    // The server counts the question how many there were, too.
    (took, after - before - 1)
}

/// The node of the lock, the entry in it and the list of it are asked for together. If the node is thought to be there
/// and is not, that takes another trip.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_name_takes_one_trip() {
    const TRIP: Duration = Duration::from_millis(200);
    let servers = server().await;
    let (ours, proxy) = behind_proxy(&servers, "lock_session_timeout=60s").await;
    let locks = locks(ours, Duration::from_secs(60));
    let plain = plain(&servers).await;
    // This node stays.
    make(&plain, "/locks/kept").await;
    cost(&locks, &servers, "kept").await;
    proxy.delay(TRIP / 2, Duration::ZERO);
    // The fewest, since the session is kept meanwhile, and the shortest, since the machine is busy.
    let [mut new, mut known, mut removed] = [(Duration::MAX, u64::MAX); 3];
    let least = |a: (Duration, u64), b: (Duration, u64)| (a.0.min(b.0), a.1.min(b.1));
    let names = ["a", "b", "c", "d", "e"];
    for name in names {
        new = least(new, cost(&locks, &servers, name).await);
        known = least(known, cost(&locks, &servers, "kept").await);
    }
    until("empty nodes are removed", Duration::from_secs(20), async || {
        plain.list_children("/locks").await.unwrap().len() == ["%fence", "kept"].len()
    })
    .await;
    for name in names {
        removed = least(removed, cost(&locks, &servers, name).await);
    }
    assert_eq!([new.1, known.1, removed.1], [3, 2, 5]);
    assert!(new.0 < TRIP * 2 && known.0 < TRIP * 2, "{new:?}, {known:?}");
    assert!(removed.0 < TRIP * 3, "{removed:?}");
}

/// One trip, and another one where a lock is held: one request for all lists, one for all holders, and besides a
/// transaction and two looks at the root.
#[tokio::test(flavor = "multi_thread")]
async fn a_look_at_many_names_takes_two_trips_and_five_requests() {
    const NAMES: usize = 64;
    const TRIP: Duration = Duration::from_millis(400);
    const LONG: &str = "lock_session_timeout=60s";
    let servers = server().await;
    let (ours, proxy) = behind_proxy(&servers, LONG).await;
    let others = locks(connect(hosts(&servers), LONG).await, Duration::from_secs(60));
    let name = |at: usize| LockKey::new("", format!("lock-{at}")).unwrap();
    let names: Vec<_> = (0..NAMES).map(name).collect();
    // There is a base of the fences.
    others.named("other").unwrap().acquire().await.unwrap().release().await.unwrap();
    let mut guards = Vec::new();
    for (held, expected) in [(0, 4), (3, 5), (64, 5)] {
        while guards.len() < held {
            let lock = others.named(format!("lock-{}", guards.len())).unwrap();
            guards.push(lock.acquire().await.unwrap());
        }
        // Now it knows that.
        ours.look(&names[..1]).await.unwrap();
        let mut fewest = u64::MAX;
        // Few requests keep sessions and locks meanwhile.
        for _ in 0..5 {
            let before = scenes::requests(&servers);
            let seen = ours.look(&names).await.unwrap();
            fewest = fewest.min(scenes::requests(&servers) - before);
            let shown = seen.iter().filter(|seen| matches!(seen, Seen::Held { .. })).count();
            assert_eq!((seen.len(), shown), (NAMES, held));
        }
        // The server counts the question how many there were, too.
        assert_eq!(fewest, expected + 1, "{held} held");
        proxy.delay(TRIP / 2, Duration::ZERO);
        let begun = Instant::now();
        ours.look(&names).await.unwrap();
        let took = begun.elapsed();
        proxy.pass();
        // On a busy machine two trips take longer than two.
        assert!(took < TRIP * 8, "{held} held: {took:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a minute, and only measures"]
async fn what_a_hand_over_costs() {
    for (processes, waiting) in [(1, 10), (4, 10), (1, 1000), (4, 1000)] {
        requests_among(processes, waiting).await;
    }
}

/// All locks of a session are renewed by one transaction.
#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_locks_live_in_one_session() {
    const LOCKS: usize = 1000;
    // So long that a busy machine is in time with its renewals.
    const SESSION: Duration = Duration::from_secs(15);
    let servers = server().await;
    let locks = locks(connect(hosts(&servers), "lock_session_timeout=15s").await, SESSION);
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..LOCKS {
        let lock = locks.named(format!("lock-{n}")).unwrap();
        tasks.spawn(async move { lock.acquire().await.unwrap() });
    }
    let guards = tasks.join_all().await;
    let mut fences: Vec<_> = guards.iter().map(|guard| guard.token().unwrap().get()).collect();
    fences.sort_unstable();
    fences.dedup();
    assert_eq!(fences.len(), LOCKS, "one session, and every lock has a fence of its own");
    tokio::time::sleep(SESSION / 3).await;
    let before = scenes::requests(&servers);
    tokio::time::sleep(SESSION).await;
    let requests = scenes::requests(&servers) - before;
    // A late renewal is no loss.
    let lost: Vec<_> = guards.iter().filter(|guard| guard.token().is_err()).collect();
    assert!(lost.is_empty(), "{} are lost, one of them {:?}", lost.len(), lost[0].state());
    println!("{LOCKS} locks: {requests} requests in {:?}", SESSION);
    // Twenty of them keep the session; the renewals come in a few transactions each third of it.
    assert!(requests < 400, "{requests} requests for {LOCKS} locks in {:?}", SESSION);
    drop(guards);
    locks.close(Duration::from_secs(30)).await.unwrap();
}
