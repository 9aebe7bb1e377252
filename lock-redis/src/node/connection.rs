//! One connection to a server: how it is opened, a request and its answer, and when it is given up.
//!
//! The rule: a connection on which nothing has come back since something was asked is left. A request
//! that is not answered in its own time says nothing by itself, since a server that is behind still
//! answers those that were sent before; so the connection is checked then.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use lock_core::{ClockInstant, Error, ErrorKind, Result};
use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{Client, Cmd, PushInfo, PushKind, RedisError, Value};

use super::group::{MasterGroup, ServerAddress};
use super::reply::{info_field, process_in};
use super::server_health::{NodeEvent, ServerHealth};
use crate::error::{REDIS, RequestStage, from_redis, lacks_hello, may_be_replaced};

/// The kernel gives up data that the server's machine has not confirmed for this long.
const USER_TIMEOUT: Duration = Duration::from_secs(20);
/// How long a new connection is assumed to lead where the server's name does.
const FRESH: Duration = Duration::from_secs(1);

/// One connection, which all calls share.
pub(super) struct NodeConnection {
    driver: MultiplexedConnection,
    /// The process at its other end, as a marker names it; `None` until it is asked for. Never locked over an await: a
    /// call that nobody polls would stop all others.
    pub(super) process: Mutex<Option<Arc<str>>>,
    made: ClockInstant,
    /// Whether a sentinel has led here.
    is_led: bool,
    fate: Arc<ConnectionFate>,
    /// Held while it is checked whether it still answers.
    check: Arc<tokio::sync::Mutex<()>>,
}

/// Whether a connection may still be used. The driver's own task, which reports its end, shares this.
struct ConnectionFate {
    health: Arc<ServerHealth>,
    /// Nothing new is sent over it: it is closed, or a reply never came.
    over: AtomicBool,
    /// An answer made no sense: no other one is believed.
    senseless: AtomicBool,
}

impl ConnectionFate {
    /// Nothing new goes over this connection. What is under way may still be answered.
    fn give_up(&self) {
        if !self.over.swap(true, Relaxed) {
            tracing::debug!(target: "distlock", endpoint = %self.health.endpoint, "giving up a Redis connection");
            self.health.attention.notify_waiters();
        }
    }
}

/// The client with the settings of our connections. RESP3 is switched on: pushes share the connection
/// with the answers.
pub(super) fn with_our_settings(client: &Client, endpoint: &str) -> Result<Client> {
    let info = client.get_connection_info().clone();
    let settings = info
        .redis_settings()
        .clone()
        .set_protocol(redis::ProtocolVersion::RESP3)
        .set_lib_name("distlock", env!("CARGO_PKG_VERSION"));
    let tcp = info
        .tcp_settings()
        .clone()
        .set_nodelay(true)
        // Unconfirmed bytes are given up then: a request cannot arrive long after its caller has
        // forgotten it.
        .set_user_timeout(USER_TIMEOUT);
    Client::open(info.set_redis_settings(settings).set_tcp_settings(tcp))
        .map_err(|error| from_redis(error, RequestStage::Connecting, endpoint))
}

impl NodeConnection {
    /// Opens a connection and notifies the listener.
    pub(super) async fn open(address: ServerAddress, health: Arc<ServerHealth>) -> Result<Self> {
        let connection = match &address {
            ServerAddress::Fixed(client) => Self::to(client, &health, &health.endpoint).await?,
            ServerAddress::Group(group) => Self::to_master(group, &health).await?,
        };
        health.emit(NodeEvent::Up);
        Ok(connection)
    }

    /// A connection to the present master, to which the sentinels lead, one after the other.
    async fn to_master(group: &MasterGroup, health: &Arc<ServerHealth>) -> Result<Self> {
        let mut failed = Vec::new();
        for sentinel in group.order() {
            let led = async {
                let client = group.master_by(sentinel).await?;
                let endpoint = client.get_connection_info().addr().to_string();
                let mut opened = Self::to(&client, health, &endpoint).await?;
                let info = group.check(&mut opened.driver, &endpoint).await?;
                opened.process = Mutex::new(Some(process_in(&info)));
                opened.is_led = true;
                Ok(opened)
            };
            let led = tokio::time::timeout(group.limit, led).await;
            match led.unwrap_or_else(|_| Err(group.slow(sentinel))) {
                Ok(opened) => {
                    group.found_by(sentinel);
                    return Ok(opened);
                }
                Err(error) => failed.push(error),
            }
        }
        Err(group.nobody(&failed))
    }

    async fn to(client: &Client, health: &Arc<ServerHealth>, endpoint: &str) -> Result<Self> {
        match Self::handshake(client, health).await {
            Ok(connection) => Ok(connection),
            Err(error) if lacks_hello(&error) => Err(too_old(client, error, endpoint).await),
            Err(error) => Err(from_redis(error, RequestStage::Connecting, endpoint)),
        }
    }

    async fn handshake(
        client: &Client,
        health: &Arc<ServerHealth>,
    ) -> std::result::Result<Self, RedisError> {
        let fate = Arc::new(ConnectionFate {
            health: Arc::clone(health),
            over: AtomicBool::new(false),
            senseless: AtomicBool::new(false),
        });
        let pushed = Arc::clone(&fate);
        let config = unlimited().set_push_sender(move |info: PushInfo| {
            match (&info.kind, info.data.as_slice()) {
                (PushKind::Message, [_, Value::BulkString(payload)]) => {
                    pushed.health.note_push(payload);
                }
                (PushKind::Disconnection, _) => pushed.give_up(),
                _ => {}
            }
            Ok::<_, redis::aio::SendError>(())
        });
        let mut driver = client.get_multiplexed_async_connection_with_config(&config).await?;
        if let Some(channel) = health.channel() {
            driver.subscribe(channel).await?;
        }
        let made = health.clock.now();
        let (process, check) = (Mutex::default(), Arc::default());
        Ok(Self { driver, process, made, is_led: false, fate, check })
    }

    pub(super) fn is_over(&self) -> bool {
        self.fate.over.load(Relaxed)
    }

    /// An answer made no sense. Those that are still to come are not believed.
    pub(super) fn distrust(&self) {
        self.fate.senseless.store(true, Relaxed);
        self.fate.give_up();
    }

    /// Sends `command`, and waits for the answer until `end`. A connection on which nothing at all comes back
    /// for as long as `patience` is given up; no answer is waited for longer than that.
    ///
    /// The inner result is what the server said, or how the connection broke; the outer one is an
    /// error of ours.
    pub(super) async fn exchange(
        self: &Arc<Self>,
        command: &Cmd,
        end: ClockInstant,
        patience: Duration,
    ) -> Result<std::result::Result<Value, RedisError>> {
        let health = &self.fate.health;
        let sent = health.clock.now();
        let limit = end.since(sent).min(patience);
        let mut driver = self.driver.clone();
        let unanswered = Unanswered { connection: self, sent, patience };
        // The driver's timer, not the lock's clock: it bounds a call, and decides nothing.
        let answer = tokio::time::timeout(limit, driver.send_packed_command(command)).await;
        let Ok(answer) = answer else {
            return Err(no_answer(&health.endpoint, limit));
        };
        std::mem::forget(unanswered);
        if self.fate.senseless.load(Relaxed) {
            let text = format!("answers of the Redis server at {} make no sense", health.endpoint);
            return Err(Error::new(ErrorKind::Unavailable, text).with_unknown_effect());
        }
        let answer = answer.and_then(Value::extract_error);
        match &answer {
            Err(error) if error.is_unrecoverable_error() || error.is_io_error() => {
                self.fate.give_up();
            }
            // The name may lead to another server by now. A new connection has just followed
            // the name, and each one wakes all waiters, so reconnects must not chase one another.
            Err(error) if may_be_replaced(error, self.is_led) && sent.since(self.made) >= FRESH => {
                self.fate.give_up();
            }
            _ => health.note_answer(sent),
        }
        Ok(answer)
    }

    /// Gives the connection up if no answer comes within `patience`.
    pub(super) async fn ping(self: &Arc<Self>, patience: Duration) -> Result<()> {
        let end = self.fate.health.clock.now() + patience;
        self.exchange(&redis::cmd("PING"), end, patience).await.map(drop)
    }
}

/// A request may have had its effect all the same.
pub(super) fn no_answer(endpoint: &str, limit: Duration) -> Error {
    let text = format!("the Redis server at {endpoint} did not answer within {limit:?}");
    Error::new(ErrorKind::NoAnswer, text)
}

/// A request without an answer yet. It ends with its time, or with the inspection or the claim that it was
/// made for.
struct Unanswered<'a> {
    connection: &'a Arc<NodeConnection>,
    sent: ClockInstant,
    patience: Duration,
}

/// If the connection was silent for as long as any request waits, it is given up; if not, it is found out
/// whether it is slow or dead, by one check at a time: answers come in the order of the requests.
impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        let (connection, patience) = (Arc::clone(self.connection), self.patience);
        let health = &connection.fate.health;
        let silent = health.silent_for().min(health.clock.now().since(self.sent));
        // Some of a call's limit is spent before its request is sent.
        if silent >= patience * 9 / 10 {
            connection.fate.give_up();
        } else if !connection.is_over()
            && let Ok(checking) = Arc::clone(&connection.check).try_lock_owned()
        {
            let checked = Arc::clone(&connection);
            health.tasks.spawn(async move {
                // A failure gives the connection up.
                let _ = checked.ping(patience).await;
                drop(checking);
            });
        }
    }
}

/// Describes `error` of a server without RESP3, with the version that it reports over RESP2.
async fn too_old(client: &Client, error: RedisError, endpoint: &str) -> Error {
    let info = client.get_connection_info();
    let settings = info.redis_settings().clone().set_protocol(redis::ProtocolVersion::RESP2);
    let info = info.clone().set_redis_settings(settings);
    let version = async {
        let client = Client::open(info)?;
        let mut driver = client.get_multiplexed_async_connection_with_config(&unlimited()).await?;
        redis::cmd("INFO").arg("server").query_async::<Value>(&mut driver).await
    };
    let version = version.await.ok().and_then(|info| info_field(&info, "redis_version"));
    match version.map(|version| REDIS.check(&version)) {
        Some(Err(too_old)) => too_old,
        _ => from_redis(error, RequestStage::Connecting, endpoint),
    }
}

/// Our own limits apply, not those of the driver.
pub(super) fn unlimited() -> redis::AsyncConnectionConfig {
    redis::AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None)
}
