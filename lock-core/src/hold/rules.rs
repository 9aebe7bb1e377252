//! When a hold may be passed on to the next task of its process, and with which fence.

use std::time::Duration;

use crate::hold::LockTerms;
use crate::{ClockInstant, LostReason};

/// How long after its grant a hold may be passed on: whoever waits elsewhere waits for one cohort at
/// most.
pub(crate) fn longest() -> Duration {
    Duration::from_millis(50)
}

/// Whether there is a fence for one more holder.
pub(crate) fn has_room(holders: u32, fences: u32) -> bool {
    holders < fences
}

/// The fence of the next holder, in a block that begins with `first`.
pub(crate) fn next_fence(first: u64, holders: u32) -> u64 {
    first + u64::from(holders)
}

/// Whether the hold has ended by the will of its holder.
pub(crate) fn is_given_up(ended: LostReason) -> bool {
    ended == LostReason::Released
}

/// Whether enough is left of it.
pub(crate) fn is_valid(until: ClockInstant, now: ClockInstant) -> bool {
    until > now
}

/// Whether the store has said nothing that was not looked at, and its last answer was a good one.
pub(crate) fn is_quiet(no_push: bool, failures: u32, checked: bool) -> bool {
    no_push && failures == 0 && checked
}

/// Whether a task that waits on `theirs` can have a hold on `ours`.
pub(crate) fn joins(ours: &LockTerms, theirs: &LockTerms) -> bool {
    ours == theirs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hold_that_ends_at_this_moment_is_not_passed_on() {
        let now = ClockInstant::from_nanos(5);
        assert!(!is_valid(now, now));
        assert!(is_valid(ClockInstant::from_nanos(6), now));
    }
}
