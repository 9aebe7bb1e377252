//! Clocks for tests.

use std::sync::Arc;
use std::time::Duration;

use crate::mutex::{Mutex, MutexGuard};

use super::timers::{TimerSleep, TimerSource, Timers};
use super::{Clock, ClockInstant, Sleep};

/// A clock that stands still until [`advance`](Self::advance) is called. Clones share the time.
///
/// ```
/// # use lock_core as distlock;
/// use std::time::Duration;
/// use distlock::{Clock, testing::ManualClock};
///
/// let clock = ManualClock::default();
/// let before = clock.now();
/// clock.advance(Duration::from_secs(30));
/// assert_eq!(clock.now().since(before), Duration::from_secs(30));
/// ```
#[derive(Clone, Debug)]
pub struct ManualClock(Arc<Time>);

#[derive(Debug)]
struct Time {
    now: Mutex<ClockInstant>,
    timers: Mutex<Timers>,
}

impl ManualClock {
    /// Advances the time and wakes all sleepers that are due.
    pub fn advance(&self, by: Duration) {
        let now = {
            let mut now = self.0.now.lock();
            *now = *now + by;
            *now
        };
        let due = self.0.timers().take_due(now);
        due.into_iter().for_each(std::task::Waker::wake);
    }
}

/// Starts one hour after the origin, so a test can look back.
impl Default for ManualClock {
    fn default() -> Self {
        Self(Arc::new(Time {
            now: Mutex::new(ClockInstant::from_nanos(3_600_000_000_000)),
            timers: Mutex::default(),
        }))
    }
}

impl Clock for ManualClock {
    fn now(&self) -> ClockInstant {
        self.0.now()
    }

    fn sleep_until(&self, at: ClockInstant) -> Sleep {
        Box::pin(TimerSleep::new(Arc::clone(&self.0), at))
    }
}

impl TimerSource for Time {
    fn now(&self) -> ClockInstant {
        *self.now.lock()
    }

    fn timers(&self) -> MutexGuard<'_, Timers> {
        self.timers.lock()
    }

    fn added(&self, _: &mut Timers) {}
}

/// Tokio's own clock. It follows `tokio::time::pause` and `advance`, so a test of a minute takes a
/// millisecond. In production it would stop while the machine sleeps: use
/// [`SystemClock`](super::SystemClock) there.
#[derive(Clone, Copy, Debug)]
pub struct TokioClock {
    origin: tokio::time::Instant,
}

impl TokioClock {
    /// How far before its creation the clock's origin lies, so a test can look back.
    const HEAD_START: Duration = Duration::from_secs(3600);
}

impl Default for TokioClock {
    fn default() -> Self {
        Self { origin: tokio::time::Instant::now() }
    }
}

impl Clock for TokioClock {
    fn now(&self) -> ClockInstant {
        ClockInstant::from_nanos(0) + Self::HEAD_START + self.origin.elapsed()
    }

    fn sleep_until(&self, at: ClockInstant) -> Sleep {
        if at == ClockInstant::FAR_FUTURE {
            return Box::pin(std::future::pending());
        }
        let until = at.since(ClockInstant::from_nanos(0) + Self::HEAD_START);
        let origin = self.origin;
        Box::pin(async move {
            match origin.checked_add(until) {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn sleepers_wake_in_time_and_not_before() {
        let clock = ManualClock::default();
        let mut sleep = tokio::spawn(clock.sleep(Duration::from_secs(5)));
        tokio::task::yield_now().await;
        clock.advance(Duration::from_secs(4));
        tokio::task::yield_now().await;
        assert!(!sleep.is_finished());
        clock.advance(Duration::from_secs(1));
        (&mut sleep).await.unwrap();
    }

    #[tokio::test]
    async fn sleepers_until_the_same_moment_all_wake() {
        let clock = ManualClock::default();
        let sleeps = [5, 5, 5].map(|wait| tokio::spawn(clock.sleep(Duration::from_secs(wait))));
        tokio::task::yield_now().await;
        clock.advance(Duration::from_secs(5));
        for sleep in sleeps {
            sleep.await.unwrap();
        }
    }

    #[test]
    fn an_instant_is_shown_as_the_time_since_the_origin() {
        assert_eq!(format!("{:?}", ClockInstant::from_nanos(1_500_000_000)), "1.5s");
    }

    #[tokio::test]
    async fn a_dropped_sleep_leaves_no_timer() {
        let clock = ManualClock::default();
        let mut sleep = clock.sleep(Duration::from_secs(5));
        assert!(
            std::future::poll_fn(|cx| std::task::Poll::Ready(sleep.as_mut().poll(cx).is_pending()))
                .await
        );
        assert!(clock.0.timers().earliest().is_some());
        drop(sleep);
        assert!(clock.0.timers().earliest().is_none());
    }
}
