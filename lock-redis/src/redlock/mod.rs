#![doc = include_str!("../../REDLOCK.md")]
//!
//! # In the source
//!
//! All nodes are asked at once, and a quorum of *all* of them decides. The contender, in
//! `contender`, is a state machine without any I/O, which the model check in the `redlock-model`
//! crate runs.

mod admin;
mod admission;
mod backend;
mod claim;
mod config;
mod contender;
mod doctor;
mod driver;
#[cfg(test)]
mod fuzz;
#[cfg(distlock_mutants)]
#[doc(hidden)]
pub mod mutants;
mod plan;
mod quorum;
mod renewals;
mod replies;
mod reply;
mod round;
mod rules;
mod scripts;
mod sightings;
mod target;
mod wake;
mod why;

pub use backend::RedlockBackend;
pub use config::{Bootstrap, REDLOCK_PARAMETERS, REDLOCK_SCHEMES, Recover, RedlockConfig};

/// Connects to the quorum that `url` names: see [`RedlockConfig::from_url`] for its form and its
/// parameters.
///
/// ```no_run
/// # async fn example() -> lock_core::Result<()> {
/// use lock_core::Locks;
///
/// let locks = Locks::new(lock_redis::connect_redlock("redlock://a:6379,b:6379,c:6379").await?);
/// let guard = locks.named("order:42")?.acquire().await?;
/// guard.release().await?;
/// # Ok(()) }
/// ```
///
/// # Errors
///
/// As [`RedlockConfig::from_url`] and [`RedlockBackend::connect`].
///
/// # Cancel safety
///
/// Cancel-safe.
pub async fn connect_redlock(url: &str) -> lock_core::Result<RedlockBackend> {
    RedlockBackend::connect(RedlockConfig::from_url(url)?).await
}
