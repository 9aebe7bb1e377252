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
    use redlock_common::common::{self, scenes};
    use redlock_common::scenarios;

    let runtime = tokio::runtime::Runtime::new().map_err(|error| error.to_string())?;
    let seen = runtime.block_on(async {
        match scene {
            "a_late_request_ends_no_hold_sooner" => {
                let server = common::server().await;
                let backend = common::backend(&server).await;
                Some(scenes::a_late_request_ends_no_hold_sooner(&backend, &[server]).await)
            }
            "a_late_request_ends_no_vote_sooner" => {
                scenarios::play("a_late_request_ends_no_hold_sooner").await
            }
            other => match scenes::play(other).await {
                None => scenarios::play(other).await,
                seen => seen,
            },
        }
    });
    seen.unwrap_or_else(|| panic!("there is no scene {scene}"))
}

#[cfg(not(distlock_mutants))]
fn main() -> ExitCode {
    conformance_tests::mutation::not_built()
}
