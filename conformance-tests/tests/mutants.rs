//! The suite must fail every mutant, in the case named for it.

use std::process::ExitCode;

use conformance_tests::mutants::{Mutant, mutants};
use conformance_tests::run;
use libtest_mimic::{Arguments, Failed, Trial};

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

fn trial(mutant: Mutant) -> Trial {
    let name = format!("{} is killed by {}", mutant.name, mutant.killed_by);
    Trial::test(name, move || killed(&mutant))
}

fn killed(mutant: &Mutant) -> Result<(), Failed> {
    let named = run(mutant.harness(), |id| id == mutant.killed_by);
    if named.failed().next().is_some() {
        return Ok(());
    }
    let report = run(mutant.harness(), |_| true);
    let killers: Vec<_> = report.failed().map(|(id, _)| id).collect();
    Err(format!(
        "a library that {} lives: {} does not fail (those that do: {killers:?})",
        mutant.wrong, mutant.killed_by
    )
    .into())
}
