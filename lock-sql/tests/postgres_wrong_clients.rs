//! The test of the tests: mistakes around a correct store, each of which its case must catch on a real
//! server, too.
//!
//! `cargo test -p lock-sql --features postgres --test postgres_wrong_clients`

mod postgres_harness;

use std::process::ExitCode;

use postgres_harness::{Postgres, Route};

fn main() -> ExitCode {
    conformance_tests::proxied::wrong_clients(
        Postgres(Route::Direct),
        &[
            "try_in_steps",
            "renewal_in_steps",
            "release_in_steps",
            "fence_drawn_first",
            "no_limit",
            "error_is_alive",
            "refused_is_gone",
        ],
    )
}
