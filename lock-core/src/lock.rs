//! One named lock, and the ways to take it.

use std::sync::Arc;
use std::time::Duration;

use crate::keeper::{self, Patience, Start};
use crate::shared::Shared;
use crate::terms::{Options, RenewalWish};
use crate::{
    ClaimRequest, Error, ErrorKind, Held, LockGuard, LockKey, LockState, Operation, OwnerId, Result,
};

/// One named lock with its settings. Cheap to clone; making one sends nothing, and one value can be
/// used for any number of acquisitions. It is not re-entrant: a task that holds the lock and
/// acquires it again waits for itself.
#[derive(Clone, Debug)]
#[must_use = "a lock does nothing until it is acquired"]
pub struct Lock {
    shared: Arc<Shared>,
    key: LockKey,
    options: Options,
    label: Option<Arc<str>>,
}

impl Lock {
    pub(crate) fn new(shared: Arc<Shared>, key: LockKey) -> Self {
        let label = shared.defaults.label.clone();
        Self { shared, key, options: Options::default(), label }
    }

    /// How long the store keeps the lock without a renewal: 10 ms to 366 days, rounded up to what
    /// the store can keep. A crashed holder blocks the others for this long.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.options.ttl = Some(ttl);
        self
    }

    /// How often the lock is renewed while it is held; a third of the ttl by default, at most two
    /// thirds.
    pub fn renew_every(mut self, every: Duration) -> Self {
        self.options.renewal = RenewalWish::Every(every);
        self
    }

    /// The lock is not renewed while it is held: it ends one ttl after the grant. A place in a
    /// queue is renewed all the same.
    pub fn no_renew(mut self) -> Self {
        self.options.renewal = RenewalWish::Never;
        self
    }

    /// The longest time for which the lock may be held, renewals included: a cap on a holder that
    /// hangs. The guard is lost then; the store is told when the guard has gone, or ends the lease.
    pub fn max_hold(mut self, limit: Duration) -> Self {
        self.options.max_hold = Some(limit);
        self
    }

    /// Who holds the lock, for people who inspect it. An empty label shows nothing.
    pub fn label(mut self, label: impl Into<Arc<str>>) -> Self {
        let label = label.into();
        self.label = (!label.is_empty()).then_some(label);
        self
    }

    /// The lock's name with its prefix.
    pub fn key(&self) -> &LockKey {
        &self.key
    }

    /// Takes the lock, waiting for as long as it takes.
    ///
    /// # Errors
    ///
    /// Bad settings, and what the store says that will not change by itself. A store that does not
    /// answer at all is given up after [`unavailable_after`](crate::LocksBuilder::unavailable_after).
    /// Whatever an error leaves in doubt is cleaned up in the background.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: a dropped call loses its place, and what it had taken is released in the
    /// background.
    pub async fn acquire(&self) -> Result<LockGuard> {
        self.wait(Patience::Forever).await
    }

    /// Takes the lock, waiting for `limit` at most. With a limit of zero it is tried once.
    ///
    /// # Errors
    ///
    /// [`NotAcquired`](ErrorKind::NotAcquired) if the time ran out and the store's last answer was
    /// that somebody else holds the lock; otherwise the last error.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    pub async fn acquire_timeout(&self, limit: Duration) -> Result<LockGuard> {
        if limit.is_zero() {
            return self.try_acquire().await?.ok_or_else(|| {
                Error::new(ErrorKind::NotAcquired, "somebody else holds it")
                    .in_operation(Operation::Acquire)
                    .for_key(&self.key)
                    .on_backend(self.shared.backend.name())
            });
        }
        self.wait(Patience::Until(self.shared.clock.now() + limit)).await
    }

    /// Takes the lock if it is free; `None` if somebody else holds it.
    ///
    /// # Errors
    ///
    /// Bad settings, or no usable answer from the store, after one try and, if the outcome of that
    /// was unknown or the store was out of reach, one more.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    pub async fn try_acquire(&self) -> Result<Option<LockGuard>> {
        self.take(Patience::Try).await
    }

    /// Takes the lock, runs `body` under it, and releases it. When the lock is lost, the body is
    /// dropped at its next await.
    ///
    /// ```
    /// # use lock_core::{Locks, memory::MemoryBackend};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lock_core::Result<()> {
    /// # let locks = Locks::new(MemoryBackend::queued());
    /// let fence = locks.lock("nightly-report")?.run(async |held| held.token()).await??;
    /// # assert!(fence.get() > 0);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`acquire`](Self::acquire), and [`Lost`](ErrorKind::Lost) if the lock was lost before
    /// the body ended. If it ended in time, its value is returned, also when the release then fails.
    ///
    /// # Cancel safety
    ///
    /// Dropping it drops the body, and releases the lock in the background.
    pub async fn run<T, F>(&self, body: F) -> Result<T>
    where
        F: AsyncFnOnce(Held) -> T,
    {
        let guard = self.acquire().await?;
        let held = guard.held().clone();
        let lost = guard.lost();
        let value = tokio::select! {
            biased;
            reason = lost.wait() => return Err(self.lost(reason)),
            value = body(held) => value,
        };
        // A body that never yields can end after the lock did.
        if let LockState::Lost(reason) = guard.state() {
            return Err(self.lost(reason));
        }
        if let Err(error) = guard.release().await {
            tracing::warn!(target: "distlock", key = %self.key, %error, "the work is done, but its lock was not released cleanly");
        }
        Ok(value)
    }

    async fn wait(&self, patience: Patience) -> Result<LockGuard> {
        self.take(patience).await?.ok_or_else(|| {
            Error::new(ErrorKind::Internal, "BUG: a waiting acquire was answered with busy")
        })
    }

    async fn take(&self, patience: Patience) -> Result<Option<LockGuard>> {
        let described = |error: Error| {
            error
                .in_operation(Operation::Acquire)
                .for_key(&self.key)
                .on_backend(self.shared.backend.name())
        };
        let terms = self.options.terms(&self.shared, None).map_err(described)?;
        let owner = OwnerId::generate(&*self.shared.rng).map_err(described)?;
        let request = ClaimRequest::new(self.key.clone(), owner, terms.ttl)
            .with_wait(!matches!(patience, Patience::Try))
            .with_call_timeout(terms.call_timeout)
            .with_label(self.label.as_deref().map(str::to_owned));
        let answer = keeper::spawn(&self.shared, request, terms, Start::Acquire(patience))
            .map_err(described)?;
        match answer.await {
            Ok(Ok(handover)) => Ok(handover.map(|h| LockGuard::new(Arc::clone(&self.shared), h))),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(described(self.shared.keeper_gone())),
        }
    }

    fn lost(&self, reason: crate::LostReason) -> Error {
        Error::lost(reason).for_key(&self.key).on_backend(self.shared.backend.name())
    }
}
