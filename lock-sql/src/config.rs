//! Which database and table to use, and how.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{Error, Result};
use lock_kit::url::Params;

use crate::SCHEMES;
use crate::engine::table::settings::{Settings, SqlTarget, TableName, schema_name};

pub use crate::engine::table::settings::PARAMETERS;

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
    pub(crate) target: Option<Arc<dyn SqlTarget>>,
    pub(crate) settings: Settings,
}

/// Reads the part of a URL between the scheme and the parameters, and the parameters that only its dialect
/// has.
type TargetReader = fn(&str, &mut Params, &mut Settings) -> Result<Arc<dyn SqlTarget>>;

/// Those of [`SCHEMES`], by dialect.
const READERS: &[(&[&str], TargetReader)] = &[
    #[cfg(feature = "postgres")]
    (&["postgres", "postgresql"], |location, params, settings| {
        settings.schema = crate::postgres::SCHEMA.read(params)?;
        Ok(Arc::new(crate::postgres::PostgresTarget::from_url(location, params)?))
    }),
    #[cfg(feature = "sqlite")]
    (&["sqlite"], |location, params, _| {
        Ok(Arc::new(crate::sqlite::SqliteTarget::from_url(location, params)?))
    }),
    #[cfg(feature = "mysql")]
    (&["mysql", "mariadb"], |location, params, _| {
        Ok(Arc::new(crate::mysql::MySqlTarget::from_url(location, params)?))
    }),
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
    /// percent-encoded where needed, with the parameters of libpq that the driver knows,
    /// `lock_pooler` (`auto`, `transaction` or `none`), and `lock_schema` (see
    /// [`schema`](Self::schema)).
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
        let reader = READERS.iter().find(|(schemes, _)| schemes.contains(&&*scheme));
        let (_, read) = reader.ok_or_else(|| no_such_scheme(&scheme))?;
        let (location, mut params) = Params::split(rest)?;
        let mut settings = Settings::read(&mut params)?;
        let target = read(location, &mut params, &mut settings)?;
        let mut known = [PARAMETERS, target.parameters()].concat();
        known.sort_unstable();
        params.finish(target.dialect(), &known)?;
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

    /// Sets the schema of the table, which must exist. Without it, the table is looked up once, when the
    /// store is opened, by the search path that the role or the database has by default, and a new one is
    /// created in the first schema of that. Only PostgreSQL has schemas; the other databases refuse one
    /// when they are opened.
    ///
    /// # Errors
    ///
    /// [`Config`](lock_core::ErrorKind::Config) for a name with other characters than letters, digits,
    /// `_` and `-`.
    pub fn schema(mut self, name: &str) -> Result<Self> {
        self.settings.schema = Some(schema_name(name)?);
        Ok(self)
    }

    /// Sets how long the row of a free lock is kept; one hour by default. Removing a row does not
    /// reset its fencing token.
    pub fn retention(mut self, retention: Duration) -> Self {
        self.settings.retention = retention;
        self
    }

    /// Sets the time limit for opening the database: between 1 ms and an hour, 10 s by default.
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

fn no_such_scheme(scheme: &str) -> Error {
    if SCHEMES.is_empty() {
        return Error::config(
            "lock-sql was compiled without a database: enable one of its features, such as `sqlite`",
        );
    }
    Error::config(format!(
        "this backend does not support the scheme {scheme:?}: it supports {}",
        SCHEMES.join(", ")
    ))
}

/// The URLs of all dialects, by tables.
#[cfg(test)]
mod tests {
    use super::*;
    use lock_core::ErrorKind;

    /// What a URL leads to, as errors show it.
    fn shown(url: &str) -> Result<String> {
        Ok(SqlConfig::from_url(url)?.target.expect("a URL names a database").endpoint())
    }

    fn lead_to(places: &[(&str, &str)]) {
        for (url, wanted) in places {
            assert_eq!(shown(url).unwrap(), *wanted, "{url}");
        }
    }

    /// Each of these is refused before anything is opened. The error has all the words.
    fn refused(base: &str, parameters: &[&str], words: &[&str]) {
        for parameter in parameters {
            let url = format!("{base}{parameter}");
            let error = SqlConfig::from_url(&url).expect_err(&url);
            assert_eq!(error.kind(), ErrorKind::Config, "{url}: {error}");
            for word in words {
                assert!(error.to_string().contains(word), "{url}: {word} is missing in {error}");
            }
        }
    }

    /// What holds of the URLs of each dialect. `base`: one without parameters.
    fn common(base: &str, own: &[&str]) {
        let url = format!(
            "{base}?lock_table=t1&lock_retention=2m&lock_connect_timeout=500ms&lock_create_table=false"
        );
        let config = SqlConfig::from_url(&url).unwrap().settings;
        assert_eq!(config.table.as_str(), "t1");
        assert_eq!(config.retention, Duration::from_secs(120));
        assert_eq!(config.connect_timeout, Duration::from_millis(500));
        assert!(!config.create_table);
        refused(base, &["?lock_tabel=x"], &[PARAMETERS, own].concat());
        let bad = [
            "?lock_create_table=yes",
            "?lock_connect_timeout=0s",
            "?lock_table=a.b",
            "?lock_table=a%22b",
            "?lock_retention=5",
            "?lock_table=a&lock_table=b",
            "#x",
        ];
        refused(base, &bad, &[]);
    }

    /// Neither in an error nor in what is made of the URL.
    fn no_credential_is_shown(urls: &[&str]) {
        for url in urls {
            let shown = match SqlConfig::from_url(url) {
                Ok(config) => format!("{config:?}"),
                Err(error) => format!("{error} {error:?}"),
            };
            assert!(!shown.contains("hunter2"), "{url}: {shown}");
        }
    }

    #[test]
    fn an_unknown_scheme_says_what_there_is() {
        refused("", &["oracle://x"], SCHEMES);
        refused("", &["just-a-file"], &["no scheme"]);
    }

    #[cfg(feature = "sqlite")]
    #[test]
    fn sqlite() {
        let here = |path: &str| std::env::current_dir().unwrap().join(path).display().to_string();
        common("sqlite:///x", crate::SQLITE_PARAMETERS);
        lead_to(&[
            ("sqlite:///var/lib/l.db", "/var/lib/l.db"),
            ("SQLITE:///a%20b/%C3%BC%23%3F.db", "/a b/ü#?.db"),
            ("sqlite://l.db", &here("l.db")),
            ("sqlite://d/l.db?mode=rw", &here("d/l.db")),
            ("sqlite:l.db", &here("l.db")),
        ]);
        let bad = ["//", "", "///a/", "///a%2", "///%zz", "///%00", "///%ff", "//~/l.db"];
        refused("sqlite:", &bad, &[]);
        refused("sqlite:///x?", &["mode=ro", "mode=x", "mode", "mode=rw&mode=rwc"], &[]);
        let in_memory = [":memory:", "//:memory:", "///x?mode=memory", "file:x?mode=memory"];
        refused("sqlite:", &in_memory, &["memory://"]);
        no_credential_is_shown(&["sqlite://user:hunter2@host/db"]);
    }

    #[cfg(feature = "postgres")]
    #[test]
    fn postgres() {
        common("postgres://h/d", crate::POSTGRES_PARAMETERS);
        lead_to(&[
            ("postgres://me:pw@db.example:5433/app", "db.example:5433/app"),
            ("postgresql://me@db.example/app", "db.example:5432/app"),
            ("Postgres://me@db.example", "db.example:5432/me"),
            ("postgres://me@%2Frun%2Fpg/app", "/run/pg/app"),
            ("postgres://me@h/app?host=/run/pg&port=1", "/run/pg/app"),
            ("postgres://me@[::1]:7/app", "[::1]:7/app"),
            ("postgres://h/d?lock_pooler=transaction&application_name=a%20b", "h:5432/d"),
        ]);
        let config = SqlConfig::from_url("postgres://h/d?lock_schema=my-app").unwrap();
        assert_eq!(config.settings.schema, Some("my-app".to_owned()));
        refused("postgres://h/d?", &["lock_schema=a.b", "lock_schema="], &["lock_schema"]);
        refused("postgres:", &["h/d", "//h:port/d"], &[]);
        let bad =
            ["lock_pooler=session", "sslmode=maybe", "sslmode=disable&sslmode=require", "port=x"];
        refused("postgres://h/d?", &bad, &[]);
        no_credential_is_shown(&[
            "postgres://me:hunter2@h/d?password=hunter2&sslmode=disable",
            "postgres://me:hunter2@h:x/d",
            "postgres://me:foo?hunter2@h/d",
            "postgres://me:hunter2@h/d?nonsense=1",
        ]);
        if cfg!(feature = "tls") {
            let modes = ["disable", "allow", "prefer"]
                .map(|mode| format!("sslmode={mode}&sslrootcert=/ca"));
            refused(
                "postgres://h/d?",
                &modes.each_ref().map(|mode| &**mode),
                &["sslmode=verify-full"],
            );
        } else {
            refused("postgres://h/d?", &["sslmode=require", "sslrootcert=/ca"], &["feature `tls`"]);
        }
    }

    #[cfg(feature = "mysql")]
    #[test]
    fn mysql() {
        common("mysql://u@h/d", crate::MYSQL_PARAMETERS);
        let url = "MariaDB://u%40x:p%2F%3a%40w@db.example:3307/my%20app?ssl-mode=disabled";
        lead_to(&[
            (url, "db.example:3307/my app"),
            ("mysql://u@h/d", "h:3306/d"),
            ("mysql://u:@h/d", "h:3306/d"),
            ("mysql://u@[::1]:33/d", "[::1]:33/d"),
            ("mysql://u@[::1]/d", "[::1]:3306/d"),
            ("mysql://u@localhost/d?socket=/run/my.sock", "/run/my.sock:d"),
        ]);
        let target = crate::engine::tests::read(url, crate::mysql::MySqlTarget::from_url);
        let options = target.options();
        assert_eq!((options.get_username(), options.get_host()), ("u@x", "db.example"));
        assert_eq!((options.get_port(), options.get_database()), (3307, Some("my app")));
        let bad = [
            "u@h/d",
            "//h/d",
            "//:p@h/d",
            "//u@h",
            "//u@h/",
            "//u@h/a/b",
            "//u@/d",
            "//u@h:0/d",
            "//u@h:x/d",
            "//u@h:99999/d",
            "//u@h1,h2/d",
            "//u@[::1/d",
            "//u@[::1]x/d",
            "//u@h/%zz",
            "//u@h/%ff",
            "//u@h/%00",
        ];
        refused("mysql:", &bad, &[]);
        let modes =
            ["maybe", "disabled&ssl-ca=/ca.pem", "PREFERRED&ssl-ca=/ca.pem", "PREFERRED&socket="];
        refused("mysql://u@h/d?ssl-mode=", &modes, &[]);
        if !cfg!(feature = "tls") {
            let modes = [
                "ssl-mode=required",
                "ssl-mode=VERIFY_CA",
                "ssl-mode=verify-identity",
                "ssl-ca=/ca",
            ];
            refused("mysql://u@h/d?", &modes, &["`tls`"]);
        }
        no_credential_is_shown(&[
            "mysql://me:hunter2@h/d",
            "mysql://me:hunter2#x@h/d",
            "mysql://me:hunter2/x@h/d",
            "mysql://me:a@hunter2@h:x/d",
            "mysql://me:hunter2%zz@h/d",
            "mysql://me:a:hunter2@:h/d",
            "mysql://me:hunter2?x@h/d",
        ]);
    }
}
