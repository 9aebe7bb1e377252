//! The settings for one Redis server.

use std::fmt;
use std::time::Duration;

use lock_core::{Error, Result};
use lock_kit::settings::{Between, Parameter, Words};
use lock_kit::url::Params;

use crate::node::{
    CONNECT_TIMEOUT, EVICTION, Eviction, LONGEST_TIMEOUT, ServerAddress, Tls, tcp_clients,
    unix_client,
};

/// The URL schemes of one Redis node.
pub const SCHEMES: &[&str] = &["redis", "rediss", "redis+unix"];

/// The parameters of a URL of one Redis node: see [`RedisConfig::from_url`].
pub const PARAMETERS: &[&str] = &[
    CONNECT_TIMEOUT.name,
    RESPONSE_TIMEOUT.name,
    GRACE.name,
    EVICTION.name,
    PAUSE.name,
    Tls::PARAMETERS[0],
    Tls::PARAMETERS[1],
    Tls::PARAMETERS[2],
];

pub(crate) const RESPONSE_TIMEOUT: Parameter<Between> = Parameter {
    name: "lock_response_timeout",
    text: "the limit for one reply; a call may have a shorter one; a connection that is silent for so long is replaced",
    default: "`2s`",
    values: Duration::from_millis(1)..=LONGEST_TIMEOUT,
};
pub(crate) const GRACE: Parameter<Between> = Parameter {
    name: "lock_grace",
    text: "how long a waiter has to confirm a lock that was handed to it; never less than four round trips, and doubled after a missed turn",
    default: "`500ms`",
    values: Duration::from_millis(50)..=LONGEST_TIMEOUT,
};
pub(crate) const PAUSE: Parameter<Words<Pause>> = Parameter {
    name: "lock_pause",
    text: "`auto` or `never`: leave a contended lock free for a moment, for plain clients",
    default: "`auto`",
    values: &[("auto", Pause::Auto), ("never", Pause::Never)],
};

/// The extra parameters of a socket's URL, which has no user, password or database before the `?`.
const SOCKET_PARAMETERS: &[&str] = &["db", "user", "pass"];

/// The settings of a [`RedisBackend`](crate::RedisBackend).
///
/// Neither `Debug` nor any error shows the password.
///
/// ```
/// use std::time::Duration;
///
/// let config = lock_redis::RedisConfig::from_url("redis://app:secret@db.example:6380/2?lock_grace=1s")?;
/// assert_eq!(config.endpoint(), "db.example:6380");
/// assert!(!format!("{config:?}").contains("secret"));
/// let config = config.response_timeout(Duration::from_millis(500));
/// # Ok::<(), lock_core::Error>(())
/// ```
#[derive(Clone)]
pub struct RedisConfig {
    pub(crate) address: ServerAddress,
    pub(crate) connect_timeout: Duration,
    pub(crate) response_timeout: Duration,
    pub(crate) grace: Duration,
    pub(crate) eviction: Eviction,
    pub(crate) pause: Pause,
}

/// When to leave a contended lock free for a moment, to give a turn to clients that poll with a
/// plain `SET NX`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pause {
    /// For 300 ms every second if such a client was seen in the last minute, and otherwise after
    /// every 10 s of uninterrupted hand-overs, because a client that never gets a turn cannot be
    /// seen.
    #[default]
    Auto,
    /// Never: no other kind of client uses these locks.
    Never,
}

impl RedisConfig {
    /// The settings in a URL: `redis://[user:password@]host[:6379][/db]`, `rediss://` for TLS
    /// (feature `tls`), or `redis+unix:///path/to/socket?db=0&user=…&pass=…`.
    ///
    /// The parameters are listed on the [crate's page](crate#url-and-parameters).
    ///
    /// # Errors
    ///
    /// [`Config`](lock_core::ErrorKind::Config) if the URL cannot be read, has an unknown parameter,
    /// or names a file that cannot be read or used. The message never shows the part of the URL
    /// before the `?`.
    pub fn from_url(url: &str) -> Result<Self> {
        let (base, mut params) = Params::split(url)?;
        let scheme = base.split(':').next().unwrap_or_default();
        let scheme = SCHEMES.iter().copied().find(|known| *known == scheme).ok_or_else(|| {
            Error::config(format!(
                "the URL of a Redis server begins with one of {}",
                SCHEMES.join(", ")
            ))
        })?;
        let client = if scheme == "redis+unix" {
            unix_client(base, &mut params)?
        } else {
            let form = format!("{scheme}://[user:password@]host[:6379][/db]");
            let mut clients = tcp_clients(base, scheme == "rediss", &form)?;
            if clients.len() > 1 {
                return Err(Error::config(format!(
                    "the URL names several Redis servers: use {scheme}:// for one server, or redlock:// for a quorum"
                )));
            }
            clients.remove(0)
        };
        let tls = Tls::read(&mut params, scheme, "rediss")?;
        let mut config = Self::from_client(tls.apply(client)?);
        config.read(&mut params)?;
        let socket = if scheme == "redis+unix" { SOCKET_PARAMETERS } else { &[] };
        params.finish(scheme, &[PARAMETERS, socket].concat())?;
        config.check()?;
        Ok(config)
    }

    /// Takes the parameters that are not about the address out of a URL.
    pub(crate) fn read(&mut self, params: &mut Params) -> Result<()> {
        for (parameter, limit) in [
            (CONNECT_TIMEOUT, &mut self.connect_timeout),
            (RESPONSE_TIMEOUT, &mut self.response_timeout),
            (GRACE, &mut self.grace),
        ] {
            *limit = parameter.read(params)?.unwrap_or(*limit);
        }
        self.eviction = EVICTION.read(params)?.unwrap_or(self.eviction);
        self.pause = PAUSE.read(params)?.unwrap_or_default();
        Ok(())
    }

    /// The default settings for the server of `client`, which was built by other means, for example with certificates of its
    /// own. Its protocol is raised to RESP3. Address and
    /// credentials are those of now: a token that the client would renew works until the connection is lost.
    pub fn from_client(client: redis::Client) -> Self {
        Self::at(client.into())
    }

    /// The default settings for the server at this address.
    pub(crate) fn at(address: ServerAddress) -> Self {
        Self {
            address,
            connect_timeout: Duration::from_secs(1),
            response_timeout: Duration::from_secs(2),
            grace: Duration::from_millis(500),
            eviction: Eviction::default(),
            pause: Pause::default(),
        }
    }

    /// The limit for opening a connection, including the handshake; 1 s by default.
    #[must_use]
    pub fn connect_timeout(mut self, limit: Duration) -> Self {
        self.connect_timeout = limit;
        self
    }

    /// The limit for one reply; 2 s by default. If a reply never comes, the connection is replaced.
    #[must_use]
    pub fn response_timeout(mut self, limit: Duration) -> Self {
        self.response_timeout = limit;
        self
    }

    /// How long a waiter has to confirm a lock that was handed to it; 500 ms by default. Never less
    /// than four round trips.
    #[must_use]
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// What to do about a server that may evict locks.
    #[must_use]
    pub fn eviction(mut self, eviction: Eviction) -> Self {
        self.eviction = eviction;
        self
    }

    /// When to leave a contended lock free for a moment.
    #[must_use]
    pub fn pause(mut self, pause: Pause) -> Self {
        self.pause = pause;
        self
    }

    /// Host and port, or the path of the socket.
    pub fn endpoint(&self) -> String {
        self.address.endpoint()
    }

    pub(crate) fn check(&self) -> Result<()> {
        CONNECT_TIMEOUT.check(self.connect_timeout)?;
        RESPONSE_TIMEOUT.check(self.response_timeout)?;
        GRACE.check(self.grace)
    }
}

impl fmt::Debug for RedisConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisConfig")
            .field("endpoint", &self.endpoint())
            .field("connect_timeout", &self.connect_timeout)
            .field("response_timeout", &self.response_timeout)
            .field("grace", &self.grace)
            .field("eviction", &self.eviction)
            .field("pause", &self.pause)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lock_core::ErrorKind;

    const SENTINEL: &str = "s3cr3t-sentinel";

    #[test]
    fn urls_are_read() {
        for (url, endpoint) in [
            ("redis://h", "h:6379"),
            ("redis://h:1/3", "h:1"),
            ("redis://u:p%40@[::1]:7", "::1:7"),
            ("redis+unix:///run/redis.sock?db=2&user=u&pass=p", "/run/redis.sock"),
        ] {
            assert_eq!(RedisConfig::from_url(url).unwrap().endpoint(), endpoint, "{url}");
        }
        let config =
            RedisConfig::from_url("redis://h?lock_response_timeout=200ms&lock_pause=never")
                .unwrap();
        assert_eq!(
            (config.response_timeout, config.pause),
            (Duration::from_millis(200), Pause::Never)
        );
    }

    #[test]
    fn the_page_says_of_each_parameter_what_is_declared() {
        let rows = [
            CONNECT_TIMEOUT.row(),
            RESPONSE_TIMEOUT.row(),
            GRACE.row(),
            EVICTION.row(),
            PAUSE.row(),
        ];
        assert!(include_str!("../../README.md").contains(&rows.concat()), "{}", rows.concat());
        let config = RedisConfig::from_url("redis://h").unwrap();
        for (parameter, default) in [
            (CONNECT_TIMEOUT, config.connect_timeout),
            (RESPONSE_TIMEOUT, config.response_timeout),
            (GRACE, config.grace),
        ] {
            assert_eq!(parameter.default, format!("`{default:?}`"));
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (url, part) in [
            ("redis://h?lock_grce=1s", "lock_grace"),
            ("redis://h?lock_grace=1", "not a duration"),
            ("redis://h?lock_grace=1ms", "the grace is 1ms"),
            ("redis://h?lock_eviction=maybe", "none of refuse, warn"),
            ("redis://h/x", "database"),
            ("redis+unix://run/x", "absolute path"),
            ("redis+unix:///x?db=a", "db=\"a\""),
            ("redis+unix:///x?db=-1", "db=\"-1\""),
            ("redis+unix:///x?user=u", "a user and no password: write user=…&pass=…"),
            ("redis://u@h", "a user and no password: write user:password@"),
            ("redis://h/-1", "the database in the URL is not a number"),
            ("redis+unix:///x?password=a", "db, user, pass"),
            ("http://h", "begins with one of redis"),
            ("redis://h?lock_ca=/x", "belong to rediss://"),
            ("redis+unix:///x?lock_key=/x", "redis+unix:// does not"),
        ] {
            let error = RedisConfig::from_url(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config, "{url}");
            assert!(error.to_string().contains(part), "{url}: {error}");
        }
    }

    #[test]
    fn no_secret_is_shown() {
        for url in [
            format!("redis://u:{SENTINEL}@h"),
            format!("redis://u:12?{SENTINEL}@h"),
            format!("redis+unix:///s?pass={SENTINEL}"),
            format!("redis+unix:///s?pass=x&{SENTINEL}"),
            format!("redis://{SENTINEL}@h"),
            format!("redis+unix:///s?user={SENTINEL}"),
            format!("redis://u:{SENTINEL}#x@h"),
            format!("redis://u:{SENTINEL}/x@h"),
            format!("redis://{SENTINEL} x"),
            format!("redis://h?password={SENTINEL}"),
            SENTINEL.to_owned(),
        ] {
            let shown = format!("{:?}", RedisConfig::from_url(&url));
            assert!(!shown.contains(SENTINEL), "{url} gave {shown}");
        }
    }

    #[cfg(not(feature = "tls"))]
    #[test]
    fn tls_names_its_feature() {
        for url in ["rediss://h", "rediss://h?lock_ca=/x"] {
            let error = RedisConfig::from_url(url).unwrap_err();
            assert!(error.to_string().contains("feature \"tls\""), "{error}");
        }
    }
}
