//! A store as the core and administrators use it.

use std::time::Duration;

use lock_core::{
    Capabilities, Claim, ClaimRequest, Clock, Error, ErrorKind, HolderMark, LockAdmin, LockBackend,
    LockInfo, LockKey, OwnerId, Released, Result, async_trait,
};

use super::claim::SqlClaim;
use super::dialect::{Dialect, Links, Turn};
use super::entry::Lease;
use super::statement::Values;
use super::store::{ADMIN_LIMIT, Store};

/// The limit for the last sweep and for closing the connections. Nothing is lost if it is exceeded.
const CLOSE_LIMIT: Duration = Duration::from_secs(2);

#[async_trait]
impl<D: Dialect> LockBackend for Store<D> {
    fn name(&self) -> &'static str {
        D::NAME
    }

    fn capabilities(&self) -> Capabilities {
        self.dialect.capabilities()
    }

    fn claim(&self, request: ClaimRequest) -> Result<Box<dyn Claim>> {
        let store = self.me.upgrade();
        let store = store.ok_or_else(|| Error::new(ErrorKind::Closed, "the store was dropped"))?;
        Ok(Box::new(SqlClaim::new(store, request)))
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
        // An unresponsive server does not hold us up: the connections end anyway.
        tokio::select! {
            closed = closing => closed,
            () = self.clock.sleep_until(self.now() + CLOSE_LIMIT) => Ok(()),
        }
    }

    fn admin(&self) -> Option<&dyn LockAdmin> {
        Some(self)
    }
}

#[async_trait]
impl<D: Dialect> LockAdmin for Store<D> {
    async fn inspect(&self, key: &LockKey) -> Result<Option<LockInfo>> {
        let lease = self.look(Turn::Look, &key.encode(), ADMIN_LIMIT).await?;
        Ok(lease.and_then(|lease| self.info(lease)))
    }

    async fn list(&self, prefix: &str, name_start: &str) -> Result<Vec<LockInfo>> {
        let start = LockKey::encoded_start(prefix, name_start);
        let values = Values::default()
            .with("start", &*start)
            .with("length", i64::try_from(start.len()).unwrap_or(i64::MAX))
            .with("bare", prefix.is_empty());
        let list = &self.dialect.statements().list;
        let reply = self.patiently(Turn::Look, ADMIN_LIMIT, list, &values).await?;
        let mut found = Vec::with_capacity(reply.rows.len());
        for row in &reply.rows {
            found.extend(self.info(Lease::read(row)?));
        }
        Ok(found)
    }

    async fn force_release(
        &self,
        key: &LockKey,
        expected: Option<&HolderMark>,
    ) -> Result<Released> {
        let owner = match expected.map(HolderMark::owner) {
            // Every hold in the table has an owner.
            Some(None) => return Ok(Released::AlreadyGone),
            Some(owner) => owner,
            None => None,
        };
        self.free_by_force(&key.encode(), owner.as_ref().map(OwnerId::to_hex)).await
    }
}
