//! Known mistakes of the core, and the test that catches each.

pub use crate::kinds::rules::{KindMistake, make};
use crate::testing::Mutant;

/// The mistakes in passing a hold on.
pub const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "a_fence_twice",
        what: "a hold is passed on with the fence of the holder before",
        killed_by: "s02_a_hold_is_passed_on_with_a_greater_token",
    },
    Mutant {
        name: "cohort_without_end",
        what: "a hold is passed on as long as anybody of the process waits",
        killed_by: "l03_a_cohort_ends_after_so_many_holders",
    },
    Mutant {
        name: "cohort_for_ever",
        what: "a cohort has no end in time",
        killed_by: "l03_a_cohort_ends_with_its_time",
    },
    Mutant {
        name: "passes_on_what_was_taken",
        what: "a hold is passed on although the store has said that it was taken away",
        killed_by: "s05_a_lost_hold_is_not_passed_on",
    },
    Mutant {
        name: "passes_on_what_is_capped",
        what: "a hold is passed on when max_hold is over",
        killed_by: "s05_a_hold_that_has_ended_is_not_passed_on",
    },
    Mutant {
        name: "passes_on_what_is_over",
        what: "a hold is passed on when its lease has ended",
        killed_by: "s05_a_hold_that_has_ended_is_not_passed_on",
    },
    Mutant {
        name: "passes_on_the_rest",
        what: "a hold is passed on at the end of its validity",
        killed_by: "the_rest_of_a_hold_is_not_passed_on",
    },
    Mutant {
        name: "passes_on_in_doubt",
        what: "a hold is passed on although the store has pushed a change, or a renewal has failed",
        killed_by: "s05_a_hold_in_doubt_is_not_passed_on",
    },
    Mutant {
        name: "passes_on_to_anybody",
        what: "a task joins that has asked for something else",
        killed_by: "s05_only_equal_tasks_join_a_cohort",
    },
];

/// The mistakes of the clock, which `tests/suspended.rs` catches.
pub const CLOCK_MUTANTS: &[Mutant] = &[
    Mutant {
        name: "counts_while_awake",
        what: "leases are counted on a clock that stands still while the machine sleeps",
        killed_by: "a_lease_is_counted_while_the_machine_sleeps",
    },
    Mutant {
        name: "wakes_while_awake",
        what: "sleepers are woken by a timer that stands still while the machine sleeps",
        killed_by: "a_lease_is_counted_while_the_machine_sleeps",
    },
];
