//! The clients of the servers that a URL names, and the certificates that it names.

use std::path::Path;

use lock_core::{Error, Result};
use lock_kit::endpoint::Endpoint;
use lock_kit::url::{Params, decode};
use redis::{ConnectionAddr, IntoConnectionInfo};

use crate::error::{RequestStage, from_redis};

/// The port of a server whose URL names none.
const PORT: u16 = 6379;

/// A client of each of the hosts in `scheme://[user:password@]host[:port][,host…][/db]`, with TLS if
/// `secure`. Nothing is sent.
///
/// # Errors
///
/// If it cannot be read. The message shows `form`, not the base, which may contain a password
/// anywhere.
pub(crate) fn tcp_clients(base: &str, secure: bool, form: &str) -> Result<Vec<redis::Client>> {
    let endpoint = Endpoint::parse(base, PORT, form)?;
    let login = ServerLogin::of(&endpoint, endpoint.path(), secure, form)?;
    endpoint.hosts().iter().map(|host| login.client(host.name.clone(), host.port)).collect()
}

/// How a client comes in at a server, wherever that is.
#[derive(Clone)]
pub(crate) struct ServerLogin {
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    pub(crate) db: i64,
    pub(crate) secure: bool,
}

impl ServerLogin {
    /// As `endpoint` says, for the database `db`.
    ///
    /// # Errors
    ///
    /// If the database is not a number, or if this build has no TLS and it is to be `secure`.
    pub(crate) fn of(endpoint: &Endpoint, db: &str, secure: bool, form: &str) -> Result<Self> {
        if secure {
            prepare_tls()?;
        }
        let db = match db.trim_end_matches('/') {
            "" => 0,
            // It is not shown: a password that was not encoded may end up there.
            db => database(db).ok_or_else(|| {
                Error::config(format!(
                    "the database in the URL is not a number: the form is {form}"
                ))
            })?,
        };
        let parts = [endpoint.user(), endpoint.password()].map(|part| part.map(str::to_owned));
        let [user, password] = whole(parts, "user:password@, or :password@ for the default user")?;
        Ok(Self { user, password, db, secure })
    }

    /// At a sentinel, by parameters of these names.
    pub(crate) fn at_sentinel(params: &mut Params, names: [&str; 2], secure: bool) -> Result<Self> {
        let [user, password] = credentials(params, names)?;
        Ok(Self { user, password, db: 0, secure })
    }

    /// A client of the server at this address. Nothing is sent.
    pub(crate) fn client(&self, host: String, port: u16) -> Result<redis::Client> {
        let address = if self.secure {
            // Checking certificates cannot be switched off by a URL.
            ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None }
        } else {
            ConnectionAddr::Tcp(host, port)
        };
        client(address, self.db, self.user.as_deref(), self.password.as_deref())
    }
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
        Some(db) => database(&db)
            .ok_or_else(|| Error::config(format!("db={db:?} is not a database number")))?,
    };
    let [user, password] = credentials(params, ["user", "pass"])?;
    client(ConnectionAddr::Unix(path.into()), db, user.as_deref(), password.as_deref())
}

/// The number of a database, which the driver takes with a sign.
fn database(text: &str) -> Option<i64> {
    text.parse::<u32>().ok().map(i64::from)
}

/// The user and the password in parameters of these names.
fn credentials(params: &mut Params, names: [&str; 2]) -> Result<[Option<String>; 2]> {
    let [user, password] = names;
    params.secret(password);
    let parts = [params.text(user)?, params.text(password)?];
    whole(parts, &format!("{user}=…&{password}=…, or {password}=… alone for the default user"))
}

/// Refuses a user without a password, of which the driver would send nothing: the server would take it for the default
/// user. The user is not shown, since it may be a password that was put in the wrong place.
fn whole(parts: [Option<String>; 2], form: &str) -> Result<[Option<String>; 2]> {
    match parts {
        [Some(_), None] => Err(Error::config(format!(
            "the URL has a user and no password: write {form}; a user with `nopass` takes any password"
        ))),
        parts => Ok(parts),
    }
}

fn client(
    address: ConnectionAddr,
    db: i64,
    user: Option<&str>,
    password: Option<&str>,
) -> Result<redis::Client> {
    let endpoint = address.to_string();
    let refused = |error| from_redis(error, RequestStage::Connecting, &endpoint);
    let mut settings = redis::RedisConnectionInfo::default().set_db(db);
    if let Some(user) = user {
        settings = settings.set_username(user);
    }
    if let Some(password) = password {
        settings = settings.set_password(password);
    }
    let info = address.into_connection_info().map_err(refused)?;
    redis::Client::open(info.set_redis_settings(settings)).map_err(refused)
}

/// Which authorities to trust, and who we are, where a URL says so.
#[derive(Clone, Default)]
pub(crate) struct Tls {
    #[cfg(feature = "tls")]
    certificates: Option<redis::TlsCertificates>,
}

impl Tls {
    /// The parameters that [`read`](Self::read) takes out of a URL.
    pub(crate) const PARAMETERS: [&str; 3] = ["lock_ca", "lock_cert", "lock_key"];

    /// Reads and checks the files. They belong to the scheme `secure` alone.
    ///
    /// # Errors
    ///
    /// If another scheme has them, and if a file is missing or is not what its parameter says.
    pub(crate) fn read(params: &mut Params, scheme: &str, secure: &str) -> Result<Self> {
        let [ca, cert, key] = Self::PARAMETERS;
        let (ca, cert, key) = (params.text(ca)?, params.text(cert)?, params.text(key)?);
        if ca.is_none() && cert.is_none() && key.is_none() {
            return Ok(Self::default());
        }
        if scheme != secure {
            return Err(Error::config(format!(
                "lock_ca, lock_cert and lock_key belong to {secure}://, which uses TLS; {scheme}:// does not"
            )));
        }
        let identity = match (cert, key) {
            (Some(cert), Some(key)) => Some((cert, key)),
            (None, None) => None,
            _ => {
                return Err(Error::config(
                    "lock_cert and lock_key belong together: the certificate of this client, and its key",
                ));
            }
        };
        Self::load(ca, identity)
    }

    #[cfg(not(feature = "tls"))]
    fn load(_ca: Option<String>, _identity: Option<(String, String)>) -> Result<Self> {
        Err(without_feature())
    }

    #[cfg(not(feature = "tls"))]
    pub(crate) fn apply(&self, client: redis::Client) -> Result<redis::Client> {
        Ok(client)
    }

    #[cfg(feature = "tls")]
    fn load(ca: Option<String>, identity: Option<(String, String)>) -> Result<Self> {
        let root_cert = ca.map(|path| files::authorities(&path)).transpose()?;
        let client_tls = identity.map(|(cert, key)| files::identity(&cert, &key)).transpose()?;
        Ok(Self { certificates: Some(redis::TlsCertificates { client_tls, root_cert }) })
    }

    /// The client with these certificates. Named authorities replace those that the system trusts.
    #[cfg(feature = "tls")]
    pub(crate) fn apply(&self, client: redis::Client) -> Result<redis::Client> {
        let Some(certificates) = &self.certificates else { return Ok(client) };
        let info = client.get_connection_info().clone();
        let endpoint = info.addr().to_string();
        redis::Client::build_with_tls(info, certificates.clone())
            .map_err(|error| from_redis(error, RequestStage::Connecting, &endpoint))
    }
}

/// The error of a build without TLS for a URL that asks for it.
#[cfg(not(feature = "tls"))]
fn without_feature() -> Error {
    Error::config(
        "this build cannot use TLS: enable the cargo feature \"tls\" (of lock-redis or of distlock)",
    )
}

/// TLS needs a process-wide crypto provider: ours, if the program has not chosen one.
#[cfg(feature = "tls")]
fn prepare_tls() -> Result<()> {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // The program may install one at the same moment; either will do.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
    Ok(())
}

#[cfg(not(feature = "tls"))]
fn prepare_tls() -> Result<()> {
    Err(without_feature())
}

/// The driver would find out about a bad file at the first connection, and not say which file it is.
#[cfg(feature = "tls")]
mod files {
    use lock_core::{Error, Result};
    use lock_kit::url::pem_file;
    use redis::ClientTlsConfig;
    use rustls::crypto::CryptoProvider;
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};

    pub(super) fn authorities(path: &str) -> Result<Vec<u8>> {
        let (pem, authorities) = certificates("lock_ca", path)?;
        let mut store = rustls::RootCertStore::empty();
        for authority in authorities {
            store.add(authority).map_err(|error| {
                Error::config(format!("lock_ca={path:?} has a certificate that cannot be used"))
                    .with_source(error)
            })?;
        }
        Ok(pem)
    }

    pub(super) fn identity(cert: &str, key: &str) -> Result<ClientTlsConfig> {
        let (client_cert, chain) = certificates("lock_cert", cert)?;
        let client_key = pem_file("lock_key", key, "PRIVATE KEY")?;
        let private = PrivateKeyDer::from_pem_slice(&client_key).map_err(|error| {
            Error::config(format!(
                "lock_key={key:?} has no private key that can be read: give the path of a PEM file with an unencrypted key"
            ))
            .with_source(error)
        })?;
        let ring;
        let provider = match CryptoProvider::get_default() {
            Some(provider) => provider.as_ref(),
            None => {
                ring = rustls::crypto::ring::default_provider();
                &ring
            }
        };
        rustls::sign::CertifiedKey::from_der(chain, private, provider).map_err(|error| {
            Error::config(format!(
                "lock_key={key:?} cannot be used with lock_cert={cert:?}: give the key of this certificate"
            ))
            .with_source(error)
        })?;
        Ok(ClientTlsConfig { client_cert, client_key })
    }

    /// The text of a file, and its certificates: one at least.
    fn certificates(name: &str, path: &str) -> Result<(Vec<u8>, Vec<CertificateDer<'static>>)> {
        let pem = pem_file(name, path, "CERTIFICATE")?;
        let found: std::result::Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
        match found {
            Ok(found) => Ok((pem, found)),
            Err(error) => Err(Error::config(format!(
                "{name}={path:?} has a certificate that cannot be read: give the path of a PEM file"
            ))
            .with_source(error)),
        }
    }
}
