//! The mutants of one dialect, and what must fail each.

mod late;

use std::process::ExitCode;

use conformance_tests::mutation::Killer::{self, Case, Scene};
use conformance_tests::mutation::Mutation;
use lock_sql::mutants::{VARIABLE, mutants_of};

pub(crate) use late::late_requests;

/// What is no case of the suite.
const SCENES: [&str; 4] =
    ["reads_that_are_behind", "looks_write_nothing", "late_requests", "late_repeats"];

pub(crate) fn main(
    dialect: &str,
    suite: fn() -> ExitCode,
    scene: impl AsyncFn(&str) -> Result<(), String>,
) -> ExitCode {
    let killer = |killed_by| match SCENES.contains(&killed_by) {
        true => Scene(killed_by),
        false => Case(killed_by),
    };
    let killers: Vec<(&str, Killer)> =
        mutants_of(dialect).map(|mutant| (mutant.name, killer(mutant.killed_by))).collect();
    let mutants = killers.iter().map(|(name, _)| *name).collect();
    Mutation { variable: VARIABLE, mutants, killers: &killers }.main(suite, |name| {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
        runtime.unwrap().block_on(scene(name))
    })
}
