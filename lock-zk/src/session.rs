//! One session with the ensemble, and what is known of its life.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use lock_core::{Clock, ClockInstant};
use tokio::sync::OnceCell;

use crate::config::ZkConfig;
use crate::renewals::Renewals;
use crate::seat::Room;
use crate::timeline::Timeline;
use crate::transport::{Checked, Entered, Failure, Link, Node, Watch};

/// A session. Claims with one ttl share it, and live and die with it.
pub(crate) struct Session {
    link: Arc<Link>,
    clock: Arc<dyn Clock>,
    pub(crate) config: Arc<ZkConfig>,
    /// The timeout that was asked for, and the one that the server has set, which may be longer.
    asked: Duration,
    timeout: Duration,
    timeline: Mutex<Timeline>,
    pub(crate) renewals: Renewals,
    pub(crate) room: Mutex<Room>,
    /// What a fence is counted from. A session belongs to one ensemble, and so does this.
    pub(crate) fence_base: OnceCell<u64>,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("link", &self.link)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

impl Session {
    /// Begins to tend a session with this timeout, as it was asked for and as it was granted. Must be
    /// called within a runtime.
    pub(crate) fn start(
        link: Arc<Link>,
        (asked, timeout): (Duration, Duration),
        timeline: Timeline,
        clock: Arc<dyn Clock>,
        config: Arc<ZkConfig>,
    ) -> Arc<Self> {
        let session = Arc::new(Self {
            link,
            room: Mutex::new(Room::new(clock.now())),
            clock,
            config,
            asked,
            timeout,
            timeline: Mutex::new(timeline),
            renewals: Renewals::default(),
            fence_base: OnceCell::new(),
        });
        tokio::spawn(tend(Arc::downgrade(&session), Timeline::beat(timeout)));
        session
    }

    pub(crate) fn link(&self) -> &Arc<Link> {
        &self.link
    }

    pub(crate) fn now(&self) -> ClockInstant {
        self.clock.now()
    }

    pub(crate) fn id(&self) -> i64 {
        self.link.session_id()
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
        self.link.ended().is_cancelled()
    }

    /// Ready when the session is over for good.
    pub(crate) async fn ended(&self) {
        self.link.ended().cancelled().await;
    }

    /// For how long after `start` the server keeps this session at least.
    pub(crate) fn valid_for(&self, start: ClockInstant) -> Duration {
        self.timeline().until().since(start)
    }

    /// For how long from now the server keeps this session at least.
    pub(crate) fn left(&self) -> Duration {
        self.valid_for(self.clock.now())
    }

    /// How often the leader is asked, whoever else asks.
    pub(crate) fn beat(&self) -> Duration {
        Timeline::beat(self.timeout)
    }

    fn timeline(&self) -> MutexGuard<'_, Timeline> {
        self.timeline.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What any server may answer by itself: it says nothing of the leader.
    fn read<T>(&self, _sent: ClockInstant, result: Result<T, Failure>) -> Result<T, Failure> {
        #[cfg(distlock_mutants)]
        if crate::mutants::is("beat_by_reads") && is_answer(&result) {
            self.timeline().answered(_sent, self.clock.now());
        }
        self.note_end(result)
    }

    /// What the leader has to decide, and refuses to a session that has ended; its other refusals count
    /// as well.
    fn write<T>(&self, sent: ClockInstant, result: Result<T, Failure>) -> Result<T, Failure> {
        if is_answer(&result) {
            self.timeline().committed(sent, self.clock.now());
        }
        self.note_end(result)
    }

    fn note_end<T>(&self, result: Result<T, Failure>) -> Result<T, Failure> {
        if matches!(result, Err(Failure::SessionEnded)) {
            self.link.ended().cancel();
        }
        result
    }

    /// Makes a node and the nodes above it, as far as they are missing.
    pub(crate) async fn create_parents(&self, path: &str) -> Result<(), Failure> {
        let mut missing = vec![path];
        while let Some(path) = missing.last().copied() {
            let sent = self.clock.now();
            match self.write(sent, self.link.create_parent(path).await) {
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

    pub(crate) async fn enter(
        &self,
        parent: &str,
        prefix: &str,
        data: &[u8],
    ) -> (Result<Entered, Failure>, Result<Vec<String>, Failure>) {
        let sent = self.clock.now();
        let (entered, children) = self.link.enter(parent, prefix, data).await;
        (self.write(sent, entered), children)
    }

    pub(crate) async fn list(&self, path: &str) -> Result<Vec<String>, Failure> {
        let sent = self.clock.now();
        self.read(sent, self.link.list(path).await)
    }

    pub(crate) async fn sync(&self, path: &str) -> Result<(), Failure> {
        let sent = self.clock.now();
        let answer = self.link.sync(path).await;
        self.synced(sent, answer)
    }

    /// The leader answers a `sync`, but does not ask whether the session exists.
    fn synced(&self, sent: ClockInstant, answer: Result<(), Failure>) -> Result<(), Failure> {
        if is_answer(&answer) {
            self.timeline().answered(sent, self.clock.now());
        }
        self.note_end(answer)
    }

    /// The children of a node as they were when the leader was asked, or later.
    pub(crate) async fn sync_and_list(&self, path: &str) -> Result<Vec<String>, Failure> {
        let sent = self.clock.now();
        let (synced, children) = self.link.sync_and_list(path).await;
        self.synced(sent, synced)?;
        self.note_end(children)
    }

    async fn tick(&self) -> Result<(), Failure> {
        let root = &self.config.root;
        #[cfg(distlock_mutants)]
        if crate::mutants::is("beat_by_reads") {
            return self.get(root).await.map(drop);
        }
        self.sync(root).await
    }

    pub(crate) async fn create_record(&self, path: &str, data: &[u8]) -> Result<(), Failure> {
        let sent = self.clock.now();
        self.write(sent, self.link.create_record(path, data).await)
    }

    pub(crate) async fn get(&self, path: &str) -> Result<Option<Node>, Failure> {
        let sent = self.clock.now();
        self.read(sent, self.link.get(path).await)
    }

    pub(crate) async fn watch(&self, path: &str) -> Result<Option<Watch>, Failure> {
        let sent = self.clock.now();
        self.read(sent, self.link.watch(path).await)
    }

    #[cfg(distlock_mutants)]
    pub(crate) async fn watch_children(&self, path: &str) -> Result<Option<Watch>, Failure> {
        self.link.watch_children(path).await
    }

    /// What a mutant does: takes a read for a proof that the session lives.
    #[cfg(distlock_mutants)]
    pub(crate) fn believe(&self) {
        let now = self.clock.now();
        *self.timeline() = Timeline::new(self.timeout, now, now);
    }

    pub(crate) async fn check(&self, paths: &[&str]) -> Result<Checked, Failure> {
        let sent = self.clock.now();
        self.write(sent, self.link.check(paths).await)
    }

    pub(crate) async fn delete(&self, path: &str) -> Result<(), Failure> {
        let sent = self.clock.now();
        self.write(sent, self.link.delete(path).await)
    }

    pub(crate) async fn close(&self) {
        self.link.close().await;
    }
}

/// No lock stands deeper than this; a server that says otherwise is not asked for ever.
const DEEPEST: usize = 64;

fn is_answer<T>(result: &Result<T, Failure>) -> bool {
    !matches!(
        result,
        Err(Failure::Unknown(_) | Failure::SessionEnded | Failure::Refused(_) | Failure::Denied)
    )
}

/// Asks the leader at a steady pace, so that there are always requests of the right age: see
/// [`Timeline`]. `sync` needs no right to any node. These requests take the place of the driver's own
/// pings. A session that nobody has used for a while is closed.
async fn tend(session: Weak<Session>, beat: Duration) {
    loop {
        {
            let Some(session) = session.upgrade() else { return };
            if session.has_ended() {
                return;
            }
            if session.retire_if_idle() {
                session.close().await;
                return;
            }
            // A lost connection is the link's concern; a silent one ends this wait.
            let _ = tokio::time::timeout(session.timeout / 2, session.tick()).await;
        }
        tokio::time::sleep(beat).await;
    }
}
