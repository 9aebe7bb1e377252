//! What was asked for.

use std::sync::Arc;
use std::time::Duration;

use crate::ClockInstant;
use crate::locks::held::margin;

/// What was asked for, checked and rounded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Terms {
    pub(crate) ttl: Duration,
    /// How often the lock is renewed; `None` for never.
    pub(crate) renew_every: Option<Duration>,
    /// How often it is renewed once renewal is requested.
    pub(crate) every: Duration,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) call_timeout: Duration,
    pub(crate) unavailable_after: Duration,
    /// How many tasks of this process may have one hold after the other.
    pub(crate) cohort: u32,
    pub(crate) label: Option<Arc<str>>,
}

impl Terms {
    #[cfg(test)]
    pub(super) fn for_a_test() -> Self {
        let second = Duration::from_secs(1);
        Self {
            ttl: 30 * second,
            renew_every: None,
            every: 10 * second,
            max_hold: None,
            call_timeout: second,
            unavailable_after: second,
            cohort: 1,
            label: None,
        }
    }

    /// By when the store must have ended whatever a request sent at `sent` makes or prolongs.
    pub(super) fn gone_at(&self, sent: ClockInstant) -> ClockInstant {
        sent + self.ttl + margin(self.ttl)
    }
}
