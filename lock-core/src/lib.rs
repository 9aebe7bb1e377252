//! The core of distlock: the contract that a store implements, and everything above it that all
//! stores share. In reading order:
//!
//! - `contract` — what the core asks of a store, clause by clause
//! - `memory` — the store that shows how: who is woken and what is renewed in `store`, a request without an
//!   answer in `claim`, and faults that one can ask for in `link`
//! - `locks` — what users call: `Locks`, `Lock`, `LockGuard`
//! - `keeper` — who owns a claim: `search` tries, and waits for a push or polls the store until the caller's deadline,
//!   behind others of its process in `line`; `call` lets a call end, and gives up one that overruns; `holding` keeps
//!   a hold alive, at the times in `schedule`; `leaving` gives it up, and releases until nothing is in doubt,
//!   as `in_doubt` says; `polling` says who runs a keeper, a caller or a task; `client` has what the keepers of one `Locks` share
//! - `hold` — whether a lock is held, decided by the clock; the token that hands it over; `rules` by which it is passed on
//! - `kinds` — locks that are made of exclusive ones: permits in `semaphore`, readers and writers in `rw_lock`, several
//!   names in `all`, leaders in `election`; `rules` says how they are made, `part` names what they are made of, `whole` shows it as
//!   one, `slots` are those with numbers, `calls` waits for several at once, and for a `shared` one several tasks wait
//! - `blocking` — the same for threads that run no async code
//! - `backoff` — pauses between failing attempts
//! - `clock`, `mutex`, `thread` — time, and the one thread that wakes all sleepers; a mutex without poison; threads of our own
//! - `observer` — what happens to locks, for those who watch; `metrics` reports it
//! - `testing` — clocks and stores for tests of users; `mutants` — known mistakes, for tests of tests
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
//!   as long as the store keeps its data ([`Fencing`] describes what carries them over a loss). A
//!   resource that checks them is safe even when the first promise is broken.
//! - Loss by expiry is [reported](LostSignal) before the store may grant the lock to another
//!   client. A lock that an operator takes away is reported after the fact, as soon as the store
//!   reports it.
//! - No lock can stop a process that is paused inside its critical section. That is what the
//!   fencing token is for.

pub mod backoff;
pub mod blocking;
pub mod clock;
pub mod contract;
pub mod locks;
pub mod memory;
pub mod testing;

mod hold;
mod keeper;
pub mod kinds;
#[cfg(distlock_mutants)]
#[doc(hidden)]
pub mod mutants;
mod mutex;
mod observer;
mod thread;

pub use clock::{Clock, ClockInstant, Sleep, SystemClock};
pub use contract::{
    Attempt, Binding, Busy, Capabilities, Claim, ClaimRequest, DataLoss, Effect, Error, ErrorKind,
    Feature, FenceCheck, Fencing, FencingToken, Finding, HolderInfo, HolderMark, LockAdmin,
    LockBackend, LockInfo, LockKey, LockLayer, LostReason, Operation, OsRng, OwnerId, Released,
    Renewal, Result, Resume, Rng, Seen, Severity, Victim, Wake, jitter,
};
pub use locks::{
    DetachError, Health, Held, LeaseToken, Lock, LockGuard, LockState, Locks, LocksBuilder,
    LostSignal, RenewedLease,
};
#[cfg(feature = "metrics")]
pub use observer::MetricsLayer;
pub use observer::{EndOfHold, LockEvent, LockObserver};

/// Re-exported for implementations of [`LockBackend`] and [`Claim`].
pub use async_trait::async_trait;
/// Re-exported for [`Claim::detach`] and [`Resume`].
pub use bytes::Bytes;
