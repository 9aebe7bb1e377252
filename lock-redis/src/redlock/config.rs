//! The nodes of a quorum and their settings.

use std::fmt;
use std::time::Duration;

use lock_core::{Error, Result};
use lock_kit::settings::{Between, Parameter, ReadBy, Words};
use lock_kit::url::Params;

use super::rules;
use crate::node::{
    CONNECT_TIMEOUT, EVICTION, Eviction, LONGEST_TIMEOUT, ServerAddress, Tls, tcp_clients,
};

/// The URL schemes of Redlock.
pub const REDLOCK_SCHEMES: &[&str] = &["redlock", "redlocks"];

/// The parameters of a Redlock URL: see [`RedlockConfig::from_url`].
pub const REDLOCK_PARAMETERS: &[&str] = &[
    MAX_TTL.name,
    BOOTSTRAP.name,
    RECOVER.name,
    QUORUM_NAME.name,
    NODE_TIMEOUT.name,
    CONNECT_TIMEOUT.name,
    DRIFT.name,
    EVICTION.name,
    Tls::PARAMETERS[0],
    Tls::PARAMETERS[1],
    Tls::PARAMETERS[2],
];

/// For how much longer than its `min-replicas-max-lag` a master takes a silent replica for a good one: it counts whole
/// seconds, and looks once a second.
const LAG_IS_SEEN_WITHIN: Duration = Duration::from_secs(2);

/// Of what a node keeps for a lock: two keys in the first.
const VOTE_FORM: u32 = 2;

pub(crate) const MAX_TTL: Parameter<Between> = Parameter {
    name: "lock_max_ttl",
    text: "the longest TTL; the same for all clients",
    default: "`30s`",
    values: Duration::from_millis(100)..=Duration::from_secs(24 * 3600),
};
pub(crate) const BOOTSTRAP: Parameter<Words<Bootstrap>> = Parameter {
    name: "lock_bootstrap",
    text: "`wait` or `now`",
    default: "`wait`",
    values: &[("wait", Bootstrap::Wait), ("now", Bootstrap::Now)],
};
const RECOVER: Parameter<Words<Recover>> = Parameter {
    name: "lock_recover",
    text: "`auto` or `manual`: whether a quorum that was restarted as a whole votes again without an operator",
    default: "`auto`",
    values: &[("auto", Recover::Auto), ("manual", Recover::Manual)],
};
const QUORUM_NAME: Parameter<ReadBy<String>> = Parameter {
    name: "lock_quorum_name",
    text: "the name by which the nodes know the quorum",
    default: "the sorted addresses",
    values: |name| Ok(name.to_owned()),
};
pub(crate) const NODE_TIMEOUT: Parameter<Between> = Parameter {
    name: "lock_node_timeout",
    text: "after how long a node counts as slow under contention",
    default: "5 % of the TTL, at least `100ms`",
    values: Duration::from_millis(1)..=LONGEST_TIMEOUT,
};
pub(crate) const DRIFT: Parameter<ReadBy<f64>> = Parameter {
    name: "lock_drift",
    text: "by how much clocks may disagree",
    default: "`0.01`",
    values: |drift| {
        let number = drift.parse();
        number.map_err(|_| {
            Error::config(format!("lock_drift={drift:?} is not a number such as 0.01"))
        })
    },
};

/// The settings of a [`RedlockBackend`](crate::RedlockBackend).
///
/// Every client of a quorum must name the same nodes and the same longest ttl: a node remembers both
/// and refuses a client with a different configuration, since the quorums of two clients with
/// different lists may not overlap.
///
/// Neither `Debug` nor any error shows a password.
///
/// ```
/// use lock_redis::RedlockConfig;
///
/// let config = RedlockConfig::from_url("redlock://app:secret@a:6379,b:6379,c:6379?lock_max_ttl=1m")?;
/// assert_eq!(config.endpoints().collect::<Vec<_>>(), ["a:6379", "b:6379", "c:6379"]);
/// assert!(!format!("{config:?}").contains("secret"));
/// # Ok::<(), lock_core::Error>(())
/// ```
#[derive(Clone)]
pub struct RedlockConfig {
    pub(crate) nodes: Vec<ServerAddress>,
    pub(crate) name: Option<String>,
    pub(crate) max_ttl: Duration,
    pub(crate) bootstrap: Bootstrap,
    pub(crate) recover: Recover,
    pub(crate) node_timeout: Option<Duration>,
    pub(crate) connect_timeout: Duration,
    pub(crate) drift: f64,
    pub(crate) retry_delay: (Duration, Duration),
    pub(crate) eviction: Eviction,
}

/// When the nodes of a new quorum begin to vote.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Bootstrap {
    /// At once if every node has been up for the longest TTL and was never flushed, otherwise once
    /// the longest TTL has passed: until then a node may have forgotten a lock.
    #[default]
    Wait,
    /// At once: by setting it you assert that no client holds a lock on these nodes. For the first
    /// start.
    ///
    /// It has no effect while a node is admitted, if a node was flushed, or for a client that has
    /// seen the quorum vote. But when all nodes were restarted without their data, a client that
    /// starts afterwards cannot tell them from a new quorum, and begins while the holder of an
    /// older lock may still believe in it. So do not leave it set if the nodes keep nothing on
    /// disk.
    Now,
}

/// What happens when so many nodes were restarted or lost their data that too few are left to seed them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Recover {
    /// Once all nodes answer and the longest TTL has passed, they vote again, with fences above
    /// every mark that any node knows and above every node's clock in µs, which by then are above
    /// what was lost. So fences increase unless the latest counts were lost *and* the clocks have
    /// gone back: the same guarantee that a single Redis gives after a loss.
    #[default]
    Auto,
    /// Nothing, until an operator calls [`RedlockBackend::recover`](crate::RedlockBackend::recover): for
    /// users who trust no clock.
    Manual,
}

impl RedlockConfig {
    /// The settings in a URL: `redlock://[user:password@]a[:6379],b[:6379],c[:6379][/db]`, or
    /// `redlocks://` for TLS (feature `tls`). All nodes get the same user, password and database;
    /// if they differ, see [`from_clients`](Self::from_clients).
    ///
    /// The parameters are listed in the [`redlock`](crate::redlock#url-and-parameters) module.
    ///
    /// # Errors
    ///
    /// [`Config`](lock_core::ErrorKind::Config) if the URL cannot be read, has an unknown parameter, or
    /// names a file that cannot be read or used. The message never shows the part of the URL before
    /// the `?`.
    pub fn from_url(url: &str) -> Result<Self> {
        let (base, mut params) = Params::split(url)?;
        let scheme = base.split(':').next().unwrap_or_default();
        let scheme =
            REDLOCK_SCHEMES.iter().copied().find(|known| *known == scheme).ok_or_else(|| {
                Error::config("the URL of a Redlock quorum begins with redlock:// or redlocks://")
            })?;
        let secure = scheme == "redlocks";
        let form = format!("{scheme}://[user:password@]a[:6379],b[:6379],c[:6379][/db]");
        let clients = tcp_clients(base, secure, &form)?;
        let tls = Tls::read(&mut params, scheme, "redlocks")?;
        let clients: Result<Vec<_>> = clients.into_iter().map(|client| tls.apply(client)).collect();
        let mut config = Self::from_clients(clients?);
        config.name = QUORUM_NAME.read(&mut params)?;
        config.recover = RECOVER.read(&mut params)?.unwrap_or_default();
        config.read(&mut params)?;
        params.finish(scheme, REDLOCK_PARAMETERS)?;
        config.check()?;
        Ok(config)
    }

    /// Takes the parameters out of a URL that a quorum of one has, too.
    pub(crate) fn read(&mut self, params: &mut Params) -> Result<()> {
        self.node_timeout = NODE_TIMEOUT.read(params)?;
        self.max_ttl = MAX_TTL.read(params)?.unwrap_or(self.max_ttl);
        self.connect_timeout = CONNECT_TIMEOUT.read(params)?.unwrap_or(self.connect_timeout);
        self.drift = DRIFT.read(params)?.unwrap_or(self.drift);
        self.bootstrap = BOOTSTRAP.read(params)?.unwrap_or_default();
        self.eviction = EVICTION.read(params)?.unwrap_or(self.eviction);
        Ok(())
    }

    /// The default settings for the nodes of `clients`, which may differ in their credentials and in
    /// TLS. Their protocol is raised to RESP3.
    pub fn from_clients(clients: impl IntoIterator<Item = redis::Client>) -> Self {
        Self::at(clients.into_iter().map(ServerAddress::from).collect())
    }

    /// The default settings for nodes at these addresses. One alone is a group with a master that changes: it is
    /// there once, and another server takes its place.
    pub(crate) fn at(nodes: Vec<ServerAddress>) -> Self {
        Self {
            nodes,
            name: None,
            max_ttl: Duration::from_secs(30),
            bootstrap: Bootstrap::default(),
            recover: Recover::default(),
            node_timeout: None,
            connect_timeout: Duration::from_secs(1),
            drift: 0.01,
            retry_delay: (Duration::from_millis(1), Duration::from_millis(8)),
            eviction: Eviction::default(),
        }
    }

    /// redsync's default TTL; set it on the lock, or as `lock_ttl=8s`.
    pub const REDSYNC_TTL: Duration = Duration::from_secs(8);

    /// How long redsync's 32 tries, 50 to 250 ms apart, take on average; pass it to
    /// [`acquire_timeout`](lock_core::Lock::acquire_timeout).
    pub const REDSYNC_PATIENCE: Duration = Duration::from_millis(32 * 150);

    /// redsync's defaults: a drift of 1 %, 5 % of the TTL for one node (with its TTL of 8 s, 400 ms),
    /// and 50 to 250 ms between two tries that split the votes. Its TTL and its number of tries are
    /// the caller's: [`REDSYNC_TTL`](Self::REDSYNC_TTL), [`REDSYNC_PATIENCE`](Self::REDSYNC_PATIENCE).
    #[must_use]
    pub fn redsync_defaults(mut self) -> Self {
        self.drift = 0.01;
        self.node_timeout = Some(Self::REDSYNC_TTL / 20);
        self.retry_delay = (Duration::from_millis(50), Duration::from_millis(250));
        self
    }

    /// The name by which the nodes know this quorum; the sorted addresses by default. Set it if
    /// clients reach the nodes under different addresses. It must change with the set of nodes.
    #[must_use]
    pub fn quorum_name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// The longest TTL of any lock on this quorum; 30 s by default. A node that lost its data does
    /// not vote for that long.
    #[must_use]
    pub fn max_ttl(mut self, limit: Duration) -> Self {
        self.max_ttl = limit;
        self
    }

    /// When the nodes of a new quorum begin to vote.
    #[must_use]
    pub fn bootstrap(mut self, bootstrap: Bootstrap) -> Self {
        self.bootstrap = bootstrap;
        self
    }

    /// What happens when too few nodes are left to seed those that were restarted or lost their data.
    #[must_use]
    pub fn recover(mut self, recover: Recover) -> Self {
        self.recover = recover;
        self
    }

    /// After how long without an answer a node counts as slow; by default 5 % of the TTL, at least
    /// 100 ms. Under contention a try continues without a slow node, to avoid withholding votes
    /// from other clients. Without contention, the call's own limit applies.
    #[must_use]
    pub fn node_timeout(mut self, limit: Duration) -> Self {
        self.node_timeout = Some(limit);
        self
    }

    /// The limit for opening a connection; 1 s by default.
    #[must_use]
    pub fn connect_timeout(mut self, limit: Duration) -> Self {
        self.connect_timeout = limit;
        self
    }

    /// The part of the TTL by which the clocks of nodes and clients may disagree; 0.01 by default.
    /// The core always subtracts 1 % and 2 ms; anything above that is subtracted here.
    #[must_use]
    pub fn drift(mut self, factor: f64) -> Self {
        self.drift = factor;
        self
    }

    /// The range of the random wait after a try in which no client got a quorum; 1 to 8 ms by
    /// default, and 60 s at most.
    #[must_use]
    pub fn retry_delay(mut self, shortest: Duration, longest: Duration) -> Self {
        self.retry_delay = (shortest, longest);
        self
    }

    /// What to do about a node that may evict locks when its memory is full.
    #[must_use]
    pub fn eviction(mut self, eviction: Eviction) -> Self {
        self.eviction = eviction;
        self
    }

    /// Host and port of each node.
    pub fn endpoints(&self) -> impl Iterator<Item = String> {
        self.nodes.iter().map(ServerAddress::endpoint)
    }

    /// What each node remembers: the number of nodes, the longest TTL, and which nodes. Where they are known
    /// by their addresses, it remembers its own, so that it votes under no other one. And in which form its votes are: a
    /// client that reads another one is refused.
    pub(crate) fn fingerprints(&self) -> Vec<String> {
        let (nodes, max_ttl) = (self.nodes.len(), self.max_ttl.as_millis());
        let terms = format!("{nodes} nodes, lock_max_ttl {max_ttl}ms, votes in form {VOTE_FORM}");
        let terms = match self.lag() {
            Some(lag) => format!("{terms}, lock_max_lag {}ms", lag.as_millis()),
            None => terms,
        };
        let mut sorted: Vec<_> = self.endpoints().collect();
        sorted.sort();
        let sorted = sorted.join(",");
        let of_node = |endpoint| match &self.name {
            Some(name) => format!("{terms}, {name}"),
            None => format!("{terms}, {sorted}, here {endpoint}"),
        };
        self.endpoints().map(of_node).collect()
    }

    /// For how long the master of a group grants locks after another one has taken its place; `None` if the nodes are
    /// servers of which none takes another's place.
    pub(crate) fn lag(&self) -> Option<Duration> {
        match &self.nodes[..] {
            [ServerAddress::Group(group)] => group.terms.lag,
            _ => None,
        }
    }

    /// For how long a node that may have forgotten locks gives no vote.
    pub(crate) fn quarantine(&self) -> Duration {
        // One whose place another server has taken goes on granting locks until it has missed its replicas.
        let goes_on = self.lag().map(|lag| lag + LAG_IS_SEEN_WITHIN);
        rules::quarantine(self.max_ttl, self.drift) + goes_on.unwrap_or_default()
    }

    pub(crate) fn check(&self) -> Result<()> {
        let count = self.nodes.len();
        if self.lag().is_none() && !(3..=15).contains(&count) {
            return Err(Error::config(format!(
                "a Redlock quorum of {count} nodes: it needs 3 to 15, and an odd number tolerates the most failures"
            )));
        }
        let mut endpoints: Vec<_> = self.endpoints().collect();
        endpoints.sort();
        if let Some(pair) = endpoints.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(Error::config(format!(
                "the Redlock node {} is named twice: each vote must come from a separate server",
                pair[0]
            )));
        }
        if !MAX_TTL.values.contains(&self.max_ttl) {
            return Err(Error::config(format!(
                "lock_max_ttl is {:?}: it must be between 100ms and one day, and a node that lost its data waits for that long",
                self.max_ttl
            )));
        }
        if !(0.0..0.5).contains(&self.drift) {
            return Err(Error::config(format!(
                "lock_drift is {}: it must be at least 0 and less than 0.5",
                self.drift
            )));
        }
        if self.retry_delay.0 > self.retry_delay.1 {
            return Err(Error::config(format!(
                "the shortest retry delay {:?} is longer than the longest, {:?}",
                self.retry_delay.0, self.retry_delay.1
            )));
        }
        if self.retry_delay.1 > LONGEST_TIMEOUT {
            return Err(Error::config(format!(
                "the longest retry delay is {:?}: it must be at most {LONGEST_TIMEOUT:?}",
                self.retry_delay.1
            )));
        }
        if self.name.as_deref().is_some_and(|name| name.is_empty() || name.len() > 200) {
            return Err(Error::config("lock_quorum_name must have 1 to 200 bytes"));
        }
        let connect_timeout = Some(self.connect_timeout);
        for (parameter, limit) in
            [(NODE_TIMEOUT, self.node_timeout), (CONNECT_TIMEOUT, connect_timeout)]
        {
            if let Some(limit) = limit.filter(|limit| !parameter.values.contains(limit)) {
                return Err(Error::config(format!(
                    "{} is {limit:?}: it must be between 1ms and 60s",
                    parameter.name
                )));
            }
        }
        Ok(())
    }
}

impl fmt::Debug for RedlockConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedlockConfig")
            .field("nodes", &self.endpoints().collect::<Vec<_>>())
            .field("max_ttl", &self.max_ttl)
            .field("bootstrap", &self.bootstrap)
            .field("recover", &self.recover)
            .field("node_timeout", &self.node_timeout)
            .field("drift", &self.drift)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lock_core::ErrorKind;

    #[test]
    fn urls_are_read() {
        let config = RedlockConfig::from_url(
            "redlock://u:p%40@c:1,a,[::1]:7/2?lock_max_ttl=1m&lock_bootstrap=now&lock_recover=manual&lock_drift=0.05",
        )
        .unwrap();
        assert_eq!(config.endpoints().collect::<Vec<_>>(), ["c:1", "a:6379", "::1:7"]);
        assert_eq!(config.max_ttl, Duration::from_secs(60));
        assert_eq!((config.bootstrap, config.recover), (Bootstrap::Now, Recover::Manual));
        let known = "3 nodes, lock_max_ttl 60000ms, votes in form 2, ::1:7,a:6379,c:1, here ";
        let here = ["c:1", "a:6379", "::1:7"].map(|endpoint| format!("{known}{endpoint}"));
        assert_eq!(config.fingerprints(), here);
        let named = config.clone().quorum_name("x").fingerprints();
        assert_eq!(named, vec!["3 nodes, lock_max_ttl 60000ms, votes in form 2, x"; 3]);
        for node in &config.nodes {
            let ServerAddress::Fixed(client) = node else { panic!("a group") };
            assert_eq!(client.get_connection_info().redis_settings().db(), 2);
        }
    }

    #[test]
    fn the_page_says_of_each_parameter_what_is_declared() {
        let rows = [
            MAX_TTL.row(),
            BOOTSTRAP.row(),
            RECOVER.row(),
            QUORUM_NAME.row(),
            NODE_TIMEOUT.row(),
            CONNECT_TIMEOUT.row(),
            DRIFT.row(),
            EVICTION.row(),
        ];
        assert!(include_str!("../../REDLOCK.md").contains(&rows.concat()), "{}", rows.concat());
        let config = RedlockConfig::from_url("redlock://a,b,c").unwrap();
        assert_eq!(MAX_TTL.default, format!("`{:?}`", config.max_ttl));
        assert_eq!(CONNECT_TIMEOUT.default, format!("`{:?}`", config.connect_timeout));
        assert_eq!(DRIFT.default, format!("`{}`", config.drift));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (url, part) in [
            ("redlock://a,b", "quorum of 2 nodes"),
            ("redlock://a,b,a:6379", "named twice"),
            ("redlock://a,,c", "empty host"),
            ("redlock://u@a,b,c", "a user and no password: write user:password@"),
            ("redlock://a,b,c?lock_max_tl=1s", "lock_max_ttl"),
            ("redlock://a,b,c?lock_max_ttl=1ms", "lock_max_ttl is 1ms"),
            ("redlock://a,b,c?lock_drift=x", "not a number"),
            ("redlock://a,b,c?lock_drift=0.5", "less than 0.5"),
            ("redlock://a,b,c?lock_bootstrap=soon", "none of wait, now"),
            ("redlock://a,b,c?lock_recover=never", "none of auto, manual"),
            ("redlock://a,b,c?lock_ca=/x", "belong to redlocks://"),
            ("redis://a,b,c", "begins with redlock"),
        ] {
            let error = RedlockConfig::from_url(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config, "{url}");
            assert!(error.to_string().contains(part), "{url}: {error}");
        }
    }

    #[test]
    fn no_retry_delay_is_beyond_all_bounds() {
        let checked = |shortest, longest| {
            let config = RedlockConfig::from_url("redlock://a,b,c").unwrap();
            config.retry_delay(shortest, longest).check().map_err(|error| error.to_string())
        };
        assert_eq!(checked(Duration::ZERO, LONGEST_TIMEOUT), Ok(()));
        assert!(checked(Duration::ZERO, Duration::MAX).unwrap_err().contains("at most 60s"));
        assert!(checked(LONGEST_TIMEOUT, Duration::ZERO).unwrap_err().contains("longer than"));
    }

    #[cfg(not(feature = "tls"))]
    #[test]
    fn tls_names_its_feature() {
        let error = RedlockConfig::from_url("redlocks://a,b,c").unwrap_err();
        assert!(error.to_string().contains("feature \"tls\""), "{error}");
    }

    #[cfg(feature = "tls")]
    #[test]
    fn every_node_of_a_quorum_with_tls_has_it() {
        let config = RedlockConfig::from_url("redlocks://u:p@a,b:1,c").unwrap();
        assert_eq!(config.endpoints().collect::<Vec<_>>(), ["a:6379", "b:1", "c:6379"]);
        for node in &config.nodes {
            let ServerAddress::Fixed(client) = node else { panic!("a group") };
            let address = client.get_connection_info().addr();
            let is_checked =
                matches!(address, redis::ConnectionAddr::TcpTls { insecure: false, .. });
            assert!(is_checked, "{address:?}");
        }
    }

    #[test]
    fn no_secret_is_shown() {
        const SENTINEL: &str = "s3cr3t-sentinel";
        for url in [
            format!("redlock://u:{SENTINEL}@a,b,c"),
            format!("redlock://u:12?{SENTINEL}@a,b,c"),
            format!("redlock://u:{SENTINEL}@a,b"),
            format!("redlock://u:{SENTINEL}#@a,b,c"),
            format!("redlock://u:{SENTINEL}/x@a,b,c"),
            format!("redlock://a,b,c?pw={SENTINEL}"),
            format!("redlock:{SENTINEL}"),
        ] {
            let shown = format!("{:?}", RedlockConfig::from_url(&url));
            assert!(!shown.contains(SENTINEL), "{url} gave {shown}");
        }
    }
}
