//! The core of distlock: the contract that a store implements, and everything above it that is the
//! same for every store.
//!
//! Users start at [`Locks`], authors of a store at [`LockBackend`] and the
//! [clauses of the contract](mod@backend). Applications depend on the `distlock` crate, which adds the
//! choice of a store by URL.
//!
//! What a lock can promise, and what not, is said once, here, since every store's page refers to it:
//!
//! - The periods in which two holders *believe* that they hold the lock do not overlap, as long as
//!   clocks run at rates that differ by less than 1 %, and the store keeps what it has acknowledged.
//! - [Fencing tokens](FencingToken) of one name strictly rise, without any assumption on clocks, as long
//!   as the store keeps its data ([`Fencing`] says what carries them over a loss). A resource that checks
//!   them is safe even when the first promise is broken.
//! - Loss by expiry is [reported](LostSignal) before the store may grant the lock to somebody else. A
//!   lock that an operator takes away is reported as soon as the store says so, after the fact.
//! - No lock can stop a process that is paused inside of its critical section. That is what the
//!   fencing token is for.

pub mod backend;
pub mod kit;
pub mod memory;
pub mod url;

mod admin;
mod capabilities;
mod clock;
mod error;
mod fence;
mod gate;
mod guard;
mod hold;
mod keeper;
mod key;
mod layer;
mod lease_token;
mod lock;
mod locks;
mod lost;
#[cfg(feature = "metrics")]
mod metrics;
mod outcome;
mod owner;
mod request;
mod rng;
mod shared;
mod terms;

pub use admin::{HolderInfo, LockAdmin, LockInfo};
pub use backend::{Claim, LockBackend};
pub use capabilities::{Capabilities, DataLoss, Fencing, Hold, Wake};
pub use clock::{Clock, ClockInstant, ManualClock, Sleep, SystemClock, TokioClock};
pub use error::{Effect, Error, ErrorKind, Operation, Result};
pub use fence::{FenceCheck, FencingToken};
pub use guard::{LockGuard, SharedGuard};
pub use hold::{Held, LockState, LostReason};
pub use key::LockKey;
pub use layer::LockLayer;
pub use lease_token::{LeaseToken, RenewedLease};
pub use lock::Lock;
pub use locks::{Locks, LocksBuilder};
pub use lost::LostSignal;
#[cfg(feature = "metrics")]
pub use metrics::MetricsLayer;
pub use outcome::{Attempt, Released, Renewal};
pub use owner::OwnerId;
pub use request::{ClaimRequest, Mode, Resume};
pub use rng::{OsRng, Rng, jitter};

/// Re-exported for the implementations of [`LockBackend`] and [`Claim`].
pub use async_trait::async_trait;
/// Re-exported for [`Claim::detach`] and [`Resume`].
pub use bytes::Bytes;
