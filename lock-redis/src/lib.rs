//! Redis as a store of locks: one node with a fair queue inside the store.
//!
//! ```no_run
//! # async fn example() -> lock_core::Result<()> {
//! use lock_core::Locks;
//!
//! let locks = Locks::new(lock_redis::connect("redis://127.0.0.1:6379").await?);
//! let guard = locks.lock("order:42")?.acquire().await?;
//! println!("fence {}", guard.token()?);
//! guard.release().await?;
//! # Ok(()) }
//! ```
//!
//! What is promised, and what breaks it, is in the crate's `README.md`.

mod admin;
mod backend;
mod claim;
mod config;
mod error;
mod keys;
#[cfg(feature = "mutants")]
#[doc(hidden)]
pub mod mutants;
#[cfg(not(feature = "mutants"))]
mod mutants;
mod node;
#[doc(hidden)]
pub mod redlock;
mod renewals;
mod reply;
mod script;
mod scripts;
mod settler;
mod wake;

pub use backend::RedisBackend;
pub use config::{Eviction, Pause, RedisConfig, SCHEMES};
pub use redlock::{Bootstrap, REDLOCK_SCHEMES, RedlockBackend, RedlockConfig, connect_redlock};

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
