//! The decisions that no request or reply shows.

use std::time::Duration;

use lock_core::{FencingToken, OwnerId};
pub(crate) use lock_kit::neighbours::answered;
use tokio::runtime::{Handle, Id};

use crate::queue::entry::QueueEntry;
use crate::wire::messages::Mark;
use crate::wire::protobuf::KeyValue;

/// A base whose fences are behind the clock by less than this is not raised. Other clients must
/// read a raised base again, so this bounds how often a cluster with many short-lived clients does
/// that.
const LAG: i64 = 100_000;

/// Whether a key that was `written` by this owner is an entry of `ours`.
pub(crate) fn is_ours(written: Option<OwnerId>, ours: OwnerId) -> bool {
    written == Some(ours)
}

/// Whether a lease token that names the fence `told` matches the entry with the fence `found`.
pub(crate) fn is_told(told: FencingToken, found: FencingToken) -> bool {
    told == found
}

/// Whether a lease that was `granted` for this long is what the caller `asked` for.
pub(crate) fn is_asked(granted: Duration, asked: Duration) -> bool {
    granted == asked
}

/// The fencing token of who holds the lock by this entry.
pub(crate) fn token(entry: &QueueEntry) -> FencingToken {
    entry.fence
}

/// The base to use if the store has `base` at `revision`: the same, unless the next fence would
/// be behind the clock or not above `highest`.
pub(crate) fn base(base: i64, revision: i64, highest: i64, now: i64) -> i64 {
    let next = base.saturating_add(revision);
    if base > 0 && next >= highest && next >= now - LAG {
        return base;
    }
    now.max(highest).saturating_sub(revision).max(base + 1)
}

/// The floor of a lock that is free at `revision`, where the store has `base`. The next fence is above both.
pub(crate) fn floor(base: i64, revision: i64, highest: i64) -> i64 {
    base.saturating_add(revision).max(highest)
}

/// Whether a base that the store shows is in use if we have used the base `used`. It only ever
/// rises, and whoever raised it did so by the clock.
pub(crate) fn is_in_use(found: i64, used: i64) -> bool {
    found >= used
}

/// Whether a store that shows this is still the one that has shown what was `seen` before.
pub(crate) fn goes_on(seen: Mark, shown: Mark) -> bool {
    shown.revision >= seen.revision && (seen.term == 0 || shown.term == seen.term)
}

/// Whether a lease is good for another lock that was granted in this era, where it is another
/// one `now`.
pub(crate) fn is_spare<Era: PartialEq>(granted: Era, now: Era) -> bool {
    granted == now
}

/// Whether a watch reports changes from `reports` on early enough for a claim that has to hear of
/// those from `from` on.
pub(crate) fn is_in_time(reports: i64, from: i64) -> bool {
    reports <= from
}

/// Whether a change at `at` concerns a claim that watches from `from` on.
pub(crate) fn is_news(at: i64, from: i64) -> bool {
    at >= from
}

/// Whether a watch has stood since the read that it follows: no stream was opened since `then`.
pub(crate) fn stood_since<Count: PartialEq>(then: Count, now: Count) -> bool {
    then == now
}

/// The runtime that serves the watches that are asked for here.
pub(crate) fn runtime() -> Id {
    Handle::current().id()
}

/// Whether the key that was `found` is the entry at which one of our claims waits.
pub(crate) fn is_waiting(entry: &QueueEntry, found: &KeyValue) -> bool {
    entry.rev == found.create_revision && entry.value == found.value
}

/// Whether an entry leaves the one behind it as the first: it is the holder's, which saw on `held` that it was the
/// first itself.
pub(crate) fn is_first<Footing: PartialEq>(held: Option<Footing>, now: Footing) -> bool {
    held.is_some_and(|held| is_one_history(held, now))
}

/// Whether nothing shows that the store went back between two reads.
pub(crate) fn is_one_history<Footing: PartialEq>(then: Footing, now: Footing) -> bool {
    then == now
}

/// Whether a watch goes on that was started in this era, where it is another one `now`.
pub(crate) fn is_one_era<Era: PartialEq>(then: Era, now: Era) -> bool {
    then == now
}

/// Whether a proof of this age may be taken where a request has this timeout.
pub(crate) fn is_fresh(age: Duration, limit: Duration) -> bool {
    age <= limit
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_763_000_000_000_000;

    #[test]
    fn a_base_is_lifted_to_the_clock_and_never_lowered() {
        for (what, found, revision, highest, expected) in [
            ("a new cluster", 0, 5, 0, NOW - 5),
            ("one that is up to date", NOW - 50, 20, NOW - 40, NOW - 50),
            ("a little behind", NOW - LAG, 0, 0, NOW - LAG),
            ("a snapshot of an hour ago", NOW - 3_600_000_000, 20, 0, NOW - 20),
            ("a clock that has gone back", NOW + 1000, 20, NOW + 1005, NOW + 1000),
            ("a cluster that was wiped", 0, 5, NOW + 1000, NOW + 995),
            ("a snapshot, and a clock behind", NOW, 7, NOW + 1000, NOW + 993),
        ] {
            let lifted = base(found, revision, highest, NOW);
            assert_eq!(lifted, expected, "{what}");
            assert!(lifted >= found && lifted + revision + 1 > highest, "{what}");
        }
    }
}
