#![doc = include_str!("../../REDLOCK.md")]
//!
//! # In the source
//!
//! All nodes are asked at once, and a quorum of *all* of them decides. The rule by which a fence is
//! established is in `rule`, and the model check of the `redlock-model` crate runs that code.

mod admin;
mod admission;
mod answer;
mod ask;
mod attempt;
mod backend;
mod claim;
mod config;
mod fanout;
mod ledger;
mod plan;
mod quorum;
mod recovery;
#[doc(hidden)]
pub mod rule;
mod scripts;
mod sightings;
mod survey;
mod tally;
mod top_up;
mod undo;
mod wake;
mod why;
#[doc(hidden)]
pub mod wrong;

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
/// let guard = locks.lock("order:42")?.acquire().await?;
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
