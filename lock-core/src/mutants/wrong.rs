//! Known mistakes of the core, and the test that catches each.

use std::sync::LazyLock;
use std::time::Duration;

use crate::LostReason;
use crate::keeper::Rules;

/// The environment variable that names the mistake to make.
pub const VARIABLE: &str = "LOCK_CORE_MUTANT";

/// One mistake.
#[derive(Clone, Copy, Debug)]
pub struct Mutant {
    /// Its name.
    pub name: &'static str,
    /// What is wrong.
    pub what: &'static str,
    /// The case of the suite, or the scene, that fails for it.
    pub killed_by: &'static str,
    mistake: fn(&mut Rules),
}

macro_rules! mutants {
    ($($name:ident: $what:literal, $killed_by:ident, $mistake:expr;)+) => {
        /// All mistakes.
        pub const MUTANTS: &[Mutant] = &[$(Mutant {
            name: stringify!($name),
            what: $what,
            killed_by: stringify!($killed_by),
            mistake: $mistake,
        },)+];
    };
}

mutants! {
    a_fence_twice: "a hold is passed on with the fence of the holder before",
        s02_a_hold_is_passed_on_with_a_greater_token,
        |rules| rules.fence = |first, holders| first + u64::from(holders) - 1;
    cohort_without_end: "a hold is passed on as long as anybody of the process waits",
        l03_a_cohort_ends_after_so_many_holders, |rules| rules.has_room = |_, _| true;
    cohort_for_ever: "a cohort has no end in time",
        l03_a_cohort_ends_with_its_time, |rules| rules.longest = Duration::from_secs(3600);
    passes_on_what_was_taken: "a hold is passed on although the store has said that it was taken away",
        s05_a_lost_hold_is_not_passed_on,
        |rules| {
            rules.is_given_up = |ended| matches!(ended, LostReason::Released | LostReason::Taken);
            rules.is_quiet = |_| true;
        };
    passes_on_what_is_capped: "a hold is passed on when max_hold is over",
        s05_a_hold_that_has_ended_is_not_passed_on,
        |rules| rules.is_given_up = |ended| matches!(ended, LostReason::Released | LostReason::MaxHold);
    passes_on_what_is_over: "a hold is passed on when its lease has ended",
        s05_a_hold_that_has_ended_is_not_passed_on,
        |rules| {
            rules.is_given_up = |ended| matches!(ended, LostReason::Released | LostReason::Expired);
            rules.is_valid = |_, _| true;
        };
    passes_on_the_rest: "a hold is passed on at the end of its validity",
        the_rest_of_a_hold_is_not_passed_on, |rules| rules.is_valid = |_, _| true;
    passes_on_in_doubt: "a hold is passed on although the store has pushed a change, or a renewal has failed",
        s05_a_hold_in_doubt_is_not_passed_on, |rules| rules.is_quiet = |_| true;
    passes_on_to_anybody: "a task joins that has asked for something else",
        s05_only_equal_tasks_join_a_cohort, |rules| rules.joins = |_, _| true;
}

/// The rules, with the mistake that the environment names.
pub(crate) fn rules() -> Rules {
    static RULES: LazyLock<Rules> = LazyLock::new(|| {
        let mut rules = Rules::REAL;
        let name = std::env::var(VARIABLE).unwrap_or_default();
        if let Some(mutant) = MUTANTS.iter().find(|mutant| mutant.name == name) {
            (mutant.mistake)(&mut rules);
        }
        rules
    });
    *RULES
}
