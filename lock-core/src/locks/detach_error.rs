//! A lock that could not be handed over.

use std::fmt;

use super::guard::LockGuard;
use crate::Error;

/// Why [`LockGuard::detach`] failed, and the guard, which still holds its lock unless the error says
/// that it is lost.
///
/// `?` turns it into an [`Error`] and drops the guard, which releases the lock.
///
/// ```
/// use lock_core::{Locks, testing::MemoryBackend};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> lock_core::Result<()> {
/// let store = MemoryBackend::queued();
/// let guard = Locks::new(store.clone()).named("order:42")?.acquire().await?;
/// store.lose_now("order:42");
/// guard.check().await.unwrap_err(); // the store says that the lock was taken away
/// let failed = guard.detach().await.unwrap_err();
/// assert!(failed.error().lost_reason().is_some());
/// drop(failed.into_guard());
/// # Ok(()) }
/// ```
pub struct DetachError {
    error: Error,
    guard: LockGuard,
}

impl DetachError {
    pub(super) fn new(error: Error, guard: LockGuard) -> Self {
        Self { error, guard }
    }

    /// What went wrong.
    pub fn error(&self) -> &Error {
        &self.error
    }

    /// The guard, to keep using.
    pub fn into_guard(self) -> LockGuard {
        self.guard
    }
}

impl fmt::Debug for DetachError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DetachError").field("error", &self.error).finish_non_exhaustive()
    }
}

impl fmt::Display for DetachError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for DetachError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

/// Drops the guard.
impl From<DetachError> for Error {
    fn from(failed: DetachError) -> Self {
        failed.error
    }
}
