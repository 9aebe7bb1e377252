//! One connection of the driver, and only one.
//!
//! When its connection is lost, the driver connects again and resumes the session, but does not
//! report for how long the server keeps the session from then on, which may be less than before. So
//! its task runs here, and is dropped as soon as the connection is lost, before the driver can
//! reconnect. Instead, the session is resumed with a new client for each connection, which shows
//! what each server grants.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use spawns_core::{Spawn, Task};
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;
use zookeeper_client as zk;

use crate::error::got_none;

/// A connection, and the driver client that owns it.
pub(crate) struct DriverConnection {
    client: zk::Client,
    /// How long the server keeps the session, as granted on this connection.
    pub(crate) granted: Duration,
    up: Arc<ConnectionFlag>,
    /// The driver's task.
    task: AbortHandle,
}

/// Whether a connection is still up.
struct ConnectionFlag {
    /// Locked while a channel to the driver's task is in use.
    is_up: RwLock<bool>,
    down: CancellationToken,
    /// The driver has answered every request that it had taken, as it does when it loses its
    /// connection. It does not if it panics.
    has_answered: AtomicBool,
}

impl ConnectionFlag {
    fn new() -> Self {
        let (is_up, has_answered) = (RwLock::new(true), AtomicBool::new(false));
        Self { is_up, down: CancellationToken::new(), has_answered }
    }

    fn end(&self) {
        *self.is_up.write() = false;
        self.down.cancel();
    }
}

/// The end of a connection, for the task that makes the next one. It does not keep the connection
/// alive.
pub(crate) struct ConnectionEnd {
    up: Arc<ConnectionFlag>,
    states: zk::StateWatcher,
}

impl ConnectionEnd {
    /// Waits until the connection is lost; returns whether the session is lost with it.
    pub(crate) async fn wait(&self) -> bool {
        self.up.down.cancelled().await;
        self.states.peek_state().is_terminated()
    }
}

/// Connects to the server `host`, and asks for a session that lasts for `timeout`. If `connector`
/// has a session, it is resumed.
///
/// # Cancel safety
///
/// Cancel-safe: an abandoned new session ends after its timeout.
pub(crate) async fn connect(
    connector: zk::Connector,
    host: &str,
    timeout: Duration,
) -> Result<DriverConnection, zk::Error> {
    let taken = SpawnTrap::default();
    let mut connecting = Box::pin(connector.with_session_timeout(timeout).connect(host));
    let client = poll_fn(|cx| {
        let _scope = spawns_core::enter(&taken);
        connecting.as_mut().poll(cx)
    })
    .await?;
    let task = taken.0.into_inner();
    let task = task.ok_or_else(|| zk::Error::UnexpectedError("there is no task".to_owned()))?;
    let up = Arc::new(ConnectionFlag::new());
    let mut states = client.state_watcher();
    let served = tokio::spawn(DriverTask {
        lost: Box::pin(async move {
            states.changed().await;
        }),
        up: Arc::clone(&up),
        task: Box::into_pin(task.future),
    });
    let task = served.abort_handle();
    Ok(DriverConnection { granted: client.session_timeout(), client, up, task })
}

/// Ends a connection with its session, and returns when the server has confirmed it or is silent.
pub(crate) async fn close(connection: DriverConnection) {
    let up = Arc::clone(&connection.up);
    drop(connection);
    up.down.cancelled().await;
}

/// Ends a connection without its session. A connection that is dropped tells the server to end the
/// session, and its nodes are gone at once.
pub(crate) async fn sever(connection: DriverConnection) {
    connection.task.abort();
    // From then on the driver's task does nothing more.
    connection.up.down.cancelled().await;
}

impl DriverConnection {
    pub(crate) fn end(&self) -> ConnectionEnd {
        ConnectionEnd { up: Arc::clone(&self.up), states: self.client.state_watcher() }
    }

    pub(crate) fn client(&self) -> &zk::Client {
        &self.client
    }

    pub(crate) fn is_up(&self) -> bool {
        *self.up.is_up.read()
    }

    /// Sends a request, which the driver does in `call` itself; does nothing if the connection is
    /// lost.
    pub(crate) fn send<'a, T>(&'a self, call: impl FnOnce(&'a zk::Client) -> T) -> Option<T> {
        let is_up = self.up.is_up.read();
        is_up.then(|| call(&self.client))
    }

    /// Whether a request that failed was not sent: the connection was lost before the driver took
    /// it.
    pub(crate) fn has_not_sent(&self, error: &zk::Error) -> bool {
        got_none(error) && self.up.has_answered.load(Ordering::Acquire)
    }

    pub(crate) fn listen(&self, watcher: zk::OneshotWatcher) -> NodeWatch {
        NodeWatch { up: Arc::clone(&self.up), event: Box::pin(watcher.changed()) }
    }
}

/// Captures the driver's task, which would be spawned.
#[derive(Default)]
struct SpawnTrap(Mutex<Option<Task>>);

impl Spawn for SpawnTrap {
    fn spawn(&self, task: Task) {
        *self.0.lock() = Some(task);
    }
}

/// Runs the driver's task while its connection is up. Between the loss of a connection and the
/// first byte of the next one the driver waits at least once, so it gets no further.
struct DriverTask {
    task: Pin<Box<dyn Future<Output = ()> + Send>>,
    /// Any change of state, which means the end, since it began connected.
    lost: Pin<Box<dyn Future<Output = ()> + Send>>,
    up: Arc<ConnectionFlag>,
}

impl Future for DriverTask {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.task.as_mut().poll(cx).is_pending() && self.lost.as_mut().poll(cx).is_pending() {
            return Poll::Pending;
        }
        self.up.has_answered.store(true, Ordering::Release);
        Poll::Ready(())
    }
}

impl Drop for DriverTask {
    /// Before the task is dropped, and with it the other ends of all requests and watches.
    fn drop(&mut self) {
        self.up.end();
    }
}

/// The outcome of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WatchOutcome {
    /// The node has changed or is gone.
    Change,
    /// The connection is lost, and the watch with it.
    Cut,
}

/// A watch set on one connection. It does not keep the connection alive.
pub(crate) struct NodeWatch {
    up: Arc<ConnectionFlag>,
    event: Pin<Box<dyn Future<Output = zk::WatchedEvent> + Send + Sync>>,
}

impl Future for NodeWatch {
    type Output = WatchOutcome;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<WatchOutcome> {
        let up = Arc::clone(&self.up);
        // The driver's watches panic when its task is gone.
        let is_up = up.is_up.read();
        if !*is_up {
            return Poll::Ready(WatchOutcome::Cut);
        }
        // When the task is dropped, the driver wakes this.
        self.event.as_mut().poll(cx).map(|event| match event.event_type {
            zk::EventType::Session => WatchOutcome::Cut,
            _ => WatchOutcome::Change,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use tokio::sync::oneshot;

    use super::*;

    /// Serves a task that holds a request, and panics or loses its connection; returns whether the
    /// request is then known to be unsent.
    async fn is_unsent(panics: bool) -> bool {
        let up = Arc::new(ConnectionFlag::new());
        let (request, answer) = oneshot::channel::<()>();
        let task = async move {
            let _request = request;
            assert!(!panics, "as told");
            pending::<()>().await;
        };
        let (task, lost) = (Box::pin(task), Box::pin(ready(())));
        let served = tokio::spawn(DriverTask { task, lost, up: Arc::clone(&up) });
        answer.await.expect_err("nothing has answered it");
        let is_unsent = up.has_answered.load(Ordering::Acquire);
        drop(served.await);
        assert!(up.down.is_cancelled());
        is_unsent
    }

    /// The driver drops the requests that it had taken without a word if it panics, and answers them
    /// if it loses its connection.
    #[tokio::test(flavor = "multi_thread")]
    async fn what_a_panic_drops_may_have_been_sent() {
        for _ in 0..20 {
            assert!(!is_unsent(true).await);
            assert!(is_unsent(false).await);
        }
    }
}
