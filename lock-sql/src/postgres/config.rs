//! PostgreSQL's URLs.

use std::str::FromStr;

use lock_core::{Error, Result};
use lock_kit::settings::{Parameter, ReadBy, Words};
use lock_kit::url::{Params, decode, pem_file};
use sqlx::postgres::{PgConnectOptions, PgSslMode};
use sqlx::{ConnectOptions, PgPool};

use crate::engine::table::settings::schema_name;

/// The parameters that only PostgreSQL has. All but those that begin with `lock_` go to the driver; their
/// names are those of libpq.
pub const POSTGRES_PARAMETERS: &[&str] = &[
    "application_name",
    "dbname",
    "host",
    "hostaddr",
    POOLER.name,
    SCHEMA.name,
    "options",
    "password",
    "port",
    "sslcert",
    "sslkey",
    "sslmode",
    "sslrootcert",
    "user",
];

const POOLER: Parameter<Words<Pooler>> = Parameter {
    name: "lock_pooler",
    text: "`auto`, `transaction` or `none`: which kind of pooler is in front of the server",
    default: "`auto`",
    values: &[("auto", Pooler::Auto), ("transaction", Pooler::Transaction), ("none", Pooler::None)],
};
pub(crate) const SCHEMA: Parameter<ReadBy<String>> = Parameter {
    name: "lock_schema",
    text: "the schema of the table; it must exist",
    default: "where the search path finds the table",
    values: schema_name,
};

/// The kind of pooler in front of the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pooler {
    /// Detected when the store is opened.
    #[default]
    Auto,
    /// A pooler that gives each transaction to another server connection, as PgBouncer does with
    /// `pool_mode = transaction`. No prepared statements, and waiters poll.
    Transaction,
    /// No pooler, or one that keeps a server connection for each client.
    None,
}

/// A server and a database.
#[derive(Clone)]
pub(crate) struct PostgresTarget {
    pub(super) options: PgConnectOptions,
    pub(super) pooler: Pooler,
}

impl PostgresTarget {
    /// Host, port and database: what errors may show.
    pub(super) fn at(&self) -> String {
        let options = &self.options;
        let database = options.get_database().unwrap_or(options.get_username());
        match options.get_socket() {
            Some(socket) => format!("{}/{database}", socket.display()),
            None => format!("{}:{}/{database}", options.get_host(), options.get_port()),
        }
    }

    /// Without the driver's log, which would show the statements.
    fn new(options: PgConnectOptions, pooler: Pooler) -> Result<Self> {
        let needs_tls = matches!(
            options.get_ssl_mode(),
            PgSslMode::Require | PgSslMode::VerifyCa | PgSslMode::VerifyFull
        );
        if needs_tls && !cfg!(feature = "tls") {
            return Err(Error::config(
                "sslmode asks for TLS, and this program was built without it: enable the feature `tls`",
            ));
        }
        // A pooler refuses unknown startup parameters.
        let options = options.extra_float_digits(None).disable_statement_logging();
        // So that whoever reads pg_stat_activity knows what these connections are for.
        let options = match options.get_application_name() {
            Some(_) => options,
            None => options.application_name("distlock"),
        };
        Ok(Self { options, pooler })
    }

    /// Reads the part of the URL between `postgres:` and the parameters, and those.
    pub(crate) fn from_url(location: &str, params: &mut Params) -> Result<Self> {
        if !location.starts_with("//") {
            return Err(Error::config(
                "a postgres URL begins with `postgres://`: write it as in `postgres://user@host/database`",
            ));
        }
        let pooler = POOLER.read(params)?.unwrap_or_default();
        // The rest goes to the driver, which decodes it itself.
        params.secret("password");
        let mut theirs = Vec::new();
        for name in POSTGRES_PARAMETERS {
            if let Some(value) = params.raw(name) {
                theirs.push((*name, value));
            }
        }
        let given = |wanted| theirs.iter().any(|(name, _)| *name == wanted);
        let (mode_given, authority_given) = (given("sslmode"), given("sslrootcert"));
        let query: Vec<_> = theirs.iter().map(|(name, value)| format!("{name}={value}")).collect();
        // The driver's own error is not shown: it may quote the URL.
        let url = format!("postgres:{location}?{}", query.join("&"));
        let options = PgConnectOptions::from_str(&url).map_err(|_| {
            Error::config(
                "this postgres URL cannot be read: write it as in `postgres://user:password@host:5432/database?sslmode=prefer`, with special characters percent-encoded",
            )
        })?;
        let mode = verifying(options.get_ssl_mode(), mode_given, authority_given)?;
        for (name, value) in &theirs {
            check_file(name, value)?;
        }
        Self::new(options.ssl_mode(mode), pooler)
    }

    /// Connections of our own, with the options of the pool.
    pub(crate) fn of_pool(pool: &PgPool) -> Result<Self> {
        Self::new(PgConnectOptions::clone(&pool.connect_options()), Pooler::Auto)
    }
}

/// The driver would find out about a bad file at the first connection, and not say which file it is.
fn check_file(name: &str, value: &str) -> Result<()> {
    let label = match name {
        "sslrootcert" | "sslcert" => "CERTIFICATE",
        "sslkey" => "PRIVATE KEY",
        _ => return Ok(()),
    };
    let path = decode(&format!("the parameter {name}"), value)?;
    // The driver takes the text of a certificate, too.
    if path.contains("-----BEGIN") {
        return Ok(());
    }
    pem_file(name, &path, label).map(drop)
}

/// If a certificate authority is given, it is used, as libpq does with `require`; the driver would
/// accept any certificate. The flags say whether the URL contains each parameter.
fn verifying(mode: PgSslMode, mode_given: bool, authority_given: bool) -> Result<PgSslMode> {
    let in_environment = || std::env::var_os("PGSSLROOTCERT").is_some_and(|path| !path.is_empty());
    match mode {
        PgSslMode::Require if authority_given || in_environment() => Ok(PgSslMode::VerifyCa),
        PgSslMode::Disable | PgSslMode::Allow | PgSslMode::Prefer if authority_given => {
            if mode_given {
                return Err(Error::config(
                    "sslrootcert names a certificate authority, and this sslmode checks no certificate: use sslmode=verify-full, or sslmode=verify-ca if the certificate has a different host name, or omit sslrootcert",
                ));
            }
            Ok(PgSslMode::VerifyCa)
        }
        _ => Ok(mode),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_says_of_each_parameter_what_is_declared() {
        let rows = [POOLER.row(), SCHEMA.row()].concat();
        assert!(include_str!("../../README.md").contains(&rows), "{rows}");
    }
}
