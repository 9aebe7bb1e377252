//! For how long one operation may take. The same for the dialects that repeat a statement while somebody
//! else writes.

use std::time::Duration;

use lock_core::ClockInstant;

/// How long one operation may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) whole: Duration,
    pub(crate) end: ClockInstant,
    /// Until when it is repeated while somebody else writes.
    pub(crate) patience: ClockInstant,
}

impl Limits {
    /// Repeats for three quarters of the time, so that some is left to say that it was in vain.
    pub(crate) fn patient(start: ClockInstant, whole: Duration) -> Self {
        Self { whole, end: start + whole, patience: start + whole * 3 / 4 }
    }

    /// Does not repeat.
    pub(crate) fn once(start: ClockInstant, whole: Duration) -> Self {
        Self { whole, end: start + whole, patience: start }
    }
}
