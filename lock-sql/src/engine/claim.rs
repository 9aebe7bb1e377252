//! One contender for a lock: a claim, as the core uses it.

use std::sync::Arc;

use lock_core::{
    Attempt, Bytes, Claim, ClaimRequest, FencingToken, Released, Renewal, Result, async_trait,
};

use crate::engine::renewals::Renewals;
use crate::engine::store::{Dialect, SqlStore};
use crate::engine::table::row::{OwnRow, OwnerSecret};
use crate::engine::table::sweep::Sweeper;
use crate::engine::waiters::{WHILE_CONTENDED, busy};
use crate::engine::wire::connections::{StatementClass, StatementLimits};

/// A claim on one row. It has no other state in the database, and a waiter has none at
/// all, so dropping it writes nothing.
#[derive(Debug)]
pub(crate) struct SqlClaim<D: Dialect> {
    store: Arc<SqlStore<D>>,
    renewals: Arc<Renewals<SqlStore<D>>>,
    sweeper: Arc<Sweeper<D>>,
    entry: Arc<OwnRow>,
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
    pub(crate) fn new(
        renewals: &Arc<Renewals<SqlStore<D>>>,
        sweeper: &Arc<Sweeper<D>>,
        request: ClaimRequest,
    ) -> Result<Self> {
        let store = Arc::clone(&sweeper.store);
        let name = request.key.encode();
        let more = request.fences.saturating_sub(1);
        let taken_over =
            request.resume.map(|resume| OwnRow::last(resume.fence, more)).transpose()?;
        let entry = Arc::new(OwnRow {
            waiter: store.dialect.listen(&name, request.wait),
            name,
            owner: OwnerSecret(request.owner.to_hex()),
            ttl: request.ttl,
            call_timeout: request.call_timeout,
            label: request.label,
            more,
            taken_over,
        });
        let (fence, is_proven) = (taken_over, taken_over.is_none() || more == 0);
        let (renewals, sweeper) = (Arc::clone(renewals), Arc::clone(sweeper));
        Ok(Self { store, renewals, sweeper, entry, fence, is_proven, polling: false })
    }

    fn limits(&self, class: StatementClass) -> StatementLimits {
        self.store.limits(class, self.entry.call_timeout)
    }

    /// Whether the fences that a lease token names are those of the hold in the row.
    async fn is_proven(&mut self, limits: StatementLimits) -> Result<bool> {
        if !self.is_proven {
            self.is_proven = self.store.confirmed(limits, &self.entry, self.fence).await?.is_some();
        }
        Ok(self.is_proven)
    }
}

#[async_trait]
impl<D: Dialect> Claim for SqlClaim<D> {
    async fn try_acquire(&mut self) -> Result<Attempt> {
        let look = self.entry.waiter.as_ref().map(|waiter| (waiter, waiter.look()));
        let attempt = D::acquire(&self.store, &self.entry, self.polling).await?;
        // A message from before still counts if nothing was seen.
        if let (Some((waiter, look)), Some(attempt)) = (look, &attempt) {
            waiter.answered(look, matches!(attempt, Attempt::Granted { .. }));
        }
        let attempt = attempt.unwrap_or_else(|| busy(Some(WHILE_CONTENDED)));
        match attempt {
            Attempt::Granted { token, .. } => {
                self.fence = Some(OwnRow::last(token, self.entry.more)?);
                self.sweeper.sweep_if_due();
            }
            _ => self.polling = true,
        }
        Ok(attempt)
    }

    async fn renew(&mut self) -> Result<Renewal> {
        let limits = self.limits(StatementClass::Keep);
        if !self.is_proven(limits).await? {
            return Ok(Renewal::Lost);
        }
        let left = limits.end.since(self.store.now());
        self.renewals.renew(&self.entry, self.fence, left).await
    }

    async fn check(&mut self) -> Result<Renewal> {
        let limits = self.limits(StatementClass::Check);
        if !self.is_proven(limits).await? {
            return Ok(Renewal::Lost);
        }
        self.store.check(limits, &self.entry, self.fence).await
    }

    async fn release(&mut self) -> Result<Released> {
        let limits = self.limits(StatementClass::Release);
        if !self.is_proven(limits).await? {
            return Ok(Released::AlreadyGone);
        }
        self.store.release(limits, &self.entry).await
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
