//! What must hold in every run.

use std::fmt;

/// A promise of the core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Property {
    /// Two clients never believe at once that they hold a lock.
    OneHolder,
    /// A fence is greater than each that was given before its acquisition began.
    RisingFences,
    /// A hold counts as lost before the store may end it, however late its tasks run.
    ValidNoLonger,
    /// The signal of a loss comes before the store may end the hold, if the task that waits runs.
    LossInTime,
    /// The work under a lock is not continued after its loss.
    StoppedWork,
    /// A lock that nobody uses goes to somebody who waits for it.
    NoStarvation,
    /// What was dropped, released or given up leaves nothing in the store.
    NoLeftovers,
    /// The calls of a claim follow the table of the contract: nothing but a release after a release.
    LegalCalls,
    /// A call with a limit ends at it.
    LimitKept,
    /// The run ends.
    Progress,
}

/// A broken promise.
#[derive(Clone, Debug)]
pub struct Violation {
    /// What was broken.
    pub property: Property,
    /// How.
    pub what: String,
}

impl Violation {
    pub(crate) fn new(property: Property, what: impl Into<String>) -> Self {
        Self { property, what: what.into() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.property, self.what)
    }
}
