//! Whether this process runs at all: a holder that was stopped hears of its loss late.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use distlock::clock::Clock;

use super::Shared;

const BEAT: Duration = Duration::from_millis(20);
/// For how long a standstill excuses what is late.
const EXCUSED: Duration = Duration::from_secs(2);

/// When this process ran last, and its latest standstill.
#[derive(Debug, Default)]
pub(super) struct Pulse {
    last: AtomicU64,
    longest: AtomicU64,
    longest_ended: AtomicU64,
}

impl Pulse {
    fn beat(&self, now: u64) {
        let gap = now.saturating_sub(self.last.swap(now, Relaxed));
        let old = now.saturating_sub(self.longest_ended.load(Relaxed)) > nanos(EXCUSED);
        if old || gap > self.longest.load(Relaxed) {
            self.longest.store(gap, Relaxed);
            self.longest_ended.store(now, Relaxed);
        }
    }

    /// The longest standstill of the last seconds, or the present one.
    pub(super) fn stalled(&self, now: u64) -> u64 {
        let present = now.saturating_sub(self.last.load(Relaxed));
        present.max(self.longest.load(Relaxed)).saturating_sub(nanos(BEAT))
    }
}

pub(super) async fn beat(shared: Arc<Shared>) {
    shared.pulse.last.store(shared.now(), Relaxed);
    loop {
        shared.clock.sleep(BEAT).await;
        shared.pulse.beat(shared.now());
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
