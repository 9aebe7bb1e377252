//! [REDLOCK.md]: mod@redlock
//!
#![doc = include_str!("../README.md")]

mod error;
#[cfg(distlock_mutants)]
#[doc(hidden)]
pub mod mutants;
#[cfg(not(distlock_mutants))]
mod mutants;
mod names;
mod node;
pub mod redlock;
mod single;

pub use node::Eviction;
pub use redlock::{
    Bootstrap, REDLOCK_PARAMETERS, REDLOCK_SCHEMES, Recover, RedlockBackend, RedlockConfig,
    connect_redlock,
};
pub use single::{PARAMETERS, Pause, RedisBackend, RedisConfig, SCHEMES, connect};
