//! Whether a store can be used.

use std::time::Duration;

/// The answer of [`Locks::health`](crate::Locks::health).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Health {
    /// How long the store took to answer.
    pub answered_in: Duration,
    /// How many locks this `Locks` and its clones hold, wait for, or still have to clean up. If it
    /// keeps rising, guards are leaking, or the store cannot be reached to release them.
    pub in_use: usize,
}
