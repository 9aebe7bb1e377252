//! How sessions are opened, and what the servers allow.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use lock_core::kit::versions::ZOOKEEPER;
use lock_core::{ClockInstant, Error, ErrorKind, OsRng, Result, Rng};
use tokio::task::JoinSet;
use zookeeper_client as zk;

use super::ensemble::Ensemble;
use super::resume::{Resumption, patience};
use super::share::OpenSession;
use crate::config::{LONGEST_SESSION, SHORTEST_SESSION};
use crate::connection::Connection;
use crate::error::not_connected;
use crate::timeline::Timeline;
use crate::wire::Session;

/// An attempt that failed sooner than this was refused.
const SILENT: Duration = Duration::from_millis(40);
/// How many attempts there is time for, each starting with another host: a silent host takes long.
const ATTEMPTS: u32 = 10;
/// Session timeouts are multiples of this, to keep the number of sessions low.
pub(crate) const STEP: Duration = Duration::from_millis(500);

/// The session timeouts that the servers allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(crate) least: Duration,
    pub(crate) most: Duration,
    pub(crate) step: Duration,
}

impl Limits {
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
struct Opened {
    /// When the attempt began.
    sent: ClockInstant,
    /// The index of the server.
    host: usize,
    connection: Connection,
}

impl Ensemble {
    /// Finds out what the servers allow, and whether they are new enough. The sessions opened for
    /// this end at once, unless one is exactly what was requested.
    pub(super) async fn limits(self: &Arc<Self>) -> Result<(Limits, Option<Arc<OpenSession>>)> {
        let end = self.clock.now() + self.config.connect_timeout;
        let wanted = self.config.session_timeout.unwrap_or(LONGEST_SESSION);
        let opened = self.open(wanted, end).await?;
        self.check_version(&opened.connection).await?;
        let most = opened.connection.granted;
        if self.config.session_timeout.is_none() {
            return Ok((Limits::new(self.least(most, end).await?, most), None));
        }
        if most < wanted {
            return Err(self.too_long(wanted, most));
        }
        let session = (most == wanted).then(|| self.keep(wanted, opened));
        Ok((Limits::exactly(most), session))
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
    async fn check_version(&self, connection: &Connection) -> Result<()> {
        match connection.client().get_config().await {
            Err(zk::Error::NoNode) => ZOOKEEPER.check("3.4"),
            _ => Ok(()),
        }
    }

    /// Opens a session that lasts for `timeout`.
    pub(super) async fn session(self: &Arc<Self>, timeout: Duration) -> Result<Arc<OpenSession>> {
        let end = self.clock.now() + self.config.connect_timeout;
        let opened = self.open(timeout, end).await?;
        let granted = opened.connection.granted;
        if granted < timeout {
            return Err(self.too_long(timeout, granted));
        }
        Ok(self.keep(timeout, opened))
    }

    fn keep(self: &Arc<Self>, asked: Duration, opened: Opened) -> Arc<OpenSession> {
        let Opened { sent, host, connection } = opened;
        let resumption = Resumption::of(&connection, host, Arc::clone(self));
        let timeline = Timeline::new(connection.granted, sent, self.clock.now());
        let timeline = timeline.with_tick(self.config.tick_time);
        let clock = Arc::clone(&self.clock);
        let session = Session::new(connection, timeline, self.acl, clock);
        resumption.start(&session);
        OpenSession::start(session, asked, Arc::clone(&self.config))
    }

    fn too_long(&self, wanted: Duration, most: Duration) -> Error {
        Error::config(format!(
            "the ZooKeeper ensemble at {} allows a session timeout of {most:?} at most, and {wanted:?} was asked for: lower the ttl of the lock or lock_session_timeout, or raise the servers' maxSessionTimeout",
            self.endpoint
        ))
    }

    /// Opens a session before `end`. With several hosts, others are tried while an attempt takes
    /// long. The first that succeeds wins.
    async fn open(self: &Arc<Self>, wanted: Duration, end: ClockInstant) -> Result<Opened> {
        let limit = self.config.connect_timeout;
        let hosts = self.hosts.len();
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
                let opened = connected.map(|connection| Opened { sent, host, connection });
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
        let limits = Limits::new(ms(4000), ms(40_000));
        assert_eq!((limits.least, limits.most, limits.step), (ms(4000), ms(40_000), STEP));
        let limits = Limits::new(ms(4100), ms(40_300));
        assert_eq!((limits.least, limits.most), (ms(4500), ms(40_000)));
        let limits = Limits::new(ms(4100), ms(4200));
        assert_eq!((limits.least, limits.most, limits.step), (ms(4200), ms(4200), ms(1)));
    }
}
