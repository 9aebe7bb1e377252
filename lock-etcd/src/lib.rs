#![doc = include_str!("../README.md")]

mod admin;
mod backend;
mod claim;
mod cluster;
mod config;
mod connection;
mod doctor;
mod driver;
mod entry;
mod error;
mod fences;
#[cfg(test)]
mod fuzz;
mod leases;
#[cfg(distlock_mutants)]
#[doc(hidden)]
pub mod mutants;
#[cfg(not(distlock_mutants))]
mod mutants;
mod names;
mod neighbours;
mod proto;
mod queue;
mod renewals;
mod rules;
mod statements;
mod store;
mod streams;
mod version;
mod wake;
mod watched;
mod watches;
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
