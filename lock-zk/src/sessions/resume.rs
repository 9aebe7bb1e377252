//! Resuming a session on a new connection when it has lost one.

use std::sync::{Arc, Weak};
use std::time::Duration;

use lock_core::OsRng;
use lock_core::backoff::Backoff;
use zookeeper_client as zk;

use super::ensemble::{Ensemble, patience};
use crate::wire::{self, Session};
use crate::wire::{ConnectionEnd, DriverConnection};

/// The first pause after a failed attempt, and the longest one. When resuming a session, an attempt
/// is one round over all servers.
pub(super) const PAUSES: (Duration, Duration) =
    (Duration::from_millis(10), Duration::from_millis(500));

/// What is needed to resume a session.
pub(super) struct Resumption {
    ensemble: Arc<Ensemble>,
    session: zk::SessionInfo,
    timeout: Duration,
    /// The index of the server of the current connection, and that connection's end.
    host: usize,
    end: ConnectionEnd,
}

/// Why a session was not resumed.
enum Obstacle {
    /// Another server may resume it, or this one later.
    Now,
    /// The session no longer exists, or a server would shorten it.
    Gone,
}

impl Resumption {
    /// For the session of `connection`, which is to the server with index `host`.
    pub(super) fn of(connection: &DriverConnection, host: usize, ensemble: Arc<Ensemble>) -> Self {
        let session = connection.client().session().clone();
        Self { ensemble, session, timeout: connection.granted, host, end: connection.end() }
    }

    /// Gives `session` one connection after the other, until the session is over. Must be called
    /// within a runtime, which must live as long as the session is used. When the session is no
    /// longer used, dropping its connection tells the server to end it.
    pub(super) fn start(mut self, session: &Arc<Session>) {
        let (at_end, session) = (session.end_with(), Arc::downgrade(session));
        tokio::spawn(async move {
            let _at_end = at_end;
            self.run(&session).await;
        });
    }

    async fn run(&mut self, session: &Weak<Session>) {
        loop {
            let is_over = self.end.wait().await;
            if let Some(session) = session.upgrade() {
                session.disconnected();
            }
            if is_over {
                return;
            }
            let Some(connection) = self.resume(session).await else { return };
            self.end = connection.end();
            if let Some(session) = session.upgrade() {
                session.connected(connection);
            }
        }
    }

    /// The next connection; `None` if the session is over. That is for a server to say: one that is down
    /// ends no session, and has it still when it is back, however long that takes.
    async fn resume(&mut self, session: &Weak<Session>) -> Option<DriverConnection> {
        // One that nobody uses any more is left then: a server that runs has ended it.
        let give_up = tokio::time::Instant::now() + self.timeout * 7 / 5;
        let mut backoff = Backoff::new(PAUSES.0, PAUSES.1.min(self.timeout / 16));
        let last = self.host;
        for tried in 1.. {
            self.host = (last + tried) % self.ensemble.config.hosts.len();
            match self.try_to_resume().await {
                Ok(connection) => return Some(connection),
                Err(Obstacle::Now) => {}
                Err(Obstacle::Gone) => return None,
            }
            let is_used = session.upgrade().is_some_and(|session| !session.has_ended());
            if !is_used && tokio::time::Instant::now() >= give_up {
                return None;
            }
            if tried % self.ensemble.config.hosts.len() == 0 {
                tokio::time::sleep(backoff.failed(&OsRng)).await;
            }
        }
        None
    }

    /// The session itself is not tried on a server that would shorten it: the server would do so at
    /// once, and its answer could be lost. A new session shows what this server grants.
    async fn try_to_resume(&self) -> Result<DriverConnection, Obstacle> {
        let probe = self.connect(None).await?;
        self.is_enough(&probe)?;
        // A client address may have no place for two connections (`maxClientCnxns`).
        wire::close(probe).await;
        let connection = self.connect(Some(&self.session)).await?;
        match self.is_usable(&connection).await {
            Ok(()) => Ok(connection),
            Err(obstacle) => {
                wire::sever(connection).await;
                Err(obstacle)
            }
        }
    }

    async fn is_usable(&self, connection: &DriverConnection) -> Result<(), Obstacle> {
        self.is_enough(connection)?;
        // The server may be behind the previous one: nothing is read from it until it has caught
        // up.
        Ok(connection.client().sync("/").await?)
    }

    fn is_enough(
        &self,
        DriverConnection { granted, .. }: &DriverConnection,
    ) -> Result<(), Obstacle> {
        if *granted >= self.timeout {
            return Ok(());
        }
        let asked = self.timeout;
        tracing::error!(target: "distlock", ?granted, ?asked, "a ZooKeeper session is given up with all its locks: its server has lowered maxSessionTimeout");
        Err(Obstacle::Gone)
    }

    async fn connect(
        &self,
        session: Option<&zk::SessionInfo>,
    ) -> Result<DriverConnection, Obstacle> {
        let patience = patience(self.timeout);
        Ok(self.ensemble.connect(self.host, self.timeout, patience, session).await?)
    }
}

impl From<zk::Error> for Obstacle {
    fn from(error: zk::Error) -> Self {
        match error {
            zk::Error::SessionExpired | zk::Error::AuthFailed => Self::Gone,
            _ => Self::Now,
        }
    }
}
