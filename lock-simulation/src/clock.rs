//! The clock of one process: it starts anywhere, and runs a little too fast or too slow.

use std::time::Duration;

use lock_core::{Clock, ClockInstant, Sleep};

use crate::variant::Variant;
use crate::world::{Time, World, nanos};

/// Parts per million by which a client's clock may be wrong: just within what the core allows for.
const DRIFT: i64 = 9_900;

#[derive(Clone, Debug)]
pub(crate) struct DriftingClock {
    world: World,
    offset: u64,
    /// Its nanoseconds for each million of the true ones.
    rate: u128,
}

impl DriftingClock {
    pub(crate) fn new(world: &World) -> Self {
        let drift = [0, DRIFT, -DRIFT, DRIFT / 2][world.below(4)];
        let slow = if world.is_wrong(Variant::SlowClock) { 100_000 } else { 0 };
        let rate = u128::from((1_000_000 + drift - slow).unsigned_abs());
        let offset = 1_000_000_000 * (1 + world.below(200) as u64);
        Self { world: world.clone(), offset, rate }
    }

    fn shown(&self, time: Time) -> u64 {
        self.offset + u64::try_from(u128::from(time) * self.rate / 1_000_000).unwrap_or(u64::MAX)
    }

    /// The first true time at which this clock shows at least `shown`.
    fn true_time(&self, shown: u64) -> Time {
        let passed = u128::from(shown.saturating_sub(self.offset));
        u64::try_from((passed * 1_000_000).div_ceil(self.rate)).unwrap_or(u64::MAX)
    }
}

impl Clock for DriftingClock {
    fn now(&self) -> ClockInstant {
        ClockInstant::from_nanos(self.shown(self.world.now()))
    }

    fn sleep_until(&self, at: ClockInstant) -> Sleep {
        if at == ClockInstant::FAR_FUTURE {
            return Box::pin(std::future::pending());
        }
        let mut at = self.true_time(at.as_nanos());
        if self.world.is_wrong(Variant::LateTimers) {
            at = at.saturating_add(nanos(Duration::from_millis(700)));
        }
        Box::pin(self.world.sleep_until(at))
    }
}
