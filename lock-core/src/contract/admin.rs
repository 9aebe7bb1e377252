//! Looking at locks, and taking them away.

use async_trait::async_trait;

use crate::{HolderInfo, HolderMark, LockKey, Released, Result};

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

    /// Takes the lock away from its holder. If `expected` is given, only that very hold is ended: the
    /// store compares, so that a later holder keeps the lock, whatever client it uses. The next holder
    /// gets a greater fencing token. The old one learns it at its next renewal, after the fact.
    ///
    /// # Errors
    ///
    /// As any call to the store.
    async fn force_release(&self, key: &LockKey, expected: Option<&HolderMark>)
    -> Result<Released>;
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
