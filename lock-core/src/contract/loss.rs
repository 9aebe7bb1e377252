//! Why a lock is lost.

use std::fmt;

/// Why a lock is not held any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LostReason {
    /// The lease ran out before a renewal succeeded.
    Expired,
    /// The store said that the lock is not ours any more: it was taken away, or the store lost it.
    Taken,
    /// [`Lock::max_hold`](crate::Lock::max_hold) was reached.
    MaxHold,
    /// The guard released it or was dropped.
    Released,
    /// It was handed to another process.
    Detached,
    /// The `Locks` was closed, or its runtime ended, while the guard was alive.
    Closed,
}

impl fmt::Display for LostReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expired => "its lease ran out before a renewal succeeded",
            Self::Taken => "the store says that it is not ours any more",
            Self::MaxHold => "the longest allowed hold was reached",
            Self::Released => "it was released",
            Self::Detached => "it was handed to another process",
            Self::Closed => "the connection to the store was closed",
        })
    }
}
