//! Wakes a claim: the watches of its own entry and of the one before it, and its neighbours.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{ClockInstant, Result};
use tokio::sync::Notify;

use crate::entry::Entry;
use crate::neighbours::{Neighbours, Place, Proof};
use crate::watches::{Watch, Watches};

/// The watches of one claim, and the results of its reads.
#[derive(Debug)]
pub(crate) struct Wake {
    watches: Arc<Watches>,
    neighbours: Arc<Neighbours>,
    /// Of our own entry.
    news: Arc<Notify>,
    /// When the last read began.
    look: Look,
    /// The revision of the store at the last read of the whole queue.
    revision: i64,
    own: Option<Watch>,
    ahead: Option<Ahead>,
    /// Where we wait.
    place: Option<Place>,
}

/// A read about to begin: how many watch streams were opened before it. A watch restarted on a
/// later stream says nothing about the time between: an older copy of the store may have been
/// restored, and then it waits for revisions far in the future.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Look(pub(crate) u64);

/// The entry before ours.
#[derive(Debug)]
struct Ahead {
    key: Vec<u8>,
    watch: Option<Watch>,
    /// Apart from those of our own entry: they no longer matter once we are the first.
    news: Arc<Notify>,
}

impl Ahead {
    fn new(key: Vec<u8>) -> Self {
        Self { key, watch: None, news: Arc::default() }
    }

    /// Its watch has nothing more to report.
    fn is_over(&self) -> bool {
        self.watch.as_ref().is_some_and(|watch| watch.is_deleted() || watch.has_ended())
    }

    /// Resolves when it has changed and, if one of our neighbours has released it, that was
    /// answered.
    async fn changed(&self, neighbours: &Neighbours) {
        self.news.notified().await;
        let mut taken = Taken(Some(&self.news));
        neighbours.answered(&self.key).await;
        taken.0 = None;
    }
}

/// News that are put back unless they are used.
struct Taken<'a>(Option<&'a Notify>);

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.0.into_iter().for_each(Notify::notify_one);
    }
}

impl Wake {
    pub(crate) fn new(watches: Arc<Watches>, neighbours: Arc<Neighbours>) -> Self {
        let (news, look, revision, own, ahead, place) = Default::default();
        Self { watches, neighbours, news, look, revision, own, ahead, place }
    }

    /// The store is about to be asked.
    pub(crate) fn look(&self) -> Look {
        self.watches.look()
    }

    /// Changes to our entry and the one before it no longer matter, nor does what is still told of
    /// them.
    pub(crate) fn clear(&mut self) {
        (self.own, self.ahead, self.place) = (None, None, None);
        self.news = Arc::default();
    }

    /// Notes a read of our entry. None is known to be before it.
    pub(crate) fn stands(&mut self, look: Look, revision: i64) {
        (self.look, self.revision) = (look, revision);
        (self.ahead, self.place) = (None, None);
    }

    /// Notes a read of the whole queue: `entry`, which is ours, is behind `ahead`.
    pub(crate) fn is_behind(&mut self, look: Look, revision: i64, entry: &Entry, ahead: Vec<u8>) {
        (self.look, self.revision) = (look, revision);
        let is_watched = |known: &Ahead| known.key == ahead && !known.is_over();
        if !self.ahead.as_ref().is_some_and(is_watched) {
            self.ahead = Some(Ahead::new(ahead));
        }
        if !self.place.as_ref().is_some_and(|place| place.is_at(entry)) {
            self.place = Some(self.neighbours.wait(entry));
        }
    }

    /// The proof of a neighbour that our entry is the first.
    pub(crate) fn proof(&self, now: ClockInstant, limit: Duration) -> Option<Proof> {
        self.place.as_ref()?.take(now, limit)
    }

    /// Notes a read of our key alone. It does not update what a waiter knows of the entry before
    /// it.
    pub(crate) fn confirmed(&mut self, look: Look, revision: i64, is_held: bool) {
        self.look = look;
        if is_held {
            self.revision = self.revision.max(revision);
        }
    }

    /// The watch of our entry has reported it gone.
    pub(crate) fn is_own_deleted(&self) -> bool {
        self.own.as_ref().is_some_and(Watch::is_deleted)
    }

    pub(crate) fn is_own_watched(&self) -> bool {
        self.own.is_some()
    }

    /// Whether the watch of our entry would have reported its deletion.
    pub(crate) fn is_sure(&self) -> bool {
        self.own.as_ref().is_some_and(Watch::is_live) && self.look == self.watches.look()
    }

    /// Starts any missing watches of `own` and of the entry before it, and waits for news.
    ///
    /// # Errors
    ///
    /// If no news can arrive.
    pub(crate) async fn woken(&mut self, own: Option<&str>) -> Result<()> {
        let from = self.revision + 1;
        if let Some(own) = own {
            if self.own.as_ref().is_none_or(Watch::has_ended) {
                self.own = Some(self.watches.watch(own.into(), from, &self.news)?);
            }
            if let Some(Ahead { key, watch: watch @ None, news }) = &mut self.ahead {
                *watch = Some(self.watches.watch(key.clone(), from, news)?);
            }
        }
        let Some(own) = &self.own else {
            self.news.notified().await;
            return Ok(());
        };
        let (place, ahead) = (&self.place, &self.ahead);
        tokio::select! {
            biased;
            () = self.news.notified() => Ok(()),
            Some(()) = async { place.as_ref()?.proven().await; Some(()) } => Ok(()),
            Some(()) = async { ahead.as_ref()?.changed(&self.neighbours).await; Some(()) } => Ok(()),
            error = own.down() => Err(error),
        }
    }
}
