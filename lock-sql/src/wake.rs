//! How a waiter is woken.
//!
//! SQLite cannot push to another process, so its waiters poll: the core does that, with jitter, and
//! what is here tells it when the next look is worth while. A dialect that can push implements
//! [`Dialect::changed`](crate::dialect::Dialect::changed).

use std::time::Duration;

use lock_core::Attempt;

/// The pause before the next look when somebody else was writing, so that the question whether the
/// lock is free could not even be asked. A write takes as long as the disk needs to sync.
pub(crate) const WHILE_CONTENDED: Duration = Duration::from_millis(5);

/// The answer to a waiter: somebody else has the lock, for `left` unless it is renewed. There is no
/// queue in the table, so nobody has a place in it (clause C13).
pub(crate) fn busy(left: Option<Duration>) -> Attempt {
    Attempt::Busy { valid_for: None, retry_after: left }
}
