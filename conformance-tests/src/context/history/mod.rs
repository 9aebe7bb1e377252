//! The history checker: were there ever two holders, or more than there may be, did the fences rise, and was each look
//! at a true state?
//!
//! A granted lock carries its place in the order of holders: the fence. So no search is needed. In
//! order of fences, each hold is put at the earliest points in time that its observations allow; if
//! that fails for one, no placement exists.

#[cfg(test)]
mod brute_force;
mod check;
mod kinds;
mod looks;

use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};

pub use check::{Violation, check, check_fences, overlaps};
pub use kinds::{check_marks, conflicts, crowd};
pub(crate) use looks::{LookRecord, check_looks};

/// One hold, as its holder saw it. Times are nanoseconds of one clock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoldRecord {
    /// The client, for messages.
    pub client: u32,
    /// When the acquisition was requested.
    pub invoked: u64,
    /// When it was granted.
    pub granted: u64,
    /// The fencing token.
    pub fence: u64,
    /// The latest end of validity that the holder believed in.
    pub valid_until: u64,
    /// When the release was requested; `None` if never.
    pub release_invoked: Option<u64>,
    /// When the release was confirmed; `None` if it was not, or was never requested.
    pub released: Option<u64>,
    /// When the holder was told that it had lost the lock.
    pub lost: Option<u64>,
}

impl HoldRecord {
    /// A hold that was neither released nor lost.
    pub fn new(client: u32, invoked: u64, granted: u64, fence: u64, valid_until: u64) -> Self {
        Self {
            client,
            invoked,
            granted,
            fence,
            valid_until,
            release_invoked: None,
            released: None,
            lost: None,
        }
    }

    /// Until when the holder believed in it.
    pub fn end(&self) -> u64 {
        let told = self.release_invoked.into_iter().chain(self.lost);
        told.fold(self.valid_until, u64::min)
    }
}

/// The holds of one name, recorded by many tasks.
#[derive(Clone, Debug, Default)]
pub(crate) struct History(Arc<Mutex<Vec<HoldRecord>>>);

impl History {
    pub(crate) fn add(&self, hold: HoldRecord) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(hold);
    }

    pub(crate) fn len(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// S1 and S2 over all holds.
    pub(crate) fn check(&self) -> Result<(), Violation> {
        check(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
