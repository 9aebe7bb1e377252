//! The conformance suite on PostgreSQL through PgBouncer in transaction mode.

mod postgres_harness;

use conformance_tests::proxied;
use postgres_harness::{Postgres, Route};

fn main() -> std::process::ExitCode {
    proxied::main(Postgres(Route::Pooled))
}
