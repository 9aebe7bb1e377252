//! A session's way to the servers: one connection after the other.

use std::fmt;
use std::sync::Arc;

use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};
use zookeeper_client as zk;

use super::driver::Connection;
use super::reply::{Failure, Reply};
use crate::config::Access;

/// A session, and its present connection. Somebody else makes the connections, one at a time.
pub(crate) struct Channel {
    info: zk::SessionInfo,
    pub(super) access: Access,
    endpoint: String,
    chroot_len: usize,
    /// `None` while there is no connection.
    connection: watch::Sender<Option<Arc<Connection>>>,
    closing: CancellationToken,
    /// Nobody should use this session any more: it was ended by the server, given up after a long
    /// silence or since a server would shorten it, or closed.
    ended: CancellationToken,
    /// The last connection has come to its end, and there will be no other.
    finished: CancellationToken,
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = format_args!("{:#x}", self.session_id());
        f.debug_struct("Channel").field("session", &id).finish_non_exhaustive()
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.ended.cancel();
    }
}

impl Channel {
    /// Keeps the session of `connection`.
    pub(crate) fn new(connection: Connection, access: Access, endpoint: String) -> Arc<Self> {
        let client = connection.client();
        Arc::new(Self {
            info: client.session().clone(),
            access,
            endpoint,
            chroot_len: client.path().trim_end_matches('/').len(),
            connection: watch::Sender::new(Some(Arc::new(connection))),
            closing: CancellationToken::new(),
            ended: CancellationToken::new(),
            finished: CancellationToken::new(),
        })
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

    /// How many bytes a path of so many has at the servers: the driver puts its chroot before it.
    pub(crate) fn path_len(&self, bytes: usize) -> usize {
        self.chroot_len + bytes
    }

    pub(crate) fn ended(&self) -> &CancellationToken {
        &self.ended
    }

    /// The last connection has gone.
    pub(crate) fn disconnected(&self) {
        self.connection.send_replace(None);
    }

    /// There is a connection again. It is dropped if the channel is being closed, and tells the server to
    /// end the session by that.
    pub(crate) fn connected(&self, connection: Connection) {
        self.connection.send_replace(Some(Arc::new(connection)));
        if self.closing.is_cancelled() {
            self.connection.send_replace(None);
        }
    }

    /// For the task that makes the connections: when it ends, and be it with its runtime, there are no
    /// others, and the session is over.
    pub(crate) fn end_with(&self) -> [DropGuard; 2] {
        [self.ended.clone().drop_guard(), self.finished.clone().drop_guard()]
    }

    /// The present connection, or the next one.
    pub(crate) async fn connection(&self) -> Reply<Arc<Connection>> {
        let mut connections = self.connection.subscribe();
        let up = connections.wait_for(|now| now.as_ref().is_some_and(|now| now.is_up()));
        tokio::select! {
            biased;
            () = self.closing.cancelled() => Err(Failure::SessionEnded),
            () = self.ended.cancelled() => Err(Failure::SessionEnded),
            now = up => match now {
                Ok(now) => now.as_ref().map(Arc::clone).ok_or(Failure::SessionEnded),
                Err(_) => Err(Failure::SessionEnded),
            },
        }
    }

    /// Ends the session on the server, and with it all its nodes. Returns when the server has said so,
    /// or the session was given up.
    pub(crate) async fn close(&self) {
        self.closing.cancel();
        self.disconnected();
        self.finished.cancelled().await;
    }
}
