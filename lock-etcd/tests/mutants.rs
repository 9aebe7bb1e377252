//! The test of the tests: deliberately wrong steps, and the case that fails for each.
//!
//! `cargo test -p lock-etcd --features mutants --test mutants`

mod common;
mod harness;
mod scenarios;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

use conformance_tests::mutation::Killer::{self, Case, Scene};
use conformance_tests::mutation::Mutation;
use lock_etcd::mutants::{MUTANTS, VARIABLE};

const KILLERS: &[(&str, Killer)] = &[
    ("no_look_after_waiting", Scene("a_waiter_looks_before_it_believes")),
    ("swallows_ttl_0", Scene("a_lease_that_has_ended_is_enough_to_know")),
    ("release_by_name", Scene("a_release_leaves_what_others_have_written")),
    ("resumes_after_compaction", Scene("a_waiter_looks_after_a_compaction")),
    ("skips_what_was_not_told", Scene("a_stream_that_breaks_twice_hides_nothing")),
    ("ignores_a_refused_watch", Scene("a_watch_is_not_refused_unnoticed")),
    ("trusts_its_watch", Scene("a_holder_looks_although_its_watch_stands")),
    ("believes_in_the_lease", Scene("a_renewal_needs_to_see_the_key")),
    ("two_keep_alives_in_flight", Scene("an_answer_counts_from_its_own_request")),
    ("sees_nested_names", Scene("a_foreign_queue_below_ours_blocks_nobody")),
    ("own_place_unwatched", Scene("a_waiter_sees_that_its_own_place_has_gone")),
    ("shares_a_lease", Scene("every_claim_has_a_lease_of_its_own")),
    ("keeps_unknown_leases", Case("c07_a_release_after_a_failed_try_frees_the_lock")),
    ("valid_from_the_reply", Case("c04_a_repeat_is_kept_as_long_as_promised")),
    ("fence_is_the_lease", Case("c09_fences_rise_over_releases")),
    ("try_leaves_a_place", Case("c13_a_refused_try_leaves_no_place")),
    ("ignores_the_queue", Case("s01_a_lock_is_not_reentrant")),
    ("release_keeps_the_key", Case("c07_a_released_lock_is_free_at_once")),
    ("believes_the_owner", Scene("an_altered_token_touches_no_lease")),
    ("believes_the_fence", Scene("an_altered_token_touches_no_lease")),
    ("takes_a_place_for_a_hold", Scene("a_place_that_waits_is_no_hold")),
    ("takes_any_ttl", Case("c14_a_longer_ttl_is_the_requests")),
    ("revokes_what_it_was_told_of", Scene("an_altered_token_touches_no_lease")),
    ("checks_what_it_has_heard_of", Scene("a_check_after_an_unknown_try_asks_the_store")),
    ("stays_with_a_learner", Scene("a_learner_is_left")),
    ("keeps_its_pool", Scene("leases_that_a_restore_has_taken_are_not_tried_one_by_one")),
    ("dies_with_its_runtime", Scene("a_waiter_outlives_the_runtime_that_served_it")),
    ("counts_from_any_base", Scene("fences_rise_over_clients")),
    ("base_is_never_lifted", Scene("a_restored_snapshot_gives_no_lower_fence")),
    ("trusts_a_store_that_went_back", Scene("a_restored_snapshot_gives_no_lower_fence")),
    ("force_needs_no_owner", Case("s03_a_forced_release_of_another_hold_does_nothing")),
];

macro_rules! scenarios {
    ($wanted:expr, $($name:ident)+) => {
        match $wanted {
            $(stringify!($name) => scenarios::$name().await,)+
            other => panic!("no scene {other}"),
        }
    };
}

fn main() -> ExitCode {
    let mutants = MUTANTS.iter().map(|(mutant, _)| *mutant).collect();
    let mutation = Mutation { variable: VARIABLE, mutants, killers: KILLERS };
    mutation.main(|| harness::main(1), play)
}

/// A scene asserts what must hold, so a panic is what it saw.
fn play(name: &str) -> Result<(), String> {
    catch_unwind(AssertUnwindSafe(|| run(name))).map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic").to_owned()
    })
}

fn run(name: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        scenarios!(
            name,
            a_waiter_sees_that_its_own_place_has_gone
            a_waiter_looks_before_it_believes
            a_lease_that_has_ended_is_enough_to_know
            a_release_leaves_what_others_have_written
            a_waiter_looks_after_a_compaction
            a_stream_that_breaks_twice_hides_nothing
            a_watch_is_not_refused_unnoticed
            a_holder_looks_although_its_watch_stands
            a_renewal_needs_to_see_the_key
            an_answer_counts_from_its_own_request
            a_foreign_queue_below_ours_blocks_nobody
            every_claim_has_a_lease_of_its_own
            an_altered_token_touches_no_lease
            a_check_after_an_unknown_try_asks_the_store
            a_learner_is_left
            a_place_that_waits_is_no_hold
            leases_that_a_restore_has_taken_are_not_tried_one_by_one
            a_waiter_outlives_the_runtime_that_served_it
            fences_rise_over_clients
            a_restored_snapshot_gives_no_lower_fence
        );
    });
}
