//! What comes back from a server, over any of its connections: when it was last heard, how fast it answers,
//! and who receives its pushes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use lock_core::{Clock, ClockInstant};
use lock_kit::tasks::Tasks;
use tokio::sync::Notify;

/// What a node tells its listener. Called on the connection's task: it must not block.
#[derive(Debug)]
pub(crate) enum NodeEvent<'a> {
    /// A connection is open and the channel is subscribed. Earlier messages are lost.
    Up,
    /// A message was published on our channel.
    Message { payload: &'a [u8] },
}

/// The channel that each new connection subscribes to, and the callback.
pub(crate) struct Listener {
    pub(crate) channel: String,
    pub(crate) on_event: Box<dyn Fn(NodeEvent<'_>) + Send + Sync>,
}

/// When a server was last heard, how fast it answers, and who receives its pushes.
pub(super) struct ServerHealth {
    /// Host and port, or the path of the socket: never a credential.
    pub(super) endpoint: String,
    pub(super) clock: Arc<dyn Clock>,
    listener: Option<Listener>,
    /// In nanoseconds of the clock.
    last: AtomicU64,
    /// Smoothed, in microseconds.
    round_trip: AtomicU64,
    /// Notified when a connection is given up, and when one is needed.
    pub(super) attention: Notify,
    /// Background work beside the calls.
    pub(super) tasks: Tasks,
}

impl ServerHealth {
    pub(super) fn new(endpoint: String, clock: Arc<dyn Clock>, listener: Option<Listener>) -> Self {
        let now = clock.now();
        Self {
            endpoint,
            clock,
            listener,
            last: AtomicU64::new(now.as_nanos()),
            round_trip: AtomicU64::new(0),
            attention: Notify::new(),
            tasks: Tasks::default(),
        }
    }

    pub(super) fn channel(&self) -> Option<&str> {
        self.listener.as_ref().map(|listener| listener.channel.as_str())
    }

    pub(super) fn emit(&self, event: NodeEvent<'_>) {
        if let Some(listener) = &self.listener {
            (listener.on_event)(event);
        }
    }

    pub(super) fn note_push(&self, payload: &[u8]) {
        self.last.store(self.clock.now().as_nanos(), Relaxed);
        self.emit(NodeEvent::Message { payload });
    }

    /// Notes the answer to a request that was sent at `sent`.
    pub(super) fn note_answer(&self, sent: ClockInstant) {
        let now = self.clock.now();
        self.last.store(now.as_nanos(), Relaxed);
        let took = u64::try_from(now.since(sent).as_micros()).unwrap_or(u64::MAX).min(60_000_000);
        let before = self.round_trip.load(Relaxed);
        let smoothed = if before == 0 { took } else { (before * 7 + took) / 8 };
        self.round_trip.store(smoothed, Relaxed);
    }

    /// How long answers have taken lately.
    pub(super) fn round_trip(&self) -> Duration {
        Duration::from_micros(self.round_trip.load(Relaxed))
    }

    /// How long the server has been silent.
    pub(super) fn silent_for(&self) -> Duration {
        self.clock.now().since(ClockInstant::from_nanos(self.last.load(Relaxed)))
    }
}
