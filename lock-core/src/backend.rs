//! The contract between the core and a store.
//!
//! # The clauses
//!
//! The conformance suite has cases under each of these names.
//!
//! - **C1** All that is written carries the owner id: 128 random bits, new for every claim. Only
//!   attaching uses one again.
//! - **C2** `try_acquire` after an unknown outcome finds its own entry, never makes a second one,
//!   and returns the *same* token.
//! - **C3** A grant is proven by one atomic read or script that shows "mine exists" and "none is
//!   ahead". Two reads, each right when it was made, prove nothing together.
//! - **C4** `valid_for: Some(d)` promises that the store will not end this entry before *the start
//!   of this very call* + d. A backend that rides on an earlier request (a batch, a shared lease or
//!   session, a lease granted ahead) subtracts what has passed since that request was sent.
//!   `Granted { valid_for: None }` only where place and lock are one and the same lease; a grant by
//!   hand-over has its full ttl set first.
//! - **C5** `changed` is cancel-safe, may be spurious, and must not miss a change since the last
//!   look: arm, then check, then wait. Its error is no loss; the core polls with back-off instead.
//! - **C6** `Lost` only if the server said so. An error is unknown.
//! - **C7** `release` works after any failed or dropped call, twice, and never touches another
//!   owner's entry.
//! - **C8** The core may drop any call at any await; the legal sequences are below. A dropped claim
//!   writes nothing.
//! - **C9** Tokens (1 to 2⁶³ − 1) strictly rise per key, across holders, releases, expiries, crashes
//!   and restarts.
//! - **C10** No driver type crosses the boundary, except in `from_client` and `from_pool`
//!   constructors.
//! - **C11** Distinct names never block each other; equal names always do. A name is 1 to 512 bytes
//!   of UTF-8 without control characters; a prefix is not counted and is encoded apart from the
//!   name, so that ("a", "bc") and ("ab", "c") differ. Each backend encodes injectively.
//! - **C12** Every call is bounded: the core drops it at the first of the caller's deadline, the
//!   `call_timeout` and the end of validity. The backend also hands `call_timeout` to its driver.
//! - **C13** With `wait: false` a busy answer leaves no place behind. A waiter that gives up
//!   declines at once, also where the store has just handed it the lock: the next one gets it
//!   without waiting for a grace to pass.
//! - **C14** A claim with `resume` believes nothing of it, since it comes from a text that its bearer
//!   can edit. Its `renew` and `check` answer `Lost`, or an error that is not retryable, unless the
//!   store's own record shows this owner with exactly this fence; `renew` proves that in the same
//!   atomic statement that renews. The ttl is the request's: a store that cannot change the one of a
//!   hold refuses another one. The bytes in `data` are checked before they name anything in the
//!   store, so that nothing of somebody else is renewed or revoked. A claim that was refused leaves
//!   the true holder untouched, also when it is released afterwards.
//!
//! # Legal call sequences
//!
//! The core makes one call of a claim at a time. "Dropped" means that the future was dropped before
//! it was ready, so that its effect is unknown.
//!
//! | state of the claim | calls that may follow | leads to |
//! |---|---|---|
//! | new | `try_acquire`, `release` | waiting, held, done |
//! | new, with `resume` | `renew`, `check`, `release` | held, lost, done |
//! | waiting: last answer `Busy`, `wait` set | `try_acquire`, `changed`, `renew`, `check`, `release` | waiting, held, done |
//! | refused: last answer `Busy`, `wait` not set | `try_acquire`, `release` | held, done |
//! | held: last answer `Granted`, or `Alive` after it | `try_acquire` (answers the same token), `renew`, `check`, `changed`, `detach`, `release` | held, lost, detached, done |
//! | place lost: `Lost` while waiting | `try_acquire`, `release` | waiting, held, done |
//! | lost: `Lost` while held | `release` | done |
//! | unknown: `try_acquire`, `renew`, `release` or `detach` failed or was dropped | the same call again, `changed`, `check`, `release` | as that call |
//! | `changed` or `check`, which write nothing, failed or was dropped | as if it had not been called | as before |
//! | done: `release` has answered | `release` | done |
//! | detached | `release`, if nobody got what `detach` returned; else the claim is dropped | done |
//!
//! # Example
//!
//! `docs/writing-a-backend.md` in the repository has a complete small backend that passes the suite.

use std::fmt::Debug;

use async_trait::async_trait;
use bytes::Bytes;

use crate::{Attempt, Capabilities, ClaimRequest, Error, LockAdmin, Released, Renewal, Result};

/// One store, as a client of it: used as `Arc<dyn LockBackend>`.
///
/// Implemented by store authors, called by the core and by [`LockLayer`](crate::LockLayer)s. Users
/// work with [`Locks`](crate::Locks). A wrapper must forward every method, the provided ones too.
/// The clauses and the legal call sequences are in the [module documentation](crate::backend).
#[async_trait]
pub trait LockBackend: Debug + Send + Sync + 'static {
    /// A short name for errors and metrics, such as `redis`.
    fn name(&self) -> &'static str;

    /// What this store promises.
    fn capabilities(&self) -> Capabilities;

    /// A new contender. No I/O happens here: the owner id exists before the first byte is sent.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) or
    /// [`Unsupported`](crate::ErrorKind::Unsupported) if this store cannot serve the request.
    fn claim(&self, request: ClaimRequest) -> Result<Box<dyn Claim>>;

    /// Asks whether the store answers and lets us work.
    ///
    /// # Errors
    ///
    /// What any call to the store would meet.
    async fn ping(&self) -> Result<()>;

    /// Ends what the client holds as a whole: sessions, leases granted ahead, pools. Claims that
    /// are still alive may fail from then on.
    ///
    /// # Errors
    ///
    /// If the store did not confirm it. Calling it again is harmless.
    async fn close(&self) -> Result<()> {
        Ok(())
    }

    /// Inspection and force, where [`Capabilities::inspect`](crate::Capabilities) is declared.
    fn admin(&self) -> Option<&dyn LockAdmin> {
        None
    }
}

/// One contender, from its first try to its release.
///
/// A waiter in a queue and a holder are the same thing: an entry with an owner that must be kept
/// alive, can change, and must be given up. Dropping a claim writes nothing to the store.
#[async_trait]
pub trait Claim: Debug + Send + 'static {
    /// Looks once, takes the lock if it is free, and takes a place in the queue if the request says
    /// `wait` and the store has a queue. Never waits.
    ///
    /// # Errors
    ///
    /// "Busy" is not an error. [`Effect::Unknown`](crate::Effect) if an entry may exist now or later.
    ///
    /// # Cancel safety
    ///
    /// A dropped call may have taken the lock: repeat it, or `release`.
    async fn try_acquire(&mut self) -> Result<Attempt>;

    /// Keeps the place or the lock alive for another ttl, if the entry is still this owner's.
    ///
    /// # Errors
    ///
    /// An error is unknown: not lost, and not prolonged (clause C6).
    ///
    /// # Cancel safety
    ///
    /// As an error.
    async fn renew(&mut self) -> Result<Renewal>;

    /// Asks the store whether the entry is still this owner's, and writes nothing.
    ///
    /// # Errors
    ///
    /// An error is unknown.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    async fn check(&mut self) -> Result<Renewal>;

    /// Gives up the place or the lock, whatever happened before. Idempotent; compares the owner
    /// inside the store (clause C7).
    ///
    /// # Errors
    ///
    /// The entry may be there still: call it again.
    ///
    /// # Cancel safety
    ///
    /// As an error.
    async fn release(&mut self) -> Result<Released>;

    /// Returns when another look is worth while: the lock may be free, the place may have moved up,
    /// the entry may be gone. The default never returns, for stores that cannot push.
    ///
    /// # Errors
    ///
    /// That pushes cannot be had now. No loss; the core polls instead, and calls this again later.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: no change since the last look is missed by a later call (clause C5).
    async fn changed(&mut self) -> Result<()> {
        std::future::pending().await
    }

    /// What another process needs, beside owner and fence, to take over this hold: the bytes come
    /// back to it in [`Resume`](crate::Resume), possibly edited (clause C14). The core drops the claim
    /// afterwards. The bytes with which a claim was itself resumed go on to work, since nobody may get
    /// the new ones.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::ErrorKind::Unsupported) unless
    /// [`Capabilities::detachable`](crate::Capabilities) is declared.
    async fn detach(&mut self) -> Result<Bytes> {
        Err(Error::unsupported("this store cannot hand a lock to another process"))
    }
}
