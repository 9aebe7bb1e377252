//! MySQL's and MariaDB's URLs.

use std::fmt;
use std::path::PathBuf;

use lock_core::kit::endpoint::Endpoint;
use lock_core::kit::url::Params;
use lock_core::{Error, Result};
use sqlx::mysql::{MySqlConnectOptions, MySqlSslMode};

use crate::config::{SqlConfig, Target, all_parameters};

/// The parameters that only MySQL and MariaDB have. They mean the same as for the `mysql` client.
pub const MYSQL_PARAMETERS: &[&str] = &["socket", "ssl-ca", "ssl-cert", "ssl-key", "ssl-mode"];

const FORM: &str = "mysql://user[:password]@host[:3306]/database";

/// A database of a server.
#[derive(Clone)]
pub(crate) struct MySqlTarget {
    pub(crate) options: MySqlConnectOptions,
    /// The server and the database as errors name them.
    pub(crate) endpoint: String,
}

/// Written by hand: the options contain the password.
impl fmt::Debug for MySqlTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MySqlTarget").field(&self.endpoint).finish()
    }
}

/// Parses the part of the URL after `mysql:` or `mariadb:`.
pub(crate) fn config_from_url(rest: &str) -> Result<SqlConfig> {
    let (location, mut params) = Params::split(rest)?;
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
    let mut config = SqlConfig::default();
    let mut shown = endpoint.to_string();
    config.take(&mut params)?;
    if let Some(path) = file(&mut params, "socket")? {
        shown = format!("{}:{database}", path.display());
        options = options.socket(path);
    }
    let authority = file(&mut params, "ssl-ca")?;
    if let Some(path) = &authority {
        options = options.ssl_ca(path);
    }
    if let Some(path) = file(&mut params, "ssl-cert")? {
        options = options.ssl_client_cert(path);
    }
    if let Some(path) = file(&mut params, "ssl-key")? {
        options = options.ssl_client_key(path);
    }
    let mode = params.text("ssl-mode")?;
    if let Some(mode) = ssl_mode(mode.as_deref(), authority.is_some())? {
        options = options.ssl_mode(mode);
    }
    params.finish("mysql", &all_parameters(MYSQL_PARAMETERS))?;
    config.target = Target::MySql(Box::new(MySqlTarget { options, endpoint: shown }));
    Ok(config)
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

fn file(params: &mut Params, name: &str) -> Result<Option<PathBuf>> {
    let Some(value) = params.text(name)? else { return Ok(None) };
    if value.is_empty() {
        return Err(Error::config(format!("{name} is empty: name a file, or omit it")));
    }
    std::path::absolute(&value).map(Some).map_err(|error| {
        Error::config(format!("{name}={value} cannot be made an absolute path")).with_source(error)
    })
}
