//! The suite on the memory store that neither queues nor pushes.

fn main() -> std::process::ExitCode {
    conformance_tests::main(conformance_tests::MemoryHarness::poll_only())
}
