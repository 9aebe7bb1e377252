//! The conformance suite on clusters of three. Each client is on a member of its own, so that most
//! requests pass through a follower.

mod harness;

fn main() -> std::process::ExitCode {
    harness::main(3)
}
