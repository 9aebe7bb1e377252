//! The conformance suite on PostgreSQL: a real server per case, each client behind a fault proxy.

mod postgres_harness;

use conformance_tests::proxied;
use postgres_harness::{Postgres, Route};

fn main() -> std::process::ExitCode {
    proxied::main(Postgres(Route::Direct))
}
