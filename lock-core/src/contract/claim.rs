//! A contender, as its store sees it: what it is made from, and what the store answers.

use std::fmt::Debug;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use crate::{Error, FencingToken, HolderInfo, LockKey, OwnerId, Result};

/// One contender, from its first attempt to its release.
///
/// A waiter in a queue and a holder are the same thing: an entry with an owner that must be kept
/// alive, can change, and must be given up. The core waits for the end of each call except `changed`,
/// within the request's `call_timeout` (clauses C8 and C12). Dropping a claim writes nothing to the store.
#[async_trait]
pub trait Claim: Debug + Send + 'static {
    /// Tries once: takes the lock if it is free, or a place in the queue if the request has `wait`
    /// set and the store has a queue. Never waits.
    ///
    /// # Errors
    ///
    /// "Busy" is not an error. [`Effect::Unknown`](crate::Effect) if an entry may exist now or later.
    async fn try_acquire(&mut self) -> Result<Attempt>;

    /// Keeps the place or the lock alive for another TTL, if the entry is still this owner's.
    ///
    /// # Errors
    ///
    /// After an error the state is unknown: neither lost nor prolonged (clause C6).
    async fn renew(&mut self) -> Result<Renewal>;

    /// Checks with the store whether the entry is still this owner's. Writes nothing.
    ///
    /// # Errors
    ///
    /// After an error the state is unknown.
    async fn check(&mut self) -> Result<Renewal>;

    /// Gives up the place or the lock, whatever happened before. Idempotent; compares the owner
    /// inside the store (clause C7).
    ///
    /// # Errors
    ///
    /// The entry may still be there: call this again.
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
    /// Cancel-safe: a later call reports every change after the last look (clause C5).
    async fn changed(&mut self) -> Result<()> {
        std::future::pending().await
    }

    /// What another process needs, besides owner and fence, to take over this hold: it gets the
    /// bytes back in [`Resume`](crate::Resume), possibly edited (clause C14). The core drops the
    /// claim afterwards, unless the answer came too late: then the hold continues. If the claim was itself
    /// resumed, the bytes that it was resumed with keep working, because the new ones may never arrive.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::ErrorKind::Unsupported) unless
    /// [`Capabilities::detachable`](crate::Capabilities) is declared.
    async fn detach(&mut self) -> Result<Bytes> {
        Err(Error::unsupported("this store cannot hand a lock to another process"))
    }
}

/// Everything a backend needs to make a claim. The core fills it in; a backend only reads it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ClaimRequest {
    /// The lock.
    pub key: LockKey,
    /// The identity of this claim, new for every claim (clause C1).
    pub owner: OwnerId,
    /// How long the store keeps the lock without a renewal. Already rounded up to what the store
    /// can keep by its [`Capabilities`](crate::Capabilities).
    pub ttl: Duration,
    /// Within what time each call of the claim ends, by an answer or an error (clause C12).
    pub call_timeout: Duration,
    /// Whether a busy answer may leave a place in the store's queue (clause C13).
    pub wait: bool,
    /// How many fencing tokens in a row the grant comes with, at least 1 (clause C16). The core asks
    /// for more than one only where the store declares
    /// [`fence_block`](crate::Capabilities::fence_block).
    pub fences: u32,
    /// A human-readable name of the holder: shown by inspection, never compared.
    pub label: Option<String>,
    /// Set when the claim takes over a lock that is already held. To be compared, not trusted
    /// (clause C14).
    pub resume: Option<Resume>,
}

impl ClaimRequest {
    /// A request that does not wait, for an exclusive lock with one token and without a label.
    pub fn new(key: LockKey, owner: OwnerId, ttl: Duration) -> Self {
        Self {
            key,
            owner,
            ttl,
            call_timeout: Duration::from_secs(5),
            wait: false,
            fences: 1,
            label: None,
            resume: None,
        }
    }

    /// Whether a busy answer may leave a place in the queue.
    #[must_use]
    pub fn with_wait(mut self, wait: bool) -> Self {
        self.wait = wait;
        self
    }

    /// The limit for one call.
    #[must_use]
    pub fn with_call_timeout(mut self, limit: Duration) -> Self {
        self.call_timeout = limit;
        self
    }

    /// How many fencing tokens in a row the grant comes with.
    #[must_use]
    pub fn with_fences(mut self, fences: u32) -> Self {
        self.fences = fences;
        self
    }

    /// A human-readable name of the holder.
    #[must_use]
    pub fn with_label(mut self, label: Option<String>) -> Self {
        self.label = label;
        self
    }

    /// Takes over a lock that is already held.
    #[must_use]
    pub fn with_resume(mut self, resume: Resume) -> Self {
        self.resume = Some(resume);
        self
    }
}

/// What another process handed over along with the owner id: see
/// [`Claim::detach`](crate::Claim::detach). It comes from a text that its bearer can edit (clause
/// C14).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Resume {
    /// The fencing token of the hold: the first, if the request asks for
    /// [several](ClaimRequest::fences).
    pub fence: FencingToken,
    /// The backend's own bytes, as its `detach` returned them.
    pub data: Bytes,
}

impl Resume {
    /// The hold to take over.
    pub fn new(fence: FencingToken, data: Bytes) -> Self {
        Self { fence, data }
    }
}

/// The answer to [`Claim::try_acquire`](crate::Claim::try_acquire).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Attempt {
    /// The lock is ours.
    Granted {
        /// The fencing token of this hold; the first one, if the request asked for
        /// [several](crate::ClaimRequest::fences). A repeated call returns the same one (clause C2).
        token: FencingToken,
        /// How long after the start of this very call the store keeps the lock, at least (clause
        /// C4). `None` only where place and lock are one and the same lease, whose end the core
        /// knows from earlier answers.
        valid_for: Option<Duration>,
    },
    /// Another client has it.
    Busy(Busy),
}

/// What is known about a lock that another client has. A store fills in what its answer shows
/// without a further request, and leaves out the rest (clause C15).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Busy {
    /// How long after the start of this very call the store keeps *our place in the queue*, at
    /// least; `None` if we have no place.
    pub valid_for: Option<Duration>,
    /// The longest sensible pause before the next attempt, for instance until the holder's lease
    /// will have ended, and never zero; `None` if the store does not know. The core looks sooner, every 10 s
    /// where pushes are reliable, unless the store serves its waiters [in order](crate::Capabilities):
    /// then it only renews the place so often, and a store that finds the lock there for it reports that by
    /// [`changed`](crate::Claim::changed). While a request of the claim is in doubt, the core still looks every
    /// 10 s.
    pub retry_after: Option<Duration>,
    /// The holder. Shown to the user if the wait fails.
    pub holder: Option<Box<HolderInfo>>,
}

impl Busy {
    /// Adds a [place in the queue](Self::valid_for) for this long.
    #[must_use]
    pub fn with_place(mut self, valid_for: impl Into<Option<Duration>>) -> Self {
        self.valid_for = valid_for.into();
        self
    }

    /// Adds the time of the [next attempt](Self::retry_after).
    #[must_use]
    pub fn with_retry_after(mut self, after: impl Into<Option<Duration>>) -> Self {
        self.retry_after = after.into();
        self
    }

    /// Adds the [holder](Self::holder).
    #[must_use]
    pub fn with_holder(mut self, holder: HolderInfo) -> Self {
        self.holder = Some(Box::new(holder));
        self
    }
}

impl Attempt {
    /// Whether, by this answer, the store has an entry of ours: a place or the lock.
    pub(crate) fn has_entry(&self) -> bool {
        match self {
            Self::Granted { .. } => true,
            Self::Busy(busy) => busy.valid_for.is_some(),
        }
    }
}

/// The answer to [`Claim::renew`](crate::Claim::renew) and [`Claim::check`](crate::Claim::check).
/// An error is neither: the state is then unknown, and the hold is neither lost nor prolonged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Renewal {
    /// The place or the lock is still ours.
    Alive {
        /// How long after the start of this very call the store keeps it, at least; `None` if this
        /// call brings nothing new about that.
        valid_for: Option<Duration>,
    },
    /// The store reports that it is no longer ours.
    Lost,
}

/// The answer to [`Claim::release`](crate::Claim::release).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Released {
    /// We had a place or the lock, and it is gone now.
    Freed,
    /// We had none. After a release whose answer was lost, this means success.
    AlreadyGone,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_answer_leaves_an_entry_only_with_a_place() {
        let valid_for = Some(Duration::from_secs(1));
        assert!(
            Attempt::Granted { token: FencingToken::new(1).unwrap(), valid_for: None }.has_entry()
        );
        assert!(Attempt::Busy(Busy::default().with_place(valid_for)).has_entry());
        assert!(!Attempt::Busy(Busy::default().with_retry_after(valid_for)).has_entry());
    }
}
