//! The backend: the same for every dialect.

use std::sync::Arc;

use lock_core::{
    Capabilities, Claim, ClaimRequest, Error, LockAdmin, LockBackend, LockKey, Operation, Result,
    Seen, async_trait,
};

use crate::config::SqlConfig;
use crate::engine::table::settings::SqlTarget;

#[cfg(feature = "mysql")]
use crate::mysql::MySqlTarget;
#[cfg(feature = "postgres")]
use crate::postgres::PostgresTarget;
#[cfg(feature = "sqlite")]
use crate::sqlite::SqliteTarget;

/// Locks in a table of an SQL database. Guarantees and limits are on the
/// [front page](crate) of this crate.
#[derive(Clone, Debug)]
pub struct SqlBackend(Arc<dyn LockBackend>);

/// An application's pool, of any dialect that is compiled in: the database to which its connections lead, or why they
/// cannot be used. A pool of PostgreSQL or SQLite is read when it is converted.
#[derive(Clone, Debug)]
pub struct SqlPool(Result<Arc<dyn SqlTarget>>);

#[cfg(feature = "postgres")]
impl From<sqlx::PgPool> for SqlPool {
    fn from(pool: sqlx::PgPool) -> Self {
        Self::of("postgres", PostgresTarget::of_pool(&pool))
    }
}

#[cfg(feature = "sqlite")]
impl From<sqlx::SqlitePool> for SqlPool {
    fn from(pool: sqlx::SqlitePool) -> Self {
        Self::of("sqlite", SqliteTarget::of_pool(&pool))
    }
}

#[cfg(feature = "mysql")]
impl From<sqlx::MySqlPool> for SqlPool {
    fn from(pool: sqlx::MySqlPool) -> Self {
        Self::of("mysql", MySqlTarget::of_pool(&pool))
    }
}

impl SqlPool {
    fn of(dialect: &'static str, target: Result<impl SqlTarget + 'static>) -> Self {
        match target {
            Ok(target) => Self(Ok(Arc::new(target))),
            Err(error) => Self(Err(failed(dialect, error))),
        }
    }
}

impl SqlBackend {
    /// Opens the database that `config` names. The table is looked up, created if allowed, and
    /// checked; a write that changes nothing proves that this process may write.
    ///
    /// # Errors
    ///
    /// [`Config`](lock_core::ErrorKind::Config) for an impossible path, a connect timeout beyond its
    /// limits, a table that is missing and may not be created (the error contains the statement that
    /// creates it), or, with a server, a call outside a Tokio runtime or in one without timers or
    /// sockets;
    /// [`Unsupported`](lock_core::ErrorKind::Unsupported) for a server that is too old;
    /// [`Denied`](lock_core::ErrorKind::Denied) for missing rights;
    /// [`Store`](lock_core::ErrorKind::Store) for a file that is not a database or a table of a
    /// different shape; [`Unavailable`](lock_core::ErrorKind::Unavailable) for a full disk or a
    /// database that stays locked;
    /// [`NoAnswer`](lock_core::ErrorKind::NoAnswer) after the connect timeout.
    ///
    /// # Cancel safety
    ///
    /// A dropped call may already have created the file and the table.
    pub async fn connect(config: SqlConfig) -> Result<Self> {
        let Some(target) = &config.target else {
            return Err(Error::config(
                "this configuration names no database: create it with `SqlConfig::from_url`",
            )
            .in_operation(Operation::Connect));
        };
        if config.settings.schema.is_some() && target.dialect() != "postgres" {
            let text = "a schema is named, and only PostgreSQL has schemas: omit it";
            return Err(failed(target.dialect(), Error::config(text)));
        }
        let opened = match config.settings.check() {
            Ok(()) => target.open(&config.settings).await,
            Err(error) => Err(error),
        };
        opened.map(Self).map_err(|error| failed(target.dialect(), error))
    }

    /// Uses the database of an application's pool; the URL of `config`, if it has one, is ignored.
    ///
    /// SQLite: the backend opens its own connections with the pool's options, so renewals never
    /// wait for a connection that the application is using. The journal mode stays as it is; every
    /// commit is synced. An in-memory database is refused, because each connection would have its
    /// own.
    ///
    /// PostgreSQL: likewise, up to ten connections and a listening one, opened as needed with the
    /// options that the pool had when it was converted. Its `after_connect` is not called.
    ///
    /// MySQL and MariaDB: likewise, up to ten connections, opened as needed with the options that
    /// the pool has at that time. Its `after_connect` is not called.
    ///
    /// # Errors
    ///
    /// See [`connect`](Self::connect).
    ///
    /// # Cancel safety
    ///
    /// See [`connect`](Self::connect).
    pub async fn from_pool(pool: impl Into<SqlPool>, config: SqlConfig) -> Result<Self> {
        let target = Some(pool.into().0?);
        Self::connect(SqlConfig { target, ..config }).await
    }
}

fn failed(name: &'static str, error: Error) -> Error {
    error.in_operation(Operation::Connect).on_backend(name)
}

#[async_trait]
impl LockBackend for SqlBackend {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn claim(&self, request: ClaimRequest) -> Result<Box<dyn Claim>> {
        self.0.claim(request)
    }

    async fn ping(&self) -> Result<()> {
        self.0.ping().await
    }

    async fn look(&self, keys: &[LockKey]) -> Result<Vec<Seen>> {
        self.0.look(keys).await
    }

    async fn close(&self) -> Result<()> {
        self.0.close().await
    }

    fn admin(&self) -> Option<&dyn LockAdmin> {
        self.0.admin()
    }
}
