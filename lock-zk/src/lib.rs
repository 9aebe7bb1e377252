#![doc = include_str!("../README.md")]

//! # In the source
//!
//! In reading order:
//!
//! - `settings` — the URL, and its parameters with their limits
//! - `backend` — the store: what it can do, and its claims
//! - `queue` — one claim: the order of its steps, and when a lost reply is settled, in `claim`; what it asks, and how
//!   that is settled, in `operations`; what wakes it in `watches`; how a renewal proves its node, with others, in
//!   `confirmations`; the names of locks and what is in an `entry`; `fences`, and what they are counted from; who has a
//!   lock at this moment in `look`
//! - `sessions` — kept alive, which keeps all their nodes, and ended in `mod.rs`; the servers, and how a session is opened, in `ensemble`; resumed
//!   in `resume`; shared by claims in `seats`
//! - `wire` — one `connection`, one `session` over several, its `requests`, and in `timeline` until when servers keep it
//! - `error` — what became of a request that failed
//! - `admin` — inspecting locks, and releasing them by force
//! - `doctor` — what an operator should know of each server
//! - `mutants` — known mistakes, for the tests of the tests

mod admin;
mod backend;
mod doctor;
mod error;
#[cfg(distlock_mutants)]
#[doc(hidden)]
pub mod mutants;
mod queue;
mod sessions;
mod settings;
#[cfg_attr(distlock_mutants, path = "mutants/wire.rs")]
mod wire;

pub use backend::ZkBackend;
pub use settings::{Acl, Fence, PARAMETERS, SCHEMES, ZkConfig};

/// Connects to the ensemble at `url`: see [`ZkConfig::from_url`] for its form and parameters.
///
/// # Errors
///
/// As [`ZkConfig::from_url`] and [`ZkBackend::connect`].
///
/// # Cancel safety
///
/// Cancel-safe.
pub async fn connect(url: &str) -> lock_core::Result<ZkBackend> {
    ZkBackend::connect(ZkConfig::from_url(url)?).await
}
