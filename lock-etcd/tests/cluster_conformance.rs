//! The conformance suite on clusters of three. Each client uses a different member, so most
//! requests pass through a follower.

#[path = "common/client.rs"]
mod client;
mod harness;

fn main() -> std::process::ExitCode {
    harness::main("etcd-cluster", 3)
}
