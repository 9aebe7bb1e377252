//! The MySQL dialect: a table on a server, MySQL 8 or MariaDB 10.6 and newer.

mod config;
mod error;
mod inner;
mod mutants;
mod open;
mod pool;
mod renew;
mod sweep;
mod unfinished;

use std::sync::Arc;
use std::time::Duration;

use lock_core::{
    Attempt, Capabilities, Clock, DataLoss, Error, Fencing, FencingToken, Hold, LockInfo, LockKey,
    OwnerId, Released, Renewal, Result, Wake, async_trait,
};
use sqlx::MySqlPool;

pub use config::MYSQL_PARAMETERS;
pub(crate) use config::{MySqlTarget, config_from_url};
pub(crate) use mutants::Mutation;
#[cfg(distlock_mutants)]
pub use mutants::{MUTANTS, VARIABLE};

use crate::config::SqlConfig;
use crate::engine::limits::Limits;
use crate::engine::operations::{Due, Entry, Operations, Outcome};
use crate::engine::wake::{WHILE_CONTENDED, busy};
use crate::statements::mysql::LABEL;
use error::Place;
use inner::{Inner, from_micros, micros};
use open::{Site, Source};
use pool::{Pool, Turn, Want};
use sweep::Sweeper;

/// The limit for what has no call timeout of its own.
const ADMIN_LIMIT: Duration = Duration::from_secs(5);
/// The limit for the last sweep and the end of the connections. What is not done by then is no loss.
const CLOSE_LIMIT: Duration = Duration::from_secs(2);

/// The lock table of a database.
#[derive(Clone, Debug)]
pub(crate) struct MySqlStore(Arc<Inner>);

impl MySqlStore {
    pub(crate) async fn connect(target: &MySqlTarget, config: &SqlConfig) -> Result<Self> {
        let place = Place { endpoint: target.endpoint.clone(), table: config.table.clone() };
        Self::open(place, Source::Options(Arc::new(target.options.clone())), config).await
    }

    pub(crate) async fn from_pool(pool: &MySqlPool, config: &SqlConfig) -> Result<Self> {
        let options = pool.connect_options();
        let server = match options.get_socket() {
            Some(path) => path.display().to_string(),
            None => format!("{}:{}", options.get_host(), options.get_port()),
        };
        let Some(database) = options.get_database() else {
            return Err(Error::config(format!(
                "the pool's connections to {server} have no database: name the one in which the lock table is"
            )));
        };
        let endpoint = format!("{server}/{database}");
        let place = Place { endpoint, table: config.table.clone() };
        Self::open(place, Source::Pool(pool.clone()), config).await
    }

    async fn open(place: Place, source: Source, config: &SqlConfig) -> Result<Self> {
        let store = Self::on(Site::new(place, source, config.create_table), config);
        // The connection looks for the table and tries every right that is needed.
        store.probe(config.connect_timeout).await?;
        Ok(store)
    }

    fn on(site: Site, config: &SqlConfig) -> Self {
        let site = Arc::new(site);
        Self(Arc::new(Inner {
            pool: Pool::new(Arc::clone(&site)),
            unfinished: Arc::default(),
            retention: config.retention,
            sweeper: Sweeper::default(),
            site,
        }))
    }

    /// Whether the server answers and lets us write, proven by a write that changes nothing.
    async fn probe(&self, limit: Duration) -> Result<()> {
        let inner = &*self.0;
        let [_, update, _] = &inner.site.statements.probes;
        inner.patiently(Turn::Try, Want::Number, limit, || inner.query(update)).await.map(drop)
    }
}

#[async_trait]
impl Operations for MySqlStore {
    fn name(&self) -> &'static str {
        "mysql"
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::new(Hold::Lease, Wake::Poll);
        // The next fence is made from the stored one; the clock is needed only if the table is lost.
        capabilities.fencing = Fencing::Durable;
        capabilities.detachable = true;
        capabilities.inspect = true;
        capabilities.loses_data_on = &[DataLoss::Failover];
        capabilities
    }

    async fn acquire(&self, entry: &Entry, polling: bool) -> Result<Attempt> {
        let inner = &*self.0;
        if polling && let Some(left) = inner.held_by_another(entry).await? {
            return Ok(busy(Some(left)));
        }
        let label = entry.label.as_deref().map(shortened);
        let (name, owner) = (entry.name.as_bytes(), entry.owner.0.as_bytes());
        let take = || {
            let query = inner.query(&inner.site.statements.take);
            let query = query.bind(owner.to_vec()).bind(owner.to_vec()).bind(owner.to_vec());
            let query = query.bind(label.clone()).bind(owner.to_vec()).bind(owner.to_vec());
            query.bind(micros(entry.ttl)).bind(name.to_vec())
        };
        let make = || {
            let query = inner.query(&inner.site.statements.make);
            let query = query.bind(name.to_vec()).bind(owner.to_vec());
            query.bind(micros(entry.ttl)).bind(label.clone())
        };
        let start = inner.now();
        let once = Limits::once(start, entry.call_timeout);
        let patient = Limits::patient(start, entry.call_timeout);
        let mut answer = inner.write_entry(entry, once, take).await?;
        if answer.is_none() {
            // Somebody has the row. Whether the lock is held can be seen all the same.
            if let Some(left) = inner.held_by_another(entry).await? {
                return Ok(busy(Some(left)));
            }
            answer = inner.write_entry(entry, patient, take).await?;
        }
        if answer.as_ref().is_some_and(|answer| answer.told() == Some(0)) {
            // A new name, or one whose row was removed.
            answer = inner.write_entry(entry, once, make).await?;
            if answer.is_none() {
                // Without the mark, as after a TRUNCATE, those who make rows lock the gap in its
                // place, and stop each other.
                inner.write_mark(once).await?;
                answer = inner.write_entry(entry, patient, make).await?;
            }
        }
        let Some(answer) = answer else { return Ok(busy(Some(WHILE_CONTENDED))) };
        let fence = match inner.told(&answer)? {
            fence if fence > 0 => fence,
            left => return Ok(busy(Some(from_micros(left.saturating_neg())))),
        };
        let token = FencingToken::try_from(fence)?;
        self.0.sweep_if_due();
        Ok(Attempt::Granted { token, valid_for: Some(entry.ttl) })
    }

    async fn renew(&self, dues: &[Due<'_>], limit: Duration) -> Result<Vec<Outcome>> {
        self.0.renew(dues, limit).await
    }

    async fn check(&self, entry: &Entry, fence: Option<FencingToken>) -> Result<Renewal> {
        Ok(match self.0.held(entry, fence).await? {
            Some(left) => Renewal::Alive { valid_for: Some(left) },
            None => Renewal::Lost,
        })
    }

    async fn release(&self, entry: &Entry) -> Result<Released> {
        let owner = Some(&*entry.owner.0);
        self.0.free(&entry.name, owner, entry.taken_over, entry.call_timeout).await
    }

    async fn inspect(&self, key: &LockKey) -> Result<Option<LockInfo>> {
        let inner = &*self.0;
        let row = inner.look(Turn::Release, &key.encode(), ADMIN_LIMIT).await?;
        Ok(row.and_then(|row| inner.info(key.clone(), row)))
    }

    async fn list(&self, prefix: &str, name_start: &str) -> Result<Vec<LockInfo>> {
        let inner = &*self.0;
        let start = LockKey::encoded_start(prefix, name_start);
        let length = i64::try_from(start.len()).unwrap_or(i64::MAX);
        let answer = inner
            .patiently(Turn::Release, Want::Rows, ADMIN_LIMIT, || {
                inner
                    .query(&inner.site.statements.list)
                    .bind(start.as_bytes().to_vec())
                    .bind(length)
                    .bind(start.as_bytes().to_vec())
                    .bind(i64::from(prefix.is_empty()))
            })
            .await?;
        let mut found = Vec::with_capacity(answer.rows.len());
        for row in &answer.rows {
            // A name that no lock can have was written by somebody else and blocks nobody.
            let Ok(name) = String::from_utf8(inner.get(row, 0)?) else { continue };
            if let Ok(key) = LockKey::decode(&name) {
                found.extend(inner.info(key, inner.entry_row(row, 1)?));
            }
        }
        Ok(found)
    }

    async fn force_release(&self, key: &LockKey, expected: Option<&OwnerId>) -> Result<Released> {
        let owner = expected.map(OwnerId::to_hex);
        self.0.free(&key.encode(), owner.as_deref(), None, ADMIN_LIMIT).await
    }

    async fn ping(&self) -> Result<()> {
        self.probe(ADMIN_LIMIT).await
    }

    async fn close(&self) -> Result<()> {
        let inner = &*self.0;
        let clock = &inner.site.clock;
        let closing = async {
            inner.sweep_at_end().await;
            inner.pool.close().await;
        };
        // A server that does not answer does not keep us: the connections end all the same.
        tokio::select! {
            () = closing => {}
            () = clock.sleep_until(clock.now() + CLOSE_LIMIT) => {}
        }
        Ok(())
    }
}

/// The label is for people: a long one is cut.
fn shortened(label: &str) -> String {
    label.chars().take(LABEL).collect()
}

#[cfg(test)]
mod tests;
