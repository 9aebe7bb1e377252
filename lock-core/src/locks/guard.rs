//! A lock that is held.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use super::detach_error::DetachError;
use crate::blocking;
use crate::keeper::{Client, Command, GRACE, Handover};
use crate::{Error, Held, LeaseToken, LockState, LostReason, Operation, Released, Result};

/// A lock that is held, and renewed in the background, until this is dropped or released.
///
/// Everything that [`Held`] tells can be asked of the guard too. Dropping it asks a background task
/// to release the lock; it never blocks, and the release is not immediate: a program that ends at
/// once leaves the lock to its ttl. Use [`release`](Self::release) to know that it has happened, or
/// [`Locks::close`](crate::Locks::close) at the end of the program to wait for all of them.
///
/// Locks are not re-entrant. Several tasks share one by an `Arc<LockGuard>`: it is released when the last
/// clone is dropped.
///
/// ```
/// use std::sync::Arc;
/// use lock_core::{LockState, Locks, testing::MemoryBackend};
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
/// A guard that [`Lock::attach`](crate::Lock::attach) made does neither: it is not renewed, and
/// dropping it leaves the lock to the bearer of the lease token.
#[derive(Debug)]
#[must_use = "dropping the guard releases the lock"]
pub struct LockGuard {
    held: Held,
    commands: mpsc::UnboundedSender<Command>,
    /// By when the keeper has answered, if its runtime is driven.
    patience: Duration,
    client: Arc<Client>,
}

impl LockGuard {
    pub(crate) fn new(client: Arc<Client>, handover: Handover) -> Self {
        // A call that is under way, a renewal that has to be repeated, and the call itself.
        let patience = handover.call_timeout * 3 + GRACE;
        Self { held: handover.held, commands: handover.commands, patience, client }
    }

    /// A view of this hold that can be given away; it does not keep the lock.
    pub fn held(&self) -> &Held {
        &self.held
    }

    /// Releases the lock and waits for the store's answer.
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
    /// [`Lost`](crate::ErrorKind::Lost) if the lock was lost before, whatever the store says now.
    /// Any other error leaves open whether the store has released it; it is repeated in the
    /// background until the store has confirmed it or the lease has ended.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: the lock is released in the background; one that was attached, once this has been
    /// polled.
    pub async fn release(self) -> Result<Released> {
        let before = self.held.lose(LostReason::Released);
        let answer = self.ask(Command::Release, Operation::Release);
        if let Some(reason) = before {
            // The keeper still tells the store; nobody waits for that.
            return Err(self.lost_at(reason, Operation::Release));
        }
        answer.await
    }

    /// Renews the lock now, beside the renewals in the background.
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
    /// Dropped, it may or may not have happened.
    pub async fn renew(&self) -> Result<LockState> {
        self.ask(Command::Renew, Operation::Renew).await
    }

    /// Asks the store whether the lock is still held. [`state`](Held::state) answers from the local
    /// clock; this also sees a lock that was taken away.
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
    /// [`Lost`](crate::ErrorKind::Lost) if it is not held any more; any other error says nothing
    /// about it.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn check(&self) -> Result<LockState> {
        self.ask(Command::Check, Operation::Check).await
    }

    /// From now on the lock is renewed in the background, as its [`Lock`](crate::Lock) says (every third of its
    /// ttl by default), if it was not before: for an [attached](crate::Lock::attach) lock that this
    /// process shall keep. Dropping the guard ends the renewals.
    pub fn keep_alive(&self) {
        // A keeper that has gone has said so in the state already.
        let _ = self.commands.send(Command::KeepAlive);
    }

    /// Runs `body` under the lock, and releases it. When the lock is lost, the body is dropped at its
    /// next await.
    ///
    /// ```
    /// use lock_core::{Locks, testing::MemoryBackend};
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
    /// [`Lost`](crate::ErrorKind::Lost) if the lock was lost before the body ended. If it ended in time,
    /// its value is returned, also when the release then fails: that is reported as an event.
    ///
    /// # Cancel safety
    ///
    /// Dropping it drops the body, and releases the lock in the background.
    pub async fn run<T, F>(self, body: F) -> Result<T>
    where
        F: AsyncFnOnce(Held) -> T,
    {
        let lost = self.lost();
        let value = tokio::select! {
            biased;
            reason = lost.wait() => return Err(self.lost_while_running(reason)),
            value = body(self.held.clone()) => value,
        };
        // A body that never yields can end after the lock did.
        if let LockState::Lost(reason) = self.state() {
            return Err(self.lost_while_running(reason));
        }
        let key = self.key().clone();
        if let Err(error) = self.release().await {
            tracing::warn!(target: "distlock", %key, %error, "the work is done, but its lock was not released cleanly");
        }
        Ok(value)
    }

    /// Hands the lock to another process, or to a later request: it stays held, is not renewed by
    /// this process any more, and lapses one ttl after its last renewal unless somebody
    /// [renews](crate::Lock::renew) it or [attaches](crate::Lock::attach) to it.
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
    /// [`Unsupported`](crate::ErrorKind::Unsupported) where a lock is bound to this process's session
    /// with the store; [`Lost`](crate::ErrorKind::Lost) if it is lost. The error has the guard, so a lock
    /// that could not be detached is still held.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: dropped before the token is there, it has dropped the guard.
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
        // In the same step that returns the token. If the keeper has gone, the lock lasts for its ttl,
        // as it should.
        let _ = detached.received.send(());
        Ok(detached.token)
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
    fn ask<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<Result<T>>) -> Command,
        operation: Operation,
    ) -> impl Future<Output = Result<T>> {
        let (reply, answer) = oneshot::channel();
        let _ = self.commands.send(command(reply));
        async move {
            let answer = tokio::select! {
                biased;
                answer = answer => answer,
                () = self.client.clock.sleep(self.patience) => {
                    let error = self.client.standstill(self.patience);
                    return Err(self.client.describe(error, operation, self.held.key()));
                }
            };
            match answer {
                Ok(answer) => answer,
                Err(_) => Err(match self.held.state() {
                    LockState::Lost(reason) => self.lost_at(reason, operation),
                    LockState::Secure | LockState::AtRisk => self.client.keeper_gone(),
                }),
            }
        }
    }

    fn lost_while_running(&self, reason: LostReason) -> Error {
        Error::lost(reason).for_key(self.held.key()).on_backend(self.client.backend.name())
    }

    fn lost_at(&self, reason: LostReason, operation: Operation) -> Error {
        self.client.describe(Error::lost(reason), operation, self.held.key())
    }
}

impl Deref for LockGuard {
    type Target = Held;

    fn deref(&self) -> &Held {
        &self.held
    }
}

/// Says at once, to every view of the hold, that it is over. The keeper sees the closed channel.
impl Drop for LockGuard {
    fn drop(&mut self) {
        self.held.lose(LostReason::Released);
    }
}
