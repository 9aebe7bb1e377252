//! The conformance suite on PostgreSQL through PgBouncer in transaction mode.

mod postgres_harness;

use postgres_harness::{PostgresHarness, Route};

fn main() -> std::process::ExitCode {
    conformance_tests::main(PostgresHarness(Route::Pooled))
}
