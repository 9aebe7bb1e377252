//! PostgreSQL's URLs.

use std::fmt;
use std::str::FromStr;

use lock_core::url::Params;
use lock_core::{Error, Result};
use sqlx::ConnectOptions;
use sqlx::postgres::{PgConnectOptions, PgSslMode};

use crate::config::{SqlConfig, Target, all_parameters};

/// The parameters that only PostgreSQL has. All but `lock_pooler` go to the driver; their names are
/// those of libpq.
pub const POSTGRES_PARAMETERS: &[&str] = &[
    "application_name",
    "dbname",
    "host",
    "hostaddr",
    "lock_pooler",
    "options",
    "password",
    "port",
    "sslcert",
    "sslkey",
    "sslmode",
    "sslrootcert",
    "user",
];

/// What is between us and the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pooler {
    /// Outcome out when the store is opened.
    #[default]
    Auto,
    /// A pooler that gives each transaction to another server connection, as PgBouncer does with
    /// `pool_mode = transaction`. No prepared statements, and waiters poll.
    Transaction,
    /// Nothing, or a pooler that keeps a server connection for each client.
    None,
}

/// A server and a database.
#[derive(Clone)]
pub(crate) struct PostgresTarget {
    pub(super) options: PgConnectOptions,
    pub(super) pooler: Pooler,
}

/// Not derived, since the options have the password.
impl fmt::Debug for PostgresTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresTarget")
            .field("endpoint", &endpoint(&self.options))
            .field("pooler", &self.pooler)
            .finish_non_exhaustive()
    }
}

impl PostgresTarget {
    /// Without the driver's log, which would show the statements.
    pub(super) fn new(options: PgConnectOptions, pooler: Pooler) -> Result<Self> {
        let needs_tls = matches!(
            options.get_ssl_mode(),
            PgSslMode::Require | PgSslMode::VerifyCa | PgSslMode::VerifyFull
        );
        if needs_tls && !cfg!(feature = "tls") {
            return Err(Error::config(
                "sslmode asks for TLS, and this program was built without it: enable the feature `tls`",
            ));
        }
        // A pooler refuses a parameter of the start that it does not know.
        let options = options.extra_float_digits(None).disable_statement_logging();
        Ok(Self { options, pooler })
    }
}

/// Host, port and database: what errors may show.
pub(super) fn endpoint(options: &PgConnectOptions) -> String {
    let database = options.get_database().unwrap_or(options.get_username());
    match options.get_socket() {
        Some(socket) => format!("{}/{database}", socket.display()),
        None => format!("{}:{}/{database}", options.get_host(), options.get_port()),
    }
}

/// The configuration in what stands after `postgres:`.
pub(crate) fn config_from_url(rest: &str) -> Result<SqlConfig> {
    if rest.contains('#') {
        return Err(Error::config(
            "a postgres URL has no `#` part: write %23 for a `#` in a name or a password",
        ));
    }
    let (location, mut params) = Params::split(rest)?;
    if !location.starts_with("//") {
        return Err(Error::config(
            "a postgres URL begins with `postgres://`: write it as in `postgres://user@host/database`",
        ));
    }
    let mut config = SqlConfig::default();
    config.take(&mut params)?;
    let choices =
        [("auto", Pooler::Auto), ("transaction", Pooler::Transaction), ("none", Pooler::None)];
    let pooler = params.choice("lock_pooler", &choices)?.unwrap_or_default();
    // The rest is the driver's, which decodes it itself.
    let mut theirs = Vec::new();
    for name in POSTGRES_PARAMETERS {
        if let Some(value) = params.raw(name) {
            theirs.push((*name, value));
        }
    }
    let given = |wanted| theirs.iter().any(|(name, _)| *name == wanted);
    let (mode_given, authority_given) = (given("sslmode"), given("sslrootcert"));
    let theirs: Vec<_> = theirs.iter().map(|(name, value)| format!("{name}={value}")).collect();
    params.finish("postgres", &all_parameters(POSTGRES_PARAMETERS))?;
    // The driver's own error is not shown: it may quote what stood in the URL.
    let url = format!("postgres:{location}?{}", theirs.join("&"));
    let options = PgConnectOptions::from_str(&url).map_err(|_| {
        Error::config(
            "this postgres URL cannot be read: write it as in `postgres://user:password@host:5432/database?sslmode=prefer`, with special characters percent-encoded",
        )
    })?;
    let mode = verifying(options.get_ssl_mode(), mode_given, authority_given)?;
    let target = PostgresTarget::new(options.ssl_mode(mode), pooler)?;
    config.target = Target::Postgres(Box::new(target));
    Ok(config)
}

/// A certificate authority that is given is used, as libpq does with `require`, which the driver takes for
/// "any certificate". What is said of each: whether the URL has it.
fn verifying(mode: PgSslMode, mode_given: bool, authority_given: bool) -> Result<PgSslMode> {
    let in_environment = || std::env::var_os("PGSSLROOTCERT").is_some_and(|path| !path.is_empty());
    match mode {
        PgSslMode::Require if authority_given || in_environment() => Ok(PgSslMode::VerifyCa),
        PgSslMode::Disable | PgSslMode::Allow | PgSslMode::Prefer if authority_given => {
            if mode_given {
                return Err(Error::config(
                    "sslrootcert names a certificate authority, and this sslmode asks for no certificate: write sslmode=verify-full, or sslmode=verify-ca where the certificate has another host name, or leave sslrootcert out",
                ));
            }
            Ok(PgSslMode::VerifyCa)
        }
        _ => Ok(mode),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn target(url: &str) -> Box<PostgresTarget> {
        let Target::Postgres(target) = SqlConfig::from_url(url).unwrap().target else {
            panic!("{url} is postgres")
        };
        target
    }

    #[test]
    fn servers() {
        for (url, wanted) in [
            ("postgres://me:pw@db.example:5433/app", "db.example:5433/app"),
            ("postgresql://me@db.example/app", "db.example:5432/app"),
            ("Postgres://me@db.example", "db.example:5432/me"),
            ("postgres://me@%2Frun%2Fpg/app", "/run/pg/app"),
            ("postgres://me@h/app?host=/run/pg&port=1", "/run/pg/app"),
            ("postgres://me@[::1]:7/app", "[::1]:7/app"),
        ] {
            assert_eq!(endpoint(&target(url).options), wanted, "{url}");
        }
    }

    #[test]
    fn parameters() {
        let config = SqlConfig::from_url(
            "postgres://h/d?lock_table=t1&lock_retention=2m&sslmode=disable&lock_pooler=transaction&application_name=a%20b",
        )
        .unwrap();
        assert_eq!(config.table.as_str(), "t1");
        assert_eq!(config.retention, Duration::from_secs(120));
        let Target::Postgres(target) = &config.target else { panic!("postgres") };
        assert_eq!(target.pooler, Pooler::Transaction);
        assert_eq!(target.options.get_application_name(), Some("a b"));
        let error = SqlConfig::from_url("postgres://h/d?pool_size=3").unwrap_err().to_string();
        for name in crate::PARAMETERS.iter().chain(POSTGRES_PARAMETERS) {
            assert!(error.contains(name), "{error}");
        }
        for bad in [
            "postgres:h/d",
            "postgres://h:port/d",
            "postgres://h/d#x",
            "postgres://h/d?lock_pooler=session",
            "postgres://h/d?sslmode=maybe",
            "postgres://h/d?sslmode=disable&sslmode=require",
            "postgres://h/d?port=x",
            "postgres://h/d?lock_table=a.b",
        ] {
            let error = SqlConfig::from_url(bad).unwrap_err();
            assert_eq!(error.kind(), lock_core::ErrorKind::Config, "{bad}");
        }
    }

    #[cfg(feature = "tls")]
    #[test]
    fn an_authority_that_is_given_is_used() {
        let verifies = |url: &str| {
            let mode = target(url).options.get_ssl_mode();
            matches!(mode, PgSslMode::VerifyCa | PgSslMode::VerifyFull)
        };
        for parameters in [
            "sslrootcert=/ca",
            "sslmode=require&sslrootcert=/ca",
            "sslmode=verify-full&sslrootcert=/ca",
        ] {
            assert!(verifies(&format!("postgres://h/d?{parameters}")), "{parameters}");
        }
        assert!(!verifies("postgres://h/d?sslmode=require"));
        for mode in ["disable", "allow", "prefer"] {
            let url = format!("postgres://h/d?sslmode={mode}&sslrootcert=/ca");
            let error = SqlConfig::from_url(&url).unwrap_err().to_string();
            assert!(error.contains("sslmode=verify-full"), "{error}");
        }
    }

    #[cfg(not(feature = "tls"))]
    #[test]
    fn tls_that_was_not_built_in_is_refused() {
        let error = SqlConfig::from_url("postgres://h/d?sslmode=require").unwrap_err().to_string();
        assert!(error.contains("feature `tls`"), "{error}");
    }

    #[test]
    fn no_credential_is_shown() {
        let url = "postgres://me:hunter2@h/d?password=hunter2&sslmode=disable";
        let config = SqlConfig::from_url(url).unwrap();
        assert!(!format!("{config:?}").contains("hunter2"));
        for bad in [
            "postgres://me:hunter2@h:x/d",
            "postgres://me:foo?hunter2@h/d",
            "postgres://me:hunter2@h/d?nonsense=1",
        ] {
            let error = SqlConfig::from_url(bad).unwrap_err();
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
        }
    }
}
