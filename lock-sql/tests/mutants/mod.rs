//! The mutants of one dialect, and what must fail each.

use std::process::ExitCode;

use conformance_tests::mutation::Killer::{self, Case, Scene};
use conformance_tests::mutation::Mutation;
use lock_sql::mutants::{VARIABLE, mutants_of};

/// What is no case of the suite.
const SCENES: [&str; 2] = ["reads_that_are_behind", "looks_write_nothing"];

pub(crate) fn main(
    dialect: &str,
    suite: fn() -> ExitCode,
    scene: fn(&str) -> Result<(), String>,
) -> ExitCode {
    let killer = |killed_by| match SCENES.contains(&killed_by) {
        true => Scene(killed_by),
        false => Case(killed_by),
    };
    let killers: Vec<(&str, Killer)> =
        mutants_of(dialect).map(|mutant| (mutant.name, killer(mutant.killed_by))).collect();
    let mutants = killers.iter().map(|(name, _)| *name).collect();
    Mutation { variable: VARIABLE, mutants, killers: &killers }.main(suite, scene)
}
