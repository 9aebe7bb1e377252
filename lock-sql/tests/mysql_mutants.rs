//! The test of the tests: deliberately wrong statements, and the case of the suite that fails each.
//!
//! `cargo test -p lock-sql --features mysql --test mysql_mutants`

#![allow(clippy::unwrap_used, reason = "a scene that cannot go on panics")]

mod common;
mod mutants;
mod mysql_common;
mod mysql_harness;

fn main() -> std::process::ExitCode {
    mutants::main("mysql", mysql_harness::main, async |scene| match scene {
        "late_requests" => mutants::late_requests(mysql_common::server().await.url()).await,
        other => panic!("no scene {other}"),
    })
}
