//! A store, as the core and administrators use it.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{
    Capabilities, Claim, ClaimRequest, Clock, Finding, LockAdmin, LockBackend, LockInfo, LockKey,
    Released, Result, Seen, Victim, async_trait,
};

use crate::engine::claim::SqlClaim;
use crate::engine::renewals::Renewals;
use crate::engine::store::{ADMIN_LIMIT, Dialect, SqlStore};
use crate::engine::table::lock_table::StatementName;
use crate::engine::table::row::LeaseRow;
use crate::engine::table::sweep::Sweeper;
use crate::engine::wire::connections::StatementClass;
use crate::engine::wire::statement::Values;

/// The limit for the last sweep and for closing the connections. Nothing is lost if it is exceeded.
const CLOSE_LIMIT: Duration = Duration::from_secs(2);

/// One client of a database.
#[derive(Debug)]
pub(crate) struct DialectBackend<D: Dialect> {
    pub(crate) store: Arc<SqlStore<D>>,
    renewals: Arc<Renewals<SqlStore<D>>>,
    sweeper: Arc<Sweeper<D>>,
}

impl<D: Dialect> DialectBackend<D> {
    pub(crate) fn new(store: Arc<SqlStore<D>>, retention: Duration) -> Self {
        let renewals = Arc::new(Renewals::new(Arc::clone(&store)));
        let sweeper = Arc::new(Sweeper::new(Arc::clone(&store), retention));
        Self { store, renewals, sweeper }
    }
}

#[async_trait]
impl<D: Dialect> LockBackend for DialectBackend<D> {
    fn name(&self) -> &'static str {
        D::NAME
    }

    fn capabilities(&self) -> Capabilities {
        self.store.dialect.capabilities()
    }

    fn claim(&self, request: ClaimRequest) -> Result<Box<dyn Claim>> {
        Ok(Box::new(SqlClaim::new(&self.renewals, &self.sweeper, request)?))
    }

    async fn ping(&self) -> Result<()> {
        self.store.probe(ADMIN_LIMIT).await
    }

    async fn look(&self, keys: &[LockKey]) -> Result<Vec<Seen>> {
        self.store.look_now(keys).await
    }

    async fn close(&self) -> Result<()> {
        self.store.dialect.closing();
        let store = &self.store;
        let closing = async {
            self.sweeper.sweep_at_end().await;
            store.connections.close().await
        };
        // An unresponsive server does not hold us up: the connections end anyway.
        tokio::select! {
            closed = closing => closed,
            () = store.clock.sleep_until(store.now() + CLOSE_LIMIT) => Ok(()),
        }
    }

    fn admin(&self) -> Option<&dyn LockAdmin> {
        Some(self)
    }
}

#[async_trait]
impl<D: Dialect> LockAdmin for DialectBackend<D> {
    async fn inspect(&self, key: &LockKey) -> Result<Option<LockInfo>> {
        let limits = self.store.limits(StatementClass::Look, ADMIN_LIMIT);
        let lease = self.store.look(limits, &key.encode()).await?;
        Ok(lease.and_then(|lease| self.store.info(lease)))
    }

    async fn list(&self, prefix: &str, name_start: &str) -> Result<Vec<LockInfo>> {
        let start = LockKey::encoded_start(prefix, name_start);
        let values = Values::default()
            .with("start", &*start)
            .with("length", i64::try_from(start.len()).unwrap_or(i64::MAX))
            .with("bare", prefix.is_empty());
        let limits = self.store.limits(StatementClass::Look, ADMIN_LIMIT);
        let list = self.store.statement(StatementName::List);
        let reply = self.store.patiently(limits, list, &values).await?;
        let mut found = Vec::with_capacity(reply.rows.len());
        for row in &reply.rows {
            found.extend(self.store.info(LeaseRow::read(row)?));
        }
        Ok(found)
    }

    async fn force_release(&self, key: &LockKey, victim: &Victim) -> Result<Released> {
        self.store.free_by_force(&key.encode(), victim).await
    }

    async fn diagnose(&self) -> Result<Vec<Finding>> {
        D::diagnose(&self.store).await
    }
}
