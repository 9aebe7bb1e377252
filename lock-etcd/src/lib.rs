#![doc = include_str!("../README.md")]

mod admin;
mod backend;
mod backoff;
mod base;
mod claim;
mod config;
mod contender;
mod error;
mod hosts;
mod keepalive;
mod keys;
mod leases;
#[cfg(distlock_mutants)]
#[doc(hidden)]
pub mod mutants;
#[cfg(not(distlock_mutants))]
mod mutants;
mod node;
mod place;
mod statements;
mod value;
mod version;
mod wake;

pub use backend::EtcdBackend;
pub use config::{EtcdConfig, PARAMETERS, SCHEMES};

/// Connects to the cluster that `url` names: see [`EtcdConfig::from_url`] for its form and its
/// parameters.
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
