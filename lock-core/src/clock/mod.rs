//! The library's only source of time.
//!
//! Validity is counted on a clock that keeps running while the machine sleeps, never on a wall clock.
//! Linux has one, with a timer, and is the only supported system: the clocks of the standard
//! library and of Tokio stop while a Linux machine or a Mac sleeps, so a lease would seem valid
//! after its end. [`SystemClock`] is that clock, [`TokioClock`](crate::testing::TokioClock) follows
//! tokio's (paused) test time, and [`ManualClock`](crate::testing::ManualClock) moves only when a
//! test says so.

#[cfg_attr(distlock_mutants, path = "../mutants/kernel.rs")]
mod kernel;
mod system;
pub(crate) mod test_clocks;
mod timers;

use std::fmt::{self, Debug};
use std::future::Future;
use std::ops::Add;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

pub use system::SystemClock;

/// A clock and its timers. Everything in the library that reads the time or waits does it here.
pub trait Clock: Debug + Send + Sync + 'static {
    /// The current time. Never goes back.
    fn now(&self) -> ClockInstant;

    /// Waits until `at`. Dropping the future is free and forgets the timer.
    fn sleep_until(&self, at: ClockInstant) -> Sleep;

    /// Waits for `duration` from now.
    fn sleep(&self, duration: Duration) -> Sleep {
        self.sleep_until(self.now() + duration)
    }
}

/// A shared clock is a clock.
impl<C: Clock + ?Sized> Clock for Arc<C> {
    fn now(&self) -> ClockInstant {
        (**self).now()
    }

    fn sleep_until(&self, at: ClockInstant) -> Sleep {
        (**self).sleep_until(at)
    }
}

/// The future of [`Clock::sleep_until`].
pub type Sleep = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A point in time on a [`Clock`], to the nanosecond. Instants of different clocks must not be
/// compared.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClockInstant(u64);

impl ClockInstant {
    /// The farthest point in time, which is never reached.
    pub const FAR_FUTURE: Self = Self(u64::MAX);

    /// The instant `nanos` nanoseconds after the clock's origin.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the clock's origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// How long after `earlier` this is; zero if it is not after it.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// This instant moved back; not before the clock's origin.
    #[must_use]
    pub fn minus(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(nanos(duration)))
    }

    /// This instant as a wall-clock time, as both clocks run now. For people: a wall clock can be
    /// set, so no decision is based on it.
    pub fn to_system_time(self, clock: &dyn Clock) -> SystemTime {
        let (now, wall) = (clock.now(), SystemTime::now());
        let moved = if self >= now {
            wall.checked_add(self.since(now))
        } else {
            wall.checked_sub(now.since(self))
        };
        moved.unwrap_or(wall)
    }
}

/// Later by `duration`, up to the far future.
impl Add<Duration> for ClockInstant {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(nanos(duration)))
    }
}

impl Debug for ClockInstant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", Duration::from_nanos(self.0))
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
