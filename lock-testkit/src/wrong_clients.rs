//! The suite's own wrong stores, each around the clients of a store with real servers: what the suite
//! must notice there as well as around the memory store.

use std::process::ExitCode;
use std::sync::Arc;

use conformance_tests::mutants::mutants;
use conformance_tests::mutation::{Killer, Mutation};

use crate::proxied::{self, Setup, Wrap};

/// Names the mistake, in the environment of a child process.
const VARIABLE: &str = "LOCK_TEST_MUTANT";

/// Runs the case that must catch each of these mutants of the suite, on this store with and without
/// it. Each must be caught.
///
/// # Panics
///
/// If the suite has no mutant of such a name.
pub fn main(setup: impl Setup, names: &[&str]) -> ExitCode {
    let all = mutants();
    let killers: Vec<_> = names
        .iter()
        .map(|name| {
            let mutant = all.iter().find(|mutant| mutant.name == *name);
            let mutant = mutant.unwrap_or_else(|| panic!("the suite has no mutant {name}"));
            (mutant.name, Killer::Case(mutant.killed_by))
        })
        .collect();
    let suite = || {
        let wanted = std::env::var(VARIABLE).unwrap_or_default();
        let wrap: Wrap = match all.iter().find(|mutant| mutant.name == wanted) {
            Some(mutant) => Arc::new(mutant.wrap()),
            None => Arc::new(|backend| backend),
        };
        proxied::wrapped(setup, wrap)
    };
    let mutation = Mutation { variable: VARIABLE, mutants: names.to_vec(), killers: &killers };
    mutation.main(suite, |scene| panic!("no scene {scene}"))
}
