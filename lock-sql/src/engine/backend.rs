//! A store as the core and administrators use it.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{
    Capabilities, Claim, ClaimRequest, Clock, Finding, HolderMark, LockAdmin, LockBackend,
    LockInfo, LockKey, OwnerId, Released, Result, async_trait,
};

use super::claim::SqlClaim;
use super::dialect::Dialect;
use super::entry::Lease;
use super::links::Turn;
use super::statement::Values;
use super::store::{ADMIN_LIMIT, Store};
use super::sweep::Sweeper;

/// The limit for the last sweep and for closing the connections. Nothing is lost if it is exceeded.
const CLOSE_LIMIT: Duration = Duration::from_secs(2);

/// One client of a database.
#[derive(Debug)]
pub(crate) struct Backend<D: Dialect> {
    pub(crate) store: Arc<Store<D>>,
    sweeper: Arc<Sweeper<D>>,
}

impl<D: Dialect> Backend<D> {
    pub(crate) fn new(store: Arc<Store<D>>, retention: Duration) -> Self {
        Self { sweeper: Arc::new(Sweeper::new(Arc::clone(&store), retention)), store }
    }
}

#[async_trait]
impl<D: Dialect> LockBackend for Backend<D> {
    fn name(&self) -> &'static str {
        D::NAME
    }

    fn capabilities(&self) -> Capabilities {
        self.store.dialect.capabilities()
    }

    fn claim(&self, request: ClaimRequest) -> Result<Box<dyn Claim>> {
        Ok(Box::new(SqlClaim::new(&self.sweeper, request)?))
    }

    async fn ping(&self) -> Result<()> {
        self.store.executor.probe(ADMIN_LIMIT).await
    }

    async fn close(&self) -> Result<()> {
        self.store.dialect.closing();
        let executor = &self.store.executor;
        let closing = async {
            self.sweeper.sweep_at_end().await;
            executor.links.close().await
        };
        // An unresponsive server does not hold us up: the connections end anyway.
        tokio::select! {
            closed = closing => closed,
            () = executor.clock.sleep_until(executor.now() + CLOSE_LIMIT) => Ok(()),
        }
    }

    fn admin(&self) -> Option<&dyn LockAdmin> {
        Some(self)
    }
}

#[async_trait]
impl<D: Dialect> LockAdmin for Backend<D> {
    async fn inspect(&self, key: &LockKey) -> Result<Option<LockInfo>> {
        let lease = self.store.look(Turn::Look, &key.encode(), ADMIN_LIMIT).await?;
        Ok(lease.and_then(|lease| self.store.info(lease)))
    }

    async fn list(&self, prefix: &str, name_start: &str) -> Result<Vec<LockInfo>> {
        let start = LockKey::encoded_start(prefix, name_start);
        let values = Values::default()
            .with("start", &*start)
            .with("length", i64::try_from(start.len()).unwrap_or(i64::MAX))
            .with("bare", prefix.is_empty());
        let executor = &self.store.executor;
        let list = &executor.statements().list;
        let reply = executor.patiently(Turn::Look, ADMIN_LIMIT, list, &values).await?;
        let mut found = Vec::with_capacity(reply.rows.len());
        for row in &reply.rows {
            found.extend(self.store.info(Lease::read(row)?));
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
        self.store.free_by_force(&key.encode(), owner.as_ref().map(OwnerId::to_hex)).await
    }

    async fn diagnose(&self) -> Result<Vec<Finding>> {
        self.store.dialect.diagnose(&self.store.executor).await
    }
}
