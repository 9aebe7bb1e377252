//! Whether the machine kept pace: a case that failed while it did not has shown nothing.
#![allow(
    clippy::disallowed_methods,
    reason = "the machine itself is measured, on a thread of its own"
)]

use std::fs;
use std::sync::{Mutex, Once, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How often the watching thread wants to run.
const TICK: Duration = Duration::from_millis(5);
/// A thread that runs so much later than it wanted has seen a standstill.
const PAUSE: Duration = Duration::from_millis(20);
/// So long may all tasks of the machine wait for its disks together.
const DISKS: Duration = Duration::from_millis(100);

/// The standstills that the watching thread has seen: when each ended, and how long it was.
static PAUSES: Mutex<Vec<(Instant, Duration)>> = Mutex::new(Vec::new());
static WATCH: Once = Once::new();

/// The pace of the machine from a moment on.
#[derive(Debug)]
pub(crate) struct Pace {
    since: Instant,
    waited: Option<Waited>,
}

/// How long tasks have waited since the start of the machine, as Linux counts it.
///
/// Source: `Documentation/accounting/psi.rst` of Linux.
#[derive(Clone, Copy, Debug)]
struct Waited {
    /// At least one task wanted a processor and had none.
    processor: Duration,
    /// All tasks waited for a disk.
    disks: Duration,
}

impl Pace {
    /// Begins to watch.
    pub(crate) fn watch() -> Self {
        WATCH.call_once(|| {
            // Without the thread nothing is excused, which is the safe side.
            let _ = thread::Builder::new().name("pace".to_owned()).spawn(tick);
        });
        Self { since: Instant::now(), waited: Waited::now() }
    }

    /// What kept the machine from running the case in time, if something did.
    pub(crate) fn standstill(&self) -> Option<String> {
        let pauses = PAUSES.lock().unwrap_or_else(PoisonError::into_inner);
        let ours = pauses.iter().filter(|(at, _)| *at >= self.since);
        let longest = ours.map(|(_, pause)| *pause).max();
        drop(pauses);
        if let Some(pause) = longest {
            return Some(format!("the machine stood still for {pause:.0?}"));
        }
        let (before, now) = (self.waited?, Waited::now()?);
        let disks = now.disks.saturating_sub(before.disks);
        if disks >= DISKS {
            return Some(format!("the machine waited for its disks for {disks:.0?}"));
        }
        let (of, processor) =
            (self.since.elapsed(), now.processor.saturating_sub(before.processor));
        (processor > of / 2)
            .then(|| format!("tasks waited for a processor for {processor:.0?} of {of:.0?}"))
    }
}

fn tick() {
    loop {
        let before = Instant::now();
        thread::sleep(TICK);
        let pause = before.elapsed().saturating_sub(TICK);
        if pause >= PAUSE {
            PAUSES.lock().unwrap_or_else(PoisonError::into_inner).push((Instant::now(), pause));
        }
    }
}

impl Waited {
    /// `None` where the system does not count it.
    fn now() -> Option<Self> {
        let total = |what: &str, line: &str| {
            let text = fs::read_to_string(format!("/proc/pressure/{what}")).ok()?;
            let line = text.lines().find(|found| found.starts_with(line))?;
            let (_, total) = line.rsplit_once("total=")?;
            total.parse().ok().map(Duration::from_micros)
        };
        Some(Self { processor: total("cpu", "some")?, disks: total("io", "full")? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_standstill_counts_for_those_it_came_upon() {
        let before = Pace { since: Instant::now(), waited: None };
        let pause = (Instant::now(), Duration::from_secs(312));
        PAUSES.lock().unwrap_or_else(PoisonError::into_inner).push(pause);
        thread::sleep(Duration::from_millis(1));
        let after = Pace { since: Instant::now(), waited: None };
        assert_eq!(before.standstill().as_deref(), Some("the machine stood still for 312s"));
        let seen = after.standstill();
        assert!(!seen.as_deref().is_some_and(|seen| seen.contains("312s")), "{seen:?}");
    }
}
