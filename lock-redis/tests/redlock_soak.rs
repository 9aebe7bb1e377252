//! Redlock under contention: many waiters for one name, in several processes.
//!
//! As a test it runs for three seconds. The figures in the README come from
//! `cargo test -p lock-redis --release --test redlock_soak -- --seconds 10 --processes 4 --waiters 64`.
//!
//! Checked are that fences rise, that no two periods of holding overlap (all processes read one
//! clock), and that nobody was left without a turn.

mod redlock_common;

use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use lock_core::{Clock, Locks, SystemClock};
use redlock_common::Masters;

/// Tells a child which quorum to use, and for how long.
const CHILD: &str = "REDLOCK_SOAK_CHILD";

/// One of so many turns, by its fence, lasts for 2 ms.
const HELD: u64 = 50;

/// One turn of one waiter, on the clock of the machine.
#[derive(Clone, Copy, Debug)]
struct Turn {
    waiter: usize,
    got: u64,
    gave: u64,
    fence: u64,
}

fn option(name: &str, default: u64) -> u64 {
    let mut arguments = std::env::args().skip_while(|argument| argument != name);
    arguments.nth(1).and_then(|value| value.parse().ok()).unwrap_or(default)
}

fn main() -> ExitCode {
    if std::env::args().any(|argument| argument == "--list") {
        return ExitCode::SUCCESS;
    }
    let runtime =
        match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => {
                eprintln!("no runtime: {error}");
                return ExitCode::FAILURE;
            }
        };
    let outcome = match std::env::var(CHILD) {
        Ok(url) => runtime.block_on(child(&url)),
        Err(_) => runtime.block_on(parent()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("redlock_soak: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Takes turns until the time is over, and prints them.
async fn child(url: &str) -> Result<(), String> {
    let waiters = usize::try_from(option("--waiters", 16)).map_err(|error| error.to_string())?;
    let seconds = Duration::from_secs(option("--seconds", 3));
    let backend = lock_redis::connect_redlock(url).await.map_err(|error| error.to_string())?;
    let locks = Locks::new(backend);
    // Everybody begins at the same moment, which the parent has named.
    let clock = SystemClock::default();
    let start = lock_core::ClockInstant::from_nanos(option("--start", 0));
    clock.sleep_until(start).await;
    let end = start + seconds;
    let tasks: Vec<_> = (0..waiters)
        .map(|waiter| {
            let (locks, clock) = (locks.clone(), clock.clone());
            tokio::spawn(async move {
                let lock = locks.named("soak").map_err(|error| error.to_string())?;
                let mut turns = Vec::new();
                while clock.now() < end {
                    let limit = end.since(clock.now()) + Duration::from_secs(2);
                    let Ok(guard) = lock.acquire_timeout(limit).await else { break };
                    let got = clock.now().as_nanos();
                    let fence = guard.token().map_err(|error| error.to_string())?.get();
                    // Some turns last, so that a second holder would be seen to overlap.
                    if fence.is_multiple_of(HELD) {
                        tokio::time::sleep(Duration::from_millis(2)).await;
                    }
                    let gave = clock.now().as_nanos();
                    guard.release().await.map_err(|error| error.to_string())?;
                    turns.push(Turn { waiter, got, gave, fence });
                }
                Ok::<_, String>(turns)
            })
        })
        .collect();
    for task in tasks {
        for turn in task.await.map_err(|error| error.to_string())?? {
            println!("{} {} {} {}", turn.waiter, turn.got, turn.gave, turn.fence);
        }
    }
    locks.close(Duration::from_secs(5)).await.map_err(|error| error.to_string())
}

async fn parent() -> Result<(), String> {
    let (processes, all) = (option("--processes", 4), option("--waiters", 64));
    let seconds = option("--seconds", 3);
    let masters = Masters::start().await.map_err(|error| error.to_string())?;
    let url = masters.url("");
    drop(masters.client("").await.map_err(|error| error.to_string())?);
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let start = (SystemClock::default().now() + Duration::from_millis(500)).as_nanos();
    let children: Vec<_> = (0..processes)
        .map(|_| {
            Command::new(&program)
                .env(CHILD, &url)
                .args(["--waiters", &(all / processes).to_string()])
                .args(["--seconds", &seconds.to_string(), "--start", &start.to_string()])
                .stdout(Stdio::piped())
                .spawn()
                .map_err(|error| error.to_string())
        })
        .collect::<Result<_, _>>()?;
    let outputs: Vec<_> = children
        .into_iter()
        .map(|child| tokio::task::spawn_blocking(move || child.wait_with_output()))
        .collect();
    let mut turns = Vec::new();
    for (process, output) in outputs.into_iter().enumerate() {
        let output =
            output.await.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
        if !output.status.success() {
            return Err(format!("process {process} failed"));
        }
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            let fields: Vec<u64> = line.split(' ').filter_map(|field| field.parse().ok()).collect();
            let [waiter, got, gave, fence] = fields[..] else {
                return Err(format!("odd line {line:?}"));
            };
            let waiter = usize::try_from(waiter).map_err(|error| error.to_string())?;
            turns.push(Turn { waiter: process * 1000 + waiter, got, gave, fence });
        }
    }
    judge(turns, start, seconds, all, processes)
}

fn judge(
    mut turns: Vec<Turn>,
    start: u64,
    seconds: u64,
    waiters: u64,
    processes: u64,
) -> Result<(), String> {
    turns.sort_by_key(|turn| turn.got);
    for pair in turns.windows(2) {
        if pair[1].fence <= pair[0].fence {
            return Err(format!("the fence does not rise: {pair:?}"));
        }
        if pair[1].got < pair[0].gave {
            return Err(format!("two holders: {pair:?}"));
        }
    }
    let end = start + seconds * 1_000_000_000;
    let mut longest = 0;
    let mut served = std::collections::BTreeMap::<usize, (u64, u64)>::new();
    for turn in turns.iter().filter(|turn| turn.got < end) {
        let (count, last) = served.entry(turn.waiter).or_insert((0, start));
        longest = longest.max(turn.got - *last);
        *count += 1;
        *last = turn.gave;
    }
    for (_, last) in served.values() {
        longest = longest.max(end.saturating_sub(*last));
    }
    let total: u64 = served.values().map(|(count, _)| count).sum();
    let least = served.values().map(|(count, _)| *count).min().unwrap_or(0);
    println!(
        "{waiters} waiters in {processes} processes on 3 masters, {seconds} s: {} acquisitions/s, {} waiters served, the least {least} times, longest wait {:?}",
        total / seconds.max(1),
        served.len(),
        Duration::from_nanos(longest),
    );
    let starved = usize::try_from(waiters).unwrap_or(usize::MAX) - served.len();
    if starved > 0 {
        return Err(format!("{starved} of {waiters} waiters were never served"));
    }
    // The goal, 1000/s, is for an optimised build on an idle machine.
    let goal = option("--at-least", 100);
    if total / seconds.max(1) < goal {
        return Err(format!("{} acquisitions/s, the goal is {goal}", total / seconds.max(1)));
    }
    Ok(())
}
