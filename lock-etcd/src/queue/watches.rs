//! What a waiter and a holder watch: the entry just before theirs, and their own. And what their neighbours tell them.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{ClockInstant, Result};
use tokio::sync::Notify;

use super::entry::QueueEntry;
use crate::rules;
use crate::watch::handover::{FirstProof, LocalHandover, WaiterHandle};
use crate::watch::task::{ClientWatches, KeyWatch, StreamCount};

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
    streams: StreamCount,
    /// The revision of the store at the last read of the whole queue.
    revision: i64,
    own: Option<KeyWatch>,
    in_front: Option<EntryInFront>,
    /// Where we wait.
    place: Option<WaiterHandle>,
}

/// The entry in front of ours.
#[derive(Debug)]
struct EntryInFront {
    key: Vec<u8>,
    watch: Option<KeyWatch>,
    /// Apart from those of our own entry: they no longer matter once we are the first.
    news: Arc<Notify>,
}

impl EntryInFront {
    fn new(key: Vec<u8>) -> Self {
        Self { key, watch: None, news: Arc::default() }
    }

    /// Its watch has nothing more to report.
    fn is_over(&self) -> bool {
        self.watch.as_ref().is_some_and(|watch| watch.is_deleted() || watch.has_ended())
    }

    /// Resolves when it has changed and, if one of our neighbours has released it, that was
    /// answered.
    async fn changed(&self, handover: &LocalHandover) {
        self.news.notified().await;
        let mut taken = UnusedNews(Some(&self.news));
        handover.release_answered(&self.key).await;
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
        let (news, streams, revision, own, in_front, place) = Default::default();
        Self { watches, handover, news, streams, revision, own, in_front, place }
    }

    /// The store is about to be asked.
    pub(crate) fn streams(&self) -> StreamCount {
        self.watches.streams()
    }

    /// Changes to our entry and the one in front of it no longer matter, nor does what is still told of
    /// them.
    pub(crate) fn clear(&mut self) {
        (self.own, self.in_front, self.place) = (None, None, None);
        self.news = Arc::default();
    }

    /// Notes a read of our entry. None is known to be before it.
    pub(crate) fn stands(&mut self, streams: StreamCount, revision: i64) {
        (self.streams, self.revision) = (streams, revision);
        (self.in_front, self.place) = (None, None);
    }

    /// Notes a read of the whole queue: `entry`, which is ours, is behind `in_front`.
    pub(crate) fn is_behind(
        &mut self,
        streams: StreamCount,
        revision: i64,
        entry: &QueueEntry,
        in_front: Vec<u8>,
    ) {
        (self.streams, self.revision) = (streams, revision);
        let is_watched = |known: &EntryInFront| known.key == in_front && !known.is_over();
        if !self.in_front.as_ref().is_some_and(is_watched) {
            self.in_front = Some(EntryInFront::new(in_front));
        }
        if !self.place.as_ref().is_some_and(|place| place.is_at(entry)) {
            self.place = Some(self.handover.register(entry));
        }
    }

    /// The proof of a neighbour that our entry is the first.
    pub(crate) fn proof(&self, now: ClockInstant, limit: Duration) -> Option<FirstProof> {
        self.place.as_ref()?.take(now, limit)
    }

    /// Notes a read of our key alone. It does not update what a waiter knows of the entry before
    /// it.
    pub(crate) fn confirmed(&mut self, streams: StreamCount, revision: i64, is_held: bool) {
        self.streams = streams;
        if is_held {
            self.revision = self.revision.max(revision);
        }
    }

    /// The watch of our entry has reported it gone.
    pub(crate) fn is_own_deleted(&self) -> bool {
        self.own.as_ref().is_some_and(KeyWatch::is_deleted)
    }

    /// Whether the watch of our entry would have reported its deletion.
    pub(crate) fn is_sure(&self) -> bool {
        self.own.as_ref().is_some_and(KeyWatch::is_live)
            && rules::stood_since(self.streams, self.watches.streams())
    }

    /// Starts any missing watches of `own` and of the entry in front of it, and waits for news.
    ///
    /// # Errors
    ///
    /// If no news can arrive: then the waiter polls.
    pub(crate) async fn changed(&mut self, own: Option<&str>, is_held: bool) -> Result<()> {
        if is_held && self.own.is_none() {
            tokio::time::sleep(UNWATCHED).await;
        }
        let from = self.revision + 1;
        if let Some(own) = own {
            if self.own.as_ref().is_none_or(KeyWatch::has_ended) {
                self.own = Some(self.watches.watch(own.into(), from, &self.news)?);
            }
            if let Some(EntryInFront { key, watch: watch @ None, news }) = &mut self.in_front {
                *watch = Some(self.watches.watch(key.clone(), from, news)?);
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
