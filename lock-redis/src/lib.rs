#![doc = include_str!("../README.md")]

mod admin;
mod backend;
mod claim;
mod config;
mod error;
mod keys;
#[cfg(distlock_mutants)]
#[doc(hidden)]
pub mod mutants;
#[cfg(not(distlock_mutants))]
mod mutants;
mod node;
pub mod redlock;
mod renewals;
mod reply;
mod script;
mod scripts;
mod settler;
mod tls;
mod wake;

pub use backend::RedisBackend;
pub use config::{Eviction, PARAMETERS, Pause, RedisConfig, SCHEMES};
pub use redlock::{
    Bootstrap, REDLOCK_PARAMETERS, REDLOCK_SCHEMES, Recover, RedlockBackend, RedlockConfig,
    connect_redlock,
};

/// Connects to the server that `url` names: see [`RedisConfig::from_url`] for its form and its
/// parameters.
///
/// # Errors
///
/// As [`RedisConfig::from_url`] and [`RedisBackend::connect`].
///
/// # Cancel safety
///
/// Cancel-safe.
pub async fn connect(url: &str) -> lock_core::Result<RedisBackend> {
    RedisBackend::connect(RedisConfig::from_url(url)?).await
}
