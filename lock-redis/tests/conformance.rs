//! The conformance suite on a real server, each client behind a fault proxy.

mod harness;

fn main() -> std::process::ExitCode {
    conformance_tests::proxied::main(harness::OneNode)
}
