//! Looking at locks, and taking them away.

use std::time::Duration;

use async_trait::async_trait;

use crate::{FencingToken, LockKey, OwnerId, Released, Result};

/// Inspection and force: what an operator needs. Declared by
/// [`Capabilities::inspect`](crate::Capabilities).
///
/// None of these calls is needed to hold a lock, and the answer of each is out of date when it
/// arrives: use it to show, never to decide.
#[async_trait]
pub trait LockAdmin: Send + Sync {
    /// What the store knows of `key`; `None` if nobody holds it and nobody waits for it.
    ///
    /// # Errors
    ///
    /// As any call to the store.
    async fn inspect(&self, key: &LockKey) -> Result<Option<LockInfo>>;

    /// All locks that are held or waited for, whose prefix is `prefix` and whose name starts with
    /// `name_start`, in the order of their names.
    ///
    /// # Errors
    ///
    /// As any call to the store.
    async fn list(&self, prefix: &str, name_start: &str) -> Result<Vec<LockInfo>>;

    /// Takes the lock away from its holder, or only from `expected` if that is given. The next
    /// holder gets a greater fencing token. The old one learns it at its next renewal, after the
    /// fact.
    ///
    /// # Errors
    ///
    /// As any call to the store.
    async fn force_release(&self, key: &LockKey, expected: Option<&OwnerId>) -> Result<Released>;
}

/// What a store knows of one lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockInfo {
    /// The lock.
    pub key: LockKey,
    /// Who holds it, if anybody does.
    pub holder: Option<HolderInfo>,
    /// How many wait in the store's queue; `None` where the store does not know its waiters.
    pub waiters: Option<usize>,
}

impl LockInfo {
    /// What is known of `key`.
    pub fn new(key: LockKey, holder: Option<HolderInfo>, waiters: Option<usize>) -> Self {
        Self { key, holder, waiters }
    }
}

/// What a store knows of a holder.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HolderInfo {
    /// The owner id; `None` for a foreign client whose mark is no owner id of ours.
    pub owner: Option<OwnerId>,
    /// The label that the holder gave.
    pub label: Option<String>,
    /// The fencing token, where the store keeps it.
    pub fence: Option<FencingToken>,
    /// How long the lease lasts without a renewal; `None` where the store has no such time.
    pub expires_in: Option<Duration>,
    /// How long the lock has been held, where the store keeps it.
    pub held_for: Option<Duration>,
}

impl HolderInfo {
    /// A holder with this owner id, of whom nothing else is known yet: set the fields that are.
    pub fn new(owner: Option<OwnerId>) -> Self {
        Self { owner, label: None, fence: None, expires_in: None, held_for: None }
    }
}
