//! The test of the tests: deliberately wrong statements, and the case of the suite that fails each.
//!
//! `cargo test -p lock-sql --features postgres --test postgres_mutants`

#![allow(clippy::unwrap_used, reason = "a scene that cannot go on panics")]

mod postgres_common;
mod postgres_harness;
mod postgres_scenes;

use std::process::ExitCode;

use conformance_tests::mutation::Killer::{self, Case, Scene};
use conformance_tests::mutation::Mutation;
use lock_sql::mutants::{POSTGRES as MUTANTS, POSTGRES_VARIABLE as VARIABLE};
use postgres_harness::Route;
use tokio::runtime::Builder;

const SCENES: [&str; 2] = ["reads_that_are_behind", "looks_write_nothing"];

fn main() -> ExitCode {
    let mutants = MUTANTS.iter().map(|mutant| mutant.name).collect();
    let killers: Vec<(&str, Killer)> = MUTANTS
        .iter()
        .map(|mutant| match SCENES.contains(&mutant.killed_by) {
            true => (mutant.name, Scene(mutant.killed_by)),
            false => (mutant.name, Case(mutant.killed_by)),
        })
        .collect();
    let mutation = Mutation { variable: VARIABLE, mutants, killers: killers.leak() };
    mutation.main(
        || postgres_harness::main(Route::Direct),
        |scene| {
            let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build();
            runtime.unwrap().block_on(async {
                match scene {
                    "reads_that_are_behind" => postgres_scenes::reads_that_are_behind().await,
                    "looks_write_nothing" => postgres_scenes::looks_write_nothing().await,
                    other => panic!("no scene {other}"),
                }
            })
        },
    )
}
