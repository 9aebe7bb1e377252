//! Which database and table to use, and how.

use std::sync::Arc;
use std::time::Duration;

use lock_core::url::Params;
use lock_core::{Error, Result};

pub use crate::engine::settings::PARAMETERS;
use crate::engine::settings::Settings;
use crate::engine::table::TableName;
use crate::engine::target::Target;

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
///
/// [`default`](Self::default) names no database, for
/// [`SqlBackend::from_pool`](crate::SqlBackend::from_pool).
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct SqlConfig {
    pub(crate) target: Option<Arc<dyn Target>>,
    pub(crate) settings: Settings,
}

/// The URLs of a dialect: their schemes, the parameters that only they have, and how the part
/// between the scheme and the parameters is read.
struct Urls {
    schemes: &'static [&'static str],
    parameters: &'static [&'static str],
    read: fn(&str, &mut Params) -> Result<Arc<dyn Target>>,
}

const URLS: &[Urls] = &[
    #[cfg(feature = "postgres")]
    Urls {
        schemes: &["postgres", "postgresql"],
        parameters: crate::postgres::POSTGRES_PARAMETERS,
        read: |location, params| {
            Ok(Arc::new(crate::postgres::PostgresTarget::from_url(location, params)?))
        },
    },
    #[cfg(feature = "sqlite")]
    Urls {
        schemes: &["sqlite"],
        parameters: crate::sqlite::SQLITE_PARAMETERS,
        read: |location, params| {
            Ok(Arc::new(crate::sqlite::SqliteTarget::from_url(location, params)?))
        },
    },
    #[cfg(feature = "mysql")]
    Urls {
        schemes: &["mysql", "mariadb"],
        parameters: crate::mysql::MYSQL_PARAMETERS,
        read: |location, params| {
            Ok(Arc::new(crate::mysql::MySqlTarget::from_url(location, params)?))
        },
    },
];

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
        let scheme = scheme.to_ascii_lowercase();
        let urls = URLS.iter().find(|urls| urls.schemes.contains(&&*scheme));
        let urls = urls.ok_or_else(|| no_such_scheme(&scheme))?;
        let (location, mut params) = Params::split(rest)?;
        let mut settings = Settings::default();
        settings.take(&mut params)?;
        let target = (urls.read)(location, &mut params)?;
        params.finish(target.dialect(), &urls.all_parameters())?;
        Ok(Self { target: Some(target), settings })
    }

    /// Sets the table. Its name becomes part of the statements, so only letters, digits and `_` are
    /// allowed.
    ///
    /// # Errors
    ///
    /// [`Config`](lock_core::ErrorKind::Config) for any other name.
    pub fn table(mut self, name: &str) -> Result<Self> {
        self.settings.table = TableName::new(name)?;
        Ok(self)
    }

    /// Sets how long the row of a free lock is kept; one hour by default. Removing a row does not
    /// reset its fencing token.
    pub fn retention(mut self, retention: Duration) -> Self {
        self.settings.retention = retention;
        self
    }

    /// Sets the time limit for opening the database; 10 s by default.
    pub fn connect_timeout(mut self, limit: Duration) -> Self {
        self.settings.connect_timeout = limit;
        self
    }

    /// Sets whether a missing table is created; true by default.
    pub fn create_table(mut self, allowed: bool) -> Self {
        self.settings.create_table = allowed;
        self
    }
}

impl Urls {
    /// Shared and own, for the error that lists them.
    fn all_parameters(&self) -> Vec<&'static str> {
        let mut all = [PARAMETERS, self.parameters].concat();
        all.sort_unstable();
        all
    }
}

fn no_such_scheme(scheme: &str) -> Error {
    let known: Vec<_> = URLS.iter().flat_map(|urls| urls.schemes).copied().collect();
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

#[cfg(test)]
mod tests;
