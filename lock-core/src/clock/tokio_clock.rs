//! Tokio's clock, for tests with paused time.

use std::time::Duration;

use super::{Clock, ClockInstant, Sleep};

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
