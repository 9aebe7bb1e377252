//! The conformance suite on PostgreSQL: a real server per case, each client behind a fault proxy.

mod postgres_harness;

use postgres_harness::Route;

fn main() -> std::process::ExitCode {
    postgres_harness::main(Route::Direct)
}
