//! Guards that go wrong: the core on a broken clock or random source.

use std::time::Duration;

use lock_core::testing::TokioClock;
use lock_core::{Clock, ClockInstant, Result, Rng, Sleep};

/// The time is right, but no timer ever fires: nothing is renewed and no loss is signalled.
#[derive(Debug)]
pub(super) struct TimersNeverFire(pub(super) TokioClock);

impl Clock for TimersNeverFire {
    fn now(&self) -> ClockInstant {
        self.0.now()
    }

    fn sleep_until(&self, _: ClockInstant) -> Sleep {
        Box::pin(std::future::pending())
    }
}

/// Runs at half the speed.
#[derive(Debug)]
pub(super) struct SlowClock {
    pub(super) right: TokioClock,
    pub(super) origin: ClockInstant,
}

impl Clock for SlowClock {
    fn now(&self) -> ClockInstant {
        self.origin + self.right.now().since(self.origin) / 2
    }

    fn sleep_until(&self, at: ClockInstant) -> Sleep {
        self.right.sleep_until(self.origin + at.since(self.origin) * 2)
    }
}

/// Stops one second after its start, as `CLOCK_MONOTONIC` does during suspend.
#[derive(Debug)]
pub(super) struct StoppedClock {
    pub(super) right: TokioClock,
    pub(super) stops: ClockInstant,
}

impl StoppedClock {
    pub(super) fn new(right: TokioClock) -> Self {
        Self { stops: right.now() + Duration::from_secs(1), right }
    }
}

impl Clock for StoppedClock {
    fn now(&self) -> ClockInstant {
        self.right.now().min(self.stops)
    }

    fn sleep_until(&self, at: ClockInstant) -> Sleep {
        if at > self.stops { Box::pin(std::future::pending()) } else { self.right.sleep_until(at) }
    }
}

/// The same bytes every time.
#[derive(Debug)]
pub(super) struct ConstantRng;

impl Rng for ConstantRng {
    fn fill(&self, bytes: &mut [u8]) -> Result<()> {
        bytes.fill(42);
        Ok(())
    }
}
