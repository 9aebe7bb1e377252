//! Whether the machine kept pace: if it did not, a failed case has shown nothing.
#![allow(
    clippy::disallowed_methods,
    reason = "the machine itself is measured, on a separate thread"
)]

use std::fs;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, Once, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How often the watching thread wants to run.
const TICK: Duration = Duration::from_millis(5);
/// A thread that runs this much later than it wanted has seen a standstill.
const PAUSE: Duration = Duration::from_millis(20);
/// How long all tasks of the machine together may wait for its disks.
const DISKS: Duration = Duration::from_millis(100);

/// The standstills that the watching thread has seen: when each ended, and how long it was.
static PAUSES: Mutex<Vec<(Instant, Duration)>> = Mutex::new(Vec::new());
/// The total nanoseconds by which it ran later than it wanted.
static LATE: AtomicU64 = AtomicU64::new(0);
static WATCH: Once = Once::new();

/// The pace of the machine since some moment.
#[derive(Debug)]
pub(crate) struct Pace {
    since: Instant,
    late: Duration,
    disks: Option<Duration>,
}

impl Pace {
    /// Starts watching.
    pub(crate) fn watch() -> Self {
        WATCH.call_once(|| {
            // Without the thread nothing is excused, to be on the safe side.
            let _ = thread::Builder::new().name("pace".to_owned()).spawn(tick);
        });
        Self { since: Instant::now(), late: late(), disks: waited_for_disks() }
    }

    /// What kept the machine from running the case in time, if anything.
    pub(crate) fn standstill(&self) -> Option<String> {
        let pauses = PAUSES.lock().unwrap_or_else(PoisonError::into_inner);
        let ours = pauses.iter().filter(|(at, _)| *at >= self.since);
        let longest = ours.map(|(_, pause)| *pause).max();
        drop(pauses);
        if let Some(pause) = longest {
            return Some(format!("the machine stood still for {pause:.0?}"));
        }
        // Lower-priority threads do not count: they wait all the time and hold up nothing.
        let (late, of) = (late().saturating_sub(self.late), self.since.elapsed());
        if late > of / 2 {
            return Some(format!("a thread waited for a processor for {late:.0?} of {of:.0?}"));
        }
        let disks = waited_for_disks()?.saturating_sub(self.disks?);
        (disks >= DISKS).then(|| format!("the machine waited for its disks for {disks:.0?}"))
    }
}

fn tick() {
    loop {
        let before = Instant::now();
        thread::sleep(TICK);
        let pause = before.elapsed().saturating_sub(TICK);
        LATE.fetch_add(u64::try_from(pause.as_nanos()).unwrap_or(u64::MAX), Relaxed);
        if pause >= PAUSE {
            PAUSES.lock().unwrap_or_else(PoisonError::into_inner).push((Instant::now(), pause));
        }
    }
}

fn late() -> Duration {
    Duration::from_nanos(LATE.load(Relaxed))
}

/// How long all tasks have waited for a disk since the machine started. `None` where the system
/// does not record it.
///
/// Source: `Documentation/accounting/psi.rst` of Linux.
fn waited_for_disks() -> Option<Duration> {
    let text = fs::read_to_string("/proc/pressure/io").ok()?;
    let line = text.lines().find(|line| line.starts_with("full"))?;
    let (_, total) = line.rsplit_once("total=")?;
    total.parse().ok().map(Duration::from_micros)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_standstill_counts_for_those_it_came_upon() {
        let before = Pace { since: Instant::now(), late: late(), disks: None };
        let pause = (Instant::now(), Duration::from_secs(312));
        PAUSES.lock().unwrap_or_else(PoisonError::into_inner).push(pause);
        thread::sleep(Duration::from_millis(1));
        let after = Pace { since: Instant::now(), late: late(), disks: None };
        assert_eq!(before.standstill().as_deref(), Some("the machine stood still for 312s"));
        let seen = after.standstill();
        assert!(!seen.as_deref().is_some_and(|seen| seen.contains("312s")), "{seen:?}");
    }
}
