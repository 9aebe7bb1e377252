//! A contender, as its store sees it.

use std::fmt::Debug;

use async_trait::async_trait;
use bytes::Bytes;

use crate::{Attempt, Error, FencingToken, LostReason, Released, Renewal, Result};

/// One contender, from its first attempt to its release.
///
/// A waiter in a queue and a holder are the same thing: an entry with an owner that must be kept
/// alive, can change, and must be given up. Dropping a claim writes nothing to the store.
#[async_trait]
pub trait Claim: Debug + Send + 'static {
    /// Tries once: takes the lock if it is free, or a place in the queue if the request says `wait`
    /// and the store has a queue. Never waits.
    ///
    /// # Errors
    ///
    /// "Busy" is not an error. [`Effect::Unknown`](crate::Effect) if an entry may exist now or later.
    ///
    /// # Cancel safety
    ///
    /// A dropped call may have taken the lock: repeat it, or call `release`.
    async fn try_acquire(&mut self) -> Result<Attempt>;

    /// Keeps the place or the lock alive for another ttl, if the entry is still this owner's.
    ///
    /// # Errors
    ///
    /// After an error the state is unknown: not lost, and not prolonged (clause C6).
    ///
    /// # Cancel safety
    ///
    /// As an error.
    async fn renew(&mut self) -> Result<Renewal>;

    /// Asks the store whether the entry is still this owner's. Writes nothing.
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
    /// The entry may still be there: call this again.
    ///
    /// # Cancel safety
    ///
    /// As an error.
    async fn release(&mut self) -> Result<Released>;

    /// Returns when another attempt is worthwhile: the lock may be free, the place may have moved
    /// up, or the entry may be gone. The default, for stores that cannot push, never returns.
    ///
    /// # Errors
    ///
    /// If pushes are unavailable for now. This is not a loss: the core polls instead, and calls
    /// this again later.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: a later call misses no change since the last look (clause C5).
    async fn changed(&mut self) -> Result<()> {
        std::future::pending().await
    }

    /// Tells the claim that this hold has ended by the holder's own clock: its lease ran out, or
    /// [`max_hold`](crate::Lock::max_hold) was reached. The store is not called for that, so this
    /// is for layers that observe; a store has nothing to do. `release` follows once the guard is
    /// dropped.
    fn lost(&mut self, reason: LostReason) {
        let _ = reason;
    }

    /// Tells two claims of this process that a hold was passed on, with this fence of its block
    /// (clause C16): the one that has the hold, and goes on with it for another task; and that
    /// task's own, which has waited and is dropped unused. The store is not called for that, so this
    /// is for layers that observe; a store has nothing to do.
    fn passed_on(&mut self, fence: FencingToken) {
        let _ = fence;
    }

    /// What another process needs, besides owner and fence, to take over this hold: it gets the
    /// bytes back in [`Resume`](crate::Resume), possibly edited (clause C14). The core drops the
    /// claim afterwards. If the claim was itself resumed, the bytes it was resumed with keep
    /// working, since the new ones may never be delivered.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::ErrorKind::Unsupported) unless
    /// [`Capabilities::detachable`](crate::Capabilities) is declared.
    async fn detach(&mut self) -> Result<Bytes> {
        Err(Error::unsupported("this store cannot hand a lock to another process"))
    }
}
