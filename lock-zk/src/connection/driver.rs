//! One connection of the driver, and only one.
//!
//! When its connection is lost, the driver connects again and resumes the session, but does not
//! report for how long the server keeps the session from then on, which may be less than before. So
//! its task runs here, and is dropped as soon as the connection is lost, before the driver can
//! reconnect. Instead, the session is resumed with a new client for each connection, which shows
//! what each server grants.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};
use std::task::{Context, Poll};
use std::time::Duration;

use spawns_core::{Spawn, Task};
use tokio_util::sync::CancellationToken;
use zookeeper_client as zk;

/// A connection, and the driver client that owns it.
pub(crate) struct Connection {
    client: zk::Client,
    /// How long the server keeps the session, as granted on this connection.
    pub(crate) granted: Duration,
    up: Arc<Up>,
}

/// Whether a connection is still up.
#[derive(Debug)]
struct Up {
    /// Locked while a channel to the driver's task is in use.
    is_up: RwLock<bool>,
    down: CancellationToken,
}

impl Up {
    fn read(&self) -> RwLockReadGuard<'_, bool> {
        self.is_up.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self) {
        *self.is_up.write().unwrap_or_else(PoisonError::into_inner) = false;
        self.down.cancel();
    }
}

/// The end of a connection, for the task that makes the next one. It does not keep the connection
/// alive.
pub(crate) struct End {
    up: Arc<Up>,
    states: zk::StateWatcher,
}

impl End {
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
) -> Result<Connection, zk::Error> {
    let taken = Taken::default();
    let mut connecting = Box::pin(connector.with_session_timeout(timeout).connect(host));
    let client = poll_fn(|cx| {
        let _scope = spawns_core::enter(&taken);
        connecting.as_mut().poll(cx)
    })
    .await?;
    let task = taken.0.into_inner().unwrap_or_else(PoisonError::into_inner);
    let task = task.ok_or_else(|| zk::Error::UnexpectedError("there is no task".to_owned()))?;
    let up = Arc::new(Up { is_up: RwLock::new(true), down: CancellationToken::new() });
    tokio::spawn(Served {
        states: client.state_watcher(),
        up: Arc::clone(&up),
        task: Box::into_pin(task.future),
    });
    Ok(Connection { granted: client.session_timeout(), client, up })
}

impl Connection {
    pub(crate) fn end(&self) -> End {
        End { up: Arc::clone(&self.up), states: self.client.state_watcher() }
    }

    pub(crate) fn client(&self) -> &zk::Client {
        &self.client
    }

    pub(crate) fn is_up(&self) -> bool {
        *self.up.read()
    }

    /// Sends a request, which the driver does in `call` itself; does nothing if the connection is
    /// lost.
    pub(crate) fn send<'a, T>(&'a self, call: impl FnOnce(&'a zk::Client) -> T) -> Option<T> {
        let is_up = self.up.read();
        is_up.then(|| call(&self.client))
    }

    pub(crate) fn listen(&self, watcher: zk::OneshotWatcher) -> Watch {
        Watch { up: Arc::clone(&self.up), event: Box::pin(watcher.changed()) }
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("up", &self.up).finish_non_exhaustive()
    }
}

/// Captures the driver's task, which would be spawned.
#[derive(Default)]
struct Taken(Mutex<Option<Task>>);

impl Spawn for Taken {
    fn spawn(&self, task: Task) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(task);
    }
}

/// Runs the driver's task while its connection is up. Between the loss of a connection and the
/// first byte of the next one the driver waits at least once, so it gets no further.
struct Served {
    task: Pin<Box<dyn Future<Output = ()> + Send>>,
    states: zk::StateWatcher,
    up: Arc<Up>,
}

impl Future for Served {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.task.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        // Any change of state means the end, since it began connected.
        pin!(self.states.changed()).poll(cx).map(drop)
    }
}

impl Drop for Served {
    /// Before the task is dropped, and with it the other ends of all requests and watches.
    fn drop(&mut self) {
        self.up.end();
    }
}

/// The outcome of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// The node has changed or is gone.
    Change,
    /// The connection is lost, and the watch with it.
    Cut,
}

/// A watch set on one connection. It does not keep the connection alive.
pub(crate) struct Watch {
    up: Arc<Up>,
    event: Pin<Box<dyn Future<Output = zk::WatchedEvent> + Send + Sync>>,
}

impl Future for Watch {
    type Output = Event;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Event> {
        let up = Arc::clone(&self.up);
        // The driver's watches panic when its task is gone.
        let is_up = up.read();
        if !*is_up {
            return Poll::Ready(Event::Cut);
        }
        // When the task is dropped, the driver wakes this.
        self.event.as_mut().poll(cx).map(|event| match event.event_type {
            zk::EventType::Session => Event::Cut,
            _ => Event::Change,
        })
    }
}
