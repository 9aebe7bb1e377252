//! What only etcd does, on real servers.

#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

#[path = "../common/mod.rs"]
mod common;
mod faults;
mod fences;
mod golden;
mod interop;
mod leader;
mod look;
mod members;
#[path = "../scenarios/mod.rs"]
mod scenarios;
mod space;
#[cfg(feature = "tls")]
mod tls;
