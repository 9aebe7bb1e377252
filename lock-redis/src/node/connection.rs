//! One Redis server: a connection that is rebuilt, bounded calls, and pushed messages.
//!
//! The driver's own connection manager is not used. It blocks for nine seconds while the server is
//! down, and never replaces a connection on which nothing comes back (both were measured).

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lock_core::{Clock, ClockInstant, Error, ErrorKind, Result};
use redis::aio::MultiplexedConnection;
use redis::{Cmd, ErrorKind as DriverKind, RedisError, ServerErrorKind, Value};
use tokio::sync::{Notify, watch};

use super::script::Call;
use super::tend::Interest;
use crate::error::{Stage, from_redis, is_read_only};

/// A server as this client sees it. Clones share the connection.
#[derive(Clone)]
pub(crate) struct Node(pub(super) Arc<Inner>);

/// How a [`Node`] treats its server.
#[derive(Clone, Debug)]
pub(crate) struct NodeOptions {
    /// The limit for making a connection, the handshake included.
    pub(crate) connect_timeout: Duration,
    /// The limit for one answer. A call may have a shorter one.
    pub(crate) response_timeout: Duration,
    pub(crate) clock: Arc<dyn Clock>,
}

/// What a node tells its listener. Called on the connection's task: it must not block.
#[derive(Debug)]
pub(crate) enum NodeEvent<'a> {
    /// A connection stands and all channels are subscribed. What was published before is lost.
    Up,
    /// The connection is gone.
    Down,
    /// Somebody has published this on one of our channels.
    Message { payload: &'a [u8] },
}

/// The channels that each new connection subscribes to, and who is told.
pub(crate) struct Listener {
    pub(crate) channels: Vec<String>,
    pub(crate) on_event: Box<dyn Fn(NodeEvent<'_>) + Send + Sync>,
}

pub(super) struct Inner {
    pub(super) client: redis::Client,
    pub(super) endpoint: String,
    pub(super) options: NodeOptions,
    pub(super) listener: Option<Listener>,
    pub(super) state: Mutex<State>,
    pub(super) serial: AtomicU64,
    /// How many wait for pushes: the connection is kept up and watched only for them.
    pub(super) interest: AtomicUsize,
    pub(super) tend: Notify,
    pub(super) tended: AtomicBool,
    pub(super) closed: AtomicBool,
    /// Smoothed, in microseconds.
    pub(super) round_trip: AtomicU64,
    pub(super) heard: AtomicU64,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) link: Option<Arc<Link>>,
    /// The attempt under way, which all callers share.
    pub(super) attempt: Option<watch::Receiver<Option<Result<Arc<Link>>>>>,
}

/// One connection.
pub(super) struct Link {
    pub(super) connection: MultiplexedConnection,
    pub(super) made: ClockInstant,
    pub(super) serial: u64,
    /// Nothing new is sent over it: it is closed, or an answer stayed away.
    pub(super) stale: AtomicBool,
    /// It is being asked whether anything comes back on it.
    pub(super) doubted: AtomicBool,
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Node").field(&self.0.endpoint).finish()
    }
}

impl Node {
    /// A node of the server that `client` names. Nothing is sent. A listener needs RESP3, which is
    /// then switched on: pushes share the connection with the answers.
    pub(crate) fn new(
        client: &redis::Client,
        options: NodeOptions,
        listener: Option<Listener>,
    ) -> Result<Self> {
        let info = client.get_connection_info().clone();
        let endpoint = info.addr().to_string();
        let settings = info
            .redis_settings()
            .clone()
            .set_protocol(redis::ProtocolVersion::RESP3)
            .set_lib_name("distlock", env!("CARGO_PKG_VERSION"));
        let tcp = info
            .tcp_settings()
            .clone()
            .set_nodelay(true)
            // Bytes that nobody has confirmed are given up then, so that a request cannot arrive
            // long after everybody has forgotten it.
            .set_user_timeout(USER_TIMEOUT);
        let info = info.set_redis_settings(settings).set_tcp_settings(tcp);
        let client = redis::Client::open(info)
            .map_err(|error| from_redis(error, Stage::Connecting, &endpoint))?;
        let now = options.clock.now();
        Ok(Self(Arc::new(Inner {
            client,
            endpoint,
            options,
            listener,
            state: Mutex::default(),
            serial: AtomicU64::new(0),
            interest: AtomicUsize::new(0),
            tend: Notify::new(),
            tended: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            round_trip: AtomicU64::new(0),
            heard: AtomicU64::new(now.as_nanos()),
        })))
    }

    /// Host and port, or the path of the socket: never a credential.
    pub(crate) fn endpoint(&self) -> &str {
        &self.0.endpoint
    }

    /// How long an answer has taken lately.
    pub(crate) fn round_trip(&self) -> Duration {
        Duration::from_micros(self.0.round_trip.load(Relaxed))
    }

    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        &self.0.options.clock
    }

    /// Runs a script by its digest, or by its text where the server does not know it.
    pub(crate) async fn run(&self, call: Call<'_>, limit: Duration) -> Result<Value> {
        let end = self.clock().now() + limit;
        match self.send(&call.by_digest(), end, limit).await? {
            Err(error) if error.kind() == DriverKind::Server(ServerErrorKind::NoScript) => {
                let answer = self.send(&call.by_text(), end, limit).await?;
                answer.map_err(|error| from_redis(error, Stage::Sent, &self.0.endpoint))
            }
            answer => answer.map_err(|error| from_redis(error, Stage::Sent, &self.0.endpoint)),
        }
    }

    /// Sends one command.
    pub(crate) async fn command(&self, command: &Cmd, limit: Duration) -> Result<Value> {
        let end = self.clock().now() + limit;
        let answer = self.send(command, end, limit).await?;
        answer.map_err(|error| from_redis(error, Stage::Sent, &self.0.endpoint))
    }

    /// Says that somebody waits for pushes, until the value is dropped: the connection is rebuilt by
    /// itself then, and a silent one is found out.
    pub(crate) fn interest(&self) -> Interest {
        self.0.interest.fetch_add(1, Relaxed);
        Interest::new(&self.0)
    }

    /// Drops the connection. Calls fail from then on.
    pub(crate) fn close(&self) {
        self.0.closed.store(true, Relaxed);
        let mut state = self.0.state();
        state.link = None;
        state.attempt = None;
        drop(state);
        self.0.tend.notify_one();
    }

    /// Sends `command` over the connection, which is made if there is none, and waits for the answer
    /// until `end`. A connection that is silent for the whole `limit` is given up.
    ///
    /// The inner result is what the server said, or how the connection broke; the outer one is an
    /// error of ours.
    async fn send(
        &self,
        command: &Cmd,
        end: ClockInstant,
        limit: Duration,
    ) -> Result<std::result::Result<Value, RedisError>> {
        let link = self.0.link(end).await?;
        let patience = limit.min(self.0.options.response_timeout);
        let left = end.since(self.clock().now()).min(patience);
        self.exchange(&link, command, left, patience).await
    }

    async fn exchange(
        &self,
        link: &Arc<Link>,
        command: &Cmd,
        limit: Duration,
        patience: Duration,
    ) -> Result<std::result::Result<Value, RedisError>> {
        let inner = &self.0;
        let sent = inner.options.clock.now();
        let mut connection = link.connection.clone();
        let mut watch = InFlight { node: self, link, sent, patience, answered: false };
        // The driver's timer, not the lock's clock: it bounds a call, and decides nothing.
        let answer = tokio::time::timeout(limit, connection.send_packed_command(command)).await;
        let Ok(answer) = answer else {
            return Err(Error::new(
                ErrorKind::Timeout,
                format!("the Redis server at {} did not answer within {limit:?}", inner.endpoint),
            ));
        };
        watch.answered = true;
        let answer = answer.and_then(Value::extract_error);
        match &answer {
            Err(error) if error.is_unrecoverable_error() || error.is_io_error() => {
                inner.give_up(link);
            }
            // A replica by now: the name may lead to its master. A new connection has just followed
            // the name, and each one wakes all who wait, so they must not follow upon one another.
            Err(error) if is_read_only(error) && sent.since(link.made) >= FRESH => {
                inner.give_up(link);
            }
            _ => inner.note_answer(sent),
        }
        Ok(answer)
    }

    /// Asks over `link` whether it is late or dead: answers come in the order of the requests. One
    /// question at a time.
    fn doubt(&self, link: &Arc<Link>, patience: Duration) {
        let settled = link.stale.load(Relaxed) || self.0.closed.load(Relaxed);
        if settled || link.doubted.swap(true, Relaxed) {
            return;
        }
        let doubt = Doubt(Arc::clone(link));
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let node = self.clone();
            runtime.spawn(async move {
                // A failure gives the connection up.
                let _ = node.exchange(&doubt.0, &redis::cmd("PING"), patience, patience).await;
            });
        }
    }
}

/// A question about a connection is under way, until this is dropped, with its runtime if need be.
struct Doubt(Arc<Link>);

impl Drop for Doubt {
    fn drop(&mut self) {
        self.0.doubted.store(false, Relaxed);
    }
}

/// Data that the server's machine has not confirmed for so long are given up by the kernel.
const USER_TIMEOUT: Duration = Duration::from_secs(20);
/// For so long a connection leads where the server's name does.
const FRESH: Duration = Duration::from_secs(1);

impl Inner {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn current(&self) -> Option<Arc<Link>> {
        let state = self.state();
        state.link.as_ref().filter(|link| !link.stale.load(Relaxed)).map(Arc::clone)
    }

    pub(super) fn emit(&self, event: NodeEvent<'_>) {
        if let Some(listener) = &self.listener {
            (listener.on_event)(event);
        }
    }

    /// Nothing new goes over this connection. What is under way may still be answered.
    pub(super) fn give_up(&self, link: &Link) {
        if !link.stale.swap(true, Relaxed) {
            tracing::debug!(target: "distlock", endpoint = %self.endpoint, "a Redis connection is given up");
            self.emit(NodeEvent::Down);
            self.tend.notify_one();
        }
    }

    pub(super) fn note_answer(&self, sent: ClockInstant) {
        let now = self.options.clock.now();
        self.heard.store(now.as_nanos(), Relaxed);
        let took = u64::try_from(now.since(sent).as_micros()).unwrap_or(u64::MAX).min(60_000_000);
        let before = self.round_trip.load(Relaxed);
        let smoothed = if before == 0 { took } else { (before * 7 + took) / 8 };
        self.round_trip.store(smoothed, Relaxed);
    }
}

/// A request without an answer yet.
struct InFlight<'a> {
    node: &'a Node,
    link: &'a Arc<Link>,
    sent: ClockInstant,
    /// A connection that is silent for so long is given up.
    patience: Duration,
    answered: bool,
}

/// The caller has gone, or its time was over. That says nothing about a connection which all share,
/// unless it was silent for as long as any request is waited for.
impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        if self.answered {
            return;
        }
        // The core drops a call at the same limit, and its timer may be the faster one.
        if self.node.clock().now().since(self.sent) >= self.patience * 9 / 10 {
            self.node.0.give_up(self.link);
        } else {
            self.node.doubt(self.link, self.patience);
        }
    }
}
