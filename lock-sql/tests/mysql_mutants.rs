//! The test of the tests: deliberately wrong statements, and the case of the suite that fails each.
//!
//! `cargo test -p lock-sql --features mysql --test mysql_mutants`

#![allow(clippy::unwrap_used, reason = "a scene that cannot go on panics")]

mod common;
mod fence_scenes;
mod looks;
mod mutants;
mod mysql_common;
mod mysql_harness;

use mysql_common::server;

fn main() -> std::process::ExitCode {
    mutants::main("mysql", mysql_harness::main, async |scene| match scene {
        "late_requests" => mutants::late_requests(server().await.url()).await,
        "looks" => looks::looks(server().await.url()).await,
        "looks_away_from_the_primary" => mysql_common::looks_away_from_the_primary().await,
        other => fence_scenes::mysql::scene(other).await,
    })
}
