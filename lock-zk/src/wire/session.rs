//! One session with the ensemble: its successive connections, and what is known of its lifetime.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use lock_core::{Clock, ClockInstant};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};
use zookeeper_client as zk;

use super::connection::DriverConnection;
use super::timeline::Timeline;
use crate::error::{Reply, RequestFailure};
use crate::settings::Acl;

/// What the answer to a request proves.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Proves {
    /// That the session exists: the leader decides, and refuses requests from a session that has
    /// ended. Its other refusals count as well.
    Session,
    /// That the leader is awake: it answers a `sync`, but does not ask whether the session exists.
    Leader,
    /// Nothing about the leader: any server may answer on its own.
    Nothing,
}

/// What a read stands on: the session and its connection. While both stay the same, so does the server, which shows
/// nothing older than before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Footing {
    session: i64,
    connections: u64,
}

/// A session, and its current connection. Another task makes the connections, one at a time.
pub(crate) struct Session {
    info: zk::SessionInfo,
    /// As the server has set it.
    pub(crate) timeout: Duration,
    timeline: Mutex<Timeline>,
    clock: Arc<dyn Clock>,
    pub(super) acl: Acl,
    chroot_len: usize,
    /// `None` while there is no connection.
    connection: watch::Sender<Option<Arc<DriverConnection>>>,
    /// How many there were before it.
    connections: AtomicU64,
    /// A server did not know a request.
    pub(super) is_old: AtomicBool,
    /// This session must no longer be used: it was ended by the server, given up because a server
    /// would shorten it, or closed.
    ended: CancellationToken,
    /// The last connection has ended, and there will be no other.
    finished: CancellationToken,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("id", &format_args!("{:#x}", self.id()))
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

impl Session {
    /// Keeps the session of `connection`.
    pub(crate) fn new(
        connection: DriverConnection,
        timeline: Timeline,
        acl: Acl,
        clock: Arc<dyn Clock>,
    ) -> Arc<Self> {
        Arc::new(Self {
            info: connection.client().session().clone(),
            timeout: connection.granted,
            timeline: Mutex::new(timeline),
            clock,
            acl,
            chroot_len: connection.client().path().trim_end_matches('/').len(),
            connection: watch::Sender::new(Some(Arc::new(connection))),
            connections: AtomicU64::new(0),
            is_old: AtomicBool::new(false),
            ended: CancellationToken::new(),
            finished: CancellationToken::new(),
        })
    }

    pub(crate) fn now(&self) -> ClockInstant {
        self.clock.now()
    }

    pub(crate) fn id(&self) -> i64 {
        self.info.id().0
    }

    /// Id and password.
    pub(crate) fn info(&self) -> &zk::SessionInfo {
        &self.info
    }

    /// The length at the servers of a path of this many bytes: the driver prepends its chroot.
    pub(crate) fn path_len(&self, bytes: usize) -> usize {
        self.chroot_len + bytes
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.is_cancelled()
    }

    /// Resolves when the session is over for good.
    pub(crate) async fn ended(&self) {
        self.ended.cancelled().await;
    }

    /// What a request stands on that is sent from now on.
    pub(crate) fn footing(&self) -> Footing {
        Footing { session: self.id(), connections: self.connections.load(Ordering::Relaxed) }
    }

    /// Whether an entry that leaves makes the one behind it the first: it is the holder's, which saw on `held` that it
    /// was the first itself.
    pub(crate) fn makes_first(&self, held: Option<Footing>) -> bool {
        held == Some(self.footing())
    }

    /// For how long after `start` the server keeps this session at least.
    pub(crate) fn valid_for(&self, start: ClockInstant) -> Duration {
        self.timeline.lock().until().since(start)
    }

    /// Notes what the reply to a request sent at `sent` proves.
    pub(crate) fn note<T>(&self, proves: Proves, sent: ClockInstant, reply: Reply<T>) -> Reply<T> {
        match (&reply, proves) {
            (Err(RequestFailure::SessionEnded), _) => self.ended.cancel(),
            (Err(RequestFailure::TooOld), _) => self.is_old.store(true, Ordering::Relaxed),
            (Ok(_) | Err(RequestFailure::NoNode | RequestFailure::NodeExists), Proves::Session) => {
                self.timeline.lock().committed(sent, self.now());
            }
            (Ok(_) | Err(RequestFailure::NoNode), Proves::Leader) => {
                self.timeline.lock().answered(sent, self.now());
            }
            _ => {}
        }
        reply
    }

    /// The last connection is lost.
    pub(crate) fn disconnected(&self) {
        self.connection.send_replace(None);
    }

    /// There is a connection again. If the session has ended meanwhile, it is dropped, which tells
    /// the server.
    pub(crate) fn connected(&self, connection: DriverConnection) {
        self.connections.fetch_add(1, Ordering::Relaxed);
        self.connection.send_replace(Some(Arc::new(connection)));
        if self.has_ended() {
            self.disconnected();
        }
    }

    /// For the task that makes the connections: when it ends, even with its runtime, there are no
    /// more connections, and the session is over.
    pub(crate) fn end_with(&self) -> [DropGuard; 2] {
        [self.ended.clone().drop_guard(), self.finished.clone().drop_guard()]
    }

    /// The current connection, or the next one.
    pub(crate) async fn connection(&self) -> Reply<Arc<DriverConnection>> {
        let mut connections = self.connection.subscribe();
        let up = connections.wait_for(|now| now.as_ref().is_some_and(|now| now.is_up()));
        tokio::select! {
            biased;
            () = self.ended() => Err(RequestFailure::SessionEnded),
            now = up => now.ok().and_then(|now| now.clone()).ok_or(RequestFailure::SessionEnded),
        }
    }

    /// Ends the session on the server, and with it all its nodes. Returns when the server has
    /// confirmed it, or no server could be reached for longer than the session timeout.
    pub(crate) async fn close(&self) {
        self.ended.cancel();
        self.disconnected();
        self.finished.cancelled().await;
    }
}
