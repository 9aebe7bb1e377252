//! The decisions that no request or reply shows, one line each.

use std::time::Duration;

use lock_core::{FencingToken, OwnerId};

use crate::entry::Entry;
use crate::proto::KeyValue;

/// The rules by which a store decides.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// Whether a key that was `written` by this owner is an entry of `ours`.
    pub(crate) is_ours: fn(written: Option<OwnerId>, ours: OwnerId) -> bool,
    /// Whether a lease token that names the fence `told` matches the entry with the fence `found`.
    pub(crate) is_told: fn(told: FencingToken, found: FencingToken) -> bool,
    /// Whether a lease that was `granted` for this long is what the caller `asked` for.
    pub(crate) is_asked: fn(granted: Duration, asked: Duration) -> bool,
    /// The fence of an entry that is bound to this lease.
    pub(crate) fence: fn(fence: FencingToken, lease: i64) -> FencingToken,
    /// The base to use if the store has `base` at `revision`: the same, unless the next fence would
    /// be behind the clock or not above `highest`.
    pub(crate) base: fn(base: i64, revision: i64, highest: i64, now: i64) -> i64,
    /// Whether a base that the store shows is in use if we have used the base `used`. It only ever
    /// rises, and whoever raised it did so by the clock.
    pub(crate) is_in_use: fn(found: i64, used: i64) -> bool,
    /// Whether a fence is above the highest one before it.
    pub(crate) rises: fn(fence: i64, highest: i64) -> bool,
    /// Whether a watch that reports changes from `reports` on serves a claim that has to hear of
    /// those from `from` on.
    pub(crate) is_in_time: fn(reports: i64, from: i64) -> bool,
    /// Whether a change at `at` concerns a claim that watches from `from` on.
    pub(crate) is_news: fn(at: i64, from: i64) -> bool,
    /// Whether the key that was `found` is the entry at which one of our claims waits.
    pub(crate) is_waiting: fn(entry: &Entry, found: &KeyValue) -> bool,
    /// Whether a proof of this age may be taken where a request has this timeout.
    pub(crate) is_fresh: fn(age: Duration, limit: Duration) -> bool,
    /// How long a waiter waits for the answer to the release of the entry before it.
    pub(crate) answer_in: Duration,
}

/// A base whose fences are behind the clock by less than this is not raised. Other clients must
/// read a raised base again, so this bounds how often a cluster with many short-lived clients does
/// that.
const LAG: i64 = 100_000;

pub(crate) const RULES: Rules = Rules {
    is_ours: |written, ours| written == Some(ours),
    is_told: |told, found| told == found,
    is_asked: |granted, asked| granted == asked,
    fence: |fence, _| fence,
    base: |base, revision, highest, now| {
        let next = base.saturating_add(revision);
        if base > 0 && next >= highest && next >= now - LAG {
            return base;
        }
        now.max(highest).saturating_sub(revision).max(base + 1)
    },
    is_in_use: |found, used| found >= used,
    rises: |fence, highest| fence > highest,
    is_in_time: |reports, from| reports <= from,
    is_news: |at, from| at >= from,
    is_waiting: |entry, found| entry.rev == found.create_revision && entry.value == found.value,
    is_fresh: |age, limit| age <= limit,
    answer_in: Duration::from_millis(20),
};

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_763_000_000_000_000;

    #[test]
    fn a_base_is_lifted_to_the_clock_and_never_lowered() {
        for (what, base, revision, highest, expected) in [
            ("a new cluster", 0, 5, 0, NOW - 5),
            ("one that is up to date", NOW - 50, 20, NOW - 40, NOW - 50),
            ("a little behind", NOW - LAG, 0, 0, NOW - LAG),
            ("a snapshot of an hour ago", NOW - 3_600_000_000, 20, 0, NOW - 20),
            ("a clock that has gone back", NOW + 1000, 20, NOW + 1005, NOW + 1000),
            ("a cluster that was wiped", 0, 5, NOW + 1000, NOW + 995),
            ("a snapshot, and a clock behind", NOW, 7, NOW + 1000, NOW + 993),
        ] {
            let base_now = (RULES.base)(base, revision, highest, NOW);
            assert_eq!(base_now, expected, "{what}");
            assert!(base_now >= base && base_now + revision + 1 > highest, "{what}");
        }
    }
}
