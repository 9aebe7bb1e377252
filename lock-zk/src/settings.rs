//! The settings for connecting to a ZooKeeper ensemble.

use std::fmt;
use std::time::Duration;

use lock_core::{Error, LockKey, Result};
use lock_kit::endpoint::{Endpoint, Host};
use lock_kit::settings::{Between, Parameter, Words};
use lock_kit::url::Params;
use zookeeper_client as zk;

use crate::error::bad_hosts;
use crate::queue::entry;

/// The URL schemes of ZooKeeper.
pub const SCHEMES: &[&str] = &["zookeeper", "zk"];

/// The URL parameters of this store.
pub const PARAMETERS: &[&str] =
    &[SESSION_TIMEOUT.name, CONNECT_TIMEOUT.name, TICK_TIME.name, ACL.name, FENCE.name];

const SESSION_TIMEOUT: Parameter<Between> = Parameter {
    name: "lock_session_timeout",
    text: "one TTL for all locks of this client: see [above](#sessions)",
    default: "each lock has its own",
    values: SHORTEST_SESSION..=LONGEST_SESSION,
};
const CONNECT_TIMEOUT: Parameter<Between> = Parameter {
    name: "lock_connect_timeout",
    text: "the timeout for opening a session",
    default: "`5s`",
    values: Duration::from_millis(10)..=LONGEST_SESSION,
};
const TICK_TIME: Parameter<Between> = Parameter {
    name: "lock_tick_time",
    text: "the servers' `tickTime`, or a longer time: see [above](#how-long-a-lock-is-valid)",
    default: "not known",
    values: Duration::from_millis(1)..=LONGEST_SESSION,
};
const ACL: Parameter<Words<Acl>> = Parameter {
    name: "lock_acl",
    text: "`creator` or `open`: who may access the nodes that this client creates",
    default: "`creator` with a password, else `open`",
    values: &[("creator", Acl::Creator), ("open", Acl::Open)],
};
const FENCE: Parameter<Words<Fence>> = Parameter {
    name: "lock_fence",
    text: "`revision`: the bare number of the transaction as [fencing token](#fencing-tokens)",
    default: "counted from a base",
    values: &[("revision", Fence::Revision)],
};

/// The form of a URL before its parameters, for error messages.
const FORM: &str = "zookeeper://[user:password@]host[:2181][,host…][/root]";
/// The port of a server if the URL names none.
pub(crate) const PORT: u16 = 2181;
/// The default root node of the locks.
const ROOT: &str = "/locks";
/// The session timeout for mere inspection: the default TTL of a lock.
pub(crate) const SESSION: Duration = Duration::from_secs(30);
/// The shortest and the longest session requested.
pub(crate) const SHORTEST_SESSION: Duration = Duration::from_millis(200);
pub(crate) const LONGEST_SESSION: Duration = Duration::from_secs(3600);
/// The most bytes of paths in one session: half of what a server can read back with its defaults.
const PATH_LIMIT: usize = 512 * 1024;
/// How long an unused session stays open.
const IDLE_LIMIT: Duration = Duration::from_secs(60);
/// The first sequence number that is refused: a million below the last one, since the clients
/// already in the queue must get through.
const SEQUENCE_LIMIT: i64 = 2_147_483_647 - 1_000_000;

/// The settings of a [`ZkBackend`](crate::ZkBackend).
///
/// Neither `Debug` nor any error shows the password.
///
/// ```
/// use std::time::Duration;
///
/// let config = lock_zk::ZkConfig::from_url("zookeeper://app:secret@a.example,b.example:2182/shop/locks")?;
/// assert_eq!(config.endpoint(), "a.example:2181,b.example:2182");
/// assert!(!format!("{config:?}").contains("secret"));
/// let config = config.session_timeout(Duration::from_secs(10));
/// # Ok::<(), lock_core::Error>(())
/// ```
#[derive(Clone)]
pub struct ZkConfig {
    /// Connect strings of one server each.
    pub(crate) hosts: Vec<String>,
    /// In place of the driver's defaults.
    pub(crate) connector: Option<zk::Connector>,
    pub(crate) root: String,
    pub(crate) auth: Option<Auth>,
    pub(crate) acl: Option<Acl>,
    pub(crate) session_timeout: Option<Duration>,
    pub(crate) connect_timeout: Duration,
    pub(crate) tick_time: Option<Duration>,
    pub(crate) fence: Fence,
    pub(crate) sequence_limit: i64,
    pub(crate) path_limit: usize,
    pub(crate) idle_limit: Duration,
}

/// User and password for the `digest` scheme.
#[derive(Clone)]
pub(crate) struct Auth {
    user: String,
    password: String,
}

/// The kind of fencing token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fence {
    /// The number of the transaction that created the holder's node, counted from a base stored in
    /// the ensemble: the clock of the first client, in microseconds. So tokens are above those of
    /// the store used before.
    Based,
    /// The bare number of the transaction, `czxid`, as in clients in other languages.
    Revision,
}

/// Who may access the nodes that this client creates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Acl {
    /// Clients with the same user and password. Requires both, and is the default when they are
    /// set. ZooKeeper checks the deletion of a node against the rights on its *parent*, so this
    /// holds only for locks whose nodes were first created by such a client.
    Creator,
    /// Everyone, as without a password.
    Open,
}

impl ZkConfig {
    /// Reads the settings from a URL: `zookeeper://[user:password@]host[:2181][,host…][/root]`, or
    /// `zk://`, with the parameters listed in the [crate documentation](crate#url-and-parameters).
    ///
    /// Locks are kept under the node `root`, which replaces the default `/locks` and is not a
    /// chroot; it is created if it does not exist. User and password are for ZooKeeper's `digest`
    /// scheme.
    ///
    /// # Errors
    ///
    /// [`Config`](lock_core::ErrorKind::Config) if the URL cannot be read or has an unknown
    /// parameter. The message never shows the part of the URL before an `@`.
    pub fn from_url(url: &str) -> Result<Self> {
        let (base, mut params) = Params::split(url)?;
        let scheme = base.split(':').next().unwrap_or_default();
        let scheme = SCHEMES.iter().copied().find(|known| *known == scheme).ok_or_else(|| {
            Error::config(format!(
                "the URL of a ZooKeeper ensemble begins with one of {}",
                SCHEMES.join(", ")
            ))
        })?;
        let endpoint = Endpoint::parse(base, PORT, FORM)?;
        let mut config = Self::at(&endpoint).root(endpoint.path());
        config.auth = auth_of(&endpoint)?;
        config.session_timeout = SESSION_TIMEOUT.read(&mut params)?;
        let limit = CONNECT_TIMEOUT.read(&mut params)?;
        config.connect_timeout = limit.unwrap_or(config.connect_timeout);
        config.tick_time = TICK_TIME.read(&mut params)?;
        config.acl = ACL.read(&mut params)?;
        config.fence = FENCE.read(&mut params)?.unwrap_or(config.fence);
        params.finish(scheme, PARAMETERS)?;
        config.check()?;
        Ok(config)
    }

    /// Default settings for an ensemble: one or more `host[:2181]`, separated by commas.
    ///
    /// # Errors
    ///
    /// [`Config`](lock_core::ErrorKind::Config) if a host or a port cannot be read.
    pub fn new(hosts: &str) -> Result<Self> {
        let endpoint = Endpoint::parse(&format!("{}://{hosts}", SCHEMES[0]), PORT, FORM)?;
        if !endpoint.path().is_empty() || auth_of(&endpoint)?.is_some() {
            return Err(Error::config(
                "the hosts of a ZooKeeper ensemble are host[:2181][,host…]: user, password and root are set separately",
            ));
        }
        Ok(Self::at(&endpoint))
    }

    /// Default settings for a connector of the `zookeeper-client` crate, for example one with TLS or SASL. `cluster` is
    /// a connect string of that crate, such as `a.example:2281,b.example:2281/chroot`, or `tcp+tls://a.example:2281`.
    /// The connector's own timeouts are not used.
    ///
    /// # Errors
    ///
    /// [`Config`](lock_core::ErrorKind::Config) if a host is missing, or there is an `@`: the connect string would show a
    /// password, and the driver would take it for a host.
    pub fn from_connector(connector: zk::Connector, cluster: &str) -> Result<Self> {
        if cluster.contains('@') {
            return Err(Error::config(
                "the ZooKeeper connect string has an `@`: user and password are set by `auth`, not in it",
            ));
        }
        let begin = cluster.rfind("://").map_or(0, |at| at + "://".len());
        let at = cluster[begin..].find('/').map_or(cluster.len(), |at| begin + at);
        let (servers, chroot) = cluster.split_at(at);
        if servers.split(',').any(str::is_empty) {
            return Err(bad_hosts(cluster));
        }
        let hosts = servers.split(',').map(|server| format!("{server}{chroot}")).collect();
        Ok(Self { connector: Some(connector), ..Self::of(hosts) })
    }

    fn at(endpoint: &Endpoint) -> Self {
        Self::of(endpoint.hosts().iter().map(Host::to_string).collect())
    }

    fn of(hosts: Vec<String>) -> Self {
        Self {
            hosts,
            connector: None,
            root: ROOT.to_owned(),
            auth: None,
            acl: None,
            session_timeout: None,
            connect_timeout: Duration::from_secs(5),
            tick_time: None,
            fence: Fence::Based,
            sequence_limit: SEQUENCE_LIMIT,
            path_limit: PATH_LIMIT,
            idle_limit: IDLE_LIMIT,
        }
    }

    /// Sets the node under which the locks are kept, such as `/shop/locks`. The default, also for
    /// an empty `root`, is `/locks`.
    #[must_use]
    pub fn root(mut self, root: &str) -> Self {
        let root = root.trim_matches('/');
        self.root = if root.is_empty() { ROOT.to_owned() } else { format!("/{root}") };
        self
    }

    /// Sets the user and password for ZooKeeper's `digest` scheme.
    #[must_use]
    pub fn auth(mut self, user: &str, password: &str) -> Self {
        self.auth = Some(Auth { user: user.to_owned(), password: password.to_owned() });
        self
    }

    /// Sets who may access the nodes that this client creates.
    #[must_use]
    pub fn acl(mut self, acl: Acl) -> Self {
        self.acl = Some(acl);
        self
    }

    /// Sets one TTL for all locks of this client, so they share a session. Without it each lock has
    /// its own TTL, and each TTL in use has a session. A value above the servers' maximum is
    /// refused; one below their minimum is raised to it, as `LockGuard::ttl` shows.
    #[must_use]
    pub fn session_timeout(mut self, timeout: Duration) -> Self {
        self.session_timeout = Some(timeout);
        self
    }

    /// Sets the timeout for opening a session; 5 s by default.
    #[must_use]
    pub fn connect_timeout(mut self, limit: Duration) -> Self {
        self.connect_timeout = limit;
        self
    }

    /// Sets the servers' `tickTime`, or a longer time. A guard then counts on its lock for longer:
    /// more than four fifths of the TTL after a renewal, instead of two thirds. A value shorter
    /// than the servers' `tickTime` breaks mutual exclusion when a follower is cut off from the
    /// leader.
    #[must_use]
    pub fn tick_time(mut self, tick: Duration) -> Self {
        self.tick_time = Some(tick);
        self
    }

    /// Sets the kind of fencing token; counted from a base by default.
    #[must_use]
    pub fn fence(mut self, fence: Fence) -> Self {
        self.fence = fence;
        self
    }

    /// For tests: how many bytes of paths a session takes, how long it stays open unused, and the
    /// sequence number from which a queue counts as used up.
    #[doc(hidden)]
    #[must_use]
    pub fn limits(mut self, paths: usize, idle: Duration, sequence: i64) -> Self {
        (self.path_limit, self.idle_limit, self.sequence_limit) = (paths, idle, sequence);
        self
    }

    /// Hosts and ports, separated by commas.
    pub fn endpoint(&self) -> String {
        self.hosts.join(",")
    }

    /// The credentials for the `digest` scheme.
    pub(crate) fn digest(&self) -> Option<String> {
        self.auth.as_ref().map(|Auth { user, password }| format!("{user}:{password}"))
    }

    /// The rights that nodes are created with.
    pub(crate) fn granted_acl(&self) -> Acl {
        match &self.auth {
            Some(_) => self.acl.unwrap_or(Acl::Creator),
            None => Acl::Open,
        }
    }

    /// The node of a lock.
    pub(crate) fn path_of(&self, key: &LockKey) -> String {
        format!("{}/{}", self.root, entry::encode(key))
    }

    /// The node that fences are counted from.
    pub(crate) fn fence_base_path(&self) -> String {
        format!("{}/{}", self.root, entry::FENCE_BASE)
    }

    pub(crate) fn check(&self) -> Result<()> {
        CONNECT_TIMEOUT.check(self.connect_timeout)?;
        SESSION_TIMEOUT.check(self.session_timeout)?;
        TICK_TIME.check(self.tick_time)?;
        if self.acl == Some(Acl::Creator) && self.auth.is_none() {
            return Err(Error::config(
                "lock_acl=creator needs a user and a password: write them into the URL, or use lock_acl=open",
            ));
        }
        check_root(&self.root)
    }
}

/// Both or neither: the digest of a user includes the password, and a user name ends at the first
/// colon.
fn auth_of(endpoint: &Endpoint) -> Result<Option<Auth>> {
    match (endpoint.user(), endpoint.password()) {
        (None, None) => Ok(None),
        (Some(user), Some(password)) if !user.contains(':') => {
            Ok(Some(Auth { user: user.to_owned(), password: password.to_owned() }))
        }
        _ => Err(Error::config(format!(
            "the store URL needs a user without a colon and a password, or neither; its form is {FORM}"
        ))),
    }
}

/// Checks that ZooKeeper accepts the path, and that it may be ours.
fn check_root(root: &str) -> Result<()> {
    let bad = root[1..]
        .split('/')
        .any(|step| step.is_empty() || step == "." || step == ".." || step.chars().any(is_refused));
    if bad {
        return Err(Error::config(format!(
            "{root:?} is not a ZooKeeper path: its components must not be empty, \".\" or \"..\", or contain control characters or others that ZooKeeper refuses, such as emoji"
        )));
    }
    if root == "/zookeeper" || root.starts_with("/zookeeper/") {
        return Err(Error::config("/zookeeper belongs to ZooKeeper itself: choose another root"));
    }
    Ok(())
}

/// Whether no path may contain the character. ZooKeeper looks at the units of UTF-16, and refuses all that are halves of a
/// character, too.
fn is_refused(c: char) -> bool {
    c.is_control() || matches!(c, '\u{e000}'..='\u{f8ff}' | '\u{fff0}'..)
}

impl fmt::Debug for ZkConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZkConfig")
            .field("endpoint", &self.endpoint())
            .field("root", &self.root)
            .field("user", &self.auth.as_ref().map(|auth| &auth.user))
            .field("acl", &self.acl)
            .field("session_timeout", &self.session_timeout)
            .field("connect_timeout", &self.connect_timeout)
            .field("tick_time", &self.tick_time)
            .field("fence", &self.fence)
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
        for (url, endpoint, root) in [
            ("zookeeper://h", "h:2181", "/locks"),
            ("zk://h/", "h:2181", "/locks"),
            ("zk://a,b:1,[::1]:7/shop/locks/", "a:2181,b:1,[::1]:7", "/shop/locks"),
            ("zookeeper://u:p%40@[::1]/a%20b", "[::1]:2181", "/a b"),
        ] {
            let config = ZkConfig::from_url(url).unwrap();
            assert_eq!(
                (config.endpoint().as_str(), config.root.as_str()),
                (endpoint, root),
                "{url}"
            );
        }
        let config = ZkConfig::from_url("zk://u:p%3A%40@h?lock_session_timeout=8s").unwrap();
        assert_eq!(config.digest().unwrap(), "u:p:@");
        assert_eq!(config.granted_acl(), Acl::Creator);
        assert_eq!(config.session_timeout, Some(Duration::from_secs(8)));
        assert_eq!(config.fence, Fence::Based);
        let key = LockKey::new("", "order:42").unwrap();
        let config = ZkConfig::from_url("zk://h/shop").unwrap();
        assert_eq!(config.path_of(&key), format!("/shop/{}", entry::encode(&key)));
        assert_eq!(config.fence_base_path(), format!("/shop/{}", entry::FENCE_BASE));
        for limit in ["10ms", "1h"] {
            ZkConfig::from_url(&format!("zk://h?lock_connect_timeout={limit}")).unwrap();
        }
        let config = ZkConfig::from_url("zk://u:p@h?lock_acl=open&lock_fence=revision").unwrap();
        assert_eq!((config.granted_acl(), config.fence), (Acl::Open, Fence::Revision));
    }

    #[test]
    fn the_page_says_of_each_parameter_what_is_declared() {
        let rows =
            [SESSION_TIMEOUT.row(), CONNECT_TIMEOUT.row(), TICK_TIME.row(), ACL.row(), FENCE.row()];
        assert!(include_str!("../README.md").contains(&rows.concat()), "{}", rows.concat());
        let connect_timeout = ZkConfig::new("h").unwrap().connect_timeout;
        assert_eq!(CONNECT_TIMEOUT.default, format!("`{connect_timeout:?}`"));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (url, part) in [
            ("zk://h?lock_sesion_timeout=1s", "lock_session_timeout"),
            ("zk://h?lock_session_timeout=10ms", "the session timeout is 10ms"),
            ("zk://h?lock_connect_timeout=2h", "the connect timeout is 7200s"),
            ("zk://h?lock_tick_time=2000", "not a duration"),
            ("zk://h?lock_acl=maybe", "none of creator, open"),
            ("zk://h?lock_fence=czxid", "revision"),
            ("zk://h?lock_acl=creator", "user and a password"),
            ("zk://u@h", "a password, or neither"),
            ("zk://a%3Ab:p@h", "without a colon"),
            ("zk://h/a//b", "not a ZooKeeper path"),
            ("zk://h/a/../b", "not a ZooKeeper path"),
            ("zk://h/a/\u{85}", "not a ZooKeeper path"),
            ("zk://h/\u{e000}", "not a ZooKeeper path"),
            ("zk://h/a\u{fffd}", "not a ZooKeeper path"),
            ("zk://h/\u{1f512}", "not a ZooKeeper path"),
            ("zk://h/zookeeper", "belongs to ZooKeeper"),
            ("http://h", "begins with one of zookeeper"),
        ] {
            let error = ZkConfig::from_url(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config, "{url}");
            assert!(error.to_string().contains(part), "{url}: {error}");
        }
    }

    #[test]
    fn no_secret_is_shown() {
        for url in [
            format!("zk://u:{SENTINEL}@h"),
            format!("zk://app:2181?{SENTINEL}@h/locks"),
            format!("zk://u:{SENTINEL}@h:x"),
            format!("zk://{SENTINEL}@h"),
            format!("zk://u:{SENTINEL}/x@h"),
            format!("zk://h?password={SENTINEL}"),
            format!("{SENTINEL}://h"),
            format!("zk:{SENTINEL}"),
        ] {
            let shown = format!("{:?}", ZkConfig::from_url(&url));
            assert!(!shown.contains(SENTINEL), "{url} gave {shown}");
        }
        for cluster in [
            format!("u:{SENTINEL}@h:2181"),
            format!("tcp+tls://{SENTINEL}@h"),
            format!("u:x/{SENTINEL}@h"),
        ] {
            let refused = ZkConfig::from_connector(zk::Client::connector(), &cluster).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Config, "{cluster}");
            let shown = format!("{refused} {refused:?}");
            assert!(!shown.contains(SENTINEL), "{cluster} gave {shown}");
        }
    }
}
