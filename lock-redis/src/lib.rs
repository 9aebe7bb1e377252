//! [REDLOCK.md]: mod@redlock
//! [SENTINEL.md]: mod@sentinel
//!
#![doc = include_str!("../README.md")]
//!
//! # In the source
//!
//! In reading order:
//!
//! - `names` — the keys of a lock in Redis
//! - `node` — one server: its URL in `address`; scripts and how they are sent in `script` and `server`; the
//!   connection in `connection`; what is heard of it in `server_health`, and whether it can keep locks in `doctor`
//! - `shared_lua` — what scripts of both stores have in common
//! - `single` — one server as a store: a try, a release and a lost reply in `claim` (the core repeats the release
//!   until it is answered), leases in `renewals`, who is woken in `waiters`, what all claims share in `client`,
//!   hand-overs in `hand_overs`, the queue itself in `scripts`
//! - `redlock` — a quorum of servers as a store, with a map of its own
//! - `sentinel` — a master and its replicas as a store: one of the two others, wherever the master is
//! - `error` — what an error of the driver means for a request
//! - `seams` — what `mutants` replaces: known mistakes, for the tests of the tests

mod error;
mod names;
mod node;
pub mod redlock;
#[cfg_attr(distlock_mutants, path = "mutants/mod.rs")]
mod seams;
pub mod sentinel;
mod single;

pub use node::Eviction;
pub use redlock::{
    Bootstrap, REDLOCK_PARAMETERS, REDLOCK_SCHEMES, Recover, RedlockBackend, RedlockConfig,
    connect_redlock,
};
#[cfg(distlock_mutants)]
#[doc(hidden)]
pub use seams::{REDLOCK_MUTANTS, SCRIPT_MUTANTS};
pub use sentinel::{
    Failover, SENTINEL_PARAMETERS, SENTINEL_SCHEMES, SentinelBackend, SentinelConfig,
    connect_sentinel,
};
pub use single::{PARAMETERS, Pause, RedisBackend, RedisConfig, SCHEMES, connect};
