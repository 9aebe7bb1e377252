//! What a waiter and a holder watch: the entry just before theirs, and their own. And what their neighbours tell them.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{ClockInstant, Result};
use tokio::sync::Notify;

use super::entry::{EntryInFront, QueueEntry};
use crate::rules;
use crate::watch::handover::{FirstProof, LocalHandover, WaiterPlace, WaitingEntry};
use crate::watch::task::{ClientWatches, Footing, KeyWatch};

/// A lock held for less than this is not watched: a watch also reports changes from before it was
/// set, so it can begin late.
const UNWATCHED: Duration = Duration::from_millis(20);

/// The watches of one claim, and the results of its reads.
#[derive(Debug)]
pub(crate) struct ClaimWatches {
    watches: Arc<ClientWatches>,
    handover: Arc<LocalHandover>,
    /// Of our own entry.
    news: Arc<Notify>,
    /// As of when the last read began.
    footing: Footing,
    /// The revision of the store at the last read of the whole queue.
    revision: i64,
    own: Option<KeyWatch>,
    in_front: Option<WatchedInFront>,
    /// Where we wait.
    place: Option<WaiterPlace>,
}

/// What a waiter knows of the entry in front of its own.
#[derive(Debug)]
pub(super) enum KnownInFront<'a> {
    /// It was there.
    Entry(&'a EntryInFront),
    /// It was deleted at this revision.
    Deleted(i64),
}

/// The entry in front of ours.
#[derive(Debug)]
struct WatchedInFront {
    entry: EntryInFront,
    watch: Option<KeyWatch>,
    /// Apart from those of our own entry: they no longer matter once we are the first.
    news: Arc<Notify>,
}

impl WatchedInFront {
    fn new(entry: EntryInFront) -> Self {
        Self { entry, watch: None, news: Arc::default() }
    }

    /// When it was deleted.
    fn deleted(&self) -> Option<i64> {
        self.watch.as_ref().and_then(KeyWatch::deleted)
    }

    /// Its watch has nothing more to report.
    fn is_over(&self) -> bool {
        self.deleted().is_some() || self.watch.as_ref().is_some_and(KeyWatch::has_ended)
    }

    /// Resolves when it has changed and, if one of our neighbours has released it, that was
    /// answered.
    async fn changed(&self, handover: &LocalHandover) {
        self.news.notified().await;
        let mut taken = UnusedNews(Some(&self.news));
        handover.release_answered(&self.entry.key).await;
        taken.0 = None;
    }
}

/// News that are put back unless they are used.
struct UnusedNews<'a>(Option<&'a Notify>);

impl Drop for UnusedNews<'_> {
    fn drop(&mut self) {
        self.0.into_iter().for_each(Notify::notify_one);
    }
}

impl ClaimWatches {
    pub(crate) fn new(watches: Arc<ClientWatches>, handover: Arc<LocalHandover>) -> Self {
        let (news, footing, revision, own, in_front, place) = Default::default();
        Self { watches, handover, news, footing, revision, own, in_front, place }
    }

    /// The store is about to be asked.
    pub(crate) fn footing(&self) -> Footing {
        self.watches.footing()
    }

    /// Changes to our entry and the one in front of it no longer matter, nor does what is still told of
    /// them.
    pub(crate) fn clear(&mut self) {
        (self.own, self.in_front, self.place) = (None, None, None);
        self.news = Arc::default();
    }

    /// Notes a read of our entry. None is known to be before it.
    pub(crate) fn stands(&mut self, footing: Footing, revision: i64) {
        self.has_read(footing, revision);
        (self.in_front, self.place) = (None, None);
    }

    /// Notes a read of the whole queue: `entry`, which is ours, is behind `in_front`.
    pub(crate) fn is_behind(
        &mut self,
        footing: Footing,
        revision: i64,
        entry: &QueueEntry,
        in_front: EntryInFront,
    ) {
        self.has_read(footing, revision);
        let waiter = WaitingEntry { entry: entry.clone(), in_front, footing };
        let is_watched =
            |known: &WatchedInFront| known.entry == waiter.in_front && !known.is_over();
        if !self.in_front.as_ref().is_some_and(is_watched) {
            self.in_front = Some(WatchedInFront::new(waiter.in_front.clone()));
        }
        if self.place.as_ref().is_none_or(|place| *place.waiter() != waiter) {
            self.place = Some(self.handover.register(waiter));
        }
    }

    /// Notes a read. If the store went back before it, the watches wait for revisions of the future, and hear nothing until
    /// then: they are started again from what was read. It may be this read that has shown it.
    fn has_read(&mut self, footing: Footing, revision: i64) {
        if !self.is_of_the_present_era() {
            (self.own, self.in_front) = (None, None);
        }
        (self.footing, self.revision) = (footing, revision);
    }

    /// Whether nothing shows that the store went back since the read before this one.
    fn is_of_the_present_era(&self) -> bool {
        self.watches.footing().is_of_one_era(self.footing)
    }

    /// Whether the entry in front of ours is not known.
    pub(crate) fn is_unplaced(&self) -> bool {
        self.in_front.is_none()
    }

    /// Whether the look that has shown the entry in front of ours stands on what one would that begins now, and later, too.
    pub(crate) fn can_be_told(&self) -> bool {
        let now = self.watches.footing();
        now.is_watched() && self.stands_on(now)
    }

    /// Whether the look that has shown the entry in front of ours stands on `footing`.
    fn stands_on(&self, footing: Footing) -> bool {
        let place = self.place.as_ref();
        place.is_some_and(|place| rules::is_one_history(place.waiter().footing, footing))
    }

    /// What is known of the entry in front of ours, if the look that has shown it there stands on `footing`, too.
    pub(super) fn known(&self, footing: Footing) -> Option<KnownInFront<'_>> {
        let in_front = self.in_front.as_ref().filter(|_| self.stands_on(footing))?;
        let deleted = in_front.deleted().map(KnownInFront::Deleted);
        Some(deleted.unwrap_or(KnownInFront::Entry(&in_front.entry)))
    }

    /// The proof of a neighbour that our entry is the first, if it is no older than the answer to a look could be.
    pub(crate) fn proof(&self, now: ClockInstant, limit: Duration) -> Option<FirstProof> {
        let proof = self.place.as_ref()?.take()?;
        rules::is_fresh(now.since(proof.sent), limit).then_some(proof)
    }

    /// Notes a read of our key alone. It does not update what a waiter knows of the entry before
    /// it, unless the store went back.
    pub(crate) fn confirmed(&mut self, footing: Footing, revision: i64, is_held: bool) {
        if !self.is_of_the_present_era() {
            return self.stands(footing, revision);
        }
        self.footing = footing;
        if is_held {
            self.revision = self.revision.max(revision);
        }
    }

    /// The watch of our entry has reported it gone.
    pub(crate) fn is_own_deleted(&self) -> bool {
        self.own.as_ref().is_some_and(|own| own.deleted().is_some())
    }

    /// Whether the watch of our entry would have reported its deletion.
    pub(crate) fn is_sure(&self) -> bool {
        self.own.as_ref().is_some_and(KeyWatch::is_live)
            && rules::stood_since(self.footing, self.watches.footing())
    }

    /// Starts any missing watches of `own` and of the entry in front of it, and waits for news.
    ///
    /// # Errors
    ///
    /// If no news can arrive: then the waiter polls.
    pub(crate) async fn changed(&mut self, own: Option<&QueueEntry>, is_held: bool) -> Result<()> {
        if is_held && self.own.is_none() {
            tokio::time::sleep(UNWATCHED).await;
        }
        let from = self.revision + 1;
        if let Some(own) = own {
            if self.own.as_ref().is_none_or(KeyWatch::has_ended) {
                let (key, value) = (own.key.clone().into(), Some(own.value.clone()));
                self.own = Some(self.watches.watch(key, value, from, &self.news)?);
            }
            if let Some(WatchedInFront { entry, watch: watch @ None, news, .. }) =
                &mut self.in_front
            {
                *watch = Some(self.watches.watch(entry.key.clone(), None, from, news)?);
            }
        }
        let Some(own) = &self.own else {
            self.news.notified().await;
            return Ok(());
        };
        let (place, in_front) = (&self.place, &self.in_front);
        tokio::select! {
            biased;
            () = self.news.notified() => Ok(()),
            Some(()) = async { place.as_ref()?.proven().await; Some(()) } => Ok(()),
            Some(()) = async { in_front.as_ref()?.changed(&self.handover).await; Some(()) } => Ok(()),
            error = own.down() => Err(error),
        }
    }
}
