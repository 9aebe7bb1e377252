//! One session with the ensemble, and what is known of its life.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lock_core::{Clock, ClockInstant, Error};
use zookeeper_client::SessionInfo;

use crate::config::ZkConfig;
use crate::connection::reply::{Checked, Created, Failure, Node, Reply, Watch};
use crate::error::describe;
use crate::timeline::Timeline;
use crate::wire::Channel;

/// No lock stands deeper than this; a server that says otherwise is not asked for ever.
const DEEPEST: usize = 64;

/// A session. Claims with one ttl share it, and live and die with it.
pub(crate) struct Session {
    pub(crate) channel: Arc<Channel>,
    clock: Arc<dyn Clock>,
    pub(crate) config: Arc<ZkConfig>,
    /// The timeout that was asked for, and the one that the server has set, which may be longer.
    asked: Duration,
    timeout: Duration,
    timeline: Mutex<Timeline>,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("channel", &self.channel.session_id())
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

impl Session {
    /// A session with this timeout, as it was asked for and as it was granted.
    pub(crate) fn new(
        channel: Arc<Channel>,
        (asked, timeout): (Duration, Duration),
        timeline: Timeline,
        clock: Arc<dyn Clock>,
        config: Arc<ZkConfig>,
    ) -> Self {
        Self { channel, clock, config, asked, timeout, timeline: Mutex::new(timeline) }
    }

    pub(crate) fn now(&self) -> ClockInstant {
        self.clock.now()
    }

    pub(crate) fn id(&self) -> i64 {
        self.channel.session_id()
    }

    /// Id and password.
    pub(crate) fn info(&self) -> SessionInfo {
        self.channel.info().clone()
    }

    /// The session timeout that was asked for.
    pub(crate) fn asked(&self) -> Duration {
        self.asked
    }

    /// The session timeout that the server has set.
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.channel.ended().is_cancelled()
    }

    /// Ready when the session is over for good.
    pub(crate) async fn ended(&self) {
        self.channel.ended().cancelled().await;
    }

    /// For how long after `start` the server keeps this session at least.
    pub(crate) fn valid_for(&self, start: ClockInstant) -> Duration {
        self.timeline().until().since(start)
    }

    /// How often the leader is asked, whatever else is asked.
    pub(crate) fn beat(&self) -> Duration {
        Timeline::beat(self.timeout)
    }

    pub(crate) fn describe(&self, failure: &Failure) -> Error {
        describe(failure, self.channel.endpoint())
    }

    fn timeline(&self) -> MutexGuard<'_, Timeline> {
        self.timeline.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the leader has to decide, and refuses to a session that has ended; its other refusals count
    /// as well.
    fn decided<T>(&self, sent: ClockInstant, reply: Reply<T>) -> Reply<T> {
        if is_answer(&reply) {
            self.timeline().committed(sent, self.now());
        }
        self.note_end(reply)
    }

    /// The leader answers a `sync`, but does not ask whether the session exists.
    fn synced(&self, sent: ClockInstant, reply: Reply<()>) -> Reply<()> {
        if is_answer(&reply) {
            self.timeline().answered(sent, self.now());
        }
        self.note_end(reply)
    }

    /// What any server may answer by itself says nothing of the leader.
    fn note_end<T>(&self, reply: Reply<T>) -> Reply<T> {
        if matches!(reply, Err(Failure::SessionEnded)) {
            self.channel.ended().cancel();
        }
        reply
    }

    /// Makes a node and the nodes above it, as far as they are missing.
    pub(crate) async fn create_parents(&self, path: &str) -> Reply<()> {
        let mut missing = vec![path];
        while let Some(path) = missing.last().copied() {
            let sent = self.now();
            match self.decided(sent, self.channel.create_parent(path).await) {
                Ok(()) | Err(Failure::NodeExists) => {
                    missing.pop();
                }
                Err(Failure::NoNode) => match path.rfind('/') {
                    Some(at) if at > 0 && missing.len() < DEEPEST => missing.push(&path[..at]),
                    _ => return Err(Failure::NoNode),
                },
                Err(failure) => return Err(failure),
            }
        }
        Ok(())
    }

    /// Makes a node of ours, and lists the children of its parent as they are then.
    pub(crate) async fn create_and_list(
        &self,
        parent: &str,
        prefix: &str,
        data: &[u8],
    ) -> (Reply<Created>, Reply<Vec<String>>) {
        let sent = self.now();
        let (created, children) = self.channel.create_and_list(parent, prefix, data).await;
        (self.decided(sent, created), children)
    }

    pub(crate) async fn list(&self, path: &str) -> Reply<Vec<String>> {
        self.note_end(self.channel.list(path).await)
    }

    pub(crate) async fn sync(&self, path: &str) -> Reply<()> {
        let sent = self.now();
        self.synced(sent, self.channel.sync(path).await)
    }

    /// The children of a node as they were when the leader was asked, or later.
    pub(crate) async fn sync_and_list(&self, path: &str) -> Reply<Vec<String>> {
        let sent = self.now();
        let (synced, children) = self.channel.sync_and_list(path).await;
        self.synced(sent, synced)?;
        self.note_end(children)
    }

    pub(crate) async fn create_record(&self, path: &str, data: &[u8]) -> Reply<()> {
        let sent = self.now();
        self.decided(sent, self.channel.create_record(path, data).await)
    }

    pub(crate) async fn get(&self, path: &str) -> Reply<Option<Node>> {
        self.note_end(self.channel.get(path).await)
    }

    pub(crate) async fn watch(&self, path: &str) -> Reply<Option<Watch>> {
        self.note_end(self.channel.watch(path).await)
    }

    /// Asks the leader whether all these nodes exist.
    pub(crate) async fn check_all(&self, paths: &[&str]) -> Reply<Checked> {
        let sent = self.now();
        self.decided(sent, self.channel.check_all(paths).await)
    }

    /// Asks the leader whether this node exists: a server that is behind would show one that has gone.
    pub(crate) async fn check(&self, path: &str) -> Reply<bool> {
        let sent = self.now();
        self.decided(sent, self.channel.check(path).await)
    }

    pub(crate) async fn delete(&self, path: &str) -> Reply<()> {
        let sent = self.now();
        self.decided(sent, self.channel.delete(path).await)
    }
}

fn is_answer<T>(reply: &Reply<T>) -> bool {
    !matches!(
        reply,
        Err(Failure::Unknown(_) | Failure::SessionEnded | Failure::Refused(_) | Failure::Denied)
    )
}
