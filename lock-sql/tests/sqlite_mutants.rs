//! The test of the tests: deliberately wrong statements, and the case of the suite that fails each.
//!
//! `cargo test -p lock-sql --features sqlite --test sqlite_mutants`

#![allow(clippy::unwrap_used, reason = "a scene that cannot go on panics")]

mod mutants;
mod sqlite_harness;

fn main() -> std::process::ExitCode {
    mutants::main("sqlite", sqlite_harness::main, async |scene| match scene {
        "late_requests" => {
            let folder = tempfile::TempDir::new().unwrap();
            let url = format!("sqlite://{}", folder.path().join("locks.db").display());
            mutants::late_requests(&url).await
        }
        other => panic!("no scene {other}"),
    })
}
