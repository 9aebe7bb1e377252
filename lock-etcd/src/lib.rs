//! # Map
//!
//! In reading order:
//!
//! - `backend.rs` — the store as the core sees it; connecting
//! - `config.rs` — the URL and its parameters
//! - `shared_state.rs` — what all claims of a client share
//! - `queue` — one claim: the order of its steps, and how a lost reply is settled, in `claim.rs`; what it asks, and
//!   whether that is in doubt, in `operations.rs`, as transactions in `statements.rs`; what it waits for in `watches.rs`;
//!   keys and values in `entry.rs`, what fences are counted from in `fences.rs`; who has a lock at this moment in
//!   `look.rs`
//! - `watch` — the watch stream of a runtime in `task.rs`; whom its news wakes, and who shares a watch, in
//!   `sharing.rs`; how a release proves who is next in `handover.rs`
//! - `leases` — spare leases in `mod.rs`, the keep-alives of all leases in `renewals.rs`
//! - `wire` — the cluster in `mod.rs`: one member at a time, and whether the store went back; requests
//!   as data in `messages.rs`, how they are sent in `exchange.rs`, etcd's messages in `protobuf.rs`,
//!   one member in `connection.rs`, or a client of the user in `client.rs`, streams that stay open in `streams.rs`
//! - `error.rs` — what a failure means for its sender
//! - `rules.rs` — decisions that no request or reply shows
//! - `admin.rs` — inspection, and release by force
//! - `doctor.rs` — what an operator should know; defects of versions
//! - `mutants` — known mistakes, in builds that test the tests
#![doc = include_str!("../README.md")]

mod admin;
mod backend;
mod config;
mod doctor;
mod error;
mod leases;
#[cfg(distlock_mutants)]
#[doc(hidden)]
pub mod mutants;
mod queue;
#[cfg_attr(distlock_mutants, path = "mutants/rules.rs")]
mod rules;
mod shared_state;
mod watch;
mod wire;

pub use backend::EtcdBackend;
pub use config::{EtcdConfig, PARAMETERS, SCHEMES};

/// Connects to the cluster at `url`: see [`EtcdConfig::from_url`] for its form and parameters.
///
/// # Errors
///
/// As [`EtcdConfig::from_url`] and [`EtcdBackend::connect`].
///
/// # Cancel safety
///
/// Cancel-safe.
pub async fn connect(url: &str) -> lock_core::Result<EtcdBackend> {
    EtcdBackend::connect(EtcdConfig::from_url(url)?).await
}
