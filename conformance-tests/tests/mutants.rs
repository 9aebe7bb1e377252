//! The suite must fail every mutant, in the case named for it.

use std::process::ExitCode;

use conformance_tests::mutants::{SuiteMutant, mutants};
use conformance_tests::run;
use libtest_mimic::{Arguments, Failed, Trial};
use lock_core::testing::Mutant;

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let all = mutants();
    let total = all.len();
    let trials = all.into_iter().map(trial).collect();
    let conclusion = libtest_mimic::run(&arguments, trials);
    if !arguments.list {
        println!("mutants: {} of {total} killed", conclusion.num_passed);
    }
    conclusion.exit_code()
}

fn trial(wrong: SuiteMutant) -> Trial {
    let name = format!("{} is killed by {}", wrong.mutant.name, wrong.mutant.killed_by);
    Trial::test(name, move || killed(&wrong))
}

fn killed(wrong: &SuiteMutant) -> Result<(), Failed> {
    let Mutant { name, what, killed_by } = wrong.mutant;
    let named = run(wrong.harness(), |id| id == killed_by);
    if named.broken().next().is_some() {
        return Ok(());
    }
    let report = run(wrong.harness(), |_| true);
    println!("{name}: SURVIVED {killed_by}: {what}");
    let killers: Vec<_> = report.broken().map(|(id, _)| id).collect();
    Err(format!(
        "a library that {what} lives: {killed_by} says {:?} (those that say what is broken: {killers:?})",
        named.outcome(killed_by)
    )
    .into())
}
