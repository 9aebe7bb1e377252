//! Claims of one client that wait one behind the other: they hand a lock on among themselves, and share one list of a
//! long queue.
//!
//! Who waits in a queue of the store says which entry is directly in front of its own. Who releases that entry finds
//! it here, and may learn from the answer to the release that it is the first: then it need not look.
//! What that proves is the store's business.
//!
//! Who enters a long queue need not look at it at once, since it is far from its turn. After [`UNPLACED`] it does, and
//! its list shows the places of all that have come meanwhile.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Mutex as Turn, Notify, watch};
use tokio::time::{Instant, timeout};

/// If so many claims of this client wait in a queue, it is long.
const MANY: usize = 64;
/// How long a claim at the end of a long queue waits before it looks for the entry in front of it.
pub const UNPLACED: Duration = Duration::from_millis(100);

/// How long a waiter waits for the answer to the release of the entry in front of it.
const ANSWER_IN: Duration = Duration::from_millis(20);

/// Waits until a release was answered, but not for long: whoever gets the answer may be stuck, on another runtime or in
/// a task that is not polled.
pub async fn answered(mut release: watch::Receiver<()>) {
    let _ = timeout(ANSWER_IN, release.changed()).await;
}

/// All claims of a client.
#[derive(Debug)]
pub struct Neighbours<Waiter, Proof, List> {
    table: Mutex<Table<Waiter, Proof>>,
    /// The last lists of long queues.
    listed: Mutex<HashMap<String, Arc<List>>>,
    /// Held by the claim that lists a queue for all of them.
    turn: Turn<()>,
    /// When the last of them began.
    began: Mutex<Instant>,
}

#[derive(Debug)]
struct Table<Waiter, Proof> {
    /// The places of claims that wait, by the entry in front of each.
    waiting: BTreeMap<String, Arc<Spot<Waiter, Proof>>>,
    /// The entries whose release has not been answered yet.
    leaving: HashMap<String, watch::Receiver<()>>,
}

#[derive(Debug)]
struct Spot<Waiter, Proof> {
    in_front: String,
    waiter: Waiter,
    proof: Mutex<Option<Proof>>,
    proven: Notify,
}

/// The place of a claim that waits, until it is dropped.
#[derive(Debug)]
pub struct Place<Waiter, Proof, List> {
    neighbours: Arc<Neighbours<Waiter, Proof, List>>,
    spot: Arc<Spot<Waiter, Proof>>,
}

/// A release in flight, until it is dropped.
#[derive(Debug)]
pub struct ReleaseInFlight<Waiter, Proof, List> {
    neighbours: Arc<Neighbours<Waiter, Proof, List>>,
    spot: Arc<Spot<Waiter, Proof>>,
    /// Closed when this is dropped.
    _answered: watch::Sender<()>,
}

impl<Waiter, Proof, List> Default for Neighbours<Waiter, Proof, List> {
    fn default() -> Self {
        let (waiting, leaving) = Default::default();
        let table = Mutex::new(Table { waiting, leaving });
        let (listed, turn) = Default::default();
        Self { table, listed, turn, began: Mutex::new(Instant::now()) }
    }
}

impl<Waiter, Proof, List> Neighbours<Waiter, Proof, List> {
    /// A claim waits right behind the entry `in_front`.
    pub fn register(
        self: &Arc<Self>,
        in_front: &str,
        waiter: Waiter,
    ) -> Place<Waiter, Proof, List> {
        let (proof, proven) = Default::default();
        let spot = Arc::new(Spot { in_front: in_front.to_owned(), waiter, proof, proven });
        self.table.lock().waiting.insert(in_front.to_owned(), Arc::clone(&spot));
        Place { neighbours: Arc::clone(self), spot }
    }

    /// Whether `queue`, with which its entries begin, is so long that who enters does not look at once.
    pub fn is_long(&self, queue: &str) -> bool {
        self.are(MANY, queue)
    }

    /// The last list of a long queue.
    pub fn listed(&self, queue: &str) -> Option<Arc<List>> {
        self.listed.lock().get(queue).cloned()
    }

    /// The list of `queue` that another claim has read, if it `is_new`, or what `read` does. While one claim reads for
    /// longer than a quarter of `limit`, another one does, too.
    ///
    /// # Errors
    ///
    /// As `read`.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn list<Error>(
        &self,
        queue: &str,
        limit: Duration,
        is_new: impl Fn(&List) -> bool,
        read: impl Future<Output = Result<List, Error>>,
    ) -> Result<Arc<List>, Error> {
        let patience = limit / 4;
        let _turn = loop {
            let turn = timeout(patience, self.turn.lock()).await.ok();
            if let Some(known) = self.listed(queue).filter(|known| is_new(known)) {
                return Ok(known);
            }
            if self.begins(turn.is_some(), patience) {
                break turn;
            }
        };
        let list = Arc::new(read.await?);
        let mut listed = self.listed.lock();
        listed.retain(|queue, _| self.are(1, queue));
        listed.insert(queue.to_owned(), Arc::clone(&list));
        Ok(list)
    }

    /// Whether a claim lists the queue now. One that is stuck stops nobody: after a while another one does, even if it
    /// is not its turn. But not all that wait for a slow answer at the same time, which would make it slower still.
    fn begins(&self, is_its_turn: bool, patience: Duration) -> bool {
        let mut began = self.began.lock();
        let begins = is_its_turn || began.elapsed() >= patience;
        if begins {
            *began = Instant::now();
        }
        begins
    }

    /// Whether at least this `many` wait behind entries that begin with `queue`.
    fn are(&self, many: usize, queue: &str) -> bool {
        let table = self.table.lock();
        let waiting = table.waiting.range::<str, _>((Bound::Included(queue), Bound::Unbounded));
        waiting.take_while(|(in_front, _)| in_front.starts_with(queue)).take(many).count() == many
    }

    /// The entry is about to be released; `None` unless a claim waits right behind it that `is_next`.
    pub fn begin_release(
        self: &Arc<Self>,
        entry: &str,
        is_next: impl FnOnce(&Waiter) -> bool,
    ) -> Option<ReleaseInFlight<Waiter, Proof, List>> {
        let mut table = self.table.lock();
        let spot = table.waiting.get(entry).filter(|spot| is_next(&spot.waiter)).cloned()?;
        let (answered, is_answered) = watch::channel(());
        table.leaving.insert(entry.to_owned(), is_answered);
        Some(ReleaseInFlight { neighbours: Arc::clone(self), spot, _answered: answered })
    }

    /// What is closed when the release of this entry is answered, if one of ours is in flight: that may be the proof that
    /// its neighbour needs, for which it waits until that is [`answered`].
    pub fn leaving(&self, entry: &str) -> Option<watch::Receiver<()>> {
        self.table.lock().leaving.get(entry).cloned()
    }
}

impl<Waiter, Proof, List> Place<Waiter, Proof, List> {
    /// Who waits there.
    pub fn waiter(&self) -> &Waiter {
        &self.spot.waiter
    }

    /// The proof that the entry of the waiter is the first, if there is one.
    pub fn take(&self) -> Option<Proof> {
        self.spot.proof.lock().take()
    }

    /// Resolves when there is a proof.
    pub async fn proven(&self) {
        self.spot.proven.notified().await;
    }
}

impl<Waiter, Proof, List> Drop for Place<Waiter, Proof, List> {
    fn drop(&mut self) {
        let (mut table, spot) = (self.neighbours.table.lock(), &self.spot);
        if table.waiting.get(&spot.in_front).is_some_and(|now| Arc::ptr_eq(now, spot)) {
            table.waiting.remove(&spot.in_front);
        }
    }
}

impl<Waiter, Proof, List> ReleaseInFlight<Waiter, Proof, List> {
    /// Who waits behind the entry.
    pub fn next(&self) -> &Waiter {
        &self.spot.waiter
    }

    /// The answer to the release is the proof of who waits behind it.
    pub fn hand_on(&self, proof: Proof) {
        *self.spot.proof.lock() = Some(proof);
        self.spot.proven.notify_one();
    }
}

impl<Waiter, Proof, List> Drop for ReleaseInFlight<Waiter, Proof, List> {
    fn drop(&mut self) {
        self.neighbours.table.lock().leaving.remove(&self.spot.in_front);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

    use tokio::task::JoinSet;

    use super::*;

    #[test]
    fn who_leaves_finds_only_the_one_right_behind_it() {
        let neighbours = Arc::<Neighbours<u8, (), ()>>::default();
        let next = |entry| neighbours.begin_release(entry, |_| true).map(|leaving| *leaving.next());
        let _others = [neighbours.register("a/2", 3), neighbours.register("a", 0)];
        assert_eq!(next("a/1"), None);
        let place = neighbours.register("a/1", 2);
        assert_eq!(next("a/1"), Some(2));
        assert!(neighbours.begin_release("a/1", |waiter| *waiter == 7).is_none());
        // Another one waits there by now.
        let again = neighbours.register("a/1", 4);
        drop(place);
        assert_eq!(next("a/1"), Some(4));
        drop(again);
        assert_eq!(next("a/1"), None);
        assert!(neighbours.leaving("a/1").is_none() && neighbours.are(1, "a/"));
        assert!(!neighbours.are(2, "a/") && !neighbours.are(1, "b/"));
    }

    #[tokio::test]
    async fn a_proof_is_taken_once() {
        let neighbours = Arc::<Neighbours<u8, u8, ()>>::default();
        let place = neighbours.register("a/1", 2);
        let leaving = neighbours.begin_release("a/1", |_| true).unwrap();
        let mut answered = neighbours.leaving("a/1").unwrap();
        leaving.hand_on(9);
        drop(leaving);
        place.proven().await;
        assert!(answered.changed().await.is_err(), "it is closed");
        assert_eq!((place.take(), place.take()), (Some(9), None));
    }

    #[tokio::test]
    async fn a_list_serves_all_for_whom_it_is_new_enough() {
        let neighbours = Arc::<Neighbours<u8, (), u8>>::default();
        let place = neighbours.register("a/1", 2);
        let list = async |queue, least: u8, read: Result<u8, ()>| {
            let limit = Duration::from_secs(60);
            let is_new = |known: &u8| *known >= least;
            neighbours.list(queue, limit, is_new, async { read }).await.map(|list| *list)
        };
        assert_eq!(list("a/", 1, Err(())).await, Err(()));
        assert_eq!(list("a/", 1, Ok(5)).await, Ok(5));
        assert_eq!(list("a/", 5, Err(())).await, Ok(5));
        assert_eq!(list("a/", 6, Ok(7)).await, Ok(7));
        drop(place);
        assert_eq!(list("b/", 1, Ok(3)).await, Ok(3));
        assert_eq!(neighbours.listed("a/"), None, "nobody waits there");
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_is_stuck_stops_nobody_and_the_others_share_a_list() {
        let neighbours = Arc::<Neighbours<u8, (), u8>>::default();
        let _place = neighbours.register("a/1", 2);
        let limit = Duration::from_secs(60);
        let stuck = neighbours.list("a/", limit, |_| true, std::future::pending::<Result<_, ()>>());
        let mut stuck = std::pin::pin!(stuck);
        assert!(timeout(Duration::ZERO, &mut stuck).await.is_err());
        let reads = Arc::new(AtomicU32::new(0));
        let mut others = JoinSet::new();
        for _ in 0..100 {
            let (neighbours, reads) = (Arc::clone(&neighbours), Arc::clone(&reads));
            others.spawn(async move {
                let read = async {
                    reads.fetch_add(1, SeqCst);
                    tokio::time::sleep(limit / 8).await;
                    Ok::<_, ()>(7)
                };
                neighbours.list("a/", limit, |_| true, read).await.map(|list| *list)
            });
        }
        assert_eq!(timeout(limit, others.join_all()).await, Ok(vec![Ok(7); 100]));
        assert_eq!(reads.load(SeqCst), 1);
    }

    #[test]
    fn a_queue_is_long_by_its_own_waiters() {
        let neighbours = Arc::<Neighbours<u8, (), ()>>::default();
        let wait = |queue: &str, at: usize| neighbours.register(&format!("{queue}{at:x}"), 1);
        let mut waiting: Vec<_> = (1..MANY).map(|at| wait("a/", at)).collect();
        let _others: Vec<_> = (1..MANY).map(|at| wait("b/", at)).collect();
        assert!(!neighbours.is_long("a/"));
        waiting.push(wait("a/", MANY));
        assert!(neighbours.is_long("a/"));
    }
}
