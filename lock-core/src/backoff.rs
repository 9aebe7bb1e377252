//! Pauses between failing attempts.
//!
//! ```
//! use std::time::Duration;
//! use lock_core::OsRng;
//! use lock_core::backoff::Backoff;
//!
//! let mut backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(1));
//! let (first, second) = (backoff.failed(&OsRng), backoff.failed(&OsRng));
//! assert!(first >= Duration::from_millis(20) && second >= Duration::from_millis(40));
//! backoff.reset();
//! assert!(backoff.failed(&OsRng) < Duration::from_millis(40));
//! ```

use std::time::Duration;

use crate::{Rng, jitter};

/// Counts failures in a row and says how long to pause after each. Each pause is twice the one
/// before, up to the longest, plus up to half of that at random, so clients that failed together do
/// not retry together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    failures: u32,
}

impl Backoff {
    /// Pauses from `first` to `longest`. Nothing has failed so far.
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest, failures: 0 }
    }

    /// Records another failure, and returns how long to pause.
    pub fn failed(&mut self, rng: &dyn Rng) -> Duration {
        self.failures = self.failures.saturating_add(1);
        let pause = growing(self.first, self.longest, self.failures);
        pause + jitter(rng, pause / 2)
    }

    /// Records a success.
    pub fn reset(&mut self) {
        self.failures = 0;
    }

    /// The number of failures since the last success.
    pub fn failures(&self) -> u32 {
        self.failures
    }
}

/// The `nth` of pauses that double from `first` to `longest`, without randomness. The first has
/// number 1.
pub fn growing(first: Duration, longest: Duration, nth: u32) -> Duration {
    first.saturating_mul(1 << nth.saturating_sub(1).min(30)).min(longest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::OsRng;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    #[test]
    fn pauses_double_up_to_the_longest() {
        let pauses: Vec<_> = (0..=5).map(|nth| growing(MS(20), MS(100), nth)).collect();
        assert_eq!(pauses, [MS(20), MS(20), MS(40), MS(80), MS(100), MS(100)]);
        assert_eq!(growing(MS(1), Duration::MAX, u32::MAX), MS(1 << 30));
    }

    #[test]
    fn chance_makes_a_pause_longer_by_less_than_a_half() {
        let mut backoff = Backoff::new(MS(20), MS(100));
        for least in [20, 40, 80, 100, 100] {
            let pause = backoff.failed(&OsRng);
            assert!(pause >= MS(least) && pause < MS(least) * 3 / 2, "{pause:?}");
        }
        assert_eq!(backoff.failures(), 5);
        backoff.reset();
        assert!(backoff.failed(&OsRng) < MS(30));
    }
}
