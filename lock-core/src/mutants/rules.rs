//! The rules of a cohort, each wrong when its mistake is wanted.

use std::time::Duration;

use crate::hold::LockTerms;
use crate::kinds::rules::{KindMistake, makes};
use crate::testing::Mutant;
use crate::{ClockInstant, LostReason};

#[path = "../hold/rules.rs"]
mod right;

pub(crate) fn longest() -> Duration {
    if Mutant::is_wanted("cohort_for_ever") { Duration::from_secs(3600) } else { right::longest() }
}

pub(crate) fn has_room(holders: u32, fences: u32) -> bool {
    Mutant::is_wanted("cohort_without_end") || right::has_room(holders, fences)
}

pub(crate) fn next_fence(first: u64, holders: u32) -> u64 {
    let before = u32::from(Mutant::is_wanted("a_fence_twice"));
    right::next_fence(first, holders - before)
}

pub(crate) fn is_given_up(ended: LostReason) -> bool {
    let too = match ended {
        LostReason::Taken => "passes_on_what_was_taken",
        LostReason::MaxHold => "passes_on_what_is_capped",
        LostReason::Expired => "passes_on_what_is_over",
        _ => return right::is_given_up(ended),
    };
    Mutant::is_wanted(too) || right::is_given_up(ended)
}

pub(crate) fn is_valid(until: ClockInstant, now: ClockInstant) -> bool {
    Mutant::is_wanted("passes_on_what_is_over")
        || Mutant::is_wanted("passes_on_the_rest")
        || right::is_valid(until, now)
}

pub(crate) fn is_quiet(no_push: bool, failures: u32, checked: bool) -> bool {
    Mutant::is_wanted("passes_on_what_was_taken")
        || Mutant::is_wanted("passes_on_in_doubt")
        || right::is_quiet(no_push, failures, checked)
}

pub(crate) fn joins(ours: &LockTerms, theirs: &LockTerms) -> bool {
    Mutant::is_wanted("passes_on_to_anybody")
        || makes(KindMistake::PassesPartsOn)
        || right::joins(ours, theirs)
}
