//! What the claims of one client do for each other in a queue: they share proofs, and one list of a long queue.
//!
//! *The proof.* The last look of a waiter showed the entry directly in front of it, and nothing ever comes between the
//! two: a new entry is created at a later revision than both, and so is one that is made again. The holder was the
//! first when it was granted the lock, and for the same reason nothing ever comes before it. So when the holder is
//! the entry in front, and the transaction that deletes it finds the waiter's, the waiter is the first: at that
//! revision its entry exists, and none is before it. No queue is read. If the holder has lost its entry by force, by
//! the end of its lease, or to another client, the transaction compares that and does nothing.
//!
//! Who releases proves that for a waiter of the same client, by reading its entry. For one of another client it writes
//! that entry as it is: when the waiter sees its own entry written at the revision at which the one in front was
//! deleted, only a holder's release can have done that, and it is the first from then on, as long as its own look finds
//! its entry so. Who deletes an entry and was not the holder writes no other.
//!
//! All that was looked at must be of one history: of two looks at a store that went back meanwhile, the earlier says
//! nothing of what is between or before two entries. So both are compared by what they stand on ([`Footing`]), before
//! and after. In any doubt the waiter looks at the queue, which is as right as it ever was. A proof changes nothing in
//! the store, so nothing is left behind if nobody takes it.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use lock_core::ClockInstant;
use parking_lot::Mutex;
use tokio::sync::{Mutex as Turn, Notify, watch};

use crate::error::EtcdFailure;
use crate::queue::entry::{EntryInFront, QueueEntry};
use crate::rules;
use crate::watch::task::Footing;
use crate::wire::protobuf::KeyValue;

/// If more claims of this client than these wait in a queue, it is long. To find the entry before another one, the
/// server reads the whole queue, and a transaction that writes does so slowly, while all other writes wait.
const MANY: usize = 64;

/// All claims of a client.
#[derive(Debug, Default)]
pub(crate) struct LocalHandover {
    state: Mutex<HandoverTable>,
    /// Held by the claim that lists a queue for all of them.
    turn: Turn<()>,
}

#[derive(Debug, Default)]
struct HandoverTable {
    /// The places of claims that wait, by the key in front of each.
    waiting: BTreeMap<Vec<u8>, Arc<WaiterSlot>>,
    /// The entries whose release has not been answered yet, by key.
    leaving: HashMap<String, watch::Receiver<()>>,
    /// The last lists of long queues, by their start.
    listed: HashMap<String, Arc<Listing>>,
}

/// Where a claim waits.
#[derive(Debug)]
struct WaiterSlot {
    entry: QueueEntry,
    in_front: EntryInFront,
    /// Of the look that has shown it.
    footing: Footing,
    proof: Mutex<Option<FirstProof>>,
    proven: Notify,
}

/// The proof that an entry is the first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FirstProof {
    pub(crate) footing: Footing,
    /// The revision at which it was the first.
    pub(crate) revision: i64,
    /// When the request was sent.
    sent: ClockInstant,
}

/// The entries of a queue at one revision, the oldest first.
#[derive(Debug)]
pub(crate) struct Listing {
    pub(crate) footing: Footing,
    pub(crate) revision: i64,
    entries: Vec<EntryInFront>,
}

/// The place of a claim, until it is dropped.
#[derive(Debug)]
pub(crate) struct WaiterHandle {
    handover: Arc<LocalHandover>,
    spot: Arc<WaiterSlot>,
}

/// A release in flight that is to prove the place of a neighbour, until it is dropped.
#[derive(Debug)]
pub(crate) struct ReleaseInFlight {
    handover: Arc<LocalHandover>,
    key: String,
    spot: Arc<WaiterSlot>,
    footing: Footing,
    sent: ClockInstant,
    /// Closed when this is dropped.
    _answered: watch::Sender<()>,
}

impl Listing {
    /// The `found` keys of a queue.
    pub(crate) fn new(footing: Footing, revision: i64, found: Vec<EntryInFront>) -> Self {
        let mut entries = found;
        entries.sort_unstable_by_key(|entry| entry.rev);
        Self { footing, revision, entries }
    }

    /// The one before the entry that was created at `rev`, if both are there.
    pub(crate) fn before(&self, rev: i64) -> Option<&EntryInFront> {
        let at = self.entries.binary_search_by_key(&rev, |entry| entry.rev).ok()?;
        self.entries.get(at.checked_sub(1)?)
    }

    /// The first one that was created after `rev`.
    fn after(&self, rev: i64) -> Option<&EntryInFront> {
        self.entries.get(self.entries.partition_point(|entry| entry.rev <= rev))
    }
}

impl HandoverTable {
    /// The claims that wait in `queue`.
    fn waiting(&self, queue: &str) -> impl Iterator<Item = &Arc<WaiterSlot>> {
        let from = (Bound::Included(queue.as_bytes()), Bound::Unbounded);
        let waiting = self.waiting.range::<[u8], _>(from);
        waiting.take_while(move |(key, _)| key.starts_with(queue.as_bytes())).map(|(_, spot)| spot)
    }
}

impl LocalHandover {
    /// A claim waits at `entry`, right behind `in_front`.
    pub(crate) fn register(
        self: &Arc<Self>,
        entry: &QueueEntry,
        in_front: &EntryInFront,
        footing: Footing,
    ) -> WaiterHandle {
        let (proof, proven) = Default::default();
        let (entry, in_front) = (entry.clone(), in_front.clone());
        let key = in_front.key.clone();
        let spot = Arc::new(WaiterSlot { entry, in_front, footing, proof, proven });
        self.state.lock().waiting.insert(key, Arc::clone(&spot));
        WaiterHandle { handover: Arc::clone(self), spot }
    }

    /// Whether `queue` is so long that who enters does not look at once.
    pub(crate) fn is_long(&self, queue: &str) -> bool {
        self.state.lock().waiting(queue).nth(MANY).is_some()
    }

    /// The list of `queue`, if it is of `revision` or later.
    fn known(&self, queue: &str, footing: Footing, revision: i64) -> Option<Arc<Listing>> {
        let state = self.state.lock();
        let listing = state.listed.get(queue)?;
        (listing.revision >= revision && listing.footing == footing).then(|| Arc::clone(listing))
    }

    /// The list of `queue` as of `revision` or later: what another claim has read, or what `read` does.
    pub(crate) async fn list(
        &self,
        queue: &str,
        footing: Footing,
        revision: i64,
        limit: Duration,
        read: impl Future<Output = Result<Listing, EtcdFailure>>,
    ) -> Result<Arc<Listing>, EtcdFailure> {
        // One that is stuck stops nobody.
        let _turn = tokio::time::timeout(limit / 4, self.turn.lock()).await;
        if let Some(known) = self.known(queue, footing, revision) {
            return Ok(known);
        }
        let listing = Arc::new(read.await?);
        self.state.lock().listed.insert(queue.to_owned(), Arc::clone(&listing));
        Ok(listing)
    }

    /// The holder at `entry` is about to release; `None` if no claim of this client waits right behind it.
    pub(crate) fn begin_release(
        self: &Arc<Self>,
        entry: &QueueEntry,
        footing: Footing,
        sent: ClockInstant,
    ) -> Option<ReleaseInFlight> {
        let mut state = self.state.lock();
        let spot = state.waiting.get(entry.key.as_bytes())?;
        let is_next = spot.in_front.rev == entry.rev;
        if !is_next || !rules::is_one_history(spot.footing, footing) {
            return None;
        }
        let (spot, (answered, is_answered)) = (Arc::clone(spot), watch::channel(()));
        state.leaving.insert(entry.key.clone(), is_answered);
        let (handover, key) = (Arc::clone(self), entry.key.clone());
        Some(ReleaseInFlight { handover, key, spot, footing, sent, _answered: answered })
    }

    /// The entry of another client that may be right behind that of the holder, created at `rev`.
    pub(crate) fn follower(&self, queue: &str, rev: i64) -> Option<EntryInFront> {
        self.state.lock().listed.get(queue)?.after(rev).cloned()
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
    /// Whether it is that of `entry`, right behind `in_front`.
    pub(crate) fn is_at(
        &self,
        entry: &QueueEntry,
        in_front: &EntryInFront,
        footing: Footing,
    ) -> bool {
        let spot = &self.spot;
        spot.entry == *entry && spot.in_front == *in_front && spot.footing == footing
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
        let (mut state, key) = (self.handover.state.lock(), &self.spot.in_front.key);
        if state.waiting.get(key).is_some_and(|spot| Arc::ptr_eq(spot, &self.spot)) {
            state.waiting.remove(key);
        }
        let queue = self.spot.entry.key.rfind('/').map_or("", |end| &self.spot.entry.key[..=end]);
        if state.waiting(queue).next().is_none() {
            state.listed.remove(queue);
        }
    }
}

impl ReleaseInFlight {
    /// The key of the waiter that is behind it.
    pub(crate) fn next(&self) -> &str {
        &self.spot.entry.key
    }

    /// The entry was deleted, and this was `found` at the key of the next one. The store stands on `footing` by now.
    pub(crate) fn hand_on(&self, found: &KeyValue, revision: i64, footing: Footing) {
        let spot = &self.spot;
        if rules::is_waiting(&spot.entry, found) && rules::is_one_history(self.footing, footing) {
            *spot.proof.lock() = Some(FirstProof { footing, revision, sent: self.sent });
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

    fn place(key: &str, rev: i64) -> EntryInFront {
        EntryInFront { key: key.into(), rev }
    }

    #[test]
    fn who_leaves_asks_only_for_the_one_right_behind_it() {
        let handover = Arc::new(LocalHandover::default());
        let (now, ground) = (ClockInstant::from_nanos(1), Footing::default());
        let asks = |rev| handover.begin_release(&entry("a/1", rev), ground, now).is_some();
        let behind = |key: &str, rev| handover.register(&entry("a/9", 9), &place(key, rev), ground);
        let _others = [behind("a/2", 2), behind("b/1", 1), behind("a", 1)];
        assert!(!asks(1));
        let next = behind("a/1", 1);
        assert!(asks(1));
        assert!(!asks(5), "the key was made again");
        drop(next);
        assert!(!asks(1));
        assert!(handover.state.lock().leaving.is_empty());
    }

    #[test]
    fn a_queue_is_long_by_its_own_waiters() {
        let handover = Arc::new(LocalHandover::default());
        let wait = |queue: &str, at: usize| {
            let key = format!("{queue}{at:x}");
            handover.register(&entry("x", 1), &place(&key, 1), Footing::default())
        };
        let mut waiting: Vec<_> = (0..MANY).map(|at| wait("a/", at)).collect();
        let _others: Vec<_> = (0..MANY).map(|at| wait("b/", at)).collect();
        assert!(!handover.is_long("a/"));
        waiting.push(wait("a/", MANY));
        assert!(handover.is_long("a/"));
    }

    #[test]
    fn a_list_shows_who_is_beside_an_entry() {
        let found = [("c", 5), ("a", 9), ("b", 3)].map(|(key, rev)| place(key, rev));
        let listing = Listing::new(Footing::default(), 10, found.into());
        assert_eq!(listing.before(9), Some(&place("c", 5)));
        assert_eq!(listing.before(3), None);
        assert_eq!(listing.before(4), None, "it is not there");
        assert_eq!(listing.after(5), Some(&place("a", 9)));
        assert_eq!(listing.after(9), None);
    }
}
