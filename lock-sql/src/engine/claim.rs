//! One contender.

use std::sync::Arc;

use lock_core::{
    Attempt, Bytes, Claim, ClaimRequest, FencingToken, Released, Renewal, Result, async_trait,
};
use tokio_util::task::TaskTracker;

use super::dialect::Dialect;
use super::entry::{Entry, Secret};
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
    /// The last answer was "busy".
    polling: bool,
}

impl<D: Dialect> SqlClaim<D> {
    pub(crate) fn new(sweeper: &Arc<Sweeper<D>>, request: ClaimRequest) -> Self {
        let (sweeper, store) = (Arc::clone(sweeper), Arc::clone(&sweeper.store));
        let name = request.key.encode();
        let entry = Arc::new(Entry {
            waiter: store.dialect.listen(&name, request.wait),
            name,
            owner: Secret(request.owner.to_hex()),
            ttl: request.ttl,
            call_timeout: request.call_timeout,
            label: request.label,
            taken_over: request.resume.map(|resume| resume.fence),
            unfinished: TaskTracker::new(),
        });
        let fence = entry.taken_over;
        Self { store, sweeper, entry, fence, polling: false }
    }
}

#[async_trait]
impl<D: Dialect> Claim for SqlClaim<D> {
    async fn try_acquire(&mut self) -> Result<Attempt> {
        let attempt = self.store.acquire(&self.entry, self.polling).await?;
        match attempt {
            Attempt::Granted { token, .. } => {
                self.fence = Some(token);
                self.sweeper.sweep_if_due();
            }
            _ => self.polling = true,
        }
        Ok(attempt)
    }

    async fn renew(&mut self) -> Result<Renewal> {
        self.store.renewals.renew(&self.store, &self.entry, self.fence).await
    }

    async fn check(&mut self) -> Result<Renewal> {
        Ok(match self.store.left(&self.entry, self.fence).await? {
            Some(left) => Renewal::Alive { valid_for: Some(left) },
            None => Renewal::Lost,
        })
    }

    async fn release(&mut self) -> Result<Released> {
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
