//! Mutation tests: deliberate mistakes, and the case that fails for each.
//!
//! `RUSTC_WORKSPACE_WRAPPER=$PWD/.ci/rustc-with-mutants cargo test -p lock-etcd --test mutants`

#[cfg(distlock_mutants)]
mod common;
#[cfg(distlock_mutants)]
mod harness;
#[cfg(distlock_mutants)]
mod scenarios;

#[cfg(not(distlock_mutants))]
fn main() -> std::process::ExitCode {
    conformance_tests::mutation::not_built()
}

#[cfg(distlock_mutants)]
fn main() -> std::process::ExitCode {
    wrong::main()
}

#[cfg(distlock_mutants)]
use common::client;

#[cfg(distlock_mutants)]
mod wrong {
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
    use std::process::ExitCode;

    use conformance_tests::mutation;
    use lock_etcd::mutants::MUTANTS;

    use crate::common::SEEN;
    use crate::{harness, scenarios};

    macro_rules! scenes {
        ($($name:ident)+) => {
            async fn scene(name: &str) {
                match name {
                    $(stringify!($name) => scenarios::$name().await,)+
                    other => panic!("no scene {other}"),
                }
            }
        };
    }

    scenes! {
        a_waiter_sees_that_its_own_place_has_gone
        a_waiter_looks_before_it_believes
        a_lease_that_has_ended_is_enough_to_know
        a_release_leaves_what_others_have_written
        a_waiter_looks_after_a_compaction
        a_stream_that_breaks_twice_hides_nothing
        a_watch_is_not_refused_unnoticed
        a_holder_looks_although_its_watch_stands
        a_renewal_needs_to_see_the_key
        a_check_does_not_believe_a_member_that_is_cut_off
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
        a_base_in_use_is_not_raised_again
        a_restored_snapshot_gives_no_lower_fence
        who_missed_the_last_fences_gives_no_lower_one
        a_spare_lease_keeps_no_lock_of_the_past
        a_shared_watch_hides_nothing
        a_place_is_not_lost_with_the_one_before
        a_release_hands_the_lock_to_the_next
        a_restored_snapshot_is_no_proof
        a_restored_snapshot_hides_no_loss
        a_release_proves_no_place_that_others_have_written
        a_proof_that_nobody_took_is_not_believed_later
        a_release_that_stands_still_keeps_nobody_waiting
        a_look_shows_the_first_in_the_queue
        a_floor_lies_between_the_fences
        a_restored_snapshot_lowers_no_floor
        a_look_does_not_believe_a_member_that_is_cut_off
    }

    pub(crate) fn main() -> ExitCode {
        mutation::main(MUTANTS.iter().copied(), || harness::main("etcd", 1), play)
    }

    /// A scene says by a panic what it saw. After any other panic it is not judged.
    fn play(name: &str) -> Result<(), String> {
        catch_unwind(AssertUnwindSafe(|| run(name))).or_else(|panic| {
            let text = panic.downcast_ref::<String>();
            match text.and_then(|text| text.strip_prefix(SEEN)) {
                Some(seen) => Err(seen.to_owned()),
                None => resume_unwind(panic),
            }
        })
    }

    fn run(name: &str) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(scene(name));
    }
}
