//! The conformance suite on an ensemble of three servers. A client is bound to one of them, in
//! turn, so that most of the requests go through a follower.

mod harness;

fn main() -> std::process::ExitCode {
    harness::main(3)
}
