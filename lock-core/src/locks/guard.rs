//! A lock that is held.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::sync::oneshot::error::RecvError;

use crate::keeper::{
    Client, Command, Handover, Outbox, PolledKeeper, STANDSTILL_GRACE, make_way, overrun_grace,
};
use crate::{
    Error, Held, LeaseToken, LockState, LostReason, Operation, Released, Result, blocking,
};

/// A held lock, renewed in the background until the guard is dropped or released.
///
/// A guard dereferences to [`Held`]. Dropping it asks a background task to release the lock; it
/// never blocks, and the release is not immediate: if the program exits right away, the lock stays
/// until its TTL runs out. Use [`release`](Self::release) to know that it has happened, or
/// [`Locks::close`](crate::Locks::close) at the end of the program to wait for all releases.
///
/// Locks are not re-entrant. Tasks can share one through an `Arc<LockGuard>`: it is released when
/// the last clone is dropped.
///
/// ```
/// # use lock_core as distlock;
/// use std::sync::Arc;
/// use distlock::{LockState, Locks, testing::MemoryBackend};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> lock_core::Result<()> {
/// # let locks = Locks::new(MemoryBackend::queued());
/// let guard = Arc::new(locks.named("order:42")?.acquire().await?);
/// let other = tokio::spawn({
///     let guard = Arc::clone(&guard); // keeps the lock; `guard.held().clone()` would only watch it
///     async move { guard.state() }
/// });
/// assert_eq!(other.await.unwrap(), LockState::Secure);
/// # Ok(()) }
/// ```
///
/// A guard from [`Lock::attach`](crate::Lock::attach) does neither: it is not renewed, and dropping
/// it leaves the lock to the bearer of the lease token.
#[derive(Debug)]
#[must_use = "dropping the guard releases the lock"]
pub struct LockGuard {
    pub(super) held: Held,
    commands: Outbox,
    keeper: Arc<PolledKeeper>,
    /// How long the keeper takes to answer at most, if its runtime is driven.
    patience: Duration,
    pub(super) client: Arc<Client>,
}

impl LockGuard {
    /// # Errors
    ///
    /// If nobody keeps the hold any more.
    pub(super) fn new(
        client: Arc<Client>,
        (keeper, handover): (Arc<PolledKeeper>, Handover),
    ) -> Result<Self> {
        if handover.held.state() == LockState::Lost(LostReason::Closed) {
            return Err(client.keeper_gone());
        }
        // A call in progress, a renewal that is due, one that is asked for, and the call itself. After one that
        // overruns its limit there are no more.
        let patience =
            handover.call_timeout * 4 + overrun_grace(handover.call_timeout) + STANDSTILL_GRACE;
        let Handover { held, commands, .. } = handover;
        Ok(Self { held, commands, keeper, patience, client })
    }

    pub(crate) fn client(&self) -> &Arc<Client> {
        &self.client
    }

    /// A view of this hold to pass around; it does not keep the lock.
    pub fn held(&self) -> &Held {
        &self.held
    }

    /// Releases the lock and waits for the store's answer, and before that for the end of its
    /// [`min_hold`](crate::Lock::min_hold).
    ///
    /// ```
    /// # use lock_core::Released;
    /// # use lock_core::{Locks, testing::MemoryBackend};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lock_core::Result<()> {
    /// # let locks = Locks::new(MemoryBackend::queued());
    /// let guard = locks.named("order:42")?.acquire().await?;
    /// assert_eq!(guard.release().await?, Released::Freed);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Lost`](crate::ErrorKind::Lost) if the lock was lost before, whatever the store reports now.
    /// After any other error the lock may or may not have been released; the release is repeated in
    /// the background until the store has confirmed it or the lease has ended.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: the lock is released in the background; an attached one only once this has been
    /// polled.
    pub async fn release(self) -> Result<Released> {
        let before = self.held.lose(LostReason::Released);
        let (reply, answer) = oneshot::channel();
        let answer = self.keeper.answer(answer);
        self.commands.send(Command::Release(reply));
        if let Some(reason) = before {
            // The keeper still tells the store, but the caller does not wait for that.
            return Err(self.lost_at(reason, Operation::Release));
        }
        let kept_for = self.held.free_at().since(self.client.clock.now());
        self.answered(answer, Operation::Release, kept_for + self.patience).await
    }

    /// Renews the lock now, in addition to the background renewals.
    ///
    /// ```
    /// # use lock_core::{Locks, testing::MemoryBackend};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lock_core::Result<()> {
    /// # let locks = Locks::new(MemoryBackend::queued());
    /// let guard = locks.named("order:42")?.no_renew().acquire().await?;
    /// guard.renew().await?; // before a long step: now it lasts for a whole ttl
    /// assert!(guard.remaining().as_secs() > 20);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Lost`](crate::ErrorKind::Lost) if the lock is lost. After any other error it is held until
    /// [`valid_until`](Held::valid_until), unless a later renewal succeeds.
    ///
    /// # Cancel safety
    ///
    /// If dropped, the renewal may or may not have happened.
    pub async fn renew(&self) -> Result<LockState> {
        self.ask(Command::Renew, Operation::Renew).await
    }

    /// Checks with the store that the lock is still held. [`state`](Held::state) uses only the local
    /// clock; this also notices a lock that was taken away.
    ///
    /// ```
    /// # use lock_core::{Locks, LostReason, testing::MemoryBackend};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lock_core::Result<()> {
    /// # let store = MemoryBackend::queued();
    /// # let locks = Locks::new(store.clone());
    /// let guard = locks.named("order:42")?.acquire().await?;
    /// store.lose_now("order:42");
    /// let error = guard.check().await.unwrap_err();
    /// assert_eq!(error.lost_reason(), Some(LostReason::Taken));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Lost`](crate::ErrorKind::Lost) if it is no longer held; any other error leaves that open.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn check(&self) -> Result<LockState> {
        self.ask(Command::Check, Operation::Check).await
    }

    /// Starts renewing the lock in the background, if that is not already happening, as its
    /// [`Lock`](crate::Lock) is set (every third of the TTL by default): for an
    /// [attached](crate::Lock::attach) lock that this process should keep. Dropping the guard ends
    /// the renewals.
    pub fn keep_alive(&self) {
        // A keeper that has ended has already recorded that in the state.
        self.commands.send(Command::KeepAlive);
        make_way();
    }

    /// Keeps the lock from others until `least` after the grant, even if it is released sooner, as
    /// [`Lock::min_hold`](crate::Lock::min_hold) does from the beginning: for when it turns out only once the
    /// lock is held that nobody should repeat the work soon. A time that is set never becomes shorter.
    ///
    /// ```
    /// use std::time::Duration;
    /// # use lock_core::{Locks, testing::MemoryBackend};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lock_core::Result<()> {
    /// # let locks = Locks::new(MemoryBackend::queued());
    /// # fn begin() -> bool { true }
    /// let report = locks.named("nightly-report")?;
    /// let guard = report.acquire().await?;
    /// if begin() {
    ///     guard.set_min_hold(Duration::from_secs(120));
    /// } // else another machine may try at once
    /// drop(guard);
    /// assert!(report.try_acquire().await?.is_none(), "for two minutes");
    /// # Ok(()) }
    /// ```
    pub fn set_min_hold(&self, least: Duration) {
        self.held.keep_for(least);
    }

    /// Runs `body` under the lock, then releases it. If the lock is lost, the body is dropped at
    /// its next await.
    ///
    /// ```
    /// # use lock_core as distlock;
    /// use distlock::{Locks, testing::MemoryBackend};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lock_core::Result<()> {
    /// # let locks = Locks::new(MemoryBackend::queued());
    /// if let Some(guard) = locks.named("nightly-report")?.try_acquire().await? {
    ///     let pages = guard.run(async |held| held.token().map(|_| 12)).await??;
    ///     assert_eq!(pages, 12);
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Lost`](crate::ErrorKind::Lost) if the lock was lost before the body ended. If it ended in
    /// time, its value is returned even if the release then fails; the failure is reported as a
    /// `tracing` event.
    ///
    /// # Cancel safety
    ///
    /// Dropping it drops the body, and releases the lock in the background.
    pub async fn run<T, F>(self, body: F) -> Result<T>
    where
        F: AsyncFnOnce(Held) -> T,
    {
        let (held, client) = (self.held.clone(), Arc::clone(&self.client));
        run(&client, &held, body, self.release()).await
    }

    /// [`release`](Self::release) for a thread that runs no async code.
    ///
    /// # Errors
    ///
    /// As [`release`](Self::release), and [`NoAnswer`](crate::ErrorKind::NoAnswer) as
    /// [`Lock::acquire_blocking`](crate::Lock::acquire_blocking).
    pub fn release_blocking(self) -> Result<Released> {
        let client = Arc::clone(&self.client);
        blocking::wait(&client, self.release())
    }

    /// Sends a command at once, and returns the future of its answer.
    pub(super) fn ask<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<Result<T>>) -> Command,
        operation: Operation,
    ) -> impl Future<Output = Result<T>> {
        let (reply, answer) = oneshot::channel();
        self.commands.send(command(reply));
        self.answered(answer, operation, self.patience)
    }

    async fn answered<T>(
        &self,
        answer: impl Future<Output = Result<Result<T>, RecvError>>,
        operation: Operation,
        patience: Duration,
    ) -> Result<T> {
        let answer = tokio::select! {
            biased;
            answer = answer => answer,
            () = self.client.clock.sleep(patience) => {
                let error = self.client.standstill(patience);
                return Err(self.client.describe(error, operation, self.held.key()));
            }
        };
        match answer {
            Ok(answer) => answer,
            Err(_) => Err(match self.held.state() {
                // A release that nobody has answered says so itself: the store may keep the lock.
                LockState::Lost(reason) if operation != Operation::Release => {
                    self.lost_at(reason, operation)
                }
                _ => self.client.describe(self.client.keeper_gone(), operation, self.held.key()),
            }),
        }
    }

    fn lost_at(&self, reason: LostReason, operation: Operation) -> Error {
        self.client.describe(Error::lost(reason), operation, self.held.key())
    }
}

/// Runs `body` while `held` is held, then releases it.
pub(crate) async fn run<T, F>(
    client: &Client,
    held: &Held,
    body: F,
    release: impl Future<Output = Result<Released>>,
) -> Result<T>
where
    F: AsyncFnOnce(Held) -> T,
{
    let lost = held.lost();
    let done = tokio::select! {
        biased;
        reason = lost.wait() => Err(reason),
        // A body that never yields can outlast the lock.
        value = body(held.clone()) => match held.state() {
            LockState::Lost(reason) => Err(reason),
            LockState::Secure | LockState::AtRisk => Ok(value),
        },
    };
    let value = done.map_err(|reason| {
        Error::lost(reason).for_key(held.key()).on_backend(client.backend.name())
    })?;
    if let Err(error) = release.await {
        tracing::warn!(target: "distlock", key = %held.key(), %error, "the work has ended, but its lock was not released cleanly");
    }
    Ok(value)
}

impl Deref for LockGuard {
    type Target = Held;

    fn deref(&self) -> &Held {
        &self.held
    }
}

/// Marks the hold as over at once, for every view of it. The keeper sees the closed channel.
impl Drop for LockGuard {
    fn drop(&mut self) {
        self.held.lose(LostReason::Released);
    }
}

impl LockGuard {
    /// Hands the lock to another process, or to a later request. It stays held but is no longer
    /// renewed by this process, and lapses one TTL after its last renewal unless it is
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

/// Why [`LockGuard::detach`] failed, and the guard, which still holds its lock unless the error is
/// [`Lost`](crate::ErrorKind::Lost).
///
/// `?` turns it into an [`Error`] and drops the guard, which releases the lock.
///
/// ```
/// # use lock_core as distlock;
/// use distlock::{Locks, testing::MemoryBackend};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> lock_core::Result<()> {
/// let store = MemoryBackend::queued();
/// let guard = Locks::new(store.clone()).named("order:42")?.acquire().await?;
/// store.lose_now("order:42");
/// guard.check().await.unwrap_err(); // the store reports that the lock was taken away
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
