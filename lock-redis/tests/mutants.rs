//! The test of the tests: deliberately wrong scripts, and the case of the suite or the scene that fails each.

#[cfg(distlock_mutants)]
mod harness;
#[cfg(distlock_mutants)]
mod redlock_common;

use std::process::ExitCode;

#[cfg(distlock_mutants)]
fn main() -> ExitCode {
    use conformance_tests::mutation::Killer::{Case, Scene};
    use conformance_tests::mutation::Mutation;
    use lock_redis::mutants::{MUTANTS, VARIABLE};

    let killer = |name: &'static str| {
        // The cases are named after their clauses.
        if name.as_bytes()[1].is_ascii_digit() { Case(name) } else { Scene(name) }
    };
    let all = || MUTANTS.iter().copied().flatten();
    let mutants = all().map(|mutant| mutant.name).collect();
    let killers: Vec<_> = all().map(|mutant| (mutant.name, killer(mutant.killed_by))).collect();
    let mutation = Mutation { variable: VARIABLE, mutants, killers: &killers };
    mutation.main(|| lock_testkit::proxied::main(harness::OneNode), play)
}

#[cfg(distlock_mutants)]
fn play(scene: &str) -> Result<(), String> {
    use redlock_common::common::scenes;
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
            "a_long_value_names_one_hold" => scenes::a_long_value_names_one_hold().await,
            "a_late_request_ends_no_hold_sooner" => {
                let server = redlock_common::common::server().await;
                let backend = redlock_common::common::backend(&server).await;
                scenes::a_late_request_ends_no_hold_sooner(&backend, &[server]).await
            }
            "a_late_request_ends_no_vote_sooner" => {
                scenarios::a_late_request_ends_no_hold_sooner(|config| config).await
            }
            "no_fence_of_a_block_is_given_again" => {
                scenarios::no_fence_of_a_block_is_given_again(|config| config).await
            }
            "only_its_own_block_is_taken_over" => {
                scenarios::only_its_own_block_is_taken_over(|config| config).await
            }
            "a_seed_counts_for_every_lock" => {
                scenarios::a_seed_counts_for_every_lock(|config| config).await
            }
            "each_hold_of_a_batch_hears_its_own_answer" => {
                scenarios::each_hold_of_a_batch_hears_its_own_answer(|config| config).await
            }
            "a_key_of_another_type_concerns_its_lock_alone" => {
                scenarios::a_key_of_another_type_concerns_its_lock_alone(|config| config).await
            }
            other => panic!("there is no scene {other}"),
        }
    })
}

#[cfg(not(distlock_mutants))]
fn main() -> ExitCode {
    conformance_tests::mutation::not_built("--cfg distlock_mutants")
}
