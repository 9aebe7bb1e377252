//! What an operator sees and does.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use crate::{Error, FencingToken, LockKey, OwnerId, Released, Result};

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

    /// Takes the lock away from its holder, if that is the `victim`: the store compares in the step
    /// that frees the lock, so a later holder keeps it, whatever client it uses. The next holder
    /// gets a greater fencing token. The old holder learns of it at its next renewal, after the
    /// fact.
    ///
    /// # Errors
    ///
    /// As any call to the store.
    async fn force_release(&self, key: &LockKey, victim: &Victim) -> Result<Released>;

    /// What an operator should know about this store: versions with known defects, settings that
    /// lose locks, members that do not serve. It only reads, and reports what it may not read.
    ///
    /// # Errors
    ///
    /// As any call to the store. What concerns one member of several is a finding, not an error.
    async fn diagnose(&self) -> Result<Vec<Finding>> {
        Ok(Vec::new())
    }

    /// Lets a store that waits for an operator grant locks again. It waits because it cannot know by
    /// itself whether locks that it has forgotten are still held.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::ErrorKind::Unsupported) for a store that never waits for one;
    /// [`Unavailable`](crate::ErrorKind::Unavailable) if it still has to wait. The message tells how
    /// long: repeat the call then.
    async fn recover(&self) -> Result<()> {
        Err(Error::unsupported("this store never waits for an operator to recover it"))
    }
}

/// Whose hold a forced release ends. Not an `Option` of a mark, since an unknown holder must never
/// read as any holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Victim {
    /// The hold with this mark, as an inspection has shown it, and no later one.
    Shown(HolderMark),
    /// Whoever holds the lock.
    Anybody,
}

impl Victim {
    /// Whether it is the hold with this mark.
    pub fn is(&self, mark: &HolderMark) -> bool {
        match self {
            Self::Shown(shown) => shown == mark,
            Self::Anybody => true,
        }
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
    /// Distinguishes this hold from every other.
    pub mark: HolderMark,
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
    /// The holder with this mark, with nothing else known yet: set the fields that are known.
    pub fn new(mark: impl Into<HolderMark>) -> Self {
        let mark = mark.into();
        Self { owner: None, mark, label: None, fence: None, expires_in: None, held_for: None }
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

impl Error {
    /// The holder of the lock, if this error says that another client [has
    /// it](crate::ErrorKind::NotAcquired) and the store has shown who. Its times count from when
    /// this error was made. It comes from the store's last busy answer and may be out of date: show
    /// it, but base no decision on it.
    ///
    /// ```
    /// # use lock_core as distlock;
    /// use std::time::Duration;
    /// use distlock::{Locks, testing::MemoryBackend};
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
        self.shown_holder()
    }
}

/// One thing that an operator should know about a store, found by
/// [`LockAdmin::diagnose`](crate::LockAdmin::diagnose).
///
/// ```
/// # mod distlock { pub mod admin { pub use lock_core::{Finding, Severity}; } }
/// use distlock::admin::{Finding, Severity};
///
/// let finding = Finding::warning("the server keeps no data", "set appendonly to yes");
/// assert_eq!(finding.severity, Severity::Warning);
/// assert_eq!(finding.to_string(), "the server keeps no data: set appendonly to yes");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// How much it matters.
    pub severity: Severity,
    /// What was found, and where. Never a credential.
    pub what: String,
    /// What to do about it; `None` if nothing needs to be done.
    pub remedy: Option<String>,
}

/// How much a [`Finding`] matters. The worst is the greatest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Severity {
    /// Good to know; nothing needs to be done.
    Info,
    /// Locks work, but not in every event that can be expected, or not as well as they could.
    Warning,
    /// Locks cannot be taken, or may have two holders.
    Critical,
}

impl Finding {
    /// Something to know.
    pub fn info(what: impl Into<String>) -> Self {
        Self { severity: Severity::Info, what: what.into(), remedy: None }
    }

    /// Something to mend, and how.
    pub fn warning(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, what: what.into(), remedy: Some(remedy.into()) }
    }

    /// Something to mend at once, and how.
    pub fn critical(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { severity: Severity::Critical, what: what.into(), remedy: Some(remedy.into()) }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        match &self.remedy {
            Some(remedy) => write!(f, ": {remedy}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Critical => "critical",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_what_the_store_made_it_from() {
        assert_eq!(HolderMark::new("7").as_bytes(), b"7");
        let owner = OwnerId::from_bytes([7; 16]);
        assert_eq!(HolderMark::from(owner), HolderMark::new(owner.to_hex()));
    }

    #[test]
    fn a_finding_is_shown_with_its_remedy() {
        let (fact, warning) = (Finding::info("a"), Finding::warning("b", "do c"));
        assert_eq!((fact.to_string(), warning.to_string()), ("a".to_owned(), "b: do c".to_owned()));
        let critical = Finding::critical("d", "do e").severity;
        assert_eq!(format!("{:<8}|{:<8}", critical, fact.severity), "critical|info    ");
    }
}
