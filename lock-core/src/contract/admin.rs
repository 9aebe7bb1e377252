//! Inspecting locks and their store, and taking locks away.

use async_trait::async_trait;

use crate::{Error, Finding, HolderInfo, HolderMark, LockKey, Released, Result};

/// Inspection, diagnosis and forced release, for operators. Declared by
/// [`Capabilities::inspect`](crate::Capabilities).
///
/// None of these calls is needed to hold a lock. Each answer is out of date by the time it arrives:
/// show it, but base no decision on it. A wrapper must forward every method, including the provided
/// ones.
#[async_trait]
pub trait LockAdmin: Send + Sync {
    /// What the store knows about `key`; `None` if the lock has no holder and no waiters.
    ///
    /// # Errors
    ///
    /// As any call to the store.
    async fn inspect(&self, key: &LockKey) -> Result<Option<LockInfo>>;

    /// All locks with a holder or waiters whose prefix is `prefix` and whose name starts with
    /// `name_start`, ordered by name.
    ///
    /// # Errors
    ///
    /// As any call to the store.
    async fn list(&self, prefix: &str, name_start: &str) -> Result<Vec<LockInfo>>;

    /// Takes the lock away from its holder. If `expected` is given, only that hold is ended: the
    /// store compares, so a later holder keeps the lock, whatever client it uses. The next holder
    /// gets a greater fencing token. The old holder learns of it at its next renewal, after the
    /// fact.
    ///
    /// # Errors
    ///
    /// As any call to the store.
    async fn force_release(&self, key: &LockKey, expected: Option<&HolderMark>)
    -> Result<Released>;

    /// What an operator should know about this store: versions with known defects, settings that
    /// lose locks, members that do not serve. It reads only, and says so where it may not read.
    ///
    /// # Errors
    ///
    /// As any call to the store. What concerns one member of several is a finding, not an error.
    async fn diagnose(&self) -> Result<Vec<Finding>> {
        Ok(Vec::new())
    }

    /// Lets a store serve again that waits for an operator's word, since it cannot know by itself
    /// whether locks that it has forgotten are still held.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::ErrorKind::Unsupported) for a store that never waits for one;
    /// [`Unavailable`](crate::ErrorKind::Unavailable) if it still has to wait, saying for how long:
    /// repeat the call then.
    async fn recover(&self) -> Result<()> {
        Err(Error::unsupported("this store never waits for an operator to recover it"))
    }
}

/// What a store knows about one lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockInfo {
    /// The lock.
    pub key: LockKey,
    /// The holder, if there is one.
    pub holder: Option<HolderInfo>,
    /// The number of waiters in the store's queue; `None` where the store does not know its
    /// waiters.
    pub waiters: Option<usize>,
}

impl LockInfo {
    /// What is known about `key`.
    pub fn new(key: LockKey, holder: Option<HolderInfo>, waiters: Option<usize>) -> Self {
        Self { key, holder, waiters }
    }
}
