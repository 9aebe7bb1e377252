//! The suite on the memory store that does neither queue nor push.

fn main() -> std::process::ExitCode {
    conformance_tests::main(conformance_tests::MemoryHarness::poll_only())
}
