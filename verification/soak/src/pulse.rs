//! Whether this process runs at all: one that the machine does not schedule is late through no fault of the
//! library.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use distlock::clock::{Clock, SystemClock};

const BEAT: Duration = Duration::from_millis(20);
/// A beat that is later than this was not only a coarse timer.
const COARSE: Duration = Duration::from_millis(5);
/// More standstills than a process can have since any moment that it is asked about.
const REMEMBERED: usize = 10_000;

/// When this process stood still.
#[derive(Debug, Default)]
pub(crate) struct Pulse(Mutex<Beats>);

#[derive(Debug, Default)]
struct Beats {
    /// When the process ran last; none before the first beat.
    last: Option<u64>,
    /// From when to when, in order.
    stood: VecDeque<(u64, u64)>,
}

impl Pulse {
    /// Feels it from now on, in a task of the present runtime, for as long as somebody has it.
    pub(crate) fn start(clock: SystemClock) -> Arc<Self> {
        let pulse = Arc::new(Self::default());
        let felt = Arc::downgrade(&pulse);
        tokio::spawn(async move {
            while let Some(pulse) = felt.upgrade() {
                pulse.beat(clock.now().as_nanos());
                drop(pulse);
                clock.sleep(BEAT).await;
            }
        });
        pulse
    }

    fn beat(&self, now: u64) {
        let mut beats = self.beats();
        if let Some(stood) = beats.standing(now) {
            if beats.stood.len() == REMEMBERED {
                beats.stood.pop_front();
            }
            beats.stood.push_back(stood);
        }
        beats.last = Some(now);
    }

    /// For how long it has stood still since a moment, all together and up to now.
    pub(crate) fn stalled_since(&self, moment: u64, now: u64) -> u64 {
        let beats = self.beats();
        let all = beats.stood.iter().copied().chain(beats.standing(now));
        all.map(|(from, to)| to.saturating_sub(from.max(moment))).sum()
    }

    fn beats(&self) -> MutexGuard<'_, Beats> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Beats {
    /// The standstill that ends now, if this beat is late.
    fn standing(&self, now: u64) -> Option<(u64, u64)> {
        let due = self.last? + nanos(BEAT);
        (now > due + nanos(COARSE)).then_some((due, now))
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn beating_at(times: &[u64]) -> Pulse {
        let pulse = Pulse::default();
        times.iter().for_each(|ms| pulse.beat(ms * MS));
        pulse
    }

    #[test]
    fn all_standstills_since_a_moment_count_together() {
        // Due at 120, 220, and 320.
        let pulse = beating_at(&[100, 200, 300, 400, 420]);
        assert_eq!(pulse.stalled_since(0, 420 * MS), 3 * 80 * MS);
        // What ended before is no excuse, and of what was under way only the rest.
        assert_eq!(pulse.stalled_since(200 * MS, 420 * MS), 2 * 80 * MS);
        assert_eq!(pulse.stalled_since(250 * MS, 420 * MS), (50 + 80) * MS);
        assert_eq!(pulse.stalled_since(400 * MS, 420 * MS), 0);
    }

    #[test]
    fn the_present_standstill_counts_and_a_coarse_timer_does_not() {
        let pulse = beating_at(&[100, 121, 145]);
        assert_eq!(pulse.stalled_since(0, 150 * MS), 0);
        assert_eq!(pulse.stalled_since(0, 265 * MS), 100 * MS);
        assert_eq!(Pulse::default().stalled_since(0, 265 * MS), 0);
    }
}
