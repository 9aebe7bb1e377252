//! The conformance suite on PostgreSQL: a real server per case, each client behind a fault proxy.

mod postgres_harness;

use lock_testkit::proxied;
use postgres_harness::{Postgres, Route};

fn main() -> std::process::ExitCode {
    proxied::main(Postgres(Route::Direct))
}
