//! A lock that is held.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use crate::keeper::{Client, Command, GRACE, Handover};
use crate::{Error, Held, LeaseToken, LockState, LostReason, Operation, Released, Result};

/// A lock that is held, and renewed in the background, until this is dropped or released.
///
/// Everything that [`Held`] tells can be asked of the guard too. Dropping it asks a background task
/// to release the lock; it never blocks, and the release is not immediate: a program that ends at
/// once leaves the lock to its ttl. Use [`release`](Self::release) to know that it has happened, or
/// [`Locks::close`](crate::Locks::close) at the end of the program to wait for all of them.
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
            return Err(self.lost(reason, Operation::Release));
        }
        answer.await
    }

    /// Renews the lock now, beside the renewals that happen by themselves.
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

    /// Hands the lock to another process, or to a later request: it stays held, is not renewed by
    /// this process any more, and lapses one ttl after its last renewal unless somebody
    /// [renews](crate::Lock::renew) it or [attaches](crate::Lock::attach) to it.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::ErrorKind::Unsupported) where a lock is bound to this process's session
    /// with the store; [`Lost`](crate::ErrorKind::Lost) if it is lost. After an error the guard has
    /// been dropped: a lock that was acquired here is released in the background.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: dropped before the token is there, it has dropped the guard.
    pub async fn detach(self) -> Result<LeaseToken> {
        if !self.client.capabilities.detachable {
            return Err(Error::unsupported(format!(
                "{} binds a lock to its session, so it cannot be handed to another process",
                self.client.backend.name()
            ))
            .in_operation(Operation::Detach)
            .for_key(self.held.key()));
        }
        let detached = self.ask(Command::Detach, Operation::Detach).await?;
        // In the same step that returns the token. If the keeper has gone, the lock lasts for its ttl,
        // as it should.
        let _ = detached.received.send(());
        Ok(detached.token)
    }

    /// A guard that can be cloned: the lock is released when the last clone is dropped. This is what
    /// takes the place of re-entrance.
    pub fn share(self) -> SharedGuard {
        SharedGuard(Arc::new(self))
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
                    let error = self.client.standstill(self.patience).in_operation(operation);
                    return Err(error.for_key(self.held.key()));
                }
            };
            match answer {
                Ok(answer) => answer,
                Err(_) => Err(match self.held.state() {
                    LockState::Lost(reason) => self.lost(reason, operation),
                    LockState::Held | LockState::AtRisk => self.client.keeper_gone(),
                }),
            }
        }
    }

    fn lost(&self, reason: LostReason, operation: Operation) -> Error {
        Error::lost(reason)
            .in_operation(operation)
            .for_key(self.held.key())
            .on_backend(self.client.backend.name())
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

/// A guard that several tasks share. Made by [`LockGuard::share`].
#[derive(Clone, Debug)]
#[must_use = "dropping the last clone releases the lock"]
pub struct SharedGuard(Arc<LockGuard>);

impl SharedGuard {
    /// Gives this clone up. The last one releases the lock and gets the store's answer, all others
    /// get `None`.
    ///
    /// # Errors
    ///
    /// As [`LockGuard::release`].
    ///
    /// # Cancel safety
    ///
    /// As [`LockGuard::release`].
    pub async fn release(self) -> Result<Option<Released>> {
        match Arc::into_inner(self.0) {
            Some(guard) => guard.release().await.map(Some),
            None => Ok(None),
        }
    }
}

impl Deref for SharedGuard {
    type Target = LockGuard;

    fn deref(&self) -> &LockGuard {
        &self.0
    }
}
