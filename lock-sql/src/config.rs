//! Which database and table to use, and how.

use std::fmt;
use std::time::Duration;

use lock_core::url::Params;
use lock_core::{Error, Result};

use crate::engine::table::TableName;

/// The URL parameters that all dialects of this backend share. A dialect may have more.
pub const PARAMETERS: &[&str] =
    &["lock_connect_timeout", "lock_create_table", "lock_retention", "lock_table"];

/// Where the lock table is and how it is used.
///
/// ```
/// # #[cfg(feature = "sqlite")] {
/// use std::time::Duration;
/// use lock_sql::SqlConfig;
///
/// let config = SqlConfig::from_url("sqlite:///var/lib/app/locks.db?lock_table=app_locks")?
///     .retention(Duration::from_secs(600));
/// # }
/// # Ok::<(), lock_core::Error>(())
/// ```
#[derive(Clone)]
#[must_use]
pub struct SqlConfig {
    pub(crate) target: Target,
    pub(crate) table: TableName,
    pub(crate) retention: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) create_table: bool,
}

/// The database, in the terms of its dialect.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    #[cfg(feature = "postgres")]
    Postgres(Box<crate::postgres::PostgresTarget>),
    #[cfg(feature = "sqlite")]
    Sqlite(crate::sqlite::SqliteTarget),
    #[cfg(feature = "mysql")]
    MySql(Box<crate::mysql::MySqlTarget>),
    None,
}

impl SqlConfig {
    /// The configuration that `url` describes. Nothing is opened.
    ///
    /// | parameter | meaning | default |
    /// |---|---|---|
    /// | `lock_table` | the table: letters, digits and `_` | `distlock` |
    /// | `lock_create_table` | `true` or `false`: create the table if it is missing | `true` |
    /// | `lock_retention` | how long the row of a free lock is kept | `1h` |
    /// | `lock_connect_timeout` | the time limit for opening the database | `10s` |
    ///
    /// Durations have units (`30s`, `500ms`, `1m30s`). SQLite: `sqlite:///abs/path/locks.db`,
    /// `sqlite://relative.db`, percent-encoded where needed; `mode=rwc` (the default) creates the
    /// file, `mode=rw` does not.
    ///
    /// PostgreSQL: `postgres://user:password@host:5432/database`, or `postgresql://…`,
    /// percent-encoded where needed, with the parameters of libpq that the driver knows, and
    /// `lock_pooler` (`auto`, `transaction` or `none`).
    ///
    /// MySQL and MariaDB: `mysql://user:password@host:3306/database`, or `mariadb://…`,
    /// percent-encoded where needed; `socket`, `ssl-mode`, `ssl-ca`, `ssl-cert` and `ssl-key` work
    /// as in `mysql`.
    ///
    /// # Errors
    ///
    /// [`Config`](lock_core::ErrorKind::Config) for a scheme that is not compiled in, an unknown or
    /// repeated parameter, or an invalid value.
    pub fn from_url(url: &str) -> Result<Self> {
        let (scheme, rest) = url.split_once(':').ok_or_else(|| {
            Error::config(
                "this store URL has no scheme: write it as in `sqlite:///var/lib/app/locks.db`",
            )
        })?;
        if rest.contains('#') {
            return Err(Error::config(
                "a store URL has no `#` part: write %23 for a `#` in a user, a password or a name",
            ));
        }
        match scheme.to_ascii_lowercase().as_str() {
            #[cfg(feature = "postgres")]
            "postgres" | "postgresql" => crate::postgres::config_from_url(rest),
            #[cfg(feature = "sqlite")]
            "sqlite" => crate::sqlite::config_from_url(rest),
            #[cfg(feature = "mysql")]
            "mysql" | "mariadb" => crate::mysql::config_from_url(rest),
            other => {
                let _ = rest;
                Err(no_such_scheme(other))
            }
        }
    }

    /// Sets the table. Its name becomes part of the statements, so only letters, digits and `_` are
    /// allowed.
    ///
    /// # Errors
    ///
    /// [`Config`](lock_core::ErrorKind::Config) for any other name.
    pub fn table(mut self, name: &str) -> Result<Self> {
        self.table = TableName::new(name)?;
        Ok(self)
    }

    /// Sets how long the row of a free lock is kept; one hour by default. Removing a row does not
    /// reset its fencing token.
    pub fn retention(mut self, retention: Duration) -> Self {
        self.retention = retention;
        self
    }

    /// Sets the time limit for opening the database; 10 s by default.
    pub fn connect_timeout(mut self, limit: Duration) -> Self {
        self.connect_timeout = limit;
        self
    }

    /// Sets whether a missing table is created; true by default.
    pub fn create_table(mut self, allowed: bool) -> Self {
        self.create_table = allowed;
        self
    }

    /// Takes [`PARAMETERS`] out of the parameters of a URL.
    pub(crate) fn take(&mut self, params: &mut Params) -> Result<()> {
        if let Some(name) = params.text("lock_table")? {
            self.table = TableName::new(&name)?;
        }
        if let Some(retention) = params.duration("lock_retention")? {
            self.retention = retention;
        }
        if let Some(limit) = params.duration("lock_connect_timeout")? {
            self.connect_timeout = limit;
        }
        let choices = [("true", true), ("false", false)];
        if let Some(allowed) = params.choice("lock_create_table", &choices)? {
            self.create_table = allowed;
        }
        Ok(())
    }
}

/// No database yet: for [`SqlBackend::from_pool`](crate::SqlBackend::from_pool).
impl Default for SqlConfig {
    fn default() -> Self {
        Self {
            target: Target::None,
            table: TableName::default(),
            retention: Duration::from_secs(3600),
            connect_timeout: Duration::from_secs(10),
            create_table: true,
        }
    }
}

/// Written by hand, so that the credentials of a future dialect are not shown by accident.
impl fmt::Debug for SqlConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqlConfig")
            .field("target", &self.target)
            .field("table", &self.table.as_str())
            .field("retention", &self.retention)
            .field("connect_timeout", &self.connect_timeout)
            .field("create_table", &self.create_table)
            .finish()
    }
}

fn no_such_scheme(scheme: &str) -> Error {
    let known = crate::SCHEMES;
    if known.is_empty() {
        return Error::config(
            "lock-sql was compiled without a database: enable one of its features, such as `sqlite`",
        );
    }
    Error::config(format!(
        "this backend does not support the scheme {scheme:?}: it supports {}",
        known.join(", ")
    ))
}

/// All parameters of a dialect, shared and specific, for the error that lists them.
pub(crate) fn all_parameters(own: &[&'static str]) -> Vec<&'static str> {
    let mut all = [PARAMETERS, own].concat();
    all.sort_unstable();
    all
}

#[cfg(test)]
mod tests;
