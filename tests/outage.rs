//! A store that is down, or stands still, is left in peace: a thousand waiters of one client do not hammer it.

#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

use std::net::SocketAddr;
use std::time::Duration;

use distlock::{LockGuard, Locks};
use lock_testkit::hostile::{Manner, Turncoat};
use lock_testkit::networked::Networked;
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

/// Thousands of connections and waiters: one outage at a time.
static OUTAGE: Mutex<()> = Mutex::const_new(());

/// Each has a name of its own, and as many again share one.
const WAITERS: usize = 500;
/// Connections and requests in a second that one server may see.
const MOST: f64 = 20.0;
/// How long it is watched, and how long before that the calls under way may fail.
const WATCHED: Duration = Duration::from_secs(8);
const SETTLING: Duration = Duration::from_secs(3);
const PARAMETERS: &str = "lock_ttl=30s&lock_connect_timeout=6s";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_gone_is_left_in_peace() {
    all_are_left_in_peace(&Manner::closing()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_stands_still_is_left_in_peace() {
    all_are_left_in_peace(&Manner::silent()).await;
}

async fn all_are_left_in_peace(outage: &Manner) {
    let _alone = OUTAGE.lock().await;
    let mut watching = JoinSet::new();
    for store in Networked::ALL {
        watching.spawn(requests_a_second(store, outage.clone()));
    }
    let mut faults = Vec::new();
    for (store, seen) in watching.join_all().await {
        println!("{store:?} {}: {seen:.1} requests a second", outage.name);
        if seen > MOST {
            faults.push(format!("{store:?}: {seen:.1} requests a second"));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join(", "));
}

/// The most that one of its servers sees from one client.
async fn requests_a_second(store: Networked, outage: Manner) -> (Networked, f64) {
    let servers = store.start().await.unwrap();
    let mut turncoats = Vec::new();
    for address in servers.addresses() {
        turncoats.push(Turncoat::start(address).await.unwrap());
    }
    let addresses: Vec<SocketAddr> = turncoats.iter().map(Turncoat::address).collect();
    let holder = open(&store.url(&servers.addresses(), PARAMETERS)).await;
    let _held = hold(&holder).await;
    let locks = open(&store.url(&addresses, PARAMETERS)).await;
    let mut waiting = JoinSet::new();
    for waiter in 0..2 * WAITERS {
        let lock = locks.named(format!("name{}", waiter.min(WAITERS))).unwrap();
        waiting.spawn(async move { lock.acquire_timeout(Duration::from_secs(60)).await.map(drop) });
    }
    sleep(SETTLING).await;
    turncoats.iter().for_each(|server| server.turn(outage.clone()));
    sleep(SETTLING).await;
    let asked = || turncoats.iter().map(Turncoat::asked);
    let (before, start): (Vec<_>, _) = (asked().collect(), Instant::now());
    sleep(WATCHED).await;
    let most = asked().zip(before).map(|(now, before)| now - before).max().unwrap();
    assert!(most > 0, "{store:?}: nobody asks whether it is back");
    assert_eq!(waiting.len(), 2 * WAITERS);
    assert!(waiting.try_join_next().is_none(), "{store:?}: somebody does not wait any more");
    #[expect(clippy::cast_precision_loss, reason = "a few thousand")]
    (store, most as f64 / start.elapsed().as_secs_f64())
}

/// On a machine that starts six kinds of servers at once, a server may not answer in time at first.
async fn at_last<T, F: Future<Output = distlock::Result<T>>>(ask: impl Fn() -> F) -> T {
    let start = Instant::now();
    loop {
        match ask().await {
            Ok(done) => return done,
            Err(error) => assert!(start.elapsed() < Duration::from_secs(240), "{error}"),
        }
    }
}

async fn open(url: &str) -> Locks {
    at_last(|| distlock::connect(url)).await
}

/// Takes the locks that all wait for.
async fn hold(locks: &Locks) -> Vec<LockGuard> {
    let mut taking = JoinSet::new();
    for waiter in 0..=WAITERS {
        let lock = locks.named(format!("name{waiter}")).unwrap();
        taking
            .spawn(async move { at_last(|| lock.acquire_timeout(Duration::from_secs(60))).await });
    }
    taking.join_all().await
}
