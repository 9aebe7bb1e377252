//! The memory that a held lock costs: the growth of the resident set with 10 000 locks held on the
//! memory store, the store's own entry included, divided by their number.

use std::time::Duration;

use distlock::Locks;
use distlock::memory::MemoryBackend;

const LOCKS: u64 = 10_000;

fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("a resident set");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).expect("a number") * 1024
}

#[tokio::main]
async fn main() {
    let locks = Locks::new(MemoryBackend::queued());
    // What is allocated once is not a cost of a lock.
    drop(locks.lock("warm-up").expect("a good name").acquire().await.expect("free"));
    let before = resident_bytes();
    let mut guards = Vec::new();
    for number in 0..LOCKS {
        let lock = locks.lock(format!("order:{number}")).expect("a good name");
        guards.push(lock.ttl(Duration::from_secs(30)).acquire().await.expect("free"));
    }
    let each = resident_bytes().saturating_sub(before) / LOCKS;
    println!("{} held locks: {each} bytes each (goal: at most 4096)", guards.len());
    for guard in guards {
        guard.release().await.expect("held");
    }
    locks.close(Duration::from_secs(10)).await.expect("all are released");
}
