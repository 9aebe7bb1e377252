//! The test of the tests: deliberately wrong scripts, and the case of the suite that fails each.
//!
//! `cargo test -p lock-redis --features mutants --test mutants`

mod harness;

use std::process::ExitCode;

use conformance_tests::mutation::Killer::{self, Case};
use conformance_tests::mutation::Mutation;
use lock_redis::mutants::{MUTANTS, VARIABLE};

/// The case that must fail for each mutant.
const KILLERS: &[(&str, Killer)] = &[
    ("release_without_owner", Case("c07_a_release_after_busy_does_nothing")),
    ("renew_without_owner", Case("c06_a_renewal_after_a_loss_is_lost")),
    ("set_without_nx", Case("s01_a_lock_is_not_reentrant")),
    ("lock_without_expiry", Case("l01_an_abandoned_lock_is_free_after_its_ttl")),
    ("new_token_on_repeat", Case("c02_a_repeated_try_returns_the_same_token")),
    ("newcomer_passes_the_queue", Case("l03_a_newcomer_does_not_pass_after_an_expiry")),
    ("try_leaves_a_place", Case("c13_a_refused_try_leaves_no_place")),
    ("release_hands_nothing_over", Case("l03_users_are_served_in_order")),
    ("place_is_not_given_up", Case("c13_a_waiter_that_gives_up_leaves_no_place")),
    ("last_in_first_out", Case("l03_waiters_are_served_in_order")),
    ("fence_of_each_name", Case("c09_fences_rise_over_releases")),
    ("grace_is_the_ttl_of_nobody", Case("l05_a_dead_waiter_delays_by_one_ttl")),
    ("confirm_keeps_the_grace", Case("c04_a_hand_over_has_its_full_ttl")),
    ("force_forgets_the_holder", Case("s05_a_lock_that_was_taken_is_seen_by_check")),
    ("attached_with_any_fence", Case("c14_a_greater_fence_is_not_believed")),
    ("check_prolongs", Case("c04_a_check_prolongs_nothing")),
    ("place_is_never_renewed", Case("l03_a_renewed_place_is_kept")),
];

fn main() -> ExitCode {
    let mutants = MUTANTS.iter().map(|(mutant, ..)| *mutant).collect();
    let mutation = Mutation { variable: VARIABLE, mutants, killers: KILLERS };
    mutation.main(harness::main, |scene| panic!("no scene {scene}"))
}
