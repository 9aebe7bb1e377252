//! The servers of an ensemble, what they allow, and how a session is opened with one of them.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lock_core::{Clock, ClockInstant, Error, ErrorKind, OsRng, Result, Rng, SystemClock};
use tokio::task::JoinSet;
use zookeeper_client as zk;

use crate::error::{ZOOKEEPER, not_connected};
use crate::settings::{Acl, LONGEST_SESSION, SHORTEST_SESSION, ZkConfig};
use crate::wire::{self, DriverConnection};

/// An attempt that failed sooner than this was refused.
const SILENT: Duration = Duration::from_millis(40);
/// How many attempts there is time for, each starting with another host: a silent host takes long.
const ATTEMPTS: u32 = 10;
/// Session timeouts are multiples of this, to keep the number of sessions low.
pub(crate) const STEP: Duration = Duration::from_millis(500);

/// What is needed to connect to one server of an ensemble.
pub(crate) struct Ensemble {
    connector: zk::Connector,
    /// Hosts and ports: never a credential.
    pub(crate) endpoint: String,
    pub(super) acl: Acl,
    pub(crate) config: Arc<ZkConfig>,
    pub(crate) clock: Arc<dyn Clock>,
}

impl fmt::Debug for Ensemble {
    /// Credentials are in the connector.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ensemble").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

impl Ensemble {
    pub(crate) fn new(config: ZkConfig) -> Self {
        let mut connector = config.connector.clone().unwrap_or_else(zk::Client::connector);
        if let Some(digest) = config.digest() {
            connector = connector.with_auth("digest", digest.as_bytes());
        }
        let (endpoint, acl) = (config.endpoint(), config.granted_acl());
        let (config, clock) = (Arc::new(config), Arc::new(SystemClock::default()));
        Self { connector, endpoint, acl, config, clock }
    }

    /// Connects to the server with this number, modulo their count, with a session that lasts for
    /// `timeout` if the server allows it: a new one, or `session` resumed.
    ///
    /// # Errors
    ///
    /// Including when the server is silent for `patience`.
    pub(super) async fn connect(
        &self,
        host: usize,
        timeout: Duration,
        patience: Duration,
        session: Option<&zk::SessionInfo>,
    ) -> Result<DriverConnection, zk::Error> {
        let connector =
            self.connector.clone().with_connection_timeout(patience).with_fail_eagerly();
        let connector = match session {
            Some(session) => connector.with_session(session.clone()),
            None => connector,
        };
        wire::connect(connector, &self.config.hosts[host % self.config.hosts.len()], timeout).await
    }
}

/// The session timeouts that the servers allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SessionLimits {
    pub(crate) least: Duration,
    pub(crate) most: Duration,
    pub(crate) step: Duration,
}

impl SessionLimits {
    /// In whole steps, if the servers allow a whole one.
    fn new(least: Duration, most: Duration) -> Self {
        let steps = |duration: Duration| duration.as_nanos() / STEP.as_nanos();
        let whole = |steps: u128| STEP * u32::try_from(steps).unwrap_or(u32::MAX);
        let (first, last) = (whole(least.as_nanos().div_ceil(STEP.as_nanos())), whole(steps(most)));
        if first <= last {
            return Self { least: first, most: last, step: STEP };
        }
        Self::exactly(most)
    }

    fn exactly(timeout: Duration) -> Self {
        Self { least: timeout, most: timeout, step: Duration::from_millis(1) }
    }
}

/// A new session.
pub(super) struct NewSession {
    /// When the attempt began.
    pub(super) sent: ClockInstant,
    /// The index of the server.
    pub(super) host: usize,
    pub(super) connection: DriverConnection,
}

impl Ensemble {
    /// Finds out what the servers allow, and whether they are new enough. The sessions opened for
    /// this end at once, unless one is exactly what was requested.
    pub(super) async fn limits(self: &Arc<Self>) -> Result<(SessionLimits, Option<NewSession>)> {
        let end = self.clock.now() + self.config.connect_timeout;
        let wanted = self.config.session_timeout.unwrap_or(LONGEST_SESSION);
        let opened = self.open(wanted, end).await?;
        self.check_version(&opened.connection).await?;
        let most = opened.connection.granted;
        if self.config.session_timeout.is_none() {
            return Ok((SessionLimits::new(self.least(most, end).await?, most), None));
        }
        if most < wanted {
            return Err(self.too_long(wanted, most));
        }
        Ok((SessionLimits::exactly(most), (most == wanted).then_some(opened)))
    }

    /// The shortest session that the servers allow. The shorter the session requested, the less
    /// patient the driver, so a slow server is asked for a longer one.
    async fn least(self: &Arc<Self>, most: Duration, end: ClockInstant) -> Result<Duration> {
        let mut wanted = SHORTEST_SESSION;
        while wanted < most {
            let now = self.clock.now();
            match self.open(wanted, end.min(now + wanted * 2)).await {
                Ok(opened) => return Ok(opened.connection.granted),
                Err(error) if self.clock.now() >= end || wanted * 2 >= most => return Err(error),
                Err(_) => wanted *= 2,
            }
        }
        Ok(most)
    }

    /// Servers before 3.5 have no configuration node, which later ones let everyone read. Newer
    /// servers that are still too old do not know containers.
    async fn check_version(&self, connection: &DriverConnection) -> Result<()> {
        match connection.client().get_config().await {
            Err(zk::Error::NoNode) => ZOOKEEPER.check("3.4"),
            _ => Ok(()),
        }
    }

    /// Opens a session that lasts for `timeout`.
    pub(super) async fn session(self: &Arc<Self>, timeout: Duration) -> Result<NewSession> {
        let end = self.clock.now() + self.config.connect_timeout;
        let opened = self.open(timeout, end).await?;
        let granted = opened.connection.granted;
        if granted < timeout {
            return Err(self.too_long(timeout, granted));
        }
        Ok(opened)
    }

    fn too_long(&self, wanted: Duration, most: Duration) -> Error {
        Error::config(format!(
            "the ZooKeeper ensemble at {} allows a session timeout of {most:?} at most, and {wanted:?} was requested: lower the TTL of the lock or lock_session_timeout, or raise the servers' maxSessionTimeout",
            self.endpoint
        ))
    }

    /// Opens a session before `end`. With several hosts, others are tried while an attempt takes
    /// long. The first that succeeds wins.
    async fn open(self: &Arc<Self>, wanted: Duration, end: ClockInstant) -> Result<NewSession> {
        let limit = self.config.connect_timeout;
        let hosts = self.config.hosts.len();
        let pause = if hosts > 1 { limit / ATTEMPTS } else { limit };
        let first = any(hosts);
        let mut refused = HashSet::new();
        let mut attempts = JoinSet::new();
        for n in 0.. {
            let ensemble = Arc::clone(self);
            let (host, sent) = ((first + n) % hosts, self.clock.now());
            let patience = patience(wanted).min(limit);
            attempts.spawn(async move {
                let connected = ensemble.connect(host, wanted, patience, None).await;
                let opened = connected.map(|connection| NewSession { sent, host, connection });
                (host, ensemble.clock.now().since(sent), opened)
            });
            let next = end.min(sent + pause).since(self.clock.now());
            match tokio::time::timeout(next, attempts.join_next()).await {
                Ok(Some(Ok((_, _, Ok(opened))))) => return Ok(opened),
                Ok(Some(Ok((host, took, Err(error))))) => {
                    // A silent server may answer next time; one that refused will not.
                    if took < SILENT {
                        refused.insert(host);
                    }
                    if refused.len() == hosts || matches!(error, zk::Error::AuthFailed) {
                        return Err(not_connected(&error, &self.endpoint));
                    }
                }
                _ if self.clock.now() >= end => break,
                _ => {}
            }
        }
        let why = format!(
            "the ZooKeeper ensemble at {} cannot be reached: no session within {limit:?}",
            self.endpoint
        );
        Err(Error::new(ErrorKind::Unavailable, why))
    }
}

/// How long a server may be silent before it is left: less than the time left of a lock when its
/// renewal is due, so that a lock outlives a server that falls silent.
pub(super) fn patience(timeout: Duration) -> Duration {
    timeout / 4
}

/// A random number below `count`.
fn any(count: usize) -> usize {
    let mut bytes = [0; 2];
    match OsRng.fill(&mut bytes) {
        Ok(()) => usize::from(u16::from_le_bytes(bytes)) % count,
        Err(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limits_are_whole_steps_where_there_are_any() {
        let ms = Duration::from_millis;
        let limits = SessionLimits::new(ms(4000), ms(40_000));
        assert_eq!((limits.least, limits.most, limits.step), (ms(4000), ms(40_000), STEP));
        let limits = SessionLimits::new(ms(4100), ms(40_300));
        assert_eq!((limits.least, limits.most), (ms(4500), ms(40_000)));
        let limits = SessionLimits::new(ms(4100), ms(4200));
        assert_eq!((limits.least, limits.most, limits.step), (ms(4200), ms(4200), ms(1)));
    }
}
