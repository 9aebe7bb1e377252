//! The test of the tests: deliberately wrong scripts, and the case of the suite that fails each.

#[cfg(distlock_mutants)]
mod harness;

use std::process::ExitCode;

#[cfg(distlock_mutants)]
fn main() -> ExitCode {
    use conformance_tests::mutation::{Killer::Case, Mutation};
    use lock_redis::mutants::{MUTANTS, VARIABLE};

    let mutants = MUTANTS.iter().map(|mutant| mutant.name).collect();
    let killers: Vec<_> =
        MUTANTS.iter().map(|mutant| (mutant.name, Case(mutant.killed_by))).collect();
    let mutation = Mutation { variable: VARIABLE, mutants, killers: &killers };
    mutation.main(harness::main, |scene| panic!("no scene {scene}"))
}

#[cfg(not(distlock_mutants))]
fn main() -> ExitCode {
    conformance_tests::mutation::not_built("--cfg distlock_mutants")
}
