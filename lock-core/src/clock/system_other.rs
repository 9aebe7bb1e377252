//! The system's clock where there is no boot-time timer.

use std::time::Duration;

use super::{Clock, ClockInstant, Sleep};

/// The system's monotonic clock. On macOS and Windows the standard library's clock goes on while
/// the machine sleeps; tokio's timers are used in slices of a second, so that a loss is noticed at
/// most that late after a wake-up.
#[derive(Clone, Debug)]
pub struct SystemClock {
    origin: std::time::Instant,
}

impl Default for SystemClock {
    #[allow(clippy::disallowed_methods, reason = "this is the clock that everybody else asks")]
    fn default() -> Self {
        Self { origin: std::time::Instant::now() }
    }
}

impl Clock for SystemClock {
    fn now(&self) -> ClockInstant {
        ClockInstant::from_nanos(0) + Duration::from_secs(3600) + self.origin.elapsed()
    }

    fn sleep_until(&self, at: ClockInstant) -> Sleep {
        const SLICE: Duration = Duration::from_secs(1);
        let clock = self.clone();
        Box::pin(async move {
            loop {
                let left = at.since(clock.now());
                if left.is_zero() {
                    return;
                }
                tokio::time::sleep(left.min(SLICE)).await;
            }
        })
    }
}
