//! What a lock does with a lease token.

use std::sync::Arc;

use super::lock::Lock;
use crate::contract::Block;
use crate::keeper::{self, GRACE, Handover, Life, Start, Terms};
use crate::{
    ClaimRequest, Error, FencingToken, LeaseToken, LockGuard, Operation, Released, RenewedLease,
    Result, Resume,
};

impl Lock {
    /// Takes over a lock that was [detached](LockGuard::detach), here or in another process. It
    /// starts with one renewal, by which the store confirms owner and fence.
    ///
    /// All settings come from this `Lock`, not from the one that was detached, so use the same
    /// ones; [`max_hold`](Self::max_hold) counts from now. The guard is not renewed in the
    /// background; see [`LockGuard::keep_alive`]. **Nor does dropping it release the lock**, since
    /// the lock belongs to the bearer of the token: an error, or a request cancelled between here
    /// and the answer, must not take it away. It lapses one ttl after its last renewal, or is
    /// released by [`LockGuard::release`] or [`release`](Self::release).
    ///
    /// For a heartbeat, which only renews, use [`renew`](Self::renew).
    ///
    /// ```
    /// # use lock_core::{LeaseToken, Locks, testing::MemoryBackend};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lock_core::Result<()> {
    /// # let locks = Locks::new(MemoryBackend::queued());
    /// let text = locks.named("import")?.acquire().await?.detach().await?.to_text();
    /// // In another process:
    /// let token: LeaseToken = text.parse()?;
    /// let guard = locks.named("import")?.attach(&token).await?;
    /// guard.keep_alive(); // from now on this process renews it
    /// guard.release().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) if the token belongs to another lock or
    /// another kind of store, or was edited; [`Lost`](crate::ErrorKind::Lost) if the lease has
    /// ended or never matched the token; and any error of a renewal. The lock then stays as it is.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: the lock stays held, and may or may not have been renewed.
    pub async fn attach(&self, token: &LeaseToken) -> Result<LockGuard> {
        let (life, handover) = self.resume(token, Operation::Attach, Start::Attach).await?;
        self.guard(life, handover).map_err(|error| self.describe(error, Operation::Attach))
    }

    /// Renews a lock that was [detached](LockGuard::detach), once, as a heartbeat does. The ttl is
    /// that of this `Lock`, and the token stays the same.
    ///
    /// ```
    /// # use lock_core::{LeaseToken, Locks, Result, memory::MemoryBackend};
    /// /// A heartbeat of a page that edits an order; returns for how long the page may go on.
    /// async fn heartbeat(locks: &Locks, order: u32, text: &str) -> Result<std::time::Duration> {
    ///     let token: LeaseToken = text.parse()?;
    ///     Ok(locks.named(format!("order:{order}"))?.renew(&token).await?.remaining)
    /// }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<()> {
    /// # let locks = Locks::new(MemoryBackend::queued());
    /// let text = locks.named("order:42")?.acquire().await?.detach().await?.to_text();
    /// assert!(heartbeat(&locks, 42, &text).await?.as_secs() > 20);
    /// assert!(heartbeat(&locks, 43, &text).await.is_err());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`attach`](Self::attach).
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: the lock stays held, and may or may not have been renewed.
    pub async fn renew(&self, token: &LeaseToken) -> Result<RenewedLease> {
        let (_, handover) = self.resume(token, Operation::Renew, Start::Renew).await?;
        RenewedLease::of(&handover.held).map_err(|error| self.describe(error, Operation::Renew))
    }

    /// Releases a lock that was [detached](LockGuard::detach).
    ///
    /// [`AlreadyGone`](Released::AlreadyGone) means that the store no longer has such a hold: it
    /// was already released, its lease has ended, or the token was edited.
    ///
    /// ```
    /// # use lock_core::{Locks, Released, testing::MemoryBackend};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lock_core::Result<()> {
    /// # let locks = Locks::new(MemoryBackend::queued());
    /// let order = locks.named("order:42")?;
    /// let token = order.acquire().await?.detach().await?;
    /// assert_eq!(order.release(token.clone()).await?, Released::Freed);
    /// assert_eq!(order.release(token).await?, Released::AlreadyGone);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) as for [`attach`](Self::attach). After any
    /// other error the lock may or may not have been released; the release is repeated in the
    /// background until the store has confirmed it or the lease must have ended.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: once this has been polled, the lock is released in the background.
    pub async fn release(&self, token: LeaseToken) -> Result<Released> {
        let described = |error| self.describe(error, Operation::Release);
        let (request, terms) = self.resumed(&token).map_err(described)?;
        let limit = self.client.clock.now() + terms.call_timeout + GRACE;
        let answer = keeper::begin_release(&self.client, request, terms).map_err(described)?;
        let answer = self.answer(answer, limit).await.map_err(described)?;
        answer.unwrap_or_else(|_| Err(described(self.client.keeper_gone())))
    }

    /// Renews the hold of `token`, for `operation`.
    async fn resume(
        &self,
        token: &LeaseToken,
        operation: Operation,
        start: impl FnOnce(FencingToken, Block) -> Start,
    ) -> Result<(Arc<Life>, Handover)> {
        let described = |error| self.describe(error, operation);
        let (request, mut terms) = self.resumed(token).map_err(described)?;
        terms.renew_every = None;
        let limit = self.client.clock.now() + terms.call_timeout + GRACE;
        let start = start(token.fence(), token.block());
        let (life, answer) =
            keeper::begin(&self.client, request, terms, start).map_err(described)?;
        match self.answer(answer, limit).await.map_err(described)? {
            Ok(handover) => Ok((life, handover?)),
            Err(_) => Err(described(self.client.keeper_gone())),
        }
    }

    /// A request that continues the hold of `token`. Owner, fence and data are the token's, for the
    /// store to compare; everything else is this lock's.
    fn resumed(&self, token: &LeaseToken) -> Result<(ClaimRequest, Terms)> {
        let backend = self.client.backend.name();
        token.check_is_of(&self.key, backend)?;
        if !self.client.capabilities.detachable {
            return Err(Error::unsupported(format!(
                "{backend} binds a lock to its session, so no other process can take it over"
            )));
        }
        let (request, terms) = self.request(token.owner())?;
        let Block { first, fences } = token.block();
        if fences > 1 && !self.client.capabilities.fence_block {
            return Err(Error::invalid(format!(
                "this lease token was edited: {backend} grants no fencing tokens in blocks"
            )));
        }
        let resume = Resume::new(first, token.data().clone());
        Ok((request.with_fences(fences).with_resume(resume), terms))
    }
}
