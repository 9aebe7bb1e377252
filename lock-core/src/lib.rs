//! The core of distlock: the contract that a store implements, and everything above it that all
//! stores share.
//!
//! Users start at [`Locks`], authors of a store at [`LockBackend`] and the [clauses of the
//! contract](mod@contract). Applications depend on the `distlock` crate, which adds connecting to a
//! store by URL.
//!
//! What a lock can and cannot promise is stated once, here; every store's page refers to it:
//!
//! - The periods in which two holders *believe* that they hold the lock do not overlap, as long as
//!   clocks run at rates that differ by less than 1 %, and the store keeps what it has acknowledged.
//! - [Fencing tokens](FencingToken) of one name strictly rise, without any assumption about clocks,
//!   as long as the store keeps its data ([`Fencing`] says what carries them over a loss). A
//!   resource that checks them is safe even when the first promise is broken.
//! - Loss by expiry is [reported](LostSignal) before the store may grant the lock to another
//!   client. A lock that an operator takes away is reported after the fact, as soon as the store
//!   says so.
//! - No lock can stop a process that is paused inside its critical section. That is what the
//!   fencing token is for.

pub mod blocking;
pub mod clock;
pub mod contract;
pub mod kit;
pub mod locks;
pub mod memory;
pub mod testing;

mod keeper;
#[cfg(feature = "metrics")]
mod metrics;
#[cfg(distlock_mutants)]
#[doc(hidden)]
pub mod mutants;
#[cfg(not(distlock_mutants))]
mod mutants;

pub use clock::{Clock, ClockInstant, Sleep, SystemClock};
pub use contract::{
    Attempt, Binding, Busy, Capabilities, Claim, ClaimRequest, DataLoss, Effect, Error, ErrorKind,
    Feature, FenceCheck, Fencing, FencingToken, Finding, HolderInfo, HolderMark, LockAdmin,
    LockBackend, LockInfo, LockKey, LockLayer, LostReason, Mode, Operation, OsRng, OwnerId,
    Released, Renewal, Result, Resume, Rng, Severity, Wake, jitter,
};
pub use kit::url;
pub use locks::{
    DetachError, Health, Held, LeaseToken, Lock, LockGuard, LockState, Locks, LocksBuilder,
    LostSignal, RenewedLease,
};
#[cfg(feature = "metrics")]
pub use metrics::MetricsLayer;

/// Re-exported for implementations of [`LockBackend`] and [`Claim`].
pub use async_trait::async_trait;
/// Re-exported for [`Claim::detach`] and [`Resume`].
pub use bytes::Bytes;
