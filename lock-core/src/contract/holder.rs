//! Who holds a lock, as a store shows it.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;

use crate::{Error, FencingToken, OwnerId};

/// What tells one hold from every other in its store, holds of foreign clients included.
///
/// An inspection gives it, and [`force_release`](crate::LockAdmin::force_release) compares it inside the store.
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

    /// The same, `passed` after the store has shown it.
    #[must_use]
    pub(crate) fn after(mut self, passed: Duration) -> Self {
        self.expires_in = self.expires_in.map(|left| left.saturating_sub(passed));
        self.held_for = self.held_for.map(|held| held + passed);
        self
    }
}

/// In words, for people: who, and until when.
impl fmt::Display for HolderInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.label, &self.owner) {
            (Some(label), _) => write!(f, "the holder is {label:?}")?,
            (None, Some(owner)) => write!(f, "the holder is {}…", owner.short())?,
            (None, None) => f.write_str("the holder gives no name")?,
        }
        match self.expires_in {
            Some(left) => write!(f, ", for another {left:.1?} unless it renews the lock"),
            None => Ok(()),
        }
    }
}

/// The cause of an error: somebody holds the lock.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct HeldBy(HolderInfo);

impl Error {
    /// Names the holder who is in the way.
    #[must_use]
    pub(crate) fn held_by(self, holder: HolderInfo) -> Self {
        self.with_source(HeldBy(holder))
    }

    /// Who has the lock, if this error says that somebody else [has it](crate::ErrorKind::NotAcquired) and
    /// the store has shown who. Its times count from the making of this error. It comes with the
    /// store's last busy answer and may be out of date: show it, and decide nothing by it.
    ///
    /// ```
    /// use std::time::Duration;
    /// use lock_core::{Locks, memory::MemoryBackend};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lock_core::Result<()> {
    /// let locks = Locks::new(MemoryBackend::queued());
    /// let guard = locks.named("order:42")?.label("host-7").acquire().await?;
    /// let error = locks.named("order:42")?.acquire_timeout(Duration::ZERO).await.unwrap_err();
    /// let holder = error.holder().expect("the memory store shows the holder");
    /// assert_eq!(holder.label.as_deref(), Some("host-7"));
    /// # guard.release().await?;
    /// # Ok(()) }
    /// ```
    pub fn holder(&self) -> Option<&HolderInfo> {
        self.cause()?.downcast_ref().map(|HeldBy(holder)| holder)
    }
}
