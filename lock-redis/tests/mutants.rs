//! The test of the tests: deliberately wrong scripts, and the case of the suite or the scene that fails each.

#[cfg(distlock_mutants)]
mod harness;
#[cfg(distlock_mutants)]
mod redlock_common;

use std::process::ExitCode;

#[cfg(distlock_mutants)]
fn main() -> ExitCode {
    use conformance_tests::mutation;
    use lock_redis::SCRIPT_MUTANTS;

    let suite = || conformance_tests::proxied::main(harness::OneNode);
    mutation::main(SCRIPT_MUTANTS.iter().copied(), suite, play)
}

#[cfg(distlock_mutants)]
fn play(scene: &str) -> Result<(), String> {
    use redlock_common::common::{looks, scenes};
    use redlock_common::scenarios;

    let runtime = tokio::runtime::Runtime::new().map_err(|error| error.to_string())?;
    runtime.block_on(async {
        match scene {
            "a_try_that_arrives_after_the_release_takes_nothing" => {
                scenes::a_try_that_arrives_after_the_release_takes_nothing().await
            }
            "a_process_that_died_with_lock_and_waiters_costs_one_grace" => {
                scenes::a_process_that_died_with_lock_and_waiters_costs_one_grace().await
            }
            "many_stopped_processes_cost_one_grace_each" => {
                scenes::many_stopped_processes_cost_one_grace_each().await
            }
            "waiters_behind_the_block_of_another_client_read_no_queue" => {
                scenes::waiters_behind_the_block_of_another_client_read_no_queue().await
            }
            "whoever_speaks_first_tells_all_of_lost_places" => {
                scenes::whoever_speaks_first_tells_all_of_lost_places().await
            }
            "long_holds_leave_a_turn_to_plain_clients" => {
                scenes::long_holds_leave_a_turn_to_plain_clients().await
            }
            "a_full_memory_refuses_newcomers_to_a_queue" => {
                scenes::a_full_memory_refuses_newcomers_to_a_queue().await
            }
            "a_lock_that_is_handed_to_nobody_is_declined" => {
                scenes::a_lock_that_is_handed_to_nobody_is_declined().await
            }
            "a_long_value_names_one_hold" => scenes::a_long_value_names_one_hold().await,
            "a_look_shows_whoever_has_a_lock" => looks::a_look_shows_whoever_has_a_lock().await,
            "a_floor_parts_earlier_fences_from_later_ones" => {
                looks::a_floor_parts_earlier_fences_from_later_ones().await
            }
            "a_replica_shows_nothing" => looks::a_replica_shows_nothing().await,
            "a_late_request_ends_no_hold_sooner" => {
                let server = redlock_common::common::server().await;
                let backend = redlock_common::common::backend(&server).await;
                scenes::a_late_request_ends_no_hold_sooner(&backend, &[server]).await
            }
            "a_late_request_ends_no_vote_sooner" => {
                scenarios::play("a_late_request_ends_no_hold_sooner").await
            }
            other => scenarios::play(other).await,
        }
    })
}

#[cfg(not(distlock_mutants))]
fn main() -> ExitCode {
    conformance_tests::mutation::not_built()
}
