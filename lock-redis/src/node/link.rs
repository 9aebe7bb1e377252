//! The way to a server: a connection that is made again when it is gone, once for all who need it.
//!
//! The driver's own connection manager is not used. It blocks for nine seconds while the server is
//! down, and never replaces a connection on which nothing comes back (both were measured).

use std::sync::Arc;
use std::time::Duration;

use lock_core::kit::backoff::Backoff;
use lock_core::kit::connect_once::ConnectOnce;
use lock_core::{ClockInstant, Result};

use super::connection::Connection;
use super::dial::Dial;
use super::pulse::Pulse;

/// The pauses between attempts to connect.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(1));

/// The way to one server. Clones share the connection.
#[derive(Clone)]
pub(super) struct Link {
    dial: Arc<Dial>,
    connection: ConnectOnce<Arc<Connection>>,
}

impl Link {
    /// `limit` is for making a connection, the handshake included.
    pub(super) fn new(dial: Dial, limit: Duration) -> Self {
        let server = format!("the Redis server at {}", dial.pulse.endpoint);
        Self { dial: Arc::new(dial), connection: ConnectOnce::new(server, limit, BACKOFF) }
    }

    pub(super) fn pulse(&self) -> &Pulse {
        &self.dial.pulse
    }

    /// The connection, if there is one that may be used.
    pub(super) fn current(&self) -> Option<Arc<Connection>> {
        self.connection.forget(|connection| connection.is_over());
        self.connection.current()
    }

    /// The connection, which is made if there is none.
    pub(super) async fn connection(&self, end: ClockInstant) -> Result<Arc<Connection>> {
        if let Some(connection) = self.current() {
            return Ok(connection);
        }
        let dial = Arc::clone(&self.dial);
        let connect = || async move { dial.connect().await.map(Arc::new) };
        self.connection.get(end.since(self.pulse().clock.now()), connect).await
    }

    /// Drops the connection. No other one is made.
    pub(super) fn close(&self) {
        drop(self.connection.close());
        self.pulse().attention.notify_one();
    }
}
