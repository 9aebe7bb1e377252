//! The conformance suite over clients of the crate `etcd-client`, on one member: a server per case, each client behind a
//! fault proxy.

#[path = "common/client.rs"]
mod client;
mod harness;

fn main() -> std::process::ExitCode {
    harness::main("etcd-client", 1)
}
