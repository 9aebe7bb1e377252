//! Why a lock is lost.

/// Why a lock is no longer held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum LostReason {
    /// The lease ran out before a renewal succeeded.
    #[error("its lease ran out before a renewal succeeded")]
    Expired,
    /// The store said that the lock is no longer ours: it was taken away, or the store lost it.
    #[error("the store says that it is not ours any more")]
    Taken,
    /// [`Lock::max_hold`](crate::Lock::max_hold) was reached.
    #[error("the longest allowed hold was reached")]
    MaxHold,
    /// The guard released it or was dropped.
    #[error("it was released")]
    Released,
    /// It was handed to another process.
    #[error("it was handed to another process")]
    Detached,
    /// The `Locks` was closed, or its runtime ended, while the guard was alive.
    #[error("the connection to the store was closed")]
    Closed,
}
