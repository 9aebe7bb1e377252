//! One contender.

use std::sync::Arc;

use lock_core::{
    Attempt, Bytes, Claim, ClaimRequest, FencingToken, Released, Renewal, Result, async_trait,
};

use crate::engine::entry::{Entry, Secret};
use crate::engine::operations::Operations;
use crate::engine::renewals::Renewals;

/// A claim on one row. It has no state in the database beside that row, and a waiter has none at
/// all, so dropping it writes nothing.
#[derive(Debug)]
pub(crate) struct SqlClaim {
    store: Arc<dyn Operations>,
    renewals: Arc<Renewals>,
    entry: Arc<Entry>,
    /// The token of the hold, once it is known. A row with our owner and another token is a hold
    /// that a late repeat of `try_acquire` has made after the lock was taken away by force; it must
    /// not keep the old hold alive.
    fence: Option<FencingToken>,
    /// The last answer was "busy".
    polling: bool,
}

impl SqlClaim {
    pub(crate) fn new(
        store: Arc<dyn Operations>,
        renewals: Arc<Renewals>,
        request: ClaimRequest,
    ) -> Self {
        let name = request.key.encode();
        let entry = Arc::new(Entry {
            waiter: store.listen(&name, request.wait),
            name,
            owner: Secret(request.owner.to_hex()),
            ttl: request.ttl,
            call_timeout: request.call_timeout,
            label: request.label,
            taken_over: request.resume.map(|resume| resume.fence),
        });
        let fence = entry.taken_over;
        Self { store, renewals, entry, fence, polling: false }
    }
}

#[async_trait]
impl Claim for SqlClaim {
    async fn try_acquire(&mut self) -> Result<Attempt> {
        let attempt = self.store.acquire(&self.entry, self.polling).await?;
        match attempt {
            Attempt::Granted { token, .. } => self.fence = Some(token),
            _ => self.polling = true,
        }
        Ok(attempt)
    }

    async fn renew(&mut self) -> Result<Renewal> {
        self.renewals.renew(&self.entry, self.fence).await
    }

    async fn check(&mut self) -> Result<Renewal> {
        self.store.check(&self.entry, self.fence).await
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
