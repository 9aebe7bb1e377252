//! The rules, with a mistake in one of them if it is wanted.

#[path = "../rules.rs"]
mod right;

use std::sync::OnceLock;
use std::time::Duration;

use lock_core::testing::Mutant;
use lock_core::{FencingToken, OwnerId};
use tokio::runtime::Id;
use tokio::sync::watch;

use crate::queue::entry::QueueEntry;
use crate::wire::messages::Mark;
use crate::wire::protobuf::KeyValue;

pub(crate) fn is_ours(written: Option<OwnerId>, ours: OwnerId) -> bool {
    Mutant::is_wanted("believes_the_owner") || right::is_ours(written, ours)
}

pub(crate) fn is_told(told: FencingToken, found: FencingToken) -> bool {
    Mutant::is_wanted("believes_the_fence") || right::is_told(told, found)
}

pub(crate) fn is_asked(granted: Duration, asked: Duration) -> bool {
    Mutant::is_wanted("takes_any_ttl") || right::is_asked(granted, asked)
}

pub(crate) fn token(entry: &QueueEntry) -> FencingToken {
    let lease = entry.key.rsplit('/').next().and_then(|id| i64::from_str_radix(id, 16).ok());
    match lease.map(FencingToken::answered) {
        Some(Ok(token)) if Mutant::is_wanted("fence_is_the_lease") => token,
        _ => right::token(entry),
    }
}

pub(crate) fn base(base: i64, revision: i64, highest: i64, now: i64) -> i64 {
    let is_above = base > 0 && base.saturating_add(revision) >= highest;
    if is_above && Mutant::is_wanted("base_is_never_lifted") {
        base
    } else {
        right::base(base, revision, highest, now)
    }
}

pub(crate) fn floor(base: i64, revision: i64, highest: i64) -> i64 {
    if Mutant::is_wanted("floor_is_the_revision") {
        return revision;
    }
    let highest = if Mutant::is_wanted("floor_is_what_is_stored") { 0 } else { highest };
    let is_next = Mutant::is_wanted("floor_is_the_next_fence");
    right::floor(base, revision + i64::from(is_next), highest)
}

pub(crate) fn is_in_use(found: i64, used: i64) -> bool {
    !Mutant::is_wanted("raises_what_is_in_use") && right::is_in_use(found, used)
}

pub(crate) fn goes_on(seen: Mark, shown: Mark) -> bool {
    Mutant::is_wanted("trusts_a_store_that_went_back")
        || (Mutant::is_wanted("hears_only_of_revisions") && shown.revision >= seen.revision)
        || right::goes_on(seen, shown)
}

pub(crate) fn is_spare<Era: PartialEq>(granted: Era, now: Era) -> bool {
    Mutant::is_wanted("keeps_leases_of_the_past") || right::is_spare(granted, now)
}

pub(crate) fn is_in_time(reports: i64, from: i64) -> bool {
    Mutant::is_wanted("shares_a_watch_that_has_passed") || right::is_in_time(reports, from)
}

pub(crate) fn is_news(at: i64, from: i64) -> bool {
    Mutant::is_wanted("hears_of_what_was_before") || right::is_news(at, from)
}

pub(crate) fn stood_since<Count: PartialEq>(then: Count, now: Count) -> bool {
    Mutant::is_wanted("trusts_its_watch") || right::stood_since(then, now)
}

pub(crate) fn runtime() -> Id {
    static FIRST: OnceLock<Id> = OnceLock::new();
    if Mutant::is_wanted("serves_all_on_one_runtime") {
        *FIRST.get_or_init(right::runtime)
    } else {
        right::runtime()
    }
}

pub(crate) fn is_waiting(entry: &QueueEntry, found: &KeyValue) -> bool {
    Mutant::is_wanted("hands_to_a_key") || right::is_waiting(entry, found)
}

pub(crate) fn is_first<Footing: PartialEq>(held: Option<Footing>, now: Footing) -> bool {
    Mutant::is_wanted("hands_on_a_place")
        || (held.is_some() && Mutant::is_wanted("proves_over_a_restore"))
        || right::is_first(held, now)
}

pub(crate) fn is_one_history<Footing: PartialEq>(then: Footing, now: Footing) -> bool {
    Mutant::is_wanted("proves_over_a_restore") || right::is_one_history(then, now)
}

pub(crate) fn is_one_era<Era: PartialEq>(then: Era, now: Era) -> bool {
    Mutant::is_wanted("keeps_watches_of_the_past") || right::is_one_era(then, now)
}

pub(crate) fn is_fresh(age: Duration, limit: Duration) -> bool {
    Mutant::is_wanted("believes_an_old_proof") || right::is_fresh(age, limit)
}

pub(crate) async fn answered(mut release: watch::Receiver<()>) {
    if Mutant::is_wanted("waits_for_any_answer") {
        let _ = release.changed().await;
    } else {
        right::answered(release).await;
    }
}
