//! The locks of other kinds in a phase: where the history has their parts.

use serde::{Deserialize, Serialize};

/// How many permits there are.
pub(crate) const PERMITS: u32 = 2;

/// A semaphore, and a lock of readers and writers. The history has their parts behind the plain locks, which are also
/// taken several at a time, and by candidates.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Parts {
    /// How many plain locks there are.
    pub(crate) plain: usize,
    pub(crate) permits: String,
    pub(crate) resource: String,
}

impl Parts {
    pub(crate) fn new(round: u64, plain: usize) -> Self {
        Self { plain, permits: format!("r{round}-permits"), resource: format!("r{round}-resource") }
    }

    /// The slots of the permits, each an exclusive lock.
    pub(crate) fn slots(&self) -> std::ops::Range<usize> {
        self.plain..self.plain + PERMITS as usize
    }

    pub(crate) fn writes(&self) -> usize {
        self.slots().end
    }

    pub(crate) fn reads(&self) -> usize {
        self.writes() + 1
    }

    /// The names of the parts, in their order. Those who read have no lock in common.
    pub(crate) fn names(&self) -> impl Iterator<Item = String> {
        let slots = (0..PERMITS).map(|slot| format!("{}~~p{slot}", self.permits));
        slots.chain([format!("{}~~g", self.resource), format!("{}, reads", self.resource)])
    }

    /// What the names of all locks of which they are made begin with.
    pub(crate) fn wholes(&self) -> [&str; 2] {
        [&self.permits, &self.resource]
    }
}
