//! Wakes a claim: the watches of its own entry and of the one before it.

use std::sync::Arc;

use lock_core::Result;
use tokio::sync::Notify;

use crate::watches::{Watch, Watches};

/// The watches of one claim, and the results of its reads.
#[derive(Debug)]
pub(crate) struct Wake {
    watches: Arc<Watches>,
    news: Arc<Notify>,
    /// When the last read began.
    look: Look,
    /// The revision of the store at the last read of the whole queue.
    revision: i64,
    own: Option<Watch>,
    ahead: Option<Ahead>,
}

/// A read about to begin: how many watch streams were opened before it. A watch restarted on a
/// later stream says nothing about the time between: an older copy of the store may have been
/// restored, and then it waits for revisions far in the future.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Look(u64);

/// The entry before ours.
#[derive(Debug)]
struct Ahead {
    key: Vec<u8>,
    watch: Option<Watch>,
}

impl Ahead {
    /// Its watch has nothing more to report.
    fn is_over(&self) -> bool {
        self.watch.as_ref().is_some_and(|watch| watch.is_deleted() || watch.has_ended())
    }
}

impl Wake {
    pub(crate) fn new(watches: Arc<Watches>) -> Self {
        let (news, look, revision, own, ahead) = Default::default();
        Self { watches, news, look, revision, own, ahead }
    }

    /// The store is about to be asked.
    pub(crate) fn look(&self) -> Look {
        Look(self.watches.streams())
    }

    /// Changes to our entry and the one before it no longer matter.
    pub(crate) fn clear(&mut self) {
        (self.own, self.ahead) = (None, None);
    }

    /// Notes a read of the whole queue: our entry is behind `ahead`, or is the first.
    pub(crate) fn stands(&mut self, look: Look, revision: i64, ahead: Option<Vec<u8>>) {
        (self.look, self.revision) = (look, revision);
        let is_watched = |known: &Ahead| ahead.as_ref() == Some(&known.key) && !known.is_over();
        if !self.ahead.as_ref().is_some_and(is_watched) {
            self.ahead = ahead.map(|key| Ahead { key, watch: None });
        }
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
        self.own.as_ref().is_some_and(Watch::is_live) && self.look.0 == self.watches.streams()
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
            if let Some(Ahead { key, watch: watch @ None }) = &mut self.ahead {
                *watch = Some(self.watches.watch(key.clone(), from, &self.news)?);
            }
        }
        let Some(own) = &self.own else {
            self.news.notified().await;
            return Ok(());
        };
        tokio::select! {
            biased;
            () = self.news.notified() => Ok(()),
            error = own.down() => Err(error),
        }
    }
}
