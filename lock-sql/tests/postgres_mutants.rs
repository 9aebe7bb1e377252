//! The test of the tests: deliberately wrong statements, and the case of the suite that fails each.
//!
//! `cargo test -p lock-sql --features postgres --test postgres_mutants`

#![allow(clippy::unwrap_used, reason = "a scene that cannot go on panics")]

mod common;
mod fence_scenes;
mod looks;
mod mutants;
mod postgres_common;
mod postgres_harness;
mod postgres_scenes;

use conformance_tests::proxied;
use postgres_harness::{Postgres, Route};

fn main() -> std::process::ExitCode {
    mutants::main(
        "postgres",
        || proxied::main(Postgres(Route::Direct)),
        async |scene| match scene {
            "reads_that_are_behind" => postgres_scenes::reads_that_are_behind().await,
            "looks_write_nothing" => postgres_scenes::looks_write_nothing().await,
            "paths_of_others" => postgres_scenes::paths_of_others().await,
            "late_inserts" => postgres_scenes::late_inserts().await,
            "late_repeats" => postgres_scenes::late_repeats().await,
            "looks" => looks::looks(postgres_common::server().await.url()).await,
            "looks_away_from_the_primary" => postgres_scenes::looks_away_from_the_primary().await,
            "late_looks" => postgres_scenes::late_looks().await,
            "floors_below_late_inserts" => postgres_scenes::floors_below_late_inserts().await,
            "late_requests" => mutants::late_requests(postgres_common::server().await.url()).await,
            other => fence_scenes::postgres::scene(other).await,
        },
    )
}
