//! The conformance suite on one real server, each client behind a fault proxy.

mod harness;

fn main() -> std::process::ExitCode {
    conformance_tests::main(harness::ZkHarness::single())
}
