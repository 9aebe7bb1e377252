//! What wakes a claim: the watches of its own entry and of the one before it.

use std::sync::Arc;

use lock_core::Result;
use lock_core::kit::wake::Waiter;

use crate::watches::{Watch, Watches};

/// The watches of one claim, and what is known from its looks.
#[derive(Debug)]
pub(crate) struct Wake {
    waiter: Waiter<String>,
    /// The last look.
    look: Look,
    own: Option<Watch>,
    ahead: Option<Ahead>,
}

/// A look at the own entry.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Look {
    /// The revision of the store.
    pub(crate) revision: i64,
    /// How many streams of watches had been opened before. A watch that is begun again on a later one says
    /// nothing of the time between: an older copy of the store may have been put back, and then it waits
    /// for revisions that are long to come.
    pub(crate) streams: u64,
}

/// The entry before ours.
#[derive(Debug)]
struct Ahead {
    key: Vec<u8>,
    watch: Option<Watch>,
}

impl Ahead {
    /// Its watch has told what it can tell.
    fn is_over(&self) -> bool {
        self.watch.as_ref().is_some_and(|watch| watch.is_deleted() || watch.has_ended())
    }
}

impl Wake {
    pub(crate) fn new(waiter: Waiter<String>) -> Self {
        Self { waiter, look: Look::default(), own: None, ahead: None }
    }

    /// Nothing that happens to the entry is news any more, nor what happens to the one before it.
    pub(crate) fn clear(&mut self) {
        (self.own, self.ahead) = (None, None);
    }

    /// Notes a look at the whole queue: the own entry stands behind `ahead`, or is the first.
    pub(crate) fn stands(&mut self, look: Look, ahead: Option<Vec<u8>>) {
        self.look = look;
        let is_watched = |known: &Ahead| ahead.as_ref() == Some(&known.key) && !known.is_over();
        if !self.ahead.as_ref().is_some_and(is_watched) {
            self.ahead = ahead.map(|key| Ahead { key, watch: None });
        }
    }

    /// Notes a look at the own key alone. What a waiter knows of the entry before it is as old as before.
    pub(crate) fn confirmed(&mut self, look: Look, is_held: bool) {
        self.look.streams = look.streams;
        if is_held {
            self.look.revision = self.look.revision.max(look.revision);
        }
    }

    /// The watch of the own entry has told that it is gone.
    pub(crate) fn is_own_deleted(&self) -> bool {
        self.own.as_ref().is_some_and(Watch::is_deleted)
    }

    pub(crate) fn is_own_watched(&self) -> bool {
        self.own.is_some()
    }

    /// Whether the watch of the own entry would have told if it were gone.
    pub(crate) fn is_sure(&self, watches: &Watches) -> bool {
        self.own.as_ref().is_some_and(Watch::is_live) && self.look.streams == watches.streams()
    }

    /// Begins the watches of `own` and of the entry before it that are missing, and waits for news.
    pub(crate) async fn woken(&mut self, own: Option<&str>, watches: &Arc<Watches>) -> Result<()> {
        let (from, slot) = (self.look.revision + 1, self.waiter.slot());
        if let Some(own) = own {
            if self.own.as_ref().is_none_or(Watch::has_ended) {
                self.own = Some(watches.watch(own, from, slot));
            }
            if let Some(Ahead { key, watch: watch @ None }) = &mut self.ahead {
                *watch = Some(watches.watch(key.clone(), from, slot));
            }
        }
        watches.woken(&self.waiter).await
    }
}
