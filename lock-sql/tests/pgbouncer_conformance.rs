//! The conformance suite on PostgreSQL through PgBouncer in transaction mode.

mod postgres_harness;

use lock_testkit::proxied;
use postgres_harness::{Postgres, Route};

fn main() -> std::process::ExitCode {
    proxied::main(Postgres(Route::Pooled))
}
