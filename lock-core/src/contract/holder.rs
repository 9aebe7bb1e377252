//! Who holds a lock, as a store shows it.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;

use crate::{Error, FencingToken, OwnerId};

/// Distinguishes one hold from every other in its store, including holds of foreign clients.
///
/// An inspection returns it, and [`force_release`](crate::LockAdmin::force_release) compares it
/// inside the store. Its contents are up to the store. It may be a holder's secret, so it is not
/// shown.
#[derive(Clone, PartialEq, Eq)]
pub struct HolderMark(Bytes);

impl HolderMark {
    /// A mark in the store's own format, for store authors.
    pub fn new(bytes: impl Into<Bytes>) -> Self {
        Self(bytes.into())
    }

    /// The bytes that were passed to [`new`](Self::new).
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

/// What a store knows about a holder.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HolderInfo {
    /// The owner id; `None` for a foreign client, whose mark is not one of our owner ids.
    pub owner: Option<OwnerId>,
    /// Distinguishes this hold from every other: made from the owner id unless the store sets
    /// another.
    pub mark: Option<HolderMark>,
    /// The holder's label.
    pub label: Option<String>,
    /// The fencing token, where the store keeps it.
    pub fence: Option<FencingToken>,
    /// How long the lease lasts without a renewal; `None` where the store has no such limit.
    pub expires_in: Option<Duration>,
    /// How long the lock has been held, where the store records it.
    pub held_for: Option<Duration>,
}

impl HolderInfo {
    /// A holder with this owner id, with nothing else known yet: set the fields that are known.
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
            (None, None) => f.write_str("the holder has no name")?,
        }
        match self.expires_in {
            Some(left) => write!(f, ", for another {left:.1?} unless it renews the lock"),
            None => Ok(()),
        }
    }
}

/// The cause of an error: another client holds the lock.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct HeldBy(HolderInfo);

impl Error {
    /// Names the holder that is in the way.
    #[must_use]
    pub(crate) fn held_by(self, holder: HolderInfo) -> Self {
        self.with_source(HeldBy(holder))
    }

    /// The holder of the lock, if this error says that another client [has
    /// it](crate::ErrorKind::NotAcquired) and the store has shown who. Its times count from when
    /// this error was made. It comes from the store's last busy answer and may be out of date: show
    /// it, but base no decision on it.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_what_the_store_made_it_from() {
        assert_eq!(HolderMark::new("7").as_bytes(), b"7");
        let owner = OwnerId::from_bytes([7; 16]);
        assert_eq!(HolderMark::from(owner).owner(), Some(owner));
        assert_eq!(HolderMark::new("7").owner(), None);
    }
}
