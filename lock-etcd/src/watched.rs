//! What the watch stream of one runtime watches, and for whom.
//!
//! Claims that watch the same key share a watch: a waiter's own entry is also the one before its
//! neighbour's. A watch that nobody needs any more is kept for a while, since the next claim with
//! the same lease has the same key.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use tokio::sync::Notify;

use crate::proto::{WatchCreateRequest, WatchRequest};
use crate::rules::Rules;

/// The most watches that are kept although nobody needs them.
const SPARE: usize = 64;

/// What a claim is told of the key that it watches.
#[derive(Debug, Default)]
pub(crate) struct Signs {
    /// The server has confirmed the watch on the current stream: changes are reported.
    pub(crate) live: AtomicBool,
    pub(crate) deleted: AtomicBool,
    /// The watch is over: it has to be started again, after another read.
    pub(crate) ended: AtomicBool,
}

/// A claim that watches a key.
#[derive(Debug)]
pub(crate) struct Listener {
    /// The revision from which it watches. Earlier changes are not its own.
    pub(crate) from: i64,
    pub(crate) news: Arc<Notify>,
    pub(crate) signs: Arc<Signs>,
}

/// One watch of the server.
#[derive(Debug)]
struct Shared {
    key: Vec<u8>,
    /// The revision from which the server is to report; advances with what was reported.
    from: i64,
    is_live: bool,
    listeners: BTreeMap<i64, Listener>,
}

/// All watches of a stream. Each has the number of its first listener.
#[derive(Debug)]
pub(crate) struct Watched {
    rules: Rules,
    watches: BTreeMap<i64, Shared>,
    /// The watch of each listener.
    joined: HashMap<i64, i64>,
    /// The newest watch of each key.
    newest: HashMap<Vec<u8>, i64>,
    /// Watches without a listener, the oldest first.
    spare: VecDeque<i64>,
    /// Watches still to be sent on the current stream: requested if they are watched, cancelled if
    /// not.
    unsent: VecDeque<i64>,
}

impl Listener {
    /// The key has changed, at `changed` for the last time.
    fn tell(&self, rules: Rules, changed: i64, deleted: Option<i64>) {
        self.signs.live.store(true, Relaxed);
        if deleted.is_some_and(|at| (rules.is_news)(at, self.from)) {
            self.signs.deleted.store(true, Relaxed);
        }
        if (rules.is_news)(changed, self.from) {
            self.news.notify_one();
        }
    }

    pub(crate) fn ended(&self) {
        self.signs.ended.store(true, Relaxed);
        self.news.notify_one();
    }
}

impl Shared {
    /// The server reports changes, or does not at the moment.
    fn reports(&mut self, is_live: bool) {
        self.is_live = is_live;
        self.listeners.values().for_each(|listener| listener.signs.live.store(is_live, Relaxed));
    }
}

impl Watched {
    pub(crate) fn new(rules: Rules) -> Self {
        let (watches, joined, newest, spare, unsent) = Default::default();
        Self { rules, watches, joined, newest, spare, unsent }
    }

    /// Nobody listens.
    pub(crate) fn is_unused(&self) -> bool {
        self.joined.is_empty()
    }

    /// The listener `id` watches `key`: together with others, if their watch has not yet passed
    /// what it has to hear of.
    pub(crate) fn listen(&mut self, id: i64, key: Vec<u8>, listener: Listener) {
        let known = self.newest.get(&key).copied();
        let known = known.and_then(|known| Some((known, self.watches.get_mut(&known)?)));
        if let Some((known, watch)) =
            known.filter(|(_, watch)| (self.rules.is_in_time)(watch.from, listener.from))
        {
            listener.signs.live.store(watch.is_live, Relaxed);
            watch.listeners.insert(id, listener);
            self.joined.insert(id, known);
            self.spare.retain(|spare| *spare != known);
            return;
        }
        let from = listener.from;
        let listeners = BTreeMap::from([(id, listener)]);
        self.newest.insert(key.clone(), id);
        self.watches.insert(id, Shared { key, from, is_live: false, listeners });
        self.joined.insert(id, id);
        self.unsent.push_back(id);
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
        self.forget(watch);
        self.unsent.push_back(watch);
    }

    fn forget(&mut self, watch: i64) -> Option<Shared> {
        let shared = self.watches.remove(&watch)?;
        if self.newest.get(&shared.key) == Some(&watch) {
            self.newest.remove(&shared.key);
        }
        self.spare.retain(|spare| *spare != watch);
        Some(shared)
    }

    /// A stream begins: everything has to be requested.
    pub(crate) fn begin(&mut self) {
        self.unsent = self.watches.keys().copied().collect();
    }

    /// The next request to be sent.
    pub(crate) fn next(&self) -> Option<WatchRequest> {
        let watch_id = *self.unsent.front()?;
        Some(match self.watches.get(&watch_id) {
            None => WatchRequest::cancel(watch_id),
            Some(watch) => {
                let (key, start_revision) = (watch.key.clone(), watch.from);
                WatchCreateRequest { key, start_revision, progress_notify: true, watch_id }.into()
            }
        })
    }

    /// It was sent.
    pub(crate) fn sent(&mut self) {
        self.unsent.pop_front();
    }

    /// The server has set a watch.
    pub(crate) fn stands(&mut self, watch: i64) {
        if let Some(shared) = self.watches.get_mut(&watch) {
            shared.reports(true);
        }
    }

    /// All changes up to `up_to` have been reported to a watch. If there were any, `up_to` is the
    /// last one; `deleted` is the last that deleted the key.
    pub(crate) fn told(&mut self, watch: i64, up_to: i64, changed: bool, deleted: Option<i64>) {
        let Some(shared) = self.watches.get_mut(&watch) else { return };
        shared.reports(true);
        shared.from = shared.from.max(up_to + 1);
        if changed {
            let listeners = shared.listeners.values();
            listeners.for_each(|listener| listener.tell(self.rules, up_to, deleted));
        }
    }

    /// The server has ended a watch; false if it was not needed.
    pub(crate) fn ended(&mut self, watch: i64) -> bool {
        let Some(shared) = self.forget(watch) else { return false };
        for (id, listener) in shared.listeners {
            self.joined.remove(&id);
            listener.ended();
        }
        true
    }

    /// The stream is over: nothing is reported until there is another, and that begins with what is
    /// needed.
    pub(crate) fn over(&mut self) {
        for spare in std::mem::take(&mut self.spare) {
            self.forget(spare);
        }
        self.watches.values_mut().for_each(|watch| watch.reports(false));
    }

    /// There will be no other.
    pub(crate) fn unserved(&self) {
        let listeners = self.watches.values().flat_map(|watch| watch.listeners.values());
        listeners.for_each(Listener::ended);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::RULES;

    fn watched() -> Watched {
        Watched::new(RULES)
    }

    /// Listens to `key` from revision `from`.
    fn listen(watched: &mut Watched, id: i64, key: &str, from: i64) -> Arc<Signs> {
        let (news, signs) = <(Arc<Notify>, Arc<Signs>)>::default();
        let listener = Listener { from, news, signs: Arc::clone(&signs) };
        watched.listen(id, key.into(), listener);
        signs
    }

    fn is_deleted(signs: &Signs) -> bool {
        signs.deleted.load(Relaxed)
    }

    /// Sends all that is to be sent; how many requests that were.
    fn send(watched: &mut Watched) -> usize {
        std::iter::from_fn(|| {
            watched.next()?;
            watched.sent();
            Some(())
        })
        .count()
    }

    #[test]
    fn the_key_of_a_neighbour_is_watched_once() {
        let mut watched = watched();
        let own = listen(&mut watched, 1, "a", 5);
        assert_eq!(send(&mut watched), 1);
        watched.stands(1);
        let behind = listen(&mut watched, 2, "a", 9);
        assert_eq!(send(&mut watched), 0);
        assert!(behind.live.load(Relaxed), "the watch stands already");
        watched.leave(1);
        watched.told(1, 12, true, Some(12));
        assert!(is_deleted(&behind) && !is_deleted(&own));
    }

    #[test]
    fn nobody_hears_of_what_was_before() {
        let mut watched = watched();
        let before = listen(&mut watched, 1, "a", 5);
        // The key is deleted at 7 and created again at 8, and none of it has been told yet.
        let after = listen(&mut watched, 2, "a", 9);
        assert_eq!(send(&mut watched), 1);
        watched.told(1, 8, true, Some(7));
        assert!(is_deleted(&before) && !is_deleted(&after));
        // Who has to hear of what is told already needs another watch.
        let late = listen(&mut watched, 3, "a", 6);
        assert_eq!(send(&mut watched), 1);
        watched.told(3, 8, true, Some(7));
        assert!(is_deleted(&late) && !is_deleted(&after));
    }

    #[test]
    fn what_nobody_needs_is_kept_for_the_next_claim_with_that_key() {
        let mut watched = watched();
        listen(&mut watched, 1, "a", 5);
        watched.leave(1);
        assert!(watched.is_unused());
        watched.told(1, 8, true, Some(7));
        let again = listen(&mut watched, 2, "a", 9);
        assert_eq!(send(&mut watched), 1, "only at first");
        assert!(watched.ended(1) && again.ended.load(Relaxed));
        assert!(!watched.ended(1));
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
        let mut watched = watched();
        let both = [listen(&mut watched, 1, "a", 5), listen(&mut watched, 2, "a", 5)];
        watched.stands(1);
        watched.over();
        assert!(both.iter().all(|signs| !signs.live.load(Relaxed)));
        watched.begin();
        assert_eq!(send(&mut watched), 1);
        watched.unserved();
        assert!(both.iter().all(|signs| signs.ended.load(Relaxed)));
    }
}
