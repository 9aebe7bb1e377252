//! The conformance suite on PostgreSQL: a real server per case, each client behind a fault proxy.

mod postgres_harness;

use postgres_harness::{PostgresHarness, Route};

fn main() -> std::process::ExitCode {
    conformance_tests::main(PostgresHarness(Route::Direct))
}
