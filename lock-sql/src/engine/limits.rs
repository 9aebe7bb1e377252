//! For how long one operation may take. The same for the dialects that repeat a statement while somebody
//! else writes.

use std::time::Duration;

use lock_core::ClockInstant;

use crate::engine::entry::Entry;

/// How much later than a renewal asks for a lease may end already, in µs, without being cut. A hold that
/// was taken over ends by the ttl of its new holder (clause C14), which may be shorter. But a statement
/// that has waited must not cut what a later one has promised: none waits for as long as this. Nobody
/// else's renewal cuts anything.
pub(crate) fn longest_excess(entry: &Entry) -> i64 {
    match entry.taken_over {
        Some(_) => 3_000_000,
        // A sum with it and a time in µs does not overflow.
        None => i64::MAX / 4,
    }
}

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
