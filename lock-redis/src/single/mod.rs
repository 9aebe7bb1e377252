//! One Redis server as a store, with a fair queue inside it.
//!
//! A try goes from `claim`, which builds the script call, to the node, which runs it over the
//! connection. Renewals of many claims go through `renewals` and travel as one call. Pushes arrive
//! in `wake`, and `hand_over` checks on locks that this client has handed over. `doctor` is for
//! operators only.

mod admin;
mod backend;
mod claim;
mod config;
mod doctor;
#[cfg(test)]
mod fuzz;
mod hand_over;
mod holder;
mod renewals;
mod scripts;
mod store;
mod wake;

pub use backend::RedisBackend;
pub use config::{PARAMETERS, Pause, RedisConfig, SCHEMES};

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
