//! The conformance suite on MariaDB, each client behind a fault proxy.

mod mysql_harness;

fn main() -> std::process::ExitCode {
    mysql_harness::main()
}
