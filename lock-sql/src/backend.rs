//! The backend: the same for every dialect.

use std::sync::Arc;

use lock_core::{
    Capabilities, Claim, ClaimRequest, Error, HolderMark, LockAdmin, LockBackend, LockInfo,
    LockKey, Operation, Released, Result, async_trait,
};

use crate::config::{SqlConfig, Target};
use crate::engine::claim::SqlClaim;
use crate::engine::operations::Operations;
use crate::engine::renewals::{Renew, Renewals};

/// Locks in a table of an SQL database. Guarantees and limits are on the
/// [front page](crate) of this crate.
#[derive(Clone, Debug)]
pub struct SqlBackend {
    store: Arc<dyn Operations>,
    renewals: Arc<Renewals>,
}

/// A pool of the application, of any dialect that is compiled in.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum SqlPool {
    /// A PostgreSQL pool.
    #[cfg(feature = "postgres")]
    Postgres(sqlx::PgPool),
    /// An SQLite pool.
    #[cfg(feature = "sqlite")]
    Sqlite(sqlx::SqlitePool),
    /// A MySQL or MariaDB pool.
    #[cfg(feature = "mysql")]
    MySql(sqlx::MySqlPool),
}

#[cfg(feature = "postgres")]
impl From<sqlx::PgPool> for SqlPool {
    fn from(pool: sqlx::PgPool) -> Self {
        Self::Postgres(pool)
    }
}

#[cfg(feature = "sqlite")]
impl From<sqlx::SqlitePool> for SqlPool {
    fn from(pool: sqlx::SqlitePool) -> Self {
        Self::Sqlite(pool)
    }
}

#[cfg(feature = "mysql")]
impl From<sqlx::MySqlPool> for SqlPool {
    fn from(pool: sqlx::MySqlPool) -> Self {
        Self::MySql(pool)
    }
}

impl SqlBackend {
    fn on(store: Arc<impl Operations>) -> Self {
        let renewals = Renewals::new(Arc::clone(&store) as Arc<dyn Renew>);
        Self { store, renewals }
    }

    /// Opens the database that `config` names. The table is looked for, created if that is allowed,
    /// and checked; a write that changes nothing proves that this process may write.
    ///
    /// # Errors
    ///
    /// [`Config`](lock_core::ErrorKind::Config) for a path that cannot be, a table that is missing and
    /// may not be created (the error has the statement that creates it), or, with a server, a call
    /// outside of a Tokio runtime or in one without timers or sockets;
    /// [`Unsupported`](lock_core::ErrorKind::Unsupported) for a server that is too old;
    /// [`Denied`](lock_core::ErrorKind::Denied) for missing rights;
    /// [`Store`](lock_core::ErrorKind::Store) for a file that is no database or a table of another
    /// shape; [`Unavailable`](lock_core::ErrorKind::Unavailable) for a full disk or a database that
    /// stays locked;
    /// [`NoAnswer`](lock_core::ErrorKind::NoAnswer) after the connect timeout.
    ///
    /// # Cancel safety
    ///
    /// Dropped, it may have created the file and the table.
    pub async fn connect(config: SqlConfig) -> Result<Self> {
        match config.target {
            #[cfg(feature = "postgres")]
            Target::Postgres(ref target) => {
                opened("postgres", crate::postgres::connect(target, &config).await)
            }
            #[cfg(feature = "sqlite")]
            Target::Sqlite(ref target) => {
                opened("sqlite", crate::sqlite::connect(target, &config).await)
            }
            #[cfg(feature = "mysql")]
            Target::MySql(ref target) => {
                opened("mysql", crate::mysql::connect(target, &config).await)
            }
            Target::None => Err(Error::config(
                "this configuration names no database: make it with `SqlConfig::from_url`",
            )
            .in_operation(Operation::Connect)),
        }
    }

    /// Uses the database of an application's pool; the URL of `config`, if it has one, is ignored.
    ///
    /// SQLite: connections of our own are opened with the pool's options, so that renewals never
    /// wait for a connection that the application has in use. The journal mode stays as it is;
    /// every commit is synced. An in-memory database is refused, since each connection has its own.
    ///
    /// PostgreSQL: likewise, up to ten connections and one that listens, opened when they are needed
    /// with the options that the pool has now. Its `after_connect` is not called.
    ///
    /// MySQL and MariaDB: likewise, up to ten connections of our own, opened when they are needed
    /// with the options that the pool has then. Its `after_connect` is not called.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect).
    ///
    /// # Cancel safety
    ///
    /// As [`connect`](Self::connect).
    pub async fn from_pool(pool: impl Into<SqlPool>, config: SqlConfig) -> Result<Self> {
        let _ = &config;
        match pool.into() {
            #[cfg(feature = "postgres")]
            SqlPool::Postgres(pool) => {
                opened("postgres", crate::postgres::from_pool(&pool, &config).await)
            }
            #[cfg(feature = "sqlite")]
            SqlPool::Sqlite(pool) => {
                opened("sqlite", crate::sqlite::from_pool(&pool, &config).await)
            }
            #[cfg(feature = "mysql")]
            SqlPool::MySql(pool) => opened("mysql", crate::mysql::from_pool(&pool, &config).await),
        }
    }
}

fn opened(name: &'static str, store: Result<Arc<impl Operations>>) -> Result<SqlBackend> {
    let described = |error: Error| error.in_operation(Operation::Connect).on_backend(name);
    store.map(SqlBackend::on).map_err(described)
}

#[async_trait]
impl LockBackend for SqlBackend {
    fn name(&self) -> &'static str {
        self.store.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    fn claim(&self, request: ClaimRequest) -> Result<Box<dyn Claim>> {
        let (store, renewals) = (Arc::clone(&self.store), Arc::clone(&self.renewals));
        Ok(Box::new(SqlClaim::new(store, renewals, request)))
    }

    async fn ping(&self) -> Result<()> {
        self.store.ping().await
    }

    async fn close(&self) -> Result<()> {
        self.store.close().await
    }

    fn admin(&self) -> Option<&dyn LockAdmin> {
        Some(self)
    }
}

#[async_trait]
impl LockAdmin for SqlBackend {
    async fn inspect(&self, key: &LockKey) -> Result<Option<LockInfo>> {
        self.store.inspect(key).await
    }

    async fn list(&self, prefix: &str, name_start: &str) -> Result<Vec<LockInfo>> {
        self.store.list(prefix, name_start).await
    }

    async fn force_release(
        &self,
        key: &LockKey,
        expected: Option<&HolderMark>,
    ) -> Result<Released> {
        let expected = match expected.map(HolderMark::owner) {
            // Every hold in the table has an owner.
            Some(None) => return Ok(Released::AlreadyGone),
            Some(owner) => owner,
            None => None,
        };
        self.store.force_release(key, expected.as_ref()).await
    }
}
