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

use crate::error::{Reply, RequestFailure};
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
    left: VecDeque<LeftBehind>,
}

/// What a claim has left behind in this session.
#[derive(Debug)]
struct LeftBehind {
    entries: LeftEntries,
    bytes: usize,
    /// The server has refused to remove it.
    is_refused: bool,
}

impl Usage {
    /// See [`SharedSession::tried_to_remove`].
    fn tried_to_remove(
        &mut self,
        entries: &LeftEntries,
        removed: Reply<()>,
    ) -> Option<RequestFailure> {
        let at = self.left.iter().position(|known| known.entries == *entries)?;
        let mut left = self.left.remove(at)?;
        let Err(failure) = removed else {
            self.bytes -= left.bytes;
            return None;
        };
        // A lost connection comes back.
        let is_news = failure.is_refusal() && !std::mem::replace(&mut left.is_refused, true);
        self.left.push_back(left);
        is_news.then_some(failure)
    }
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
        let left = usage.left.iter().map(|left| &left.entries);
        left.filter(|left| now.since(left.dropped) >= self.timeout).cloned().collect()
    }

    /// Their removal was tried. What could not be removed is tried again after all others. Returns why the server has
    /// refused that, the first time: the lock is kept from everybody until somebody acts.
    pub(super) fn tried_to_remove(
        &self,
        left: &LeftEntries,
        removed: Reply<()>,
    ) -> Option<RequestFailure> {
        self.usage.lock().tried_to_remove(left, removed)
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
        let (entries, bytes, is_refused) = (left, self.bytes, false);
        usage.left.push_back(LeftBehind { entries, bytes, is_refused });
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_removal_is_reported_once_and_tried_again() {
        let dropped = ClockInstant::from_nanos(0);
        let [one, other] = ["one", "other"].map(|prefix| LeftEntries {
            parent: "/locks/a".to_owned(),
            prefix: prefix.to_owned(),
            dropped,
        });
        let left = [&one, &other].map(|left| LeftBehind {
            entries: left.clone(),
            bytes: 10,
            is_refused: false,
        });
        let (seats, bytes, idle_since) = (0, 20, dropped);
        let mut usage = Usage { seats, bytes, idle_since, retired: false, left: left.into() };
        let lost = || Err(RequestFailure::SessionEnded);
        let refused = || Err(RequestFailure::Denied("delete".to_owned()));
        assert!(usage.tried_to_remove(&one, lost()).is_none());
        assert_eq!(usage.left[1].entries, one, "after all others");
        assert!(usage.tried_to_remove(&one, refused()).is_some());
        assert!(usage.tried_to_remove(&one, refused()).is_none());
        assert!(usage.tried_to_remove(&other, refused()).is_some());
        assert!(usage.tried_to_remove(&one, Ok(())).is_none());
        assert_eq!((usage.bytes, usage.left.len()), (10, 1));
    }
}
