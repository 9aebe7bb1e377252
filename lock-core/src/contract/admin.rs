//! Looking at locks, and taking them away.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

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

/// What tells one hold from every other in its store, holds of foreign clients included.
///
/// An inspection gives it, and [`force_release`](LockAdmin::force_release) compares it inside the store.
/// What it consists of is the store's own affair. It may be the secret of a holder, so it is not
/// shown.
#[derive(Clone, PartialEq, Eq)]
pub struct HolderMark(Bytes);

impl HolderMark {
    /// A mark of a store's own making, for the author of the store.
    pub fn new(bytes: impl Into<Bytes>) -> Self {
        Self(bytes.into())
    }

    /// What [`new`](Self::new) was given.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The owner id, if the mark was made from one.
    pub fn owner(&self) -> Option<OwnerId> {
        std::str::from_utf8(&self.0).ok()?.parse().ok()
    }
}

/// A hold of this library, where the owner alone identifies it.
impl From<OwnerId> for HolderMark {
    fn from(owner: OwnerId) -> Self {
        Self(owner.to_hex().into())
    }
}

impl fmt::Debug for HolderMark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HolderMark").finish_non_exhaustive()
    }
}

/// What a store knows of a holder.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HolderInfo {
    /// The owner id; `None` for a foreign client whose mark is no owner id of ours.
    pub owner: Option<OwnerId>,
    /// What tells this hold from every other: made from the owner id unless the store sets another.
    pub mark: Option<HolderMark>,
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
        let mark = owner.map(HolderMark::from);
        Self { owner, mark, label: None, fence: None, expires_in: None, held_for: None }
    }
}
