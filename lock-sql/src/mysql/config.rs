//! MySQL's and MariaDB's URLs.

use std::panic::RefUnwindSafe;
use std::path::PathBuf;

use lock_core::{Error, Result};
use lock_kit::endpoint::Endpoint;
use lock_kit::url::{Params, pem_file};
use sqlx::MySqlPool;
use sqlx::mysql::{MySqlConnectOptions, MySqlSslMode};

/// The parameters that only MySQL and MariaDB have. They mean the same as for the `mysql` client.
pub const MYSQL_PARAMETERS: &[&str] = &["socket", "ssl-ca", "ssl-cert", "ssl-key", "ssl-mode"];

const FORM: &str = "mysql://user[:password]@host[:3306]/database";

/// A database of a server.
#[derive(Clone)]
pub(crate) struct MySqlTarget {
    source: OptionsSource,
    /// The server and the database as errors name them.
    pub(super) endpoint: String,
}

/// Only the options are read, also those of a pool.
impl RefUnwindSafe for MySqlTarget {}

/// Where the options of a connection come from.
#[derive(Clone)]
enum OptionsSource {
    Options(Box<MySqlConnectOptions>),
    /// An application's pool, which may be given new credentials while it is in use.
    Pool(MySqlPool),
}

impl MySqlTarget {
    pub(crate) fn options(&self) -> MySqlConnectOptions {
        match &self.source {
            OptionsSource::Options(options) => MySqlConnectOptions::clone(options),
            OptionsSource::Pool(pool) => MySqlConnectOptions::clone(&pool.connect_options()),
        }
    }

    /// Reads the part of the URL between `mysql:` or `mariadb:` and the parameters, and those.
    pub(crate) fn from_url(location: &str, params: &mut Params) -> Result<Self> {
        let endpoint = Endpoint::parse(&format!("mysql:{location}"), 3306, FORM)?;
        let Some(user) = endpoint.user() else {
            return Err(Error::config(format!("this MySQL URL names no user: its form is {FORM}")));
        };
        let database = endpoint.path();
        if database.is_empty() || database.contains('/') {
            return Err(Error::config(format!(
                "this MySQL URL does not name the database of the lock table: its form is {FORM}"
            )));
        }
        let [host] = endpoint.hosts() else {
            return Err(Error::config(
                "this MySQL URL names several hosts: name the one that accepts writes, or an address that always leads to it",
            ));
        };
        let mut options = MySqlConnectOptions::new()
            .host(&host.name)
            .port(host.port)
            .username(user)
            .database(database);
        if let Some(password) = endpoint.password() {
            options = options.password(password);
        }
        let mut shown = endpoint.to_string();
        if let Some(path) = file(params, "socket")? {
            shown = format!("{}:{database}", path.display());
            options = options.socket(path);
        }
        let options = Box::new(with_tls(options, params)?);
        Ok(Self { source: OptionsSource::Options(options), endpoint: shown })
    }

    /// Connections of our own, with the options of the pool.
    pub(crate) fn of_pool(pool: &MySqlPool) -> Result<Self> {
        let options = pool.connect_options();
        let server = match options.get_socket() {
            Some(path) => path.display().to_string(),
            None => format!("{}:{}", options.get_host(), options.get_port()),
        };
        let Some(database) = options.get_database() else {
            return Err(Error::config(format!(
                "the pool's connections to {server} have no database: name the one with the lock table"
            )));
        };
        Ok(Self {
            source: OptionsSource::Pool(pool.clone()),
            endpoint: format!("{server}/{database}"),
        })
    }
}

fn with_tls(mut options: MySqlConnectOptions, params: &mut Params) -> Result<MySqlConnectOptions> {
    let authority = pem(params, "ssl-ca", "CERTIFICATE")?;
    if let Some(path) = &authority {
        options = options.ssl_ca(path);
    }
    if let Some(path) = pem(params, "ssl-cert", "CERTIFICATE")? {
        options = options.ssl_client_cert(path);
    }
    if let Some(path) = pem(params, "ssl-key", "PRIVATE KEY")? {
        options = options.ssl_client_key(path);
    }
    let mode = params.text("ssl-mode")?;
    Ok(match ssl_mode(mode.as_deref(), authority.is_some())? {
        Some(mode) => options.ssl_mode(mode),
        None => options,
    })
}

/// If an authority is named, it is used. The two modes that may not use TLS cannot use it, and the
/// driver would not use it with `REQUIRED` or without a mode.
fn ssl_mode(value: Option<&str>, authority: bool) -> Result<Option<MySqlSslMode>> {
    let value = match value {
        Some(value) => value,
        None if authority => "VERIFY_CA",
        None => return Ok(None),
    };
    let mode = match value.to_ascii_uppercase().replace('-', "_").as_str() {
        "DISABLED" | "PREFERRED" if authority => {
            return Err(Error::config(format!(
                "ssl-mode={value} does not use the authority in ssl-ca: use VERIFY_CA or VERIFY_IDENTITY, or omit ssl-ca"
            )));
        }
        "DISABLED" => MySqlSslMode::Disabled,
        "PREFERRED" => MySqlSslMode::Preferred,
        "REQUIRED" if authority => MySqlSslMode::VerifyCa,
        "REQUIRED" => MySqlSslMode::Required,
        "VERIFY_CA" => MySqlSslMode::VerifyCa,
        "VERIFY_IDENTITY" => MySqlSslMode::VerifyIdentity,
        _ => {
            return Err(Error::config(format!(
                "ssl-mode={value} is unknown: use DISABLED, PREFERRED, REQUIRED, VERIFY_CA or VERIFY_IDENTITY"
            )));
        }
    };
    if !cfg!(feature = "tls") && !matches!(mode, MySqlSslMode::Disabled | MySqlSslMode::Preferred) {
        return Err(Error::config(format!(
            "ssl-mode={value} needs TLS: compile with the feature `tls`"
        )));
    }
    Ok(Some(mode))
}

/// The driver would find out about a bad file at the first connection, and not say which file it is.
fn pem(params: &mut Params, name: &str, label: &str) -> Result<Option<PathBuf>> {
    let path = file(params, name)?;
    if let Some(path) = &path {
        pem_file(name, &path.to_string_lossy(), label)?;
    }
    Ok(path)
}

fn file(params: &mut Params, name: &str) -> Result<Option<PathBuf>> {
    let Some(value) = params.text(name)? else { return Ok(None) };
    if value.is_empty() {
        return Err(Error::config(format!("{name} is empty: name a file, or omit it")));
    }
    std::path::absolute(&value).map(Some).map_err(|error| {
        Error::config(format!("{name}={value} cannot be made an absolute path")).with_source(error)
    })
}
