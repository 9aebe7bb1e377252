//! What was asked for.

use std::time::Duration;

use crate::ClockInstant;
use crate::locks::held::margin;

/// What was asked for, checked and rounded.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    pub(crate) ttl: Duration,
    /// How often the lock is renewed; `None` for never.
    pub(crate) renew_every: Option<Duration>,
    /// How often it is renewed once renewal is requested.
    pub(crate) every: Duration,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) call_timeout: Duration,
    pub(crate) unavailable_after: Duration,
}

impl Terms {
    /// By when the store must have ended whatever a request sent at `sent` makes or prolongs.
    pub(super) fn gone_at(&self, sent: ClockInstant) -> ClockInstant {
        sent + self.ttl + margin(self.ttl)
    }
}
