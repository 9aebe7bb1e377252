//! What the watch stream of one runtime watches, and for whom.
//!
//! Claims that watch the same key share a watch: a waiter's own entry is also the one before its
//! neighbour's. A watch that nobody needs any more is kept for a while, since the next claim with
//! the same lease has the same key.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::Relaxed};

use tokio::sync::Notify;

use crate::rules;
use crate::wire::exchange;
use crate::wire::messages::Change;
use crate::wire::protobuf::WatchRequest;

/// The most watches that are kept although nobody needs them.
const SPARE: usize = 64;

/// What a claim is told of the key that it watches.
#[derive(Debug, Default)]
pub(crate) struct WatchSigns {
    /// The server has confirmed the watch on the current stream: changes are reported.
    pub(crate) live: AtomicBool,
    /// When the key was deleted; 0 if it was not.
    pub(crate) deleted: AtomicI64,
    /// The watch is over: it has to be started again, after another read.
    pub(crate) ended: AtomicBool,
}

/// A claim that watches a key.
#[derive(Debug)]
pub(crate) struct WatchListener {
    /// The revision from which it watches. Earlier changes are not its own.
    pub(crate) from: i64,
    /// What the key should hold, if it matters. To write the same again is no change: that is how an entry is told
    /// that the holder before it has released.
    pub(crate) value: Option<Vec<u8>>,
    pub(crate) news: Arc<Notify>,
    pub(crate) signs: Arc<WatchSigns>,
}

/// One watch of the server.
#[derive(Debug)]
struct SharedWatch {
    key: Vec<u8>,
    /// On the current stream, once it was requested there.
    number: Option<i64>,
    /// The revision from which the server is to report; advances with what was reported.
    from: i64,
    /// The last change that was reported on the current stream.
    changed: i64,
    is_live: bool,
    listeners: BTreeMap<i64, WatchListener>,
}

/// Something to be sent on the current stream.
#[derive(Clone, Copy, Debug)]
enum WatchMessage {
    /// Nothing if it is not needed any more.
    Watch(i64),
    /// By its number.
    Cancel(i64),
}

/// All watches of a stream. Each has the id of its first listener.
///
/// The server numbers the watches of a stream from 0, in the order in which they were requested. We
/// count along and do not give it numbers of ours, since a `grpc-proxy` does not use them. A watch
/// that it refuses has no number, so it ends the stream.
#[derive(Debug, Default)]
pub(crate) struct SharedWatches {
    watches: BTreeMap<i64, SharedWatch>,
    /// The watch of each listener.
    joined: HashMap<i64, i64>,
    /// The newest watch of each key.
    newest: HashMap<Vec<u8>, i64>,
    /// Watches without a listener, the oldest first.
    spare: VecDeque<i64>,
    unsent: VecDeque<WatchMessage>,
    /// By their number on the current stream.
    numbers: HashMap<i64, i64>,
    /// How many were requested on it.
    requested: i64,
}

impl WatchListener {
    /// The key has changed, at `at` for the last time.
    fn wake(&self, at: i64, change: &Change) {
        self.signs.live.store(true, Relaxed);
        let deleted = change.deleted.filter(|at| rules::is_news(*at, self.from));
        // The first one is that of the key as it was.
        if let Some(at) = deleted {
            let _ = self.signs.deleted.compare_exchange(0, at, Relaxed, Relaxed);
        }
        let is_other = |own: &Vec<u8>| change.written.as_ref().is_some_and(|now| now != own);
        let is_overwritten = self.value.as_ref().is_some_and(is_other);
        if deleted.is_some() || (is_overwritten && rules::is_news(at, self.from)) {
            self.news.notify_one();
        }
    }

    pub(crate) fn ended(&self) {
        self.signs.ended.store(true, Relaxed);
        self.news.notify_one();
    }
}

impl SharedWatch {
    /// The server reports changes, or does not at the moment.
    fn reports(&mut self, is_live: bool) {
        self.is_live = is_live;
        self.listeners.values().for_each(|listener| listener.signs.live.store(is_live, Relaxed));
    }
}

impl SharedWatches {
    /// Nobody listens.
    pub(crate) fn is_unused(&self) -> bool {
        self.joined.is_empty()
    }

    /// The listener `id` watches `key`: together with others, if their watch has not yet passed
    /// what it has to hear of.
    pub(crate) fn listen(&mut self, id: i64, key: Vec<u8>, listener: WatchListener) {
        let known = self.newest.get(&key).copied();
        let known = known.and_then(|known| Some((known, self.watches.get_mut(&known)?)));
        if let Some((known, watch)) = known {
            if rules::is_in_time(watch.from, listener.from) {
                listener.signs.live.store(watch.is_live, Relaxed);
                watch.listeners.insert(id, listener);
                self.joined.insert(id, known);
                self.spare.retain(|spare| *spare != known);
                return;
            }
            // It looks again at once. The server would take a tenth of a second to report what has been.
            if watch.changed >= listener.from {
                listener.ended();
                return;
            }
        }
        let from = listener.from;
        let listeners = BTreeMap::from([(id, listener)]);
        self.newest.insert(key.clone(), id);
        let (number, changed, is_live) = (None, 0, false);
        let watch = SharedWatch { key, number, from, changed, is_live, listeners };
        self.watches.insert(id, watch);
        self.joined.insert(id, id);
        self.unsent.push_back(WatchMessage::Watch(id));
    }

    /// The listener `id` has left.
    pub(crate) fn leave(&mut self, id: i64) {
        let Some(watch) = self.joined.remove(&id) else { return };
        let Some(shared) = self.watches.get_mut(&watch) else { return };
        shared.listeners.remove(&id);
        if !shared.listeners.is_empty() {
            return;
        }
        if self.newest.get(&shared.key) == Some(&watch) {
            self.spare.push_back(watch);
        } else {
            self.cancel(watch);
        }
        while self.spare.len() > SPARE
            && let Some(oldest) = self.spare.pop_front()
        {
            self.cancel(oldest);
        }
    }

    fn cancel(&mut self, watch: i64) {
        let number = self.forget(watch).and_then(|watch| watch.number);
        self.unsent.extend(number.map(WatchMessage::Cancel));
    }

    fn forget(&mut self, watch: i64) -> Option<SharedWatch> {
        let shared = self.watches.remove(&watch)?;
        if self.newest.get(&shared.key) == Some(&watch) {
            self.newest.remove(&shared.key);
        }
        self.spare.retain(|spare| *spare != watch);
        if let Some(number) = shared.number {
            self.numbers.remove(&number);
        }
        Some(shared)
    }

    /// A stream begins: everything has to be requested.
    pub(crate) fn begin(&mut self) {
        self.watches.values_mut().for_each(|watch| watch.number = None);
        self.unsent = self.watches.keys().copied().map(WatchMessage::Watch).collect();
        self.numbers.clear();
        self.requested = 0;
    }

    /// The next request to be sent.
    pub(crate) fn next(&mut self) -> Option<WatchRequest> {
        loop {
            match *self.unsent.front()? {
                WatchMessage::Cancel(number) => return Some(WatchRequest::cancel(number)),
                WatchMessage::Watch(id) => {
                    if let Some(watch) = self.watches.get(&id) {
                        return Some(exchange::watch_request(&watch.key, watch.from));
                    }
                    self.unsent.pop_front();
                }
            }
        }
    }

    /// It was sent.
    pub(crate) fn sent(&mut self) {
        let Some(WatchMessage::Watch(id)) = self.unsent.pop_front() else { return };
        let number = self.requested;
        self.requested += 1;
        if let Some(watch) = self.watches.get_mut(&id) {
            watch.number = Some(number);
            self.numbers.insert(number, id);
        }
    }

    /// The watch with this number on the current stream, if it is needed.
    fn numbered(&mut self, number: i64) -> Option<&mut SharedWatch> {
        self.watches.get_mut(self.numbers.get(&number)?)
    }

    /// The server has set a watch.
    pub(crate) fn stands(&mut self, number: i64) {
        if let Some(shared) = self.numbered(number) {
            shared.reports(true);
        }
    }

    /// All changes up to `up_to` have been reported to a watch. If there were any, `up_to` is the last one.
    pub(crate) fn on_progress(&mut self, number: i64, up_to: i64, change: Option<&Change>) {
        let Some(shared) = self.numbered(number) else { return };
        shared.reports(true);
        shared.from = shared.from.max(up_to + 1);
        if let Some(change) = change {
            shared.changed = up_to;
            let listeners = shared.listeners.values();
            listeners.for_each(|listener| listener.wake(up_to, change));
        }
    }

    /// The server has ended a watch.
    pub(crate) fn ended(&mut self, number: i64) {
        let watch = self.numbers.get(&number).copied();
        let Some(shared) = watch.and_then(|watch| self.forget(watch)) else { return };
        for (id, listener) in shared.listeners {
            self.joined.remove(&id);
            listener.ended();
        }
    }

    /// The stream is over: nothing is reported until there is another, and that begins with what is
    /// needed.
    pub(crate) fn over(&mut self) {
        for spare in std::mem::take(&mut self.spare) {
            self.forget(spare);
        }
        for watch in self.watches.values_mut() {
            watch.reports(false);
            // The next one may be of an older copy of the store.
            watch.changed = 0;
        }
    }

    /// There will be no other.
    pub(crate) fn unserved(&self) {
        let listeners = self.watches.values().flat_map(|watch| watch.listeners.values());
        listeners.for_each(WatchListener::ended);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Listens to `key` from revision `from`.
    fn listen(watched: &mut SharedWatches, id: i64, key: &str, from: i64) -> Arc<WatchSigns> {
        let (news, signs) = <(Arc<Notify>, Arc<WatchSigns>)>::default();
        let listener = WatchListener { from, value: None, news, signs: Arc::clone(&signs) };
        watched.listen(id, key.into(), listener);
        signs
    }

    fn is_deleted(signs: &WatchSigns) -> bool {
        signs.deleted.load(Relaxed) > 0
    }

    fn deleted(at: i64) -> Change {
        Change { deleted: Some(at), written: None }
    }

    /// Sends all that is to be sent; how many requests that were.
    fn send(watched: &mut SharedWatches) -> usize {
        std::iter::from_fn(|| {
            watched.next()?;
            watched.sent();
            Some(())
        })
        .count()
    }

    #[test]
    fn the_key_of_a_neighbour_is_watched_once() {
        let mut watched = SharedWatches::default();
        let own = listen(&mut watched, 1, "a", 5);
        assert_eq!(send(&mut watched), 1);
        watched.stands(0);
        let behind = listen(&mut watched, 2, "a", 9);
        assert_eq!(send(&mut watched), 0);
        assert!(behind.live.load(Relaxed), "the watch stands already");
        watched.leave(1);
        watched.on_progress(0, 12, Some(&deleted(12)));
        assert!(is_deleted(&behind) && !is_deleted(&own));
    }

    #[test]
    fn nobody_hears_of_what_was_before() {
        let mut watched = SharedWatches::default();
        let before = listen(&mut watched, 1, "a", 5);
        // The key is deleted at 7 and created again at 8, and none of it has been told yet.
        let after = listen(&mut watched, 2, "a", 9);
        assert_eq!(send(&mut watched), 1);
        watched.on_progress(0, 8, Some(&deleted(7)));
        assert!(is_deleted(&before) && !is_deleted(&after));
        // Who has to hear of what is told already has to look again.
        let late = listen(&mut watched, 3, "a", 6);
        assert_eq!(send(&mut watched), 0);
        assert!(late.ended.load(Relaxed) && !is_deleted(&late) && !is_deleted(&after));
        // On another stream it needs a watch: the store may be an older copy.
        watched.over();
        watched.begin();
        let late = listen(&mut watched, 4, "a", 6);
        assert_eq!(send(&mut watched), 2);
        assert!(!late.ended.load(Relaxed));
    }

    #[test]
    fn what_nobody_needs_is_kept_for_the_next_claim_with_that_key() {
        let mut watched = SharedWatches::default();
        listen(&mut watched, 1, "a", 5);
        assert_eq!(send(&mut watched), 1);
        watched.leave(1);
        assert!(watched.is_unused());
        watched.on_progress(0, 8, Some(&deleted(7)));
        let again = listen(&mut watched, 2, "a", 9);
        assert_eq!(send(&mut watched), 0, "only at first");
        watched.ended(0);
        assert!(again.ended.load(Relaxed));
        watched.leave(2);
        // Of many keys only the last are kept, and the others are cancelled.
        let sent: usize = (10..100)
            .map(|id| {
                listen(&mut watched, id, &id.to_string(), 9);
                watched.leave(id);
                send(&mut watched)
            })
            .sum();
        assert_eq!(sent, 90 + 90 - SPARE);
        // None of them outlives the stream.
        watched.over();
        watched.begin();
        assert_eq!(send(&mut watched), 0);
        assert!(watched.newest.is_empty() && watched.watches.is_empty());
        let new = listen(&mut watched, 200, "99", 9);
        assert!(send(&mut watched) == 1 && !new.live.load(Relaxed));
    }

    #[test]
    fn all_who_share_a_watch_are_told_of_its_end() {
        let mut watched = SharedWatches::default();
        let both = [listen(&mut watched, 1, "a", 5), listen(&mut watched, 2, "a", 5)];
        send(&mut watched);
        watched.stands(0);
        watched.over();
        assert!(both.iter().all(|signs| !signs.live.load(Relaxed)));
        watched.begin();
        assert_eq!(send(&mut watched), 1);
        watched.unserved();
        assert!(both.iter().all(|signs| signs.ended.load(Relaxed)));
    }

    #[test]
    fn the_watches_of_each_stream_are_numbered_in_the_order_of_their_requests() {
        let mut watched = SharedWatches::default();
        let a = listen(&mut watched, 7, "a", 5);
        let b = listen(&mut watched, 3, "b", 5);
        assert_eq!(send(&mut watched), 2);
        watched.on_progress(1, 8, Some(&deleted(8)));
        assert!(is_deleted(&b) && !is_deleted(&a));
        // On the next stream in another order, and one fewer.
        watched.leave(3);
        watched.over();
        watched.begin();
        let c = listen(&mut watched, 9, "c", 5);
        assert_eq!(send(&mut watched), 2);
        watched.on_progress(1, 9, Some(&deleted(9)));
        assert!(is_deleted(&c) && !is_deleted(&a));
        watched.on_progress(0, 9, Some(&deleted(9)));
        assert!(is_deleted(&a));
    }

    #[test]
    fn what_was_not_sent_has_no_number() {
        let mut watched = SharedWatches::default();
        listen(&mut watched, 1, "a", 5);
        // Another watch of the key is the newest, so this one is not kept.
        let late = listen(&mut watched, 2, "a", 3);
        watched.leave(1);
        assert_eq!(send(&mut watched), 1);
        watched.on_progress(0, 8, Some(&deleted(8)));
        assert!(is_deleted(&late));
    }
}
