//! The test of the tests: deliberately wrong statements, and the case of the suite that fails each.
//!
//! `cargo test -p lock-sql --features mysql --test mysql_mutants`

mod mysql_harness;

use std::process::ExitCode;

use conformance_tests::mutation::Killer::{self, Case};
use conformance_tests::mutation::Mutation;
use lock_sql::mutants::{MYSQL as MUTANTS, MYSQL_VARIABLE as VARIABLE};

fn main() -> ExitCode {
    let mutants = MUTANTS.iter().map(|mutant| mutant.name).collect();
    let killers: Vec<(&str, Killer)> =
        MUTANTS.iter().map(|mutant| (mutant.name, Case(mutant.killed_by))).collect();
    let mutation = Mutation { variable: VARIABLE, mutants, killers: killers.leak() };
    mutation.main(mysql_harness::main, |scene| panic!("no scene {scene}"))
}
