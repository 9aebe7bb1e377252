//! A store's answers.

use std::time::Duration;

use crate::{FencingToken, HolderInfo};

/// The answer to [`Claim::try_acquire`](crate::Claim::try_acquire).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Attempt {
    /// The lock is ours.
    Granted {
        /// The fencing token of this hold; the first one, if the request asked for
        /// [several](crate::ClaimRequest::fences). A repeated call returns the same one (clause C2).
        token: FencingToken,
        /// How long after the start of this very call the store keeps the lock, at least (clause
        /// C4). `None` only where place and lock are one and the same lease, whose end the core
        /// knows from earlier answers.
        valid_for: Option<Duration>,
    },
    /// Another client has it.
    Busy(Busy),
}

/// What is known about a lock that another client has. A store fills in what its answer shows
/// without a further request, and leaves out the rest (clause C15).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Busy {
    /// How long after the start of this very call the store keeps *our place in the queue*, at
    /// least; `None` if we have no place.
    pub valid_for: Option<Duration>,
    /// The longest sensible pause before the next attempt, for instance until the holder's lease
    /// will have ended, and never zero; `None` if the store cannot tell.
    pub retry_after: Option<Duration>,
    /// The holder. Shown to the user if the wait fails.
    pub holder: Option<Box<HolderInfo>>,
}

impl Busy {
    /// Adds a [place in the queue](Self::valid_for) for this long.
    #[must_use]
    pub fn with_place(mut self, valid_for: impl Into<Option<Duration>>) -> Self {
        self.valid_for = valid_for.into();
        self
    }

    /// Adds the time of the [next attempt](Self::retry_after).
    #[must_use]
    pub fn with_retry_after(mut self, after: impl Into<Option<Duration>>) -> Self {
        self.retry_after = after.into();
        self
    }

    /// Adds the [holder](Self::holder).
    #[must_use]
    pub fn with_holder(mut self, holder: HolderInfo) -> Self {
        self.holder = Some(Box::new(holder));
        self
    }
}

impl Attempt {
    /// Whether, by this answer, the store has an entry of ours: a place or the lock.
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
        /// How long after the start of this very call the store keeps it, at least; `None` if this
        /// call says nothing new about that.
        valid_for: Option<Duration>,
    },
    /// The store says that it is no longer ours.
    Lost,
}

/// The answer to [`Claim::release`](crate::Claim::release).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Released {
    /// We had a place or the lock, and it is gone now.
    Freed,
    /// We had none. After a release whose answer was lost, this means success.
    AlreadyGone,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_answer_leaves_an_entry_only_with_a_place() {
        let valid_for = Some(Duration::from_secs(1));
        assert!(
            Attempt::Granted { token: FencingToken::new(1).unwrap(), valid_for: None }.has_entry()
        );
        assert!(Attempt::Busy(Busy::default().with_place(valid_for)).has_entry());
        assert!(!Attempt::Busy(Busy::default().with_retry_after(valid_for)).has_entry());
    }
}
