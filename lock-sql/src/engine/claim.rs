//! One contender.

use std::sync::Arc;

use lock_core::{
    Attempt, Bytes, Claim, ClaimRequest, FencingToken, Released, Renewal, Result, async_trait,
};
use tokio_util::task::TaskTracker;

use super::dialect::Dialect;
use super::entry::{Entry, Secret};
use super::links::Turn;
use super::store::Store;
use super::sweep::Sweeper;

/// A claim on one row. It has no other state in the database, and a waiter has none at
/// all, so dropping it writes nothing.
#[derive(Debug)]
pub(crate) struct SqlClaim<D: Dialect> {
    store: Arc<Store<D>>,
    sweeper: Arc<Sweeper<D>>,
    entry: Arc<Entry>,
    /// The token of the hold, once it is known. A row with our owner and another token is a hold
    /// that a late repeat of `try_acquire` has made after the lock was taken away by force; it must
    /// not keep the old hold alive.
    fence: Option<FencingToken>,
    /// The row of a hold that was taken over has as many fences as its lease token says. Its statements
    /// compare only the last one, and a hold keeps what it has.
    is_proven: bool,
    /// The last answer was "busy".
    polling: bool,
}

impl<D: Dialect> SqlClaim<D> {
    pub(crate) fn new(sweeper: &Arc<Sweeper<D>>, request: ClaimRequest) -> Result<Self> {
        let (sweeper, store) = (Arc::clone(sweeper), Arc::clone(&sweeper.store));
        let name = request.key.encode();
        let more = request.fences.saturating_sub(1);
        let taken_over =
            request.resume.map(|resume| Entry::last(resume.fence, more)).transpose()?;
        let entry = Arc::new(Entry {
            waiter: store.dialect.listen(&name, request.wait),
            name,
            owner: Secret(request.owner.to_hex()),
            ttl: request.ttl,
            call_timeout: request.call_timeout,
            label: request.label,
            more,
            taken_over,
            unfinished: TaskTracker::new(),
        });
        let (fence, is_proven) = (taken_over, taken_over.is_none() || more == 0);
        Ok(Self { store, sweeper, entry, fence, is_proven, polling: false })
    }
}

impl<D: Dialect> SqlClaim<D> {
    /// Whether the fences that a lease token names are those of the hold in the row.
    async fn is_proven(&mut self) -> Result<bool> {
        if !self.is_proven {
            let Entry { name, call_timeout, more, owner, .. } = &*self.entry;
            let lease = self.store.look(Turn::Check, name, *call_timeout).await?;
            self.is_proven = lease.is_some_and(|lease| {
                lease.has(*more) && lease.left_of(&owner.0, self.fence).is_some()
            });
        }
        Ok(self.is_proven)
    }
}

#[async_trait]
impl<D: Dialect> Claim for SqlClaim<D> {
    async fn try_acquire(&mut self) -> Result<Attempt> {
        let attempt = self.store.acquire(&self.entry, self.polling).await?;
        match attempt {
            Attempt::Granted { token, .. } => {
                self.fence = Some(Entry::last(token, self.entry.more)?);
                self.sweeper.sweep_if_due();
            }
            _ => self.polling = true,
        }
        Ok(attempt)
    }

    async fn renew(&mut self) -> Result<Renewal> {
        if !self.is_proven().await? {
            return Ok(Renewal::Lost);
        }
        self.store.renewals.renew(&self.store, &self.entry, self.fence).await
    }

    async fn check(&mut self) -> Result<Renewal> {
        if !self.is_proven().await? {
            return Ok(Renewal::Lost);
        }
        Ok(match self.store.left(&self.entry, self.fence).await? {
            Some(left) => Renewal::Alive { valid_for: Some(left) },
            None => Renewal::Lost,
        })
    }

    async fn release(&mut self) -> Result<Released> {
        if !self.is_proven().await? {
            return Ok(Released::AlreadyGone);
        }
        self.store.release(&self.entry).await
    }

    async fn changed(&mut self) -> Result<()> {
        match &self.entry.waiter {
            Some(waiter) => waiter.changed().await,
            None => std::future::pending().await,
        }
    }

    async fn detach(&mut self) -> Result<Bytes> {
        // Owner and fence say all that another process needs.
        Ok(Bytes::new())
    }
}
