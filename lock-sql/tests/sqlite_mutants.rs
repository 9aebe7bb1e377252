//! The test of the tests: deliberately wrong statements, and the case of the suite that fails each.
//!
//! `cargo test -p lock-sql --features sqlite --test sqlite_mutants`

mod mutants;
mod sqlite_harness;

fn main() -> std::process::ExitCode {
    mutants::main("sqlite", sqlite_harness::main, |scene| panic!("no scene {scene}"))
}
