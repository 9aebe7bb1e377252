//! [REDLOCK.md]: mod@crate::redlock
//! [README.md]: crate
//!
#![doc = include_str!("../SENTINEL.md")]
//!
//! # In the source
//!
//! This module reads the URL, and chooses: with `lock_failover=trust` the store is that of one server, with
//! `lock_failover=quarantine` that of a quorum with one node. In both the node is a group, whose present master
//! `node::group` finds at each connect. The wait of a new master is the admission of Redlock, with longer terms.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{
    Capabilities, Claim, ClaimRequest, Error, Fencing, LockAdmin, LockBackend, LockKey, Result,
    Seen, async_trait,
};
use lock_kit::endpoint::{Endpoint, Host};
use lock_kit::settings::{Between, Parameter, Words};
use lock_kit::url::Params;

use crate::node::{
    CONNECT_TIMEOUT, EVICTION, GroupTerms, LONGEST_TIMEOUT, MasterGroup, ServerAddress,
    ServerLogin, Tls,
};
use crate::redlock::{BOOTSTRAP, DRIFT, MAX_TTL, NODE_TIMEOUT};
use crate::single::{GRACE, PAUSE, RESPONSE_TIMEOUT};
use crate::{RedisBackend, RedisConfig, RedlockBackend, RedlockConfig};

/// The URL schemes of a Redis group that sentinels watch.
pub const SENTINEL_SCHEMES: &[&str] = &["redis+sentinel", "rediss+sentinel"];

/// The parameters of a URL of such a group: see [`SentinelConfig::from_url`].
pub const SENTINEL_PARAMETERS: &[&str] = &[
    FAILOVER.name,
    SENTINEL_USER,
    SENTINEL_PASSWORD,
    CONNECT_TIMEOUT.name,
    EVICTION.name,
    Tls::PARAMETERS[0],
    Tls::PARAMETERS[1],
    Tls::PARAMETERS[2],
    MAX_TTL.name,
    MAX_LAG.name,
    BOOTSTRAP.name,
    NODE_TIMEOUT.name,
    DRIFT.name,
    RESPONSE_TIMEOUT.name,
    GRACE.name,
    PAUSE.name,
];

const FAILOVER: Parameter<Words<Failover>> = Parameter {
    name: "lock_failover",
    text: "`quarantine` or `trust`: what a failover may break",
    default: "`quarantine`",
    values: &[("quarantine", Failover::Quarantine), ("trust", Failover::Trust)],
};
const MAX_LAG: Parameter<Between> = Parameter {
    name: "lock_max_lag",
    text: "the `min-replicas-max-lag` of the servers; the same for all clients",
    default: "`10s`",
    values: Duration::from_secs(1)..=LONGEST_TIMEOUT,
};
const SENTINEL_USER: &str = "lock_sentinel_user";
const SENTINEL_PASSWORD: &str = "lock_sentinel_password";

/// The port of a sentinel whose URL names none.
const PORT: u16 = 26379;

/// What a failover, in which a replica becomes the master, may break.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failover {
    /// Nothing: a new master grants no lock until all those that the old one has granted have ended.
    #[default]
    Quarantine,
    /// Exclusion: a new master that has not received the last grant grants the lock once more.
    Trust,
}

/// The settings of a [`SentinelBackend`].
///
/// Neither `Debug` nor any error shows a password.
///
/// ```
/// use lock_redis::{Failover, SentinelConfig};
///
/// let config = SentinelConfig::from_url("redis+sentinel://app:secret@s1,s2,s3/orders?lock_max_ttl=1m")?;
/// assert_eq!(config.failover(), Failover::Quarantine);
/// assert!(!format!("{config:?}").contains("secret"));
/// # Ok::<(), lock_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct SentinelConfig {
    store: StoreConfig,
}

#[derive(Clone, Debug)]
enum StoreConfig {
    Quarantine(RedlockConfig),
    Trust(RedisConfig),
}

impl SentinelConfig {
    /// The settings in a URL:
    /// `redis+sentinel://[user:password@]sentinel[:26379][,sentinel…]/group[/db]`, or
    /// `rediss+sentinel://` for TLS to sentinels and servers (feature `tls`). User, password and
    /// database are those of the servers.
    ///
    /// The parameters are listed in the [`sentinel`](crate::sentinel#url-and-parameters) module.
    ///
    /// # Errors
    ///
    /// [`Config`](lock_core::ErrorKind::Config) if the URL cannot be read, has an unknown parameter or one of the
    /// other `lock_failover`, or names a file that cannot be read or used. The message never shows the part of the URL
    /// before the `?`.
    pub fn from_url(url: &str) -> Result<Self> {
        let (base, mut params) = Params::split(url)?;
        let scheme = base.split(':').next().unwrap_or_default();
        let known = SENTINEL_SCHEMES.iter().copied().find(|known| *known == scheme);
        let scheme = known.ok_or_else(|| {
            Error::config(format!(
                "the URL of a group that sentinels watch begins with one of {}",
                SENTINEL_SCHEMES.join(", ")
            ))
        })?;
        let failover = FAILOVER.read(&mut params)?.unwrap_or_default();
        let lag = match failover {
            Failover::Quarantine => Some(MAX_LAG.read(&mut params)?.unwrap_or(DEFAULT_LAG)),
            Failover::Trust => None,
        };
        MAX_LAG.check(lag)?;
        let eviction = EVICTION.read(&mut params)?.unwrap_or_default();
        let terms = GroupTerms { eviction, lag };
        let connect_timeout = CONNECT_TIMEOUT.read(&mut params)?.unwrap_or(DEFAULT_CONNECT);
        CONNECT_TIMEOUT.check(connect_timeout)?;
        let group = group((base, scheme), &mut params, connect_timeout, terms)?;
        let (name, address) = (group.name.clone(), ServerAddress::Group(Arc::new(group)));
        let store = match failover {
            Failover::Quarantine => {
                let mut config = RedlockConfig::at(vec![address]).eviction(eviction);
                config = config.connect_timeout(connect_timeout).quorum_name(name);
                config.read(&mut params)?;
                config.check()?;
                StoreConfig::Quarantine(config)
            }
            Failover::Trust => {
                let mut config = RedisConfig::at(address).eviction(eviction);
                config = config.connect_timeout(connect_timeout);
                config.read(&mut params)?;
                config.check()?;
                StoreConfig::Trust(config)
            }
        };
        params.finish(scheme, &parameters(failover))?;
        Ok(Self { store })
    }

    /// What a failover may break.
    pub fn failover(&self) -> Failover {
        match self.store {
            StoreConfig::Quarantine(_) => Failover::Quarantine,
            StoreConfig::Trust(_) => Failover::Trust,
        }
    }
}

const DEFAULT_LAG: Duration = Duration::from_secs(10);
const DEFAULT_CONNECT: Duration = Duration::from_secs(1);

/// The parameters that a URL with this `lock_failover` may have.
fn parameters(failover: Failover) -> Vec<&'static str> {
    let others: &[&str] = match failover {
        Failover::Quarantine => &[RESPONSE_TIMEOUT.name, GRACE.name, PAUSE.name],
        Failover::Trust => {
            &[MAX_TTL.name, MAX_LAG.name, BOOTSTRAP.name, NODE_TIMEOUT.name, DRIFT.name]
        }
    };
    SENTINEL_PARAMETERS.iter().copied().filter(|name| !others.contains(name)).collect()
}

/// The group that a URL names. Nothing is sent.
fn group(
    (base, scheme): (&str, &str),
    params: &mut Params,
    connect_timeout: Duration,
    terms: GroupTerms,
) -> Result<MasterGroup> {
    let form = format!("{scheme}://[user:password@]sentinel[:26379][,sentinel…]/group[/db]");
    let endpoint = Endpoint::parse(base, PORT, &form)?.with_distinct_hosts()?;
    let (name, db) = endpoint.path().split_once('/').unwrap_or((endpoint.path(), ""));
    if name.is_empty() {
        return Err(Error::config(format!(
            "the URL does not name the group, as in `sentinel monitor GROUP …`: its form is {form}"
        )));
    }
    let secure = scheme == "rediss+sentinel";
    let login = ServerLogin::of(&endpoint, db, secure, &form)?;
    let names = [SENTINEL_USER, SENTINEL_PASSWORD];
    let at_sentinel = ServerLogin::at_sentinel(params, names, secure)?;
    let tls = Tls::read(params, scheme, "rediss+sentinel")?;
    let client = |host: &Host| tls.apply(at_sentinel.client(host.name.clone(), host.port)?);
    let sentinels = endpoint.hosts().iter().map(client).collect::<Result<Vec<_>>>()?;
    Ok(MasterGroup::new(name.to_owned(), sentinels, (login, tls), connect_timeout, terms))
}

/// Connects to the group that `url` names: see [`SentinelConfig::from_url`] for its form and its parameters.
///
/// # Errors
///
/// As [`SentinelConfig::from_url`] and [`SentinelBackend::connect`].
///
/// # Cancel safety
///
/// Cancel-safe.
pub async fn connect_sentinel(url: &str) -> Result<SentinelBackend> {
    SentinelBackend::connect(SentinelConfig::from_url(url)?).await
}

/// The locks on the present master of a Redis group that sentinels watch.
///
/// For guarantees and limits see the [`sentinel`](crate::sentinel) module.
#[derive(Debug)]
pub struct SentinelBackend {
    store: Box<dyn LockBackend>,
    quarantine: Duration,
}

impl SentinelBackend {
    /// Connects to the present master, and checks that it can keep locks: its version, the rights of the user, that
    /// it does not evict, and, unless `lock_failover=trust`, that it stops once it is cut off from its replicas. If it
    /// must wait before it grants locks, this still succeeds, and acquiring fails with an error that names the time.
    ///
    /// # Errors
    ///
    /// [`Unavailable`](lock_core::ErrorKind::Unavailable) if no sentinel leads to a master,
    /// [`Denied`](lock_core::ErrorKind::Denied) if one or the master refuses the credentials or a command,
    /// [`Config`](lock_core::ErrorKind::Config) if no sentinel knows the group, the settings of the master do not allow
    /// the promise, or other clients have other terms, [`Unsupported`](lock_core::ErrorKind::Unsupported) if the master is older
    /// than Redis 7.0, or than 6.0 with `lock_failover=trust`.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn connect(config: SentinelConfig) -> Result<Self> {
        let (store, quarantine): (Box<dyn LockBackend>, _) = match config.store {
            StoreConfig::Quarantine(config) => {
                let quarantine = config.quarantine();
                (Box::new(RedlockBackend::connect(config).await?), quarantine)
            }
            StoreConfig::Trust(config) => {
                (Box::new(RedisBackend::connect(config).await?), Duration::ZERO)
            }
        };
        Ok(Self { store, quarantine })
    }

    /// For how long a new master grants no lock; zero with `lock_failover=trust`.
    pub fn quarantine(&self) -> Duration {
        self.quarantine
    }
}

#[async_trait]
impl LockBackend for SentinelBackend {
    fn name(&self) -> &'static str {
        "sentinel"
    }

    fn capabilities(&self) -> Capabilities {
        let mut can = self.store.capabilities();
        // The mark below which no fence may be is written to the replicas later, and a new master's clock stands in.
        can.fencing = Fencing::BestEffort;
        can
    }

    fn claim(&self, request: ClaimRequest) -> Result<Box<dyn Claim>> {
        self.store.claim(request)
    }

    async fn ping(&self) -> Result<()> {
        self.store.ping().await
    }

    async fn look(&self, keys: &[LockKey]) -> Result<Vec<Seen>> {
        self.store.look(keys).await
    }

    async fn close(&self) -> Result<()> {
        self.store.close().await
    }

    fn admin(&self) -> Option<&dyn LockAdmin> {
        self.store.admin()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lock_core::ErrorKind;

    #[test]
    fn urls_are_read() {
        let url = "redis+sentinel://u:p%40@a,b:1,[::1]:7/orders/2?lock_max_lag=5s&lock_max_ttl=20s&lock_sentinel_password=x";
        let config = SentinelConfig::from_url(url).unwrap();
        let StoreConfig::Quarantine(store) = &config.store else { panic!("{config:?}") };
        let endpoint = "the master of orders (a:26379,b:1,::1:7)";
        assert_eq!(store.endpoints().collect::<Vec<_>>(), [endpoint]);
        assert_eq!(store.lag(), Some(Duration::from_secs(5)));
        let wait = store.quarantine();
        assert!(wait > Duration::from_secs(27) && wait < Duration::from_secs(28), "{wait:?}");
        let known = "1 nodes, lock_max_ttl 20000ms, votes in form 2, lock_max_lag 5000ms, orders";
        assert_eq!(store.fingerprints(), [known]);
        let ServerAddress::Group(group) = &store.nodes[0] else { panic!("{config:?}") };
        let login = &group.login;
        assert_eq!((login.user.as_deref(), login.password.as_deref()), (Some("u"), Some("p@")));
        assert_eq!((login.db, login.secure), (2, false));

        let url = "redis+sentinel://a/orders?lock_failover=trust&lock_grace=1s";
        let config = SentinelConfig::from_url(url).unwrap();
        let StoreConfig::Trust(store) = &config.store else { panic!("{config:?}") };
        assert_eq!(store.endpoint(), "the master of orders (a:26379)");
        assert_eq!(store.grace, Duration::from_secs(1));
    }

    #[test]
    fn the_page_says_of_each_parameter_what_is_declared() {
        let rows = [
            FAILOVER.row(),
            MAX_LAG.row(),
            MAX_TTL.row(),
            BOOTSTRAP.row(),
            NODE_TIMEOUT.row(),
            DRIFT.row(),
            RESPONSE_TIMEOUT.row(),
            GRACE.row(),
            PAUSE.row(),
            CONNECT_TIMEOUT.row(),
            EVICTION.row(),
        ];
        for row in rows {
            assert!(include_str!("../SENTINEL.md").contains(&row), "{row}");
        }
        assert_eq!(MAX_LAG.default, format!("`{DEFAULT_LAG:?}`"));
        assert_eq!(CONNECT_TIMEOUT.default, format!("`{DEFAULT_CONNECT:?}`"));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (url, part) in [
            ("redis+sentinel://a,b", "does not name the group"),
            ("redis+sentinel://a,a:26379/g", "is named twice"),
            ("redis+sentinel://a/g/x", "the database in the URL is not a number"),
            ("redis+sentinel://a/g/-1", "the database in the URL is not a number"),
            ("redis+sentinel://u@a/g", "a user and no password: write user:password@"),
            ("redis+sentinel://a/g?lock_sentinel_user=u", "or lock_sentinel_password=… alone"),
            ("redis+sentinel://a/g?lock_failover=maybe", "none of quarantine, trust"),
            ("redis+sentinel://a/g?lock_max_lag=2min", "the max lag is 120s"),
            ("redis+sentinel://a/g?lock_grace=1s", "lock_grace"),
            ("redis+sentinel://a/g?lock_failover=trust&lock_max_ttl=1s", "lock_max_ttl"),
            ("redis+sentinel://a/g?lock_max_ttl=1ms", "lock_max_ttl is 1ms"),
            ("redis+sentinel://a/g?lock_ca=/x", "belong to rediss+sentinel://"),
            ("redis://a/g", "begins with one of redis+sentinel"),
        ] {
            let error = SentinelConfig::from_url(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config, "{url}");
            assert!(error.to_string().contains(part), "{url}: {error}");
        }
    }

    #[test]
    fn no_secret_is_shown() {
        const SECRET: &str = "s3cr3t";
        for url in [
            format!("redis+sentinel://u:{SECRET}@a/g"),
            format!("redis+sentinel://a/g?lock_sentinel_password={SECRET}"),
            format!("redis+sentinel://a/g?lock_sentinel_password=x&{SECRET}"),
            format!("redis+sentinel://u:{SECRET}@a/g?lock_failover=trust"),
            format!("redis+sentinel://u:{SECRET}@a"),
            format!("redis+sentinel://u:{SECRET}/x@a/g"),
        ] {
            let shown = format!("{:?}", SentinelConfig::from_url(&url));
            assert!(!shown.contains(SECRET), "{url} gave {shown}");
        }
    }
}
