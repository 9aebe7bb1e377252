//! A clock that a test moves by hand.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::timers::{TimerSleep, TimerSource, Timers};
use super::{Clock, ClockInstant, Sleep};

/// A clock that stands still until [`advance`](Self::advance) is called. Clones share the time.
///
/// ```
/// use std::time::Duration;
/// use lock_core::{Clock, testing::ManualClock};
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
            let mut now = self.0.now.lock().unwrap_or_else(PoisonError::into_inner);
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
        *self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn timers(&self) -> MutexGuard<'_, Timers> {
        self.timers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn added(&self, _: &mut Timers) {}
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
