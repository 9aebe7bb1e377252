//! MySQL's and MariaDB's URLs.

use std::fmt;
use std::path::PathBuf;

use lock_core::url::{Params, decode};
use lock_core::{Error, Result};
use sqlx::mysql::{MySqlConnectOptions, MySqlSslMode};

use crate::config::{SqlConfig, Target, all_parameters};

/// The parameters that only MySQL and MariaDB have. They mean what they mean to `mysql`.
pub const MYSQL_PARAMETERS: &[&str] = &["socket", "ssl-ca", "ssl-cert", "ssl-key", "ssl-mode"];

const EXAMPLE: &str = "write it as in `mysql://user:password@host:3306/database`";

/// A database of a server.
#[derive(Clone)]
pub(crate) struct MySqlTarget {
    pub(super) options: MySqlConnectOptions,
    /// The server and the database as errors name them.
    pub(super) endpoint: String,
}

/// Written by hand: the options have the password.
impl fmt::Debug for MySqlTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MySqlTarget").field(&self.endpoint).finish()
    }
}

/// The configuration in what stands after `mysql:` or `mariadb:`.
pub(crate) fn config_from_url(rest: &str) -> Result<SqlConfig> {
    let Some(rest) = rest.strip_prefix("//") else {
        return Err(Error::config(format!("this MySQL URL names no server: {EXAMPLE}")));
    };
    if rest.contains('#') {
        return Err(Error::config(
            "a MySQL URL has no `#` part: write %23 for a `#` in a user, a password or a name",
        ));
    }
    let (location, mut params) = Params::split(rest)?;
    let (authority, path) = location.split_once('/').unwrap_or((location, ""));
    // The last one: a password that was not encoded may have an `@`, and must not end up in a host.
    let (user, server) = authority.rsplit_once('@').unwrap_or(("", authority));
    let (user, password) = match user.split_once(':') {
        Some((user, password)) => (user, Some(password)),
        None => (user, None),
    };
    let user = decode("the user", user)?;
    if user.is_empty() {
        return Err(Error::config(format!("this MySQL URL names no user: {EXAMPLE}")));
    }
    let database = decode("the database", path)?;
    if database.is_empty() || database.contains('/') {
        return Err(Error::config(format!(
            "this MySQL URL names no database in which the lock table is: {EXAMPLE}"
        )));
    }
    let (host, port) = host_and_port(server)?;
    let mut options =
        MySqlConnectOptions::new().host(&host).port(port).username(&user).database(&database);
    if let Some(password) = password {
        options = options.password(&decode("the password", password)?);
    }
    let mut config = SqlConfig::default();
    let mut endpoint = format!("{host}:{port}/{database}");
    config.take(&mut params)?;
    if let Some(path) = file(&mut params, "socket")? {
        endpoint = format!("{}:{database}", path.display());
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
    config.target = Target::MySql(Box::new(MySqlTarget { options, endpoint }));
    Ok(config)
}

fn host_and_port(server: &str) -> Result<(String, u16)> {
    let (host, port) = match server.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']').ok_or_else(|| {
                Error::config("the IPv6 address of this MySQL URL has no `]`: write `[::1]:3306`")
            })?;
            (host, port.strip_prefix(':').or_else(|| port.is_empty().then_some("")))
        }
        None => match server.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (server, Some("")),
        },
    };
    let port = match port {
        Some("") => Some(3306),
        Some(port) => port.parse().ok().filter(|port| *port != 0),
        None => None,
    };
    // Not shown: it may be a part of a password with a `/` or an `@`.
    let port = port.ok_or_else(|| {
        Error::config(
            "the port of this MySQL URL is no number from 1 to 65535: correct it, and percent-encode `/`, `@`, `:`, `?` and `#` in the password",
        )
    })?;
    let host = decode("the host", host)?;
    if host.is_empty() {
        return Err(Error::config(format!("this MySQL URL names no host: {EXAMPLE}")));
    }
    if host.contains(',') {
        return Err(Error::config(
            "this MySQL URL names several hosts: name the one that is written to, or an address that follows it",
        ));
    }
    Ok((host, port))
}

/// An authority that is named is asked: in the two modes without TLS, or perhaps without, it could not
/// be, and the driver would not ask it in `REQUIRED` or without a mode.
fn ssl_mode(value: Option<&str>, authority: bool) -> Result<Option<MySqlSslMode>> {
    let value = match value {
        Some(value) => value,
        None if authority => "VERIFY_CA",
        None => return Ok(None),
    };
    let mode = match value.to_ascii_uppercase().replace('-', "_").as_str() {
        "DISABLED" | "PREFERRED" if authority => {
            return Err(Error::config(format!(
                "ssl-mode={value} does not ask the authority of ssl-ca: use VERIFY_CA or VERIFY_IDENTITY, or leave ssl-ca out"
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
        return Err(Error::config(format!("{name} is empty: name a file, or leave it out")));
    }
    std::path::absolute(&value).map(Some).map_err(|error| {
        Error::config(format!("{name}={value} cannot be made an absolute path")).with_source(error)
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn target(url: &str) -> Result<MySqlTarget> {
        match SqlConfig::from_url(url)?.target {
            Target::MySql(target) => Ok(*target),
            _ => panic!("{url} is MySQL"),
        }
    }

    fn endpoint_of(url: &str) -> String {
        target(url).unwrap().endpoint
    }

    #[test]
    fn what_a_url_says() {
        let target =
            target("MariaDB://u%40x:p%2F%3a%40w@db.example:3307/my%20app?ssl-mode=disabled")
                .unwrap();
        assert_eq!(target.options.get_username(), "u@x");
        assert_eq!(target.options.get_host(), "db.example");
        assert_eq!(target.options.get_port(), 3307);
        assert_eq!(target.options.get_database(), Some("my app"));
        assert_eq!(target.endpoint, "db.example:3307/my app");
        for (url, endpoint) in [
            ("mysql://u@h/d", "h:3306/d"),
            ("mysql://u:@h/d", "h:3306/d"),
            ("mysql://u@[::1]:33/d", "::1:33/d"),
            ("mysql://u@[::1]/d", "::1:3306/d"),
            ("mysql://u@localhost/d?socket=/run/my.sock", "/run/my.sock:d"),
        ] {
            assert_eq!(endpoint_of(url), endpoint, "{url}");
        }
    }

    #[test]
    fn what_a_url_must_say() {
        for bad in [
            "mysql:u@h/d",
            "mysql://h/d",
            "mysql://:p@h/d",
            "mysql://u@h",
            "mysql://u@h/",
            "mysql://u@h/a/b",
            "mysql://u@/d",
            "mysql://u@h:0/d",
            "mysql://u@h:x/d",
            "mysql://u@h:99999/d",
            "mysql://u@h1,h2/d",
            "mysql://u@[::1/d",
            "mysql://u@[::1]x/d",
            "mysql://u@h/d#x",
            "mysql://u@h/%zz",
            "mysql://u@h/%ff",
            "mysql://u@h/%00",
            "mysql://u@h/d?ssl-mode=maybe",
            "mysql://u@h/d?ssl-mode=disabled&ssl-ca=/ca.pem",
            "mysql://u@h/d?ssl-ca=/ca.pem&ssl-mode=PREFERRED",
            "mysql://u@h/d?socket=",
            "mysql://u@h/d?lock_table=a-b",
            "mysql://u@h/d?lock_retention=5",
            "mysql://u@h/d?lock_table=a&lock_table=b",
            "mysql://u@h/d?lock_tabel=a",
        ] {
            let error = target(bad).unwrap_err();
            assert_eq!(error.kind(), lock_core::ErrorKind::Config, "{bad}: {error}");
        }
        let error = target("mysql://u@h/d?charset=latin1").unwrap_err().to_string();
        for name in crate::PARAMETERS.iter().chain(MYSQL_PARAMETERS) {
            assert!(error.contains(name), "{error}");
        }
    }

    #[cfg(not(feature = "tls"))]
    #[test]
    fn a_mode_that_needs_tls_says_which_feature_has_it() {
        for parameter in [
            "ssl-mode=required",
            "ssl-mode=VERIFY_CA",
            "ssl-mode=verify-identity",
            "ssl-ca=/ca.pem",
        ] {
            let error = target(&format!("mysql://u@h/d?{parameter}")).unwrap_err().to_string();
            assert!(error.contains("`tls`"), "{error}");
        }
    }

    #[test]
    fn own_parameters_are_taken() {
        let config = SqlConfig::from_url(
            "mysql://u@h/d?lock_table=t1&lock_retention=2m&lock_connect_timeout=500ms&lock_create_table=false",
        )
        .unwrap();
        assert_eq!(config.table.as_str(), "t1");
        assert_eq!(config.retention, Duration::from_secs(120));
        assert_eq!(config.connect_timeout, Duration::from_millis(500));
        assert!(!config.create_table);
    }

    #[test]
    fn no_credential_is_shown() {
        let secret = "hunter2";
        let config = SqlConfig::from_url(&format!("mysql://me:{secret}@h/d")).unwrap();
        assert!(!format!("{config:?}").contains(secret));
        for url in [
            format!("mysql://me:{secret}#x@h/d"),
            format!("mysql://me:{secret}/x@h/d"),
            format!("mysql://me:a@{secret}@h:x/d"),
            format!("mysql://me:{secret}%zz@h/d"),
            format!("mysql://me:a:{secret}@:h/d"),
            format!("mysql://me:{secret}?x@h/d"),
        ] {
            if let Err(error) = SqlConfig::from_url(&url) {
                assert!(!format!("{error} {error:?}").contains(secret), "{url}: {error}");
            }
        }
    }
}
