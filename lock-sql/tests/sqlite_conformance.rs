//! The conformance suite on SQLite.

mod sqlite_harness;

fn main() -> std::process::ExitCode {
    sqlite_harness::main()
}
