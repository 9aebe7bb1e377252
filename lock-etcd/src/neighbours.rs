//! What the claims of one client do for each other in a queue.
//!
//! The transaction by which a holder releases also reads which entry is now the first. If that is
//! the entry of another claim of this client, the answer is as good as that claim's own look: at one
//! revision its entry exists, and none is before it. So the claim need not ask. A proof changes
//! nothing in the store, so nothing is left behind if nobody takes it.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lock_core::ClockInstant;
use tokio::sync::{Notify, watch};

use crate::entry::Entry;
use crate::proto::KeyValue;
use crate::rules::Rules;
use crate::wake::Look;

/// If more claims of this client than these wait in a queue, they look for themselves. The server
/// reads the whole queue to find the first of it, and a transaction that writes does so slowly, while
/// all other writes wait.
const MOST: usize = 128;

/// All claims of a client.
#[derive(Debug)]
pub(crate) struct Neighbours {
    rules: Rules,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The places of claims that wait, by key.
    waiting: BTreeMap<String, Arc<Spot>>,
    /// The entries whose release has not been answered yet, by key.
    leaving: HashMap<String, watch::Receiver<()>>,
}

/// Where a claim waits.
#[derive(Debug)]
struct Spot {
    entry: Entry,
    proof: Mutex<Option<Proof>>,
    proven: Notify,
}

/// The proof that an entry is the first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Proof {
    pub(crate) look: Look,
    /// The revision at which it was the first.
    pub(crate) revision: i64,
    /// When the request was sent.
    sent: ClockInstant,
}

/// The place of a claim, until it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    neighbours: Arc<Neighbours>,
    spot: Arc<Spot>,
}

/// A release in flight, until it is dropped.
#[derive(Debug)]
pub(crate) struct Leaving {
    neighbours: Arc<Neighbours>,
    key: String,
    look: Look,
    sent: ClockInstant,
    /// Closed when this is dropped.
    _answered: watch::Sender<()>,
}

impl Neighbours {
    pub(crate) fn new(rules: Rules) -> Self {
        Self { rules, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        locked(&self.state)
    }

    /// A claim waits at `entry`.
    pub(crate) fn wait(self: &Arc<Self>, entry: &Entry) -> Place {
        let (proof, proven) = Default::default();
        let spot = Arc::new(Spot { entry: entry.clone(), proof, proven });
        self.state().waiting.insert(entry.key.clone(), Arc::clone(&spot));
        Place { neighbours: Arc::clone(self), spot }
    }

    /// The holder at `key` is about to release; `None` if no claim of this client waits in `queue`,
    /// or too many do.
    pub(crate) fn leave(
        self: &Arc<Self>,
        queue: &str,
        key: &str,
        look: Look,
        sent: ClockInstant,
    ) -> Option<Leaving> {
        let mut state = self.state();
        let waiting = state.waiting.range::<str, _>((Bound::Included(queue), Bound::Unbounded));
        let waiting = waiting.take_while(|(waits, _)| waits.starts_with(queue));
        if !(1..=MOST).contains(&waiting.take(MOST + 1).count()) {
            return None;
        }
        let (answered, is_answered) = watch::channel(());
        state.leaving.insert(key.to_owned(), is_answered);
        let (neighbours, key) = (Arc::clone(self), key.to_owned());
        Some(Leaving { neighbours, key, look, sent, _answered: answered })
    }

    /// The entry at `key` has gone. If one of ours has released it, the answer to that may be the
    /// proof that its neighbour needs: waits for the answer, but not for long. Whoever gets it may
    /// be stuck, on another runtime or in a task that is not polled.
    pub(crate) async fn answered(&self, key: &[u8]) {
        let leaving = std::str::from_utf8(key).ok();
        let leaving = leaving.and_then(|key| self.state().leaving.get(key).cloned());
        if let Some(mut leaving) = leaving {
            let _ = tokio::time::timeout(self.rules.answer_in, leaving.changed()).await;
        }
    }
}

impl Place {
    /// Whether it is that of `entry`.
    pub(crate) fn is_at(&self, entry: &Entry) -> bool {
        self.spot.entry == *entry
    }

    /// The proof that the entry is the first, if there is one that is no older than the answer to a
    /// look could be.
    pub(crate) fn take(&self, now: ClockInstant, limit: Duration) -> Option<Proof> {
        let proof = locked(&self.spot.proof).take();
        proof.filter(|proof| (self.neighbours.rules.is_fresh)(now.since(proof.sent), limit))
    }

    /// Resolves when there is a proof.
    pub(crate) async fn proven(&self) {
        self.spot.proven.notified().await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let (mut state, key) = (self.neighbours.state(), &self.spot.entry.key);
        if state.waiting.get(key).is_some_and(|spot| Arc::ptr_eq(spot, &self.spot)) {
            state.waiting.remove(key);
        }
    }
}

impl Leaving {
    /// The entry was deleted, and `first` was the first of its queue then.
    pub(crate) fn hand_on(&self, first: &KeyValue, revision: i64) {
        let Ok(key) = std::str::from_utf8(&first.key) else { return };
        let Some(spot) = self.neighbours.state().waiting.get(key).cloned() else { return };
        if (self.neighbours.rules.is_waiting)(&spot.entry, first) {
            *locked(&spot.proof) = Some(Proof { look: self.look, revision, sent: self.sent });
            spot.proven.notify_one();
        }
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        self.neighbours.state().leaving.remove(&self.key);
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::RULES;
    use lock_core::FencingToken;

    fn entry(key: &str, rev: i64) -> Entry {
        let fence = FencingToken::answered(rev).unwrap();
        Entry { key: key.to_owned(), rev, value: b"x".to_vec(), fence }
    }

    #[test]
    fn who_leaves_asks_only_for_neighbours_in_the_same_queue_and_not_for_many() {
        let neighbours = Arc::new(Neighbours::new(RULES));
        let now = ClockInstant::from_nanos(1);
        let asks = || neighbours.leave("a/", "a/0", Look::default(), now).is_some();
        let _others = [neighbours.wait(&entry("a", 1)), neighbours.wait(&entry("b/1", 2))];
        assert!(!asks());
        let mut places: Vec<_> =
            (1..).take(MOST).map(|at| neighbours.wait(&entry(&format!("a/{at}"), at))).collect();
        assert!(asks());
        places.push(neighbours.wait(&entry("a/last", 1000)));
        assert!(!asks());
        drop(places);
        assert!(!asks());
        assert!(neighbours.state().leaving.is_empty() && neighbours.state().waiting.len() == 2);
    }
}
