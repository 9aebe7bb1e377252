//! What claims and the backend ask of a store, whichever database it is on.

use std::time::Duration;

use lock_core::{
    Attempt, Capabilities, Clock, FencingToken, LockInfo, LockKey, OwnerId, Released, Renewal,
    Result, async_trait,
};

use super::driver::{Freeing, Links, Turn};
use super::entry::{Due, Entry, Outcome};
use super::renewals::Renew;
use super::steps::Steps;
use super::store::{ADMIN_LIMIT, Store};
use super::wake::Waiter;

/// The limit for the last sweep and the end of the connections. What is not done by then is no loss.
const CLOSE_LIMIT: Duration = Duration::from_secs(2);

/// One database with its lock table. Errors carry neither key nor operation: the core adds them.
#[async_trait]
pub(crate) trait Operations: Renew {
    fn capabilities(&self) -> Capabilities;

    /// `polling`: the last answer to this claim was "busy", so that it is cheaper to look before
    /// writing.
    async fn acquire(&self, entry: &Entry, polling: bool) -> Result<Attempt>;
    /// `fence`: the token of the hold, where it is known.
    async fn check(&self, entry: &Entry, fence: Option<FencingToken>) -> Result<Renewal>;
    /// By owner alone, since the fence is not known after a lost answer; a claim that has taken over a
    /// hold gives up [that one](Entry::taken_over) and no other.
    async fn release(&self, entry: &Entry) -> Result<Released>;
    /// For a claim for `name`; `None` where the database cannot push.
    fn listen(&self, name: &str, wait: bool) -> Option<Waiter>;

    async fn inspect(&self, key: &LockKey) -> Result<Option<LockInfo>>;
    async fn list(&self, prefix: &str, name_start: &str) -> Result<Vec<LockInfo>>;
    async fn force_release(&self, key: &LockKey, expected: Option<&OwnerId>) -> Result<Released>;
    async fn ping(&self) -> Result<()>;
    async fn close(&self) -> Result<()>;
}

#[async_trait]
impl<D: Steps> Renew for Store<D> {
    fn name(&self) -> &'static str {
        D::NAME
    }

    async fn renew(&self, dues: &[Due<'_>], limit: Duration) -> Result<Vec<Outcome>> {
        D::renew(self, dues, limit).await
    }
}

#[async_trait]
impl<D: Steps> Operations for Store<D> {
    fn capabilities(&self) -> Capabilities {
        self.dialect.capabilities()
    }

    async fn acquire(&self, entry: &Entry, polling: bool) -> Result<Attempt> {
        let attempt = D::acquire(self, entry, polling).await?;
        if matches!(attempt, Attempt::Granted { .. }) {
            self.sweep_if_due();
        }
        Ok(attempt)
    }

    async fn check(&self, entry: &Entry, fence: Option<FencingToken>) -> Result<Renewal> {
        Ok(match self.left(entry, fence).await? {
            Some(left) => Renewal::Alive { valid_for: Some(left) },
            None => Renewal::Lost,
        })
    }

    async fn release(&self, entry: &Entry) -> Result<Released> {
        let freeing = Freeing {
            name: &entry.name,
            owner: Some(&entry.owner.0),
            fence: entry.taken_over,
            by_force: false,
            tell: true,
        };
        let released = self.free(freeing, entry.call_timeout).await;
        D::released(self, entry).await;
        released
    }

    fn listen(&self, name: &str, wait: bool) -> Option<Waiter> {
        self.dialect.listen(name, wait)
    }

    async fn inspect(&self, key: &LockKey) -> Result<Option<LockInfo>> {
        let lease = self.look(Turn::Look, &key.encode(), ADMIN_LIMIT).await?;
        Ok(lease.and_then(|lease| self.info(lease)))
    }

    async fn list(&self, prefix: &str, name_start: &str) -> Result<Vec<LockInfo>> {
        let start = LockKey::encoded_start(prefix, name_start);
        let make = || self.dialect.list(&start, prefix.is_empty());
        let reply = self.patiently(Turn::Look, ADMIN_LIMIT, make).await?;
        let mut found = Vec::with_capacity(reply.rows.len());
        for row in &reply.rows {
            found.extend(self.info(self.dialect.lease(row)?));
        }
        Ok(found)
    }

    async fn force_release(&self, key: &LockKey, expected: Option<&OwnerId>) -> Result<Released> {
        let (name, owner) = (key.encode(), expected.map(OwnerId::to_hex));
        let freeing = Freeing {
            name: &name,
            owner: owner.as_deref(),
            fence: None,
            by_force: true,
            tell: true,
        };
        self.free(freeing, ADMIN_LIMIT).await
    }

    async fn ping(&self) -> Result<()> {
        self.probe(ADMIN_LIMIT).await
    }

    async fn close(&self) -> Result<()> {
        self.dialect.closing();
        let closing = async {
            self.sweep_at_end().await;
            self.links.close().await
        };
        // A server that does not answer does not keep us: the connections end all the same.
        tokio::select! {
            closed = closing => closed,
            () = self.clock.sleep_until(self.now() + CLOSE_LIMIT) => Ok(()),
        }
    }
}
