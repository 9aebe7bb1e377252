//! What was asked for.

use std::time::Duration;

/// What was asked for, checked and rounded.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    pub(crate) ttl: Duration,
    /// How often the lock is renewed; `None` for never.
    pub(crate) renew_every: Option<Duration>,
    /// How often it is renewed once that is asked for.
    pub(crate) every: Duration,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) call_timeout: Duration,
    pub(crate) unavailable_after: Duration,
}
