//! What a claim is made from.

use std::time::Duration;

use bytes::Bytes;

use crate::{FencingToken, LockKey, OwnerId};

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
    /// The limit for one call to the store: the core then drops the call, and the backend also
    /// passes the limit to its driver (clause C12).
    pub call_timeout: Duration,
    /// Whether a busy answer may leave a place in the store's queue (clause C13).
    pub wait: bool,
    /// How the lock is shared.
    pub mode: Mode,
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
            mode: Mode::Exclusive,
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

/// How a lock is shared between holders.
///
/// Shared locks and counting locks may come later. The core refuses a mode that a store has not
/// declared in [`Capabilities::modes`](crate::Capabilities), so a store with exclusive locks only
/// can ignore this.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Mode {
    /// One holder at a time.
    #[default]
    Exclusive,
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
