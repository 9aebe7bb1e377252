#![doc = include_str!("../README.md")]

mod admin;
mod backend;
mod claim;
mod config;
mod connection;
mod doctor;
mod error;
#[cfg(test)]
mod fuzz;
#[cfg(distlock_mutants)]
#[doc(hidden)]
pub mod mutants;
mod names;
mod renewals;
mod sessions;
mod timeline;
mod wake;

/// The layer that sends requests: the real connections, or ones with a deliberate mistake.
#[cfg(not(distlock_mutants))]
use connection as wire;
#[cfg(distlock_mutants)]
use mutants as wire;

pub use backend::ZkBackend;
pub use config::{Acl, Fence, PARAMETERS, SCHEMES, ZkConfig};

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
