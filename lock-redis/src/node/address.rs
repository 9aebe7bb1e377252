//! The clients of the servers that a URL names.

use std::path::Path;

use lock_core::kit::endpoint::Endpoint;
use lock_core::kit::url::{Params, decode};
use lock_core::{Error, Result};
use redis::{ConnectionAddr, IntoConnectionInfo};

use crate::error::{Stage, from_redis};

/// The port of a server whose URL names none.
const PORT: u16 = 6379;

/// The credentials and the database.
struct Login {
    user: Option<String>,
    password: Option<String>,
    db: i64,
}

/// A client of each of the hosts in `scheme://[user:password@]host[:port][,host…][/db]`, with TLS if
/// `secure`. Nothing is sent.
///
/// # Errors
///
/// If it cannot be read. The message shows `form`, not the base, which may contain a password
/// anywhere.
pub(crate) fn tcp_clients(base: &str, secure: bool, form: &str) -> Result<Vec<redis::Client>> {
    if secure {
        super::tls::prepare()?;
    }
    let endpoint = Endpoint::parse(base, PORT, form)?;
    let db = match endpoint.path().trim_end_matches('/') {
        "" => 0,
        // It is not shown: a password that was not encoded may end up there.
        db => db.parse().map_err(|_| {
            Error::config(format!("the database in the URL is not a number: the form is {form}"))
        })?,
    };
    let clients = endpoint.hosts().iter().map(|host| {
        let (host, port) = (host.name.clone(), host.port);
        let address = if secure {
            // Checking certificates cannot be switched off by a URL.
            ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None }
        } else {
            ConnectionAddr::Tcp(host, port)
        };
        let user = endpoint.user().map(str::to_owned);
        let password = endpoint.password().map(str::to_owned);
        client(address, Login { user, password, db })
    });
    clients.collect()
}

/// A client of `redis+unix:///path/to/socket`, with the parameters `db`, `user` and `pass`.
///
/// # Errors
///
/// As [`tcp_clients`].
pub(crate) fn unix_client(base: &str, params: &mut Params) -> Result<redis::Client> {
    let path = base.strip_prefix("redis+unix://").unwrap_or_default();
    let path = decode("the path", path)?;
    if !Path::new(&path).is_absolute() {
        return Err(Error::config(
            "the URL of a Redis socket needs an absolute path: redis+unix:///path/to/socket",
        ));
    }
    let db = match params.text("db")? {
        None => 0,
        Some(db) => {
            db.parse().map_err(|_| Error::config(format!("db={db:?} is not a database number")))?
        }
    };
    let login = Login { user: params.text("user")?, password: params.text("pass")?, db };
    client(ConnectionAddr::Unix(path.into()), login)
}

fn client(address: ConnectionAddr, login: Login) -> Result<redis::Client> {
    let endpoint = address.to_string();
    let refused = |error| from_redis(error, Stage::Connecting, &endpoint);
    let mut settings = redis::RedisConnectionInfo::default().set_db(login.db);
    if let Some(user) = login.user {
        settings = settings.set_username(user);
    }
    if let Some(password) = login.password {
        settings = settings.set_password(password);
    }
    let info = address.into_connection_info().map_err(refused)?;
    redis::Client::open(info.set_redis_settings(settings)).map_err(refused)
}
