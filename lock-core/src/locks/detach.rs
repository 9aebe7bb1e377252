//! A lock that could not be handed over.

use std::fmt;

use super::guard::LockGuard;
use crate::keeper::Command;
use crate::{Error, LeaseToken, Operation};

impl LockGuard {
    /// Hands the lock to another process, or to a later request. It stays held but is no longer
    /// renewed by this process, and lapses one ttl after its last renewal unless it is
    /// [renewed](crate::Lock::renew) or [attached](crate::Lock::attach).
    ///
    /// ```
    /// # use lock_core::{Locks, testing::MemoryBackend};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lock_core::Result<()> {
    /// # let locks = Locks::new(MemoryBackend::queued());
    /// let order = locks.named("order:42")?;
    /// let token = order.acquire().await?.detach().await?;
    /// assert!(order.try_acquire().await?.is_none(), "still held, by the bearer of the token");
    /// println!("Set-Cookie: lock={}", token.to_text());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::ErrorKind::Unsupported) where locks are bound to this process's
    /// session with the store; [`Lost`](crate::ErrorKind::Lost) if it is lost. The error carries
    /// the guard, so a lock that could not be detached is still held.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: dropping the future before it returns the token drops the guard.
    pub async fn detach(self) -> Result<LeaseToken, DetachError> {
        if !self.client.capabilities.detachable {
            let error = Error::unsupported(format!(
                "{} binds a lock to its session, so it cannot be handed to another process",
                self.client.backend.name()
            ));
            let error = self.client.describe(error, Operation::Detach, self.held.key());
            return Err(DetachError::new(error, self));
        }
        let detached = match self.ask(Command::Detach, Operation::Detach).await {
            Ok(detached) => detached,
            Err(error) => return Err(DetachError::new(error, self)),
        };
        // In the same step that returns the token. If the keeper has ended, the lock lasts for its
        // ttl, as it should.
        let _ = detached.received.send(());
        Ok(detached.token)
    }
}

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
