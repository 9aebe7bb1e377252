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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FencingToken;

    #[test]
    fn a_lock_has_moved_if_its_fence_is_another_one() {
        let held = |fence| {
            let mut holder = HolderInfo::new(None);
            holder.fence = FencingToken::new(fence).ok();
            holder
        };
        let seen = |holder| {
            let at = ClockInstant::from_nanos(0);
            Last::Answer(Some(Arc::new(SeenHolder { holder, at })))
        };
        assert!(seen(held(1)).is_before(Some(&held(2))));
        assert!(!seen(held(1)).is_before(Some(&held(1))));
        assert!(!seen(held(0)).is_before(Some(&held(2))), "it was not shown");
        assert!(!seen(held(1)).is_before(None));
        assert!(!Last::Answer(None).is_before(Some(&held(1))));
    }
}
