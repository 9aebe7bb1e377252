//! What the store said last.

use std::sync::Arc;

use crate::{ClockInstant, Error, HolderInfo};

/// What the store said last.
#[derive(Clone, Debug)]
pub(super) enum Last {
    /// The lock, or that another client has it, and who, if the store said so.
    Answer(Option<Arc<SeenHolder>>),
    /// An error, or no answer.
    Failure(Error),
}

impl Last {
    /// Whether the lock has gone from one holder to the next since then.
    pub(super) fn is_before(&self, holder: Option<&HolderInfo>) -> bool {
        match (self, holder) {
            (Self::Answer(Some(seen)), Some(holder)) => {
                seen.holder.fence.is_some() && seen.holder.fence != holder.fence
            }
            _ => false,
        }
    }
}

/// A holder, and when the store showed it.
#[derive(Debug)]
pub(super) struct SeenHolder {
    pub(super) holder: HolderInfo,
    pub(super) at: ClockInstant,
}
