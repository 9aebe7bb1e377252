//! What the claims of one client do for each other in a queue.
//!
//! The transaction by which a holder releases also reads which entry is now the first. If that is
//! the entry of another claim of this client, the answer is as good as that claim's own look: at one
//! revision its entry exists, and none is before it. So the claim need not ask. A proof changes
//! nothing in the store, so nothing is left behind if nobody takes it.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use lock_core::ClockInstant;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use crate::queue::entry::QueueEntry;
use crate::rules;
use crate::watch::task::StreamCount;
use crate::wire::protobuf::KeyValue;

/// If more claims of this client than these wait in a queue, they look for themselves. The server
/// reads the whole queue to find the first of it, and a transaction that writes does so slowly, while
/// all other writes wait.
const MOST: usize = 128;

/// All claims of a client.
#[derive(Debug, Default)]
pub(crate) struct LocalHandover {
    state: Mutex<HandoverTable>,
}

#[derive(Debug, Default)]
struct HandoverTable {
    /// The places of claims that wait, by key.
    waiting: BTreeMap<String, Arc<WaiterSlot>>,
    /// The entries whose release has not been answered yet, by key.
    leaving: HashMap<String, watch::Receiver<()>>,
}

/// Where a claim waits.
#[derive(Debug)]
struct WaiterSlot {
    entry: QueueEntry,
    proof: Mutex<Option<FirstProof>>,
    proven: Notify,
}

/// The proof that an entry is the first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FirstProof {
    pub(crate) streams: StreamCount,
    /// The revision at which it was the first.
    pub(crate) revision: i64,
    /// When the request was sent.
    sent: ClockInstant,
}

/// The place of a claim, until it is dropped.
#[derive(Debug)]
pub(crate) struct WaiterHandle {
    handover: Arc<LocalHandover>,
    spot: Arc<WaiterSlot>,
}

/// A release in flight, until it is dropped.
#[derive(Debug)]
pub(crate) struct ReleaseInFlight {
    handover: Arc<LocalHandover>,
    key: String,
    streams: StreamCount,
    sent: ClockInstant,
    /// Closed when this is dropped.
    _answered: watch::Sender<()>,
}

impl LocalHandover {
    /// A claim waits at `entry`.
    pub(crate) fn register(self: &Arc<Self>, entry: &QueueEntry) -> WaiterHandle {
        let (proof, proven) = Default::default();
        let spot = Arc::new(WaiterSlot { entry: entry.clone(), proof, proven });
        self.state.lock().waiting.insert(entry.key.clone(), Arc::clone(&spot));
        WaiterHandle { handover: Arc::clone(self), spot }
    }

    /// The holder at `key` is about to release; `None` if no claim of this client waits in `queue`,
    /// or too many do.
    pub(crate) fn begin_release(
        self: &Arc<Self>,
        queue: &str,
        key: &str,
        streams: StreamCount,
        sent: ClockInstant,
    ) -> Option<ReleaseInFlight> {
        let mut state = self.state.lock();
        let waiting = state.waiting.range::<str, _>((Bound::Included(queue), Bound::Unbounded));
        let waiting = waiting.take_while(|(waits, _)| waits.starts_with(queue));
        if !(1..=MOST).contains(&waiting.take(MOST + 1).count()) {
            return None;
        }
        let (answered, is_answered) = watch::channel(());
        state.leaving.insert(key.to_owned(), is_answered);
        let (handover, key) = (Arc::clone(self), key.to_owned());
        Some(ReleaseInFlight { handover, key, streams, sent, _answered: answered })
    }

    /// The entry at `key` has gone. If one of ours has released it, the answer to that may be the
    /// proof that its neighbour needs: waits for the answer, but not for long. Whoever gets it may
    /// be stuck, on another runtime or in a task that is not polled.
    pub(crate) async fn release_answered(&self, key: &[u8]) {
        let leaving = std::str::from_utf8(key).ok();
        let leaving = leaving.and_then(|key| self.state.lock().leaving.get(key).cloned());
        if let Some(leaving) = leaving {
            rules::answered(leaving).await;
        }
    }
}

impl WaiterHandle {
    /// Whether it is that of `entry`.
    pub(crate) fn is_at(&self, entry: &QueueEntry) -> bool {
        self.spot.entry == *entry
    }

    /// The proof that the entry is the first, if there is one that is no older than the answer to a
    /// look could be.
    pub(crate) fn take(&self, now: ClockInstant, limit: Duration) -> Option<FirstProof> {
        let proof = self.spot.proof.lock().take();
        proof.filter(|proof| rules::is_fresh(now.since(proof.sent), limit))
    }

    /// Resolves when there is a proof.
    pub(crate) async fn proven(&self) {
        self.spot.proven.notified().await;
    }
}

impl Drop for WaiterHandle {
    fn drop(&mut self) {
        let (mut state, key) = (self.handover.state.lock(), &self.spot.entry.key);
        if state.waiting.get(key).is_some_and(|spot| Arc::ptr_eq(spot, &self.spot)) {
            state.waiting.remove(key);
        }
    }
}

impl ReleaseInFlight {
    /// The entry was deleted, and `first` was the first of its queue then.
    pub(crate) fn hand_on(&self, first: &KeyValue, revision: i64) {
        let Ok(key) = std::str::from_utf8(&first.key) else { return };
        let Some(spot) = self.handover.state.lock().waiting.get(key).cloned() else { return };
        if rules::is_waiting(&spot.entry, first) {
            *spot.proof.lock() =
                Some(FirstProof { streams: self.streams, revision, sent: self.sent });
            spot.proven.notify_one();
        }
    }
}

impl Drop for ReleaseInFlight {
    fn drop(&mut self) {
        self.handover.state.lock().leaving.remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lock_core::FencingToken;

    fn entry(key: &str, rev: i64) -> QueueEntry {
        let fence = FencingToken::answered(rev).unwrap();
        QueueEntry { key: key.to_owned(), rev, value: b"x".to_vec(), fence }
    }

    #[test]
    fn who_leaves_asks_only_for_neighbours_in_the_same_queue_and_not_for_many() {
        let handover = Arc::new(LocalHandover::default());
        let now = ClockInstant::from_nanos(1);
        let asks = || handover.begin_release("a/", "a/0", StreamCount::default(), now).is_some();
        let _others = [handover.register(&entry("a", 1)), handover.register(&entry("b/1", 2))];
        assert!(!asks());
        let mut places: Vec<_> =
            (1..).take(MOST).map(|at| handover.register(&entry(&format!("a/{at}"), at))).collect();
        assert!(asks());
        places.push(handover.register(&entry("a/last", 1000)));
        assert!(!asks());
        drop(places);
        assert!(!asks());
        assert!(
            handover.state.lock().leaving.is_empty() && handover.state.lock().waiting.len() == 2
        );
    }
}
