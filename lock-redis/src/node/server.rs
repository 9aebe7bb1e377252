//! One Redis server, as this client sees it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lock_core::{Clock, Result};
use redis::{Cmd, ErrorKind as DriverKind, ServerErrorKind, Value};

use super::dial::Dial;
use super::link::{Interest, Link};
use super::pulse::{Listener, Pulse};
use super::script::Call;
use crate::error::{Stage, from_redis};

/// A server as this client sees it. Clones share the connection.
#[derive(Clone)]
pub(crate) struct Node {
    link: Arc<Link>,
    response_timeout: Duration,
}

/// How a [`Node`] treats its server.
#[derive(Clone, Debug)]
pub(crate) struct NodeOptions {
    /// The limit for opening a connection, including the handshake.
    pub(crate) connect_timeout: Duration,
    /// The limit for one answer. A call may have a shorter one.
    pub(crate) response_timeout: Duration,
    pub(crate) clock: Arc<dyn Clock>,
}

impl Node {
    /// A node of the server that `client` names. Nothing is sent.
    pub(crate) fn new(
        client: &redis::Client,
        options: NodeOptions,
        listener: Option<Listener>,
    ) -> Result<Self> {
        let endpoint = match client.get_connection_info().addr() {
            // Plain text to a port of TLS, and the reverse, fail in silence.
            address @ redis::ConnectionAddr::TcpTls { .. } => format!("{address} over TLS"),
            address => address.to_string(),
        };
        let pulse = Arc::new(Pulse::new(endpoint, options.clock, listener));
        let link = Arc::new(Link::new(Dial::new(client, pulse)?, options.connect_timeout));
        Ok(Self { link, response_timeout: options.response_timeout })
    }

    /// Host and port, or the path of the socket: never a credential.
    pub(crate) fn endpoint(&self) -> &str {
        &self.link.pulse().endpoint
    }

    /// How long answers have taken lately.
    pub(crate) fn round_trip(&self) -> Duration {
        self.link.pulse().round_trip()
    }

    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        &self.link.pulse().clock
    }

    /// Runs a script by its digest, or by its text if the server does not know it.
    pub(crate) async fn run(&self, call: Call<'_>, limit: Duration) -> Result<Value> {
        let end = self.clock().now() + limit;
        let connection = self.link.connection(end).await?;
        let patience = limit.min(self.response_timeout);
        let left = || end.since(self.clock().now()).min(patience);
        let mut answer = connection.exchange(&call.by_digest(), left(), patience).await?;
        if let Err(error) = &answer
            && error.kind() == DriverKind::Server(ServerErrorKind::NoScript)
        {
            answer = connection.exchange(&call.by_text(), left(), patience).await?;
        }
        answer.map_err(|error| from_redis(error, Stage::Sent, self.endpoint()))
    }

    /// Sends one command.
    pub(crate) async fn command(&self, command: &Cmd, limit: Duration) -> Result<Value> {
        let end = self.clock().now() + limit;
        let connection = self.link.connection(end).await?;
        let patience = limit.min(self.response_timeout);
        let left = end.since(self.clock().now()).min(patience);
        let answer = connection.exchange(command, left, patience).await?;
        answer.map_err(|error| from_redis(error, Stage::Sent, self.endpoint()))
    }

    /// Asks whether the server is there.
    pub(crate) async fn ping(&self, limit: Duration) -> Result<()> {
        self.command(&redis::cmd("PING"), limit).await.map(drop)
    }

    /// Registers a waiter for pushes until the value is dropped: a lost connection is reopened, and
    /// a silent one is detected.
    pub(crate) fn interest(&self) -> Interest {
        self.link.interest()
    }

    /// Runs `work` in the background, until the end of [`shut_down`](Self::shut_down). Without a
    /// runtime it is dropped.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.link.pulse().tasks.spawn(work);
    }

    /// Drops the connection. Calls fail from then on.
    pub(crate) fn close(&self) {
        self.link.close();
    }

    /// Like [`close`](Self::close), and ends the background work.
    pub(crate) async fn shut_down(&self) {
        self.close();
        self.link.pulse().tasks.close(Duration::ZERO).await;
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Node").field(&self.endpoint()).finish()
    }
}
