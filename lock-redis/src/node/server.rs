//! One Redis server, as this client sees it: requests, over a connection that all calls share. It is reopened
//! when it is lost, and kept up and watched while a waiter needs pushes.
//!
//! The driver's own connection manager is not used. It blocks for nine seconds while the server is
//! down, and never replaces a connection on which nothing comes back (both were measured).

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lock_core::backoff::Backoff;
use lock_core::{Clock, ClockInstant, ErrorKind, LockKey, Result};
use lock_kit::connect_once::ConnectOnce;
use lock_kit::settings::{Between, Parameter};
use parking_lot::Mutex;
use redis::{Cmd, ErrorKind as DriverKind, RedisError, ServerErrorKind, Value};
use tokio::runtime::{Handle, Id};

use super::connection::{NodeConnection, no_answer, with_our_settings};
use super::group::ServerAddress;
use super::reply::{ReplyReader, names_another_process, process_in};
use super::script::ScriptCall;
use super::server_health::{Listener, ServerHealth};
use crate::error::{OVER_TLS, RequestStage, from_redis};
use crate::names::{Keys, escape_glob};

pub(crate) const CONNECT_TIMEOUT: Parameter<Between> = Parameter {
    name: "lock_connect_timeout",
    text: "the limit for opening a connection",
    default: "`1s`",
    values: Duration::from_millis(1)..=LONGEST_TIMEOUT,
};
/// No limit of a connection makes sense above this.
pub(crate) const LONGEST_TIMEOUT: Duration = Duration::from_secs(60);

/// How many keys one step of a listing visits.
const STEP: usize = 1000;

/// The pauses between attempts to connect.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(1));
/// A waiting client that has heard nothing for this long pings the server.
const PING_EVERY: Duration = Duration::from_secs(2);
/// How long it waits for the reply.
const PING_LIMIT: Duration = Duration::from_secs(1);
/// The pause after that, and how long the task waits for a connection before it checks whether it
/// is still wanted.
const PAUSE: Duration = Duration::from_millis(100);
const CONNECTING: Duration = Duration::from_secs(3);

/// A server as this client sees it, and the connection to it, if there is one.
pub(crate) struct Node {
    address: ServerAddress,
    health: Arc<ServerHealth>,
    connection: ConnectOnce<Arc<NodeConnection>>,
    /// The limit for one answer. A call may have a shorter one; the connection is given up after this
    /// one alone.
    response_timeout: Duration,
    /// Those that wait for pushes, by their runtime, as long as its task runs. Each runtime keeps the
    /// connection up for its own: it may end, or stand still, while others go on.
    interested: Mutex<HashMap<Id, Arc<()>>>,
}

/// A waiter needs pushes, as long as this exists.
#[derive(Debug)]
pub(crate) struct Interest {
    _counted: Option<Arc<()>>,
}

impl Node {
    /// A node of the server at `address`, with the limits for opening a connection, including the
    /// handshake, and for one answer. Nothing is sent.
    pub(crate) fn new(
        address: &ServerAddress,
        (connect_timeout, response_timeout): (Duration, Duration),
        clock: Arc<dyn Clock>,
        listener: Option<Listener>,
    ) -> Result<Arc<Self>> {
        let endpoint = match address.is_secure() {
            // Plain text to a port of TLS, and the reverse, fail in silence.
            true => format!("{}{OVER_TLS}", address.endpoint()),
            false => address.endpoint(),
        };
        let server = format!("the Redis server at {endpoint}");
        let address = match address {
            ServerAddress::Fixed(client) => with_our_settings(client, &endpoint)?.into(),
            ServerAddress::Group(group) => ServerAddress::Group(Arc::clone(group)),
        };
        Ok(Arc::new(Self {
            address,
            health: Arc::new(ServerHealth::new(endpoint, clock, listener)),
            connection: ConnectOnce::new(server, connect_timeout, BACKOFF),
            response_timeout,
            interested: Mutex::default(),
        }))
    }

    /// Host and port, or the path of the socket: never a credential.
    pub(crate) fn endpoint(&self) -> &str {
        &self.health.endpoint
    }

    /// The answer to one request of a batch by `limit`, which the batch does not end by if it has requests with
    /// longer limits.
    pub(crate) async fn within<T>(
        &self,
        limit: Duration,
        answer: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        // A timer as that of an exchange: it bounds a call, and decides nothing.
        let answer = tokio::time::timeout(limit, answer).await;
        answer.unwrap_or_else(|_| Err(no_answer(self.endpoint(), limit)))
    }

    /// How long answers have taken lately.
    pub(crate) fn round_trip(&self) -> Duration {
        self.health.round_trip()
    }

    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        &self.health.clock
    }

    /// The connection, if there is one that may be used.
    fn current(&self) -> Option<Arc<NodeConnection>> {
        self.connection.forget(|connection| connection.is_over());
        self.connection.current()
    }

    /// The connection, opened if there is none.
    async fn connected(&self, end: ClockInstant) -> Result<Arc<NodeConnection>> {
        if let Some(connection) = self.current() {
            return Ok(connection);
        }
        let (address, health) = (self.address.clone(), Arc::clone(&self.health));
        let connect = || async move { NodeConnection::open(address, health).await.map(Arc::new) };
        self.connection.get(end.since(self.health.clock.now()), connect).await
    }

    /// Runs a script by its digest, or by its text if the server does not know it, and reads the answer.
    /// One that cannot be read ends the connection: on it, answers may have come to belong to other
    /// requests.
    pub(crate) async fn ask<T>(
        &self,
        call: ScriptCall<'_>,
        limit: Duration,
        read: impl FnOnce(Value) -> Result<T> + Send,
    ) -> Result<T> {
        let end = self.clock().now() + limit;
        let connection = self.connected(end).await?;
        let patience = self.response_timeout;
        let process = match call.is_of_process() {
            true => Some(self.process(&connection, end).await?),
            false => None,
        };
        let process = process.as_deref();
        let mut answer = connection.exchange(&call.by_digest(process), end, patience).await?;
        if let Err(error) = &answer
            && error.kind() == DriverKind::Server(ServerErrorKind::NoScript)
        {
            tracing::debug!(target: "distlock", endpoint = %self.endpoint(), script = call.name(), "sending a script that the server does not have");
            answer = connection.exchange(&call.by_text(process), end, patience).await?;
        }
        let answer = self.described(answer)?;
        if process.is_some() && names_another_process(&answer) {
            // Only what was sent: another call may have asked since.
            connection.process.lock().take_if(|known| Some(&**known) == process);
        }
        read(answer).inspect_err(|_| connection.distrust())
    }

    /// The process to which the connection leads, as a marker names it. It is asked for once, or once by each of several calls
    /// that begin together, since no connection outlives its process, and sentinels end those of a master that they demote; and
    /// again once the marker names another one: a master that goes on for long without a replica changes its `master_replid`.
    async fn process(
        &self,
        connection: &Arc<NodeConnection>,
        end: ClockInstant,
    ) -> Result<Arc<str>> {
        let known = connection.process.lock().clone();
        if let Some(process) = known {
            return Ok(process);
        }
        let info = connection.exchange(&redis::cmd("INFO"), end, self.response_timeout).await?;
        let process = process_in(&self.described(info)?);
        // What another call has been told since is younger than the answer to one that was not polled for long.
        Ok(Arc::clone(connection.process.lock().get_or_insert(process)))
    }

    /// Sends one command.
    pub(crate) async fn command(&self, command: &Cmd, limit: Duration) -> Result<Value> {
        let end = self.clock().now() + limit;
        let connection = self.connected(end).await?;
        self.described(connection.exchange(command, end, self.response_timeout).await?)
    }

    fn described(&self, answer: std::result::Result<Value, RedisError>) -> Result<Value> {
        answer.map_err(|error| from_redis(error, RequestStage::Sent, self.endpoint()))
    }

    /// Asks whether the server is there.
    pub(crate) async fn ping(&self, limit: Duration) -> Result<()> {
        self.command(&redis::cmd("PING"), limit).await.map(drop)
    }

    /// The locks that `lock_of` reads in the names of keys, found by a walk through all keys with `SCAN`, which
    /// does not block the server. `rest` matches what these names have behind the name of the lock. With each
    /// lock, whether it was found by an auxiliary key. Some are listed more than once.
    pub(crate) async fn find(
        &self,
        (prefix, name_start): (&str, &str),
        (rest, lock_of): (&str, fn(&str) -> Option<&str>),
        limit: Duration,
    ) -> Result<Vec<(LockKey, bool)>> {
        // The auxiliary key contains the lock key, with or without braces.
        let start = LockKey::encoded_start(prefix, name_start);
        let pattern = format!("*{}*{rest}", escape_glob(&start));
        let wanted = |key: &LockKey| key.prefix() == prefix && key.name().starts_with(name_start);
        let mut keys = Vec::new();
        let mut cursor = b"0".to_vec();
        loop {
            let mut scan = redis::cmd("SCAN");
            scan.arg(&cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(STEP);
            let answer = self.command(&scan, limit).await?;
            let reply = ReplyReader::new("SCAN", &answer)?;
            let found = reply.list(1)?;
            for at in 0..found.len() {
                let Ok(found) = std::str::from_utf8(found.bytes(at)?) else { continue };
                let key = lock_of(found).and_then(|lock| LockKey::decode(lock).ok());
                keys.extend(key.filter(wanted).map(|key| (key, Keys::is_part(found))));
            }
            cursor = reply.bytes(0)?.to_vec();
            if cursor == b"0" {
                return Ok(keys);
            }
        }
    }

    /// Registers a waiter for pushes until the value is dropped: a lost connection is reopened, and
    /// a silent one is detected.
    pub(crate) fn interest(self: &Arc<Self>) -> Interest {
        let Ok(runtime) = Handle::try_current() else { return Interest { _counted: None } };
        let mut interested = self.interested.lock();
        if let Some(counted) = interested.get(&runtime.id()).cloned() {
            drop(interested);
            if self.current().is_none() {
                self.health.attention.notify_waiters();
            }
            return Interest { _counted: Some(counted) };
        }
        let counted = Arc::new(());
        interested.insert(runtime.id(), Arc::clone(&counted));
        drop(interested);
        let (node, runtime) = (Arc::clone(self), runtime.id());
        let upkeep = Upkeep { node, runtime, counted: Arc::clone(&counted) };
        self.health.tasks.spawn(upkeep.run());
        Interest { _counted: Some(counted) }
    }

    /// Runs `work` in the background, until the end of [`shut_down`](Self::shut_down). Without a
    /// runtime it is dropped.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.health.tasks.spawn(work);
    }

    /// Drops the connection. Calls fail from then on.
    pub(crate) fn close(&self) {
        drop(self.connection.close());
        self.health.attention.notify_waiters();
    }

    /// Like [`close`](Self::close), and ends the background work.
    pub(crate) async fn shut_down(&self) {
        self.close();
        self.health.tasks.close(Duration::ZERO).await;
    }
}

/// The task that keeps the connection up for one runtime. It looks only now and then whether it is still
/// wanted: a claim that comes right after another one finds it running.
struct Upkeep {
    node: Arc<Node>,
    runtime: Id,
    counted: Arc<()>,
}

impl Upkeep {
    async fn run(self) {
        let node = &self.node;
        while self.is_wanted() {
            // What is told from here on is not missed.
            let attention = node.health.attention.notified();
            let pause = match node.current() {
                None => {
                    // Attempts that fail are spaced.
                    let made = node.connected(node.health.clock.now() + CONNECTING).await;
                    if made.is_err_and(|error| error.kind() == ErrorKind::Closed) {
                        return;
                    }
                    continue;
                }
                Some(connection) => match PING_EVERY.saturating_sub(node.health.silent_for()) {
                    Duration::ZERO => {
                        // A failure gives the connection up, which the next round sees.
                        let _ = connection.ping(PING_LIMIT).await;
                        PAUSE
                    }
                    left => left,
                },
            };
            tokio::select! {
                () = attention => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Whether anybody waits. If not, the next one begins another task.
    fn is_wanted(&self) -> bool {
        let mut interested = self.node.interested.lock();
        // Besides those who wait, the table and this task have one each.
        let is_wanted = Arc::strong_count(&self.counted) > 2;
        if !is_wanted {
            interested.remove(&self.runtime);
        }
        is_wanted
    }
}

impl Drop for Upkeep {
    /// Also with the runtime, or before it has begun. There may be a next one by now.
    fn drop(&mut self) {
        let mut interested = self.node.interested.lock();
        if interested.get(&self.runtime).is_some_and(|own| Arc::ptr_eq(own, &self.counted)) {
            interested.remove(&self.runtime);
        }
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Node").field(&self.endpoint()).finish()
    }
}

#[cfg(test)]
mod tests {
    use lock_core::SystemClock;

    use super::*;

    #[tokio::test]
    async fn claims_that_follow_each_other_share_a_task() {
        let address = redis::Client::open("redis://127.0.0.1:1").unwrap().into();
        let limits = (CONNECTING, CONNECTING);
        let node = Node::new(&address, limits, Arc::new(SystemClock::default()), None).unwrap();
        let tasks = || Handle::current().metrics().num_alive_tasks();
        let before = tasks();
        for _ in 0..100 {
            drop(node.interest());
        }
        assert_eq!(tasks(), before + 1);
        // It ends when it sees that nobody waits; then there is none, and the next claim has one again.
        let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
        while !node.interested.lock().is_empty() {
            assert!(tokio::time::Instant::now() < deadline, "a task that nobody needs goes on");
            tokio::time::sleep(PAUSE).await;
        }
        let interest = node.interest();
        tokio::task::yield_now().await;
        assert_eq!(node.interested.lock().len(), 1);
        drop(interest);
    }
}
