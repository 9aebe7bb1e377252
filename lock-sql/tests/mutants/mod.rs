//! The mutants of one dialect, and what must fail each.

mod late;

use std::process::ExitCode;

use conformance_tests::mutation;
use lock_sql::mutants::mutants_of;

pub(crate) use late::late_requests;

pub(crate) fn main(
    dialect: &str,
    suite: fn() -> ExitCode,
    scene: impl AsyncFn(&str) -> Result<(), String>,
) -> ExitCode {
    mutation::main(mutants_of(dialect), suite, |name| {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
        runtime.unwrap().block_on(scene(name))
    })
}
