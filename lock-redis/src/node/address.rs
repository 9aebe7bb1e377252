//! The client of the server that a URL names.

use std::path::Path;

use lock_core::url::{Params, decode};
use lock_core::{Error, Result};
use redis::{ConnectionAddr, IntoConnectionInfo};

use crate::error::{Stage, from_redis};

/// A client of `redis://[user:password@]host[:port][/db]`, or `rediss://`. Nothing is sent.
///
/// # Errors
///
/// If it cannot be read. The base is not shown: a password may stand anywhere in it.
pub(crate) fn tcp_client(base: &str) -> Result<redis::Client> {
    let tls = base.starts_with("rediss:");
    #[cfg(not(feature = "tls"))]
    if tls {
        return Err(super::tls::without_feature());
    }
    if base.contains('#') {
        return Err(Error::config(
            "the URL of a Redis server has a '#': write it as %23 where it belongs to a password, and note that checking certificates cannot be switched off by a URL",
        ));
    }
    #[cfg(feature = "tls")]
    if tls && rustls::crypto::CryptoProvider::get_default().is_none() {
        // Somebody else may install one at the same moment; either will do.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
    let info = base.into_connection_info().map_err(|error| {
        let why = error.to_string();
        Error::config(format!(
            "the URL of the Redis server cannot be read ({why}): it is {}://[user:password@]host[:port][/db], with special characters of user and password as %40 for @, %3A for : and %2F for /",
            if tls { "rediss" } else { "redis" }
        ))
    })?;
    open(info)
}

pub(crate) fn unix_client(base: &str, params: &mut Params) -> Result<redis::Client> {
    let path = base.strip_prefix("redis+unix://").unwrap_or_default();
    let path = decode("the path", path)?;
    if !Path::new(&path).is_absolute() {
        return Err(Error::config(
            "the URL of a Redis socket has no absolute path: it is redis+unix:///path/to/socket",
        ));
    }
    let mut settings = redis::RedisConnectionInfo::default();
    if let Some(db) = params.text("db")? {
        let db = db
            .parse()
            .map_err(|_| Error::config(format!("db={db:?} is no number of a database")))?;
        settings = settings.set_db(db);
    }
    if let Some(user) = params.text("user")? {
        settings = settings.set_username(user);
    }
    if let Some(password) = params.text("pass")? {
        settings = settings.set_password(password);
    }
    let info = ConnectionAddr::Unix(path.into())
        .into_connection_info()
        .map_err(|error| from_redis(error, Stage::Connecting, "a unix socket"))?;
    open(info.set_redis_settings(settings))
}

fn open(info: redis::ConnectionInfo) -> Result<redis::Client> {
    let endpoint = info.addr().to_string();
    redis::Client::open(info).map_err(|error| from_redis(error, Stage::Connecting, &endpoint))
}
