//! What the store said last.

use std::sync::Arc;

use crate::{ClockInstant, Error, HolderInfo};

/// What the store said last to a task that asked for the lock.
#[derive(Clone, Debug)]
pub(super) enum Last {
    /// The lock, or that somebody else has it, and who, if it said that.
    Answer(Option<Arc<SeenHolder>>),
    /// An error, or no answer.
    Failure(Error),
}

/// A holder, and when the store showed it.
#[derive(Debug)]
pub(super) struct SeenHolder {
    pub(super) holder: HolderInfo,
    pub(super) at: ClockInstant,
}
