//! The suite's own wrong stores, each around the clients of a store with real servers: what the suite
//! must notice there as well as around the memory store.

use std::process::ExitCode;
use std::sync::Arc;

use lock_core::testing::Mutant;

use super::{Setup, Wrap, wrapped};
use crate::mutants::mutants;
use crate::mutation;

/// Runs the case that must catch each of these mutants of the suite, on this store with and without
/// it. Each must be caught.
///
/// # Panics
///
/// If the suite has no mutant of such a name.
pub fn wrong_clients(setup: impl Setup, names: &[&str]) -> ExitCode {
    let all = mutants();
    let named = |name: &&str| {
        let wrong = all.iter().find(|wrong| wrong.mutant.name == *name);
        wrong.unwrap_or_else(|| panic!("the suite has no mutant {name}")).mutant
    };
    let suite = || {
        let wrap: Wrap = match all.iter().find(|wrong| Mutant::is_wanted(wrong.mutant.name)) {
            Some(wrong) => Arc::new(wrong.wrap()),
            None => Arc::new(|backend| backend),
        };
        wrapped(setup, wrap)
    };
    mutation::main(names.iter().map(named), suite, |scene| panic!("no scene {scene}"))
}
