//! The test of the tests: each known mistake in the rules of Redlock is noticed by the scenario that its row names.

#[cfg(distlock_mutants)]
mod redlock_common;

use std::process::ExitCode;

#[cfg(distlock_mutants)]
fn main() -> ExitCode {
    use redlock_common::scenarios;

    let suite = || panic!("every mutant is noticed by a scenario");
    conformance_tests::mutation::main(lock_redis::REDLOCK_MUTANTS.iter().copied(), suite, |scene| {
        let runtime = tokio::runtime::Runtime::new().map_err(|error| error.to_string())?;
        let seen = runtime.block_on(scenarios::play(scene));
        seen.unwrap_or_else(|| panic!("there is no scene {scene}"))
    })
}

#[cfg(not(distlock_mutants))]
fn main() -> ExitCode {
    conformance_tests::mutation::not_built()
}
