//! A session, over one connection after the other.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use lock_core::{OsRng, jitter};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use zookeeper_client as zk;

use super::line::End;
use super::{Ensemble, Failure, Line};
use crate::config::Access;

/// The first pause between two rounds over all servers, and the longest one.
const PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(500));

/// A session, and its present connection.
pub(crate) struct Link {
    info: zk::SessionInfo,
    pub(super) access: Access,
    endpoint: String,
    chroot_len: usize,
    /// `None` while there is no connection.
    line: watch::Sender<Option<Arc<Line>>>,
    closing: CancellationToken,
    /// Nobody should use this session any more: it was ended by the server, given up after a long
    /// silence or since a server would shorten it, or closed.
    ended: CancellationToken,
    /// The last connection has come to its end, and there will be no other.
    finished: CancellationToken,
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = format_args!("{:#x}", self.session_id());
        f.debug_struct("Link").field("session", &id).finish_non_exhaustive()
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.ended.cancel();
    }
}

impl Link {
    /// Keeps the session of `line`, which is connected to the server of this number. Must be called
    /// within a runtime, which has to live as long as the session is used.
    pub(crate) fn new(ensemble: &Arc<Ensemble>, host: usize, line: Line) -> Arc<Self> {
        let (ended, finished) = (CancellationToken::new(), CancellationToken::new());
        let way = Way {
            ensemble: Arc::clone(ensemble),
            session: line.client().session().clone(),
            timeout: line.granted(),
        };
        let end = line.end();
        let link = Arc::new(Self {
            info: line.client().session().clone(),
            access: ensemble.access(),
            endpoint: ensemble.endpoint(),
            chroot_len: line.client().path().trim_end_matches('/').len(),
            line: watch::Sender::new(Some(Arc::new(line))),
            closing: CancellationToken::new(),
            ended: ended.clone(),
            finished: finished.clone(),
        });
        // Also cancelled when the task ends with its runtime, since the driver does too.
        let on_end = (ended.drop_guard(), finished.drop_guard());
        let weak = Arc::downgrade(&link);
        tokio::spawn(async move {
            let _on_end = on_end;
            keep(weak, way, host, end).await;
        });
        link
    }

    pub(crate) fn session_id(&self) -> i64 {
        self.info.id().0
    }

    pub(crate) fn info(&self) -> &zk::SessionInfo {
        &self.info
    }

    /// Hosts and ports: never a credential.
    pub(crate) fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// How many bytes the driver puts before each path: its chroot.
    pub(crate) fn chroot_len(&self) -> usize {
        self.chroot_len
    }

    pub(crate) fn ended(&self) -> &CancellationToken {
        &self.ended
    }

    /// The present connection, or the next one.
    pub(super) async fn line(&self) -> Result<Arc<Line>, Failure> {
        let mut lines = self.line.subscribe();
        tokio::select! {
            biased;
            () = self.closing.cancelled() => Err(Failure::SessionEnded),
            () = self.ended.cancelled() => Err(Failure::SessionEnded),
            line = lines.wait_for(|line| line.as_ref().is_some_and(|line| line.is_up())) => match line {
                Ok(line) => line.as_ref().map(Arc::clone).ok_or(Failure::SessionEnded),
                Err(_) => Err(Failure::SessionEnded),
            },
        }
    }

    /// Ends the session on the server, and with it all its nodes. Returns when the server has said so,
    /// or the session was given up.
    pub(crate) async fn close(&self) {
        self.closing.cancel();
        self.line.send_replace(None);
        self.finished.cancelled().await;
    }
}

/// Makes one connection after the other, until the session is over. When the link has gone or is being
/// closed, a connection that nobody has tells the server to end the session.
async fn keep(link: Weak<Link>, way: Way, mut host: usize, mut end: End) {
    loop {
        let is_over = end.wait().await;
        if let Some(link) = link.upgrade() {
            link.line.send_replace(None);
        }
        if is_over {
            return;
        }
        let line;
        (host, line) = match way.resume(host).await {
            Some(resumed) => resumed,
            None => return,
        };
        end = line.end();
        if let Some(link) = link.upgrade() {
            link.line.send_replace(Some(Arc::new(line)));
            if link.closing.is_cancelled() {
                link.line.send_replace(None);
            }
        }
    }
}

/// What is needed for resuming a session.
struct Way {
    ensemble: Arc<Ensemble>,
    session: zk::SessionInfo,
    timeout: Duration,
}

/// Why a session was not resumed.
enum Obstacle {
    /// Another server may do it, or this one later.
    Now,
    /// There is no session any more.
    Gone,
    /// This server would keep it for so long only.
    Shortened(Duration),
}

impl Way {
    /// The next connection, and the number of its server; `None` if the session is over.
    async fn resume(&self, last: usize) -> Option<(usize, Line)> {
        // The server has ended it by then, if it ran.
        let give_up = tokio::time::Instant::now() + self.timeout * 7 / 5;
        let mut pause = PAUSES.0;
        for tried in 1.. {
            let host = (last + tried) % self.ensemble.len();
            match self.try_to_resume(host).await {
                Ok(line) => return Some((host, line)),
                Err(Obstacle::Now) => {}
                Err(Obstacle::Gone) => return None,
                Err(Obstacle::Shortened(granted)) => {
                    let asked = self.timeout;
                    tracing::error!(target: "distlock", ?granted, ?asked, "a session with ZooKeeper is given up with all its locks: its server has lowered maxSessionTimeout");
                    return None;
                }
            }
            if tokio::time::Instant::now() >= give_up {
                return None;
            }
            if tried % self.ensemble.len() == 0 {
                tokio::time::sleep(pause / 2 + jitter(&OsRng, pause)).await;
                pause = (pause * 2).min(PAUSES.1).min(self.timeout / 16);
            }
        }
        None
    }

    /// The session itself is not tried on a server that would shorten it: the server would do so at once,
    /// and its answer could be lost. A new session shows what this server grants.
    async fn try_to_resume(&self, host: usize) -> Result<Line, Obstacle> {
        let probe = self.connect(host, None).await?;
        self.judge(&probe)?;
        let line = self.connect(host, Some(&self.session)).await?;
        self.judge(&line)?;
        // The server may be behind the last one: nothing is read from it before it has caught up.
        match line.client().sync("/").await {
            Ok(()) => Ok(line),
            Err(zk::Error::SessionExpired) => Err(Obstacle::Gone),
            Err(_) => Err(Obstacle::Now),
        }
    }

    async fn connect(
        &self,
        host: usize,
        session: Option<&zk::SessionInfo>,
    ) -> Result<Line, Obstacle> {
        let patience = patience(self.timeout);
        let line = self.ensemble.connect(host, self.timeout, patience, session).await;
        line.map_err(|error| match error {
            zk::Error::SessionExpired | zk::Error::AuthFailed => Obstacle::Gone,
            _ => Obstacle::Now,
        })
    }

    fn judge(&self, line: &Line) -> Result<(), Obstacle> {
        #[cfg(distlock_mutants)]
        if crate::mutants::is("believe_a_shorter_session") {
            return Ok(());
        }
        let granted = line.granted();
        if granted < self.timeout { Err(Obstacle::Shortened(granted)) } else { Ok(()) }
    }
}

/// How long a server may be silent before it is left: less than what is left of a lock when its renewal
/// is due, so that a lock outlives a server that falls silent.
pub(crate) fn patience(timeout: Duration) -> Duration {
    timeout / 4
}
