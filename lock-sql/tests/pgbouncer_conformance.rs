//! The conformance suite on PostgreSQL through PgBouncer in transaction mode.

mod postgres_harness;

use postgres_harness::Route;

fn main() -> std::process::ExitCode {
    postgres_harness::main(Route::Pooled)
}
