//! The suite on the memory store that queues and pushes.

fn main() -> std::process::ExitCode {
    conformance_tests::main(conformance_tests::MemoryHarness::queued())
}
