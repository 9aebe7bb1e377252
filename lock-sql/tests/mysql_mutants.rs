//! The test of the tests: deliberately wrong statements, and the case of the suite that fails each.
//!
//! `cargo test -p lock-sql --features mysql --test mysql_mutants`

mod mutants;
mod mysql_harness;

fn main() -> std::process::ExitCode {
    mutants::main("mysql", mysql_harness::main, |scene| panic!("no scene {scene}"))
}
