//! The test of the tests: deliberately wrong statements, and the case of the suite that fails each.
//!
//! `cargo test -p lock-sql --features postgres,mutants --test postgres_mutants`

#![allow(clippy::unwrap_used, reason = "a scene that cannot go on panics")]

mod postgres_common;
mod postgres_harness;
mod postgres_scenes;

use std::process::ExitCode;

use conformance_tests::mutation::Killer::{self, Case, Scene};
use conformance_tests::mutation::Mutation;
use lock_sql::postgres_mutants::{MUTANTS, VARIABLE};
use postgres_harness::Route;
use tokio::runtime::Builder;

/// The case that must fail for each mutant.
const KILLERS: &[(&str, Killer)] = &[
    ("client_clock", Case("c03_two_releases_make_one_grant")),
    ("affected_rows_trusted", Case("c13_a_waiter_that_declines_passes_it_on")),
    ("fence_reset_by_delete", Case("c09_fences_rise_over_releases")),
    ("case_folding_names", Case("c11_distinct_names_never_block_each_other")),
    ("advisory_lock_left_in_the_pool", Case("l01_an_abandoned_lock_is_free_after_its_ttl")),
    ("expiry_is_not_asked", Case("s01_a_lock_is_not_reentrant")),
    ("release_without_owner", Case("c07_a_release_after_busy_does_nothing")),
    ("release_of_another_hold", Case("c14_a_greater_fence_is_not_believed")),
    ("renewal_without_fence", Case("c14_a_greater_fence_is_not_believed")),
    ("a_plain_read_is_proof", Scene("reads_that_are_behind")),
    ("every_look_locks_the_row", Scene("looks_write_nothing")),
    ("renewal_without_owner", Case("s03_a_late_renewal_does_not_touch_the_next_holder")),
    ("renewal_of_what_has_ended", Case("c06_a_renewal_after_the_end_is_lost")),
    ("a_lease_that_is_never_longer", Case("c04_renewals_keep_the_lock")),
    ("new_token_on_repeat", Case("c02_a_repeated_try_returns_the_same_token")),
    ("the_fence_stays", Case("c09_fences_rise_over_releases")),
    ("a_waiter_is_not_on_the_list", Case("c05_a_release_is_pushed")),
    ("a_release_tells_nobody", Case("c05_a_release_is_pushed")),
    ("force_by_owner_frees_any", Case("s03_a_forced_release_of_another_hold_does_nothing")),
];

fn main() -> ExitCode {
    let mutants = MUTANTS.iter().map(|(mutant, ..)| *mutant).collect();
    let mutation = Mutation { variable: VARIABLE, mutants, killers: KILLERS };
    mutation.main(
        || postgres_harness::main(Route::Direct),
        |scene| {
            let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build();
            runtime.unwrap().block_on(async {
                match scene {
                    "reads_that_are_behind" => postgres_scenes::reads_that_are_behind().await,
                    "looks_write_nothing" => postgres_scenes::looks_write_nothing().await,
                    other => panic!("no scene {other}"),
                }
            })
        },
    )
}
