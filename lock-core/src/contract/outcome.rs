//! The answers of a store.

use std::time::Duration;

use crate::{FencingToken, HolderInfo};

/// The answer to [`Claim::try_acquire`](crate::Claim::try_acquire).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Attempt {
    /// The lock is ours.
    Granted {
        /// The fencing token of this hold. A repeated call returns the same one (clause C2).
        token: FencingToken,
        /// How long after the start of this very call the store keeps the lock at least (clause
        /// C4). `None` only where place and lock are one and the same lease, whose end the core
        /// knows from earlier answers.
        valid_for: Option<Duration>,
    },
    /// Somebody else has it.
    Busy(Busy),
}

/// What is known of a lock that somebody else has. A store says what its answer has shown at no further
/// request, and leaves out the rest (clause C15).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Busy {
    /// How long after the start of this very call the store keeps *our place in the queue* at
    /// least; `None` if we have no place.
    pub valid_for: Option<Duration>,
    /// After how long it is worth looking again at the latest, for instance when the holder's
    /// lease will have ended; `None` if the store has no idea.
    pub retry_after: Option<Duration>,
    /// Who has it. Shown to the user if the wait is in vain.
    pub holder: Option<Box<HolderInfo>>,
}

impl Busy {
    /// With a [place in the queue](Self::valid_for) for this long.
    #[must_use]
    pub fn with_place(mut self, valid_for: impl Into<Option<Duration>>) -> Self {
        self.valid_for = valid_for.into();
        self
    }

    /// With the time of the [next look](Self::retry_after).
    #[must_use]
    pub fn with_retry_after(mut self, after: impl Into<Option<Duration>>) -> Self {
        self.retry_after = after.into();
        self
    }

    /// With the [holder](Self::holder).
    #[must_use]
    pub fn with_holder(mut self, holder: HolderInfo) -> Self {
        self.holder = Some(Box::new(holder));
        self
    }
}

impl Attempt {
    /// Whether the store has an entry of ours by this answer: a place or the lock.
    pub(crate) fn has_entry(&self) -> bool {
        match self {
            Self::Granted { .. } => true,
            Self::Busy(busy) => busy.valid_for.is_some(),
        }
    }
}

/// The answer to [`Claim::renew`](crate::Claim::renew) and [`Claim::check`](crate::Claim::check).
/// An error is neither: the hold is unknown, not lost, and not prolonged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Renewal {
    /// The place or the lock is still ours.
    Alive {
        /// How long after the start of this very call the store keeps it at least; `None` if this
        /// call says nothing new about that.
        valid_for: Option<Duration>,
    },
    /// The store says that it is not ours any more.
    Lost,
}

/// The answer to [`Claim::release`](crate::Claim::release).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Released {
    /// There was a place or a lock of ours, and it is gone now.
    Freed,
    /// There was none. After a release whose answer was lost this is success.
    AlreadyGone,
}
