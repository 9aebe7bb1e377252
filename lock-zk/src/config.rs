//! The settings for connecting to a ZooKeeper ensemble.

#[cfg(test)]
mod tests;

use std::fmt;
use std::time::Duration;

use lock_core::kit::endpoint::{Endpoint, Host};
use lock_core::kit::url::Params;
use lock_core::{Error, LockKey, Result};

use crate::names;

/// The URL schemes of ZooKeeper.
pub const SCHEMES: &[&str] = &["zookeeper", "zk"];

/// The URL parameters of this store.
pub const PARAMETERS: &[&str] =
    &["lock_session_timeout", "lock_connect_timeout", "lock_tick_time", "lock_acl", "lock_fence"];

/// The form of a URL before its parameters, for error messages.
const FORM: &str = "zookeeper://[user:password@]host[:2181][,host…][/root]";
/// The port of a server if the URL names none.
const PORT: u16 = 2181;
/// The default root node of the locks.
const ROOT: &str = "/locks";
/// The session timeout for mere inspection: the default ttl of a lock.
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
    pub(crate) hosts: Vec<Host>,
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
        let mut config = Self::at(endpoint.hosts()).root(endpoint.path());
        config.auth = auth_of(&endpoint)?;
        config.session_timeout = params.duration("lock_session_timeout")?;
        if let Some(limit) = params.duration("lock_connect_timeout")? {
            config.connect_timeout = limit;
        }
        config.tick_time = params.duration("lock_tick_time")?;
        config.acl =
            params.choice("lock_acl", &[("creator", Acl::Creator), ("open", Acl::Open)])?;
        if let Some(fence) = params.choice("lock_fence", &[("revision", Fence::Revision)])? {
            config.fence = fence;
        }
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
        Ok(Self::at(endpoint.hosts()))
    }

    fn at(hosts: &[Host]) -> Self {
        Self {
            hosts: hosts.to_vec(),
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

    /// Sets one ttl for all locks of this client, so they share a session. Without it each lock has
    /// its own ttl, and each ttl in use has a session. A value above the servers' maximum is
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
    /// more than four fifths of the ttl after a renewal, instead of two thirds. A value shorter
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
        self.hosts.iter().map(Host::to_string).collect::<Vec<_>>().join(",")
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
        format!("{}/{}", self.root, names::encode(key))
    }

    /// The node that fences are counted from.
    pub(crate) fn fence_base_path(&self) -> String {
        format!("{}/{}", self.root, names::FENCE_BASE)
    }

    pub(crate) fn check(&self) -> Result<()> {
        let session = self.session_timeout.unwrap_or(SESSION);
        let limits = [
            ("the connect timeout", self.connect_timeout, SHORTEST_CONNECT, LONGEST_SESSION),
            ("the session timeout", session, SHORTEST_SESSION, LONGEST_SESSION),
            ("the tick time", self.tick_time.unwrap_or(SESSION), SHORTEST_TICK, LONGEST_SESSION),
        ];
        for (what, value, least, most) in limits {
            if value < least || value > most {
                return Err(Error::config(format!(
                    "{what} is {value:?}: it must be between {least:?} and {most:?}"
                )));
            }
        }
        if self.acl == Some(Acl::Creator) && self.auth.is_none() {
            return Err(Error::config(
                "lock_acl=creator needs a user and a password: write them into the URL, or use lock_acl=open",
            ));
        }
        check_root(&self.root)
    }
}

const SHORTEST_CONNECT: Duration = Duration::from_millis(10);
const SHORTEST_TICK: Duration = Duration::from_millis(1);

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
    let bad = root[1..].split('/').any(|step| {
        step.is_empty() || step == "." || step == ".." || step.chars().any(|c| c.is_control())
    });
    if bad {
        return Err(Error::config(format!(
            "{root:?} is not a ZooKeeper path: its components must not be empty, \".\" or \"..\", or contain control characters"
        )));
    }
    if root == "/zookeeper" || root.starts_with("/zookeeper/") {
        return Err(Error::config("/zookeeper belongs to ZooKeeper itself: choose another root"));
    }
    Ok(())
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
