//! The test of the tests: deliberately wrong statements, and the case of the suite that fails each.
//!
//! `cargo test -p lock-sql --features mysql,mutants --test mysql_mutants`

mod mysql_harness;

use std::process::ExitCode;

use conformance_tests::mutation::Killer::{self, Case};
use conformance_tests::mutation::Mutation;
use lock_sql::mysql_mutants::{MUTANTS, VARIABLE};

/// The case that must fail for each mutant.
const KILLERS: &[(&str, Killer)] = &[
    ("client_clock", Case("c03_two_releases_make_one_grant")),
    ("affected_rows_trusted", Case("s01_a_lock_is_not_reentrant")),
    ("fence_reset_by_delete", Case("c09_fences_rise_over_releases")),
    ("case_folding_names", Case("c11_distinct_names_never_block_each_other")),
    ("trailing_blanks_ignored", Case("c11_distinct_names_never_block_each_other")),
    ("advisory_lock_left_in_the_pool", Case("l01_an_abandoned_lock_is_free_after_its_ttl")),
    ("release_without_owner", Case("c07_a_release_after_busy_does_nothing")),
    ("renewal_without_owner", Case("s03_a_late_renewal_does_not_touch_the_next_holder")),
    ("the_fence_of_a_takeover_is_believed", Case("c14_a_greater_fence_is_not_believed")),
    ("renewal_of_what_has_ended", Case("c06_a_renewal_after_the_end_is_lost")),
    ("new_token_on_repeat", Case("c02_a_repeated_try_returns_the_same_token")),
    ("the_lease_of_another_is_taken", Case("s01_a_lock_is_not_reentrant")),
    ("a_repeat_shortens_the_lease", Case("c04_a_repeat_is_kept_as_long_as_promised")),
    ("the_fence_stays", Case("c09_fences_rise_over_releases")),
];

fn main() -> ExitCode {
    let mutants = MUTANTS.iter().map(|(mutant, ..)| *mutant).collect();
    let mutation = Mutation { variable: VARIABLE, mutants, killers: KILLERS };
    mutation.main(mysql_harness::main, |scene| panic!("no scene {scene}"))
}
