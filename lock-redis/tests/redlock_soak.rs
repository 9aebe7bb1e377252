//! Redlock under contention: many waiters for one name, in several processes.
//!
//! The full size is `cargo test --release -p lock-redis --test redlock_soak -- --ignored --nocapture`.
//!
//! It checks that fences rise, that no two periods of holding overlap (all processes read one
//! clock), and that every waiter got a turn.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod redlock_common;

use std::collections::BTreeMap;
use std::time::Duration;

use lock_core::{Clock, ClockInstant, Locks, SystemClock};
use redlock_common::Masters;
use redlock_common::common::children::{self, Children};

const PROCESSES: u64 = 4;
const WAITERS: u64 = 64;
/// One of so many turns, by its fence, lasts for 2 ms.
const HELD: u64 = 50;

/// One turn of one waiter, on the clock of the machine.
#[derive(Clone, Copy, Debug)]
struct Turn {
    waiter: (usize, u64),
    got: u64,
    gave: u64,
    fence: u64,
}

/// Given a URL, the moment at which all begin, and a number of seconds, it takes turns until
/// the time is over, and prints them.
#[test]
#[ignore = "the child process of the other tests"]
fn child() {
    let Some(order) = children::order() else { return };
    let [url, start, seconds] = order.split(' ').collect::<Vec<_>>()[..] else { panic!("{order}") };
    let start = ClockInstant::from_nanos(start.parse().unwrap());
    let end = start + Duration::from_secs(seconds.parse().unwrap());
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let locks = Locks::new(lock_redis::connect_redlock(url).await.unwrap());
        SystemClock::default().sleep_until(start).await;
        let mut waiters = tokio::task::JoinSet::new();
        for waiter in 0..WAITERS / PROCESSES {
            waiters.spawn(take_turns(locks.clone(), waiter, end));
        }
        for turn in waiters.join_all().await.iter().flatten() {
            println!("@{turn}");
        }
        locks.close(Duration::from_secs(5)).await.unwrap();
    });
}

async fn take_turns(locks: Locks, waiter: u64, end: ClockInstant) -> Vec<String> {
    let (lock, clock) = (locks.named("soak").unwrap(), SystemClock::default());
    let mut turns = Vec::new();
    while clock.now() < end {
        let limit = end.since(clock.now()) + Duration::from_secs(2);
        let Ok(guard) = lock.acquire_timeout(limit).await else { break };
        let got = clock.now().as_nanos();
        let fence = guard.token().unwrap().get();
        // Some turns last, so that a second holder would be seen to overlap.
        if fence.is_multiple_of(HELD) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let gave = clock.now().as_nanos();
        guard.release().await.unwrap();
        turns.push(format!("{waiter} {got} {gave} {fence}"));
    }
    turns
}

/// At least so many acquisitions in a second.
async fn soak(seconds: u64, goal: u64) {
    let masters = Masters::start().await.unwrap();
    drop(masters.client("").await.unwrap());
    let start = (SystemClock::default().now() + Duration::from_millis(1000)).as_nanos();
    let order = format!("{} {start} {seconds}", masters.url(""));
    let turns = tokio::task::spawn_blocking(move || {
        let children = Children::start(usize::try_from(PROCESSES).unwrap(), &order);
        let turn = |(process, line): (usize, String)| {
            let fields: Vec<u64> = line.split(' ').map(|field| field.parse().unwrap()).collect();
            let [waiter, got, gave, fence] = fields[..] else { panic!("{line}") };
            Turn { waiter: (process, waiter), got, gave, fence }
        };
        children.lines.iter().map(turn).collect()
    });
    judge(turns.await.unwrap(), start, seconds, goal);
}

fn judge(mut turns: Vec<Turn>, start: u64, seconds: u64, goal: u64) {
    turns.sort_by_key(|turn| turn.got);
    for pair in turns.windows(2) {
        lock_testkit::assert_exactly!(
            pair[1].fence > pair[0].fence,
            "the fence does not rise: {pair:?}"
        );
        lock_testkit::assert_exactly!(pair[1].got >= pair[0].gave, "two holders: {pair:?}");
    }
    let end = start + seconds * 1_000_000_000;
    let mut longest = 0;
    let mut served = BTreeMap::new();
    for turn in turns.iter().filter(|turn| turn.got < end) {
        let (count, last) = served.entry(turn.waiter).or_insert((0_u64, start));
        longest = longest.max(turn.got - *last);
        (*count, *last) = (*count + 1, turn.gave);
    }
    for (_, last) in served.values() {
        longest = longest.max(end.saturating_sub(*last));
    }
    let rate = served.values().map(|(count, _)| count).sum::<u64>() / seconds;
    let least = served.values().map(|(count, _)| *count).min().unwrap_or(0);
    println!(
        "{WAITERS} waiters in {PROCESSES} processes on 3 masters, {seconds} s: {rate} acquisitions/s, {} waiters served, the least {least} times, longest wait {:?}",
        served.len(),
        Duration::from_nanos(longest),
    );
    assert_eq!(served.len() as u64, WAITERS, "a waiter was never served");
    assert!(rate >= goal, "{rate} acquisitions/s, the goal is {goal}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_of_four_processes_take_turns() {
    // However busy the machine is.
    soak(3, 20).await;
}

/// The goal is for an optimised build on an idle machine.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the full size"]
async fn a_thousand_turns_are_taken_in_a_second() {
    soak(10, 1000).await;
}
