//! The backend: the same for every dialect.

use std::sync::Arc;

use lock_core::{
    Capabilities, Claim, ClaimRequest, Error, HoldMark, LockAdmin, LockBackend, LockInfo, LockKey,
    Operation, Released, Result, async_trait,
};

use crate::config::{SqlConfig, Target};
use crate::engine::claim::SqlClaim;
use crate::engine::operations::Operations;
use crate::engine::renewals::Renewals;

/// Locks in a table of an SQL database. Guarantees and limits are on the
/// [front page](crate) of this crate.
#[derive(Clone, Debug)]
pub struct SqlBackend {
    dialect: Arc<dyn Operations>,
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
    fn on(dialect: impl Operations) -> Self {
        let dialect: Arc<dyn Operations> = Arc::new(dialect);
        Self { renewals: Renewals::new(Arc::clone(&dialect)), dialect }
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
    /// [`Timeout`](lock_core::ErrorKind::Timeout) after the connect timeout.
    ///
    /// # Cancel safety
    ///
    /// Dropped, it may have created the file and the table.
    pub async fn connect(config: SqlConfig) -> Result<Self> {
        let described = |error: Error| error.in_operation(Operation::Connect);
        match config.target {
            #[cfg(feature = "postgres")]
            Target::Postgres(ref target) => {
                crate::engine::runtime::require("PostgreSQL").map_err(described)?;
                let dialect = crate::postgres::PostgresStore::connect(target, &config)
                    .await
                    .map_err(|error| described(error).on_backend("postgres"))?;
                Ok(Self::on(dialect))
            }
            #[cfg(feature = "sqlite")]
            Target::Sqlite(ref target) => {
                let dialect = crate::sqlite::SqliteStore::connect(target, &config)
                    .await
                    .map_err(|error| described(error).on_backend("sqlite"))?;
                Ok(Self::on(dialect))
            }
            #[cfg(feature = "mysql")]
            Target::MySql(ref target) => {
                crate::engine::runtime::require("MySQL").map_err(described)?;
                let dialect = crate::mysql::MySqlStore::connect(target, &config)
                    .await
                    .map_err(|error| described(error).on_backend("mysql"))?;
                Ok(Self::on(dialect))
            }
            Target::None => Err(described(Error::config(
                "this configuration names no database: make it with `SqlConfig::from_url`",
            ))),
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
        let described = |error: Error| error.in_operation(Operation::Connect);
        let _ = (&config, described);
        match pool.into() {
            #[cfg(feature = "postgres")]
            SqlPool::Postgres(pool) => {
                crate::engine::runtime::require("PostgreSQL").map_err(described)?;
                let dialect = crate::postgres::PostgresStore::from_pool(&pool, &config)
                    .await
                    .map_err(|error| described(error).on_backend("postgres"))?;
                Ok(Self::on(dialect))
            }
            #[cfg(feature = "sqlite")]
            SqlPool::Sqlite(pool) => {
                let dialect = crate::sqlite::SqliteStore::from_pool(&pool, &config)
                    .await
                    .map_err(|error| described(error).on_backend("sqlite"))?;
                Ok(Self::on(dialect))
            }
            #[cfg(feature = "mysql")]
            SqlPool::MySql(pool) => {
                crate::engine::runtime::require("MySQL").map_err(described)?;
                let dialect = crate::mysql::MySqlStore::from_pool(&pool, &config)
                    .await
                    .map_err(|error| described(error).on_backend("mysql"))?;
                Ok(Self::on(dialect))
            }
        }
    }
}

#[async_trait]
impl LockBackend for SqlBackend {
    fn name(&self) -> &'static str {
        self.dialect.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.dialect.capabilities()
    }

    fn claim(&self, request: ClaimRequest) -> Result<Box<dyn Claim>> {
        let (dialect, renewals) = (Arc::clone(&self.dialect), Arc::clone(&self.renewals));
        Ok(Box::new(SqlClaim::new(dialect, renewals, request)?))
    }

    async fn ping(&self) -> Result<()> {
        self.dialect.ping().await
    }

    async fn close(&self) -> Result<()> {
        self.dialect.close().await
    }

    fn admin(&self) -> Option<&dyn LockAdmin> {
        Some(self)
    }
}

#[async_trait]
impl LockAdmin for SqlBackend {
    async fn inspect(&self, key: &LockKey) -> Result<Option<LockInfo>> {
        self.dialect.inspect(key).await
    }

    async fn list(&self, prefix: &str, name_start: &str) -> Result<Vec<LockInfo>> {
        self.dialect.list(prefix, name_start).await
    }

    async fn force_release(&self, key: &LockKey, expected: Option<&HoldMark>) -> Result<Released> {
        let expected = match expected.map(HoldMark::owner) {
            // Every hold in the table has an owner.
            Some(None) => return Ok(Released::AlreadyGone),
            Some(owner) => owner,
            None => None,
        };
        self.dialect.force_release(key, expected.as_ref()).await
    }
}
