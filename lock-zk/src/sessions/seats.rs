//! How many claims one session carries.
//!
//! The end of a session is one transaction with the paths of all its nodes. A server that has
//! written one of more than a megabyte cannot read it back, and never restarts (ZOOKEEPER-4306). So
//! a session takes claims up to a fraction of that, and further claims get another session.

use std::collections::{HashSet, VecDeque};
use std::ops::Deref;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use lock_core::ClockInstant;
use parking_lot::Mutex;

use crate::queue::confirmations::Confirmations;
use crate::settings::ZkConfig;
use crate::wire::Session;

/// A session that claims have seats in, and their common state.
#[derive(Debug)]
pub(crate) struct SharedSession {
    session: Arc<Session>,
    pub(crate) config: Arc<ZkConfig>,
    /// The requested timeout. The server may have set a longer one.
    pub(super) asked: Duration,
    pub(crate) confirmations: Confirmations,
    /// The base of the fences, once known.
    pub(crate) base: OnceLock<u64>,
    /// Nodes of locks that were there when they were last used. The servers remove one a while after its queue is
    /// empty.
    known: Mutex<HashSet<String>>,
    usage: Mutex<Usage>,
}

/// So many nodes of locks are known at most; then all are forgotten.
const MOST_KNOWN: usize = 4096;

/// The usage of one session by claims.
#[derive(Debug)]
struct Usage {
    seats: usize,
    /// In the paths of their nodes, and of those left behind.
    bytes: usize,
    idle_since: ClockInstant,
    /// No more seats are given out.
    retired: bool,
    /// With the bytes of each.
    left: VecDeque<(LeftEntries, usize)>,
}

/// The entries that a claim may have left in a queue when it was dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LeftEntries {
    /// The node of the lock.
    pub(crate) parent: String,
    /// The beginning of their names.
    pub(crate) prefix: String,
    pub(crate) dropped: ClockInstant,
}

impl Deref for SharedSession {
    type Target = Session;

    fn deref(&self) -> &Session {
        &self.session
    }
}

impl SharedSession {
    pub(super) fn new(session: Arc<Session>, asked: Duration, config: Arc<ZkConfig>) -> Arc<Self> {
        let (seats, bytes, idle_since) = (0, 0, session.now());
        let usage = Usage { seats, bytes, idle_since, retired: false, left: VecDeque::new() };
        Arc::new(Self {
            confirmations: Confirmations::new(Arc::clone(&session)),
            base: OnceLock::new(),
            known: Mutex::default(),
            usage: Mutex::new(usage),
            config,
            asked,
            session,
        })
    }

    /// A seat for a claim whose node has a path of `bytes`, without the chroot; `None` if there is
    /// no room.
    pub(super) fn seat(self: &Arc<Self>, bytes: usize) -> Option<SessionSeat> {
        let bytes = if bytes == 0 { 0 } else { self.path_len(bytes) };
        let mut usage = self.usage.lock();
        let is_full = usage.bytes > 0 && usage.bytes + bytes > self.config.path_limit;
        if is_full || usage.retired || self.has_ended() {
            return None;
        }
        usage.seats += 1;
        usage.bytes += bytes;
        Some(SessionSeat { open: Arc::clone(self), bytes })
    }

    /// Whether the node of a lock was there when it was last used.
    pub(crate) fn knows(&self, node: &str) -> bool {
        self.known.lock().contains(node)
    }

    /// The node of a lock is there.
    pub(crate) fn found(&self, node: &str) {
        let mut known = self.known.lock();
        if known.len() >= MOST_KNOWN {
            known.clear();
        }
        known.insert(node.to_owned());
    }

    /// The node of a lock is not there.
    pub(crate) fn missed(&self, node: &str) {
        self.known.lock().remove(node);
    }

    /// Whether this session is over or about to end.
    pub(super) fn is_leaving(&self) -> bool {
        self.usage.lock().retired || self.has_ended()
    }

    /// What was left behind for so long that no holder can count on it any more.
    pub(super) fn overdue(&self) -> Vec<LeftEntries> {
        let (now, usage) = (self.now(), self.usage.lock());
        let left = usage.left.iter().map(|(left, _)| left);
        left.filter(|left| now.since(left.dropped) >= self.timeout).cloned().collect()
    }

    /// Its removal was tried. What could not be removed is tried again after all others.
    pub(super) fn tried_to_remove(&self, left: &LeftEntries, is_removed: bool) {
        let mut usage = self.usage.lock();
        let at = usage.left.iter().position(|(known, _)| known == left);
        let Some((left, bytes)) = at.and_then(|at| usage.left.remove(at)) else { return };
        if is_removed {
            usage.bytes -= bytes;
        } else {
            usage.left.push_back((left, bytes));
        }
    }

    /// Retires the session if it has had no seat for a while; then no more are given out.
    pub(super) fn retire_if_idle(&self) -> bool {
        let mut usage = self.usage.lock();
        let idle = self.now().since(usage.idle_since);
        usage.retired |= usage.seats == 0 && idle >= self.config.idle_limit;
        usage.retired
    }
}

/// A seat in a session, held until dropped.
#[derive(Debug)]
pub(crate) struct SessionSeat {
    open: Arc<SharedSession>,
    bytes: usize,
}

impl Deref for SessionSeat {
    type Target = Arc<SharedSession>;

    fn deref(&self) -> &Arc<SharedSession> {
        &self.open
    }
}

impl SessionSeat {
    /// Notes what the claim with this seat may have left behind: its path counts for as long as the node may be there.
    pub(crate) fn leave_behind(&self, left: LeftEntries) {
        let mut usage = self.open.usage.lock();
        usage.bytes += self.bytes;
        usage.left.push_back((left, self.bytes));
    }
}

impl Drop for SessionSeat {
    fn drop(&mut self) {
        let mut usage = self.open.usage.lock();
        usage.seats -= 1;
        usage.bytes -= self.bytes;
        usage.idle_since = self.open.now();
    }
}
