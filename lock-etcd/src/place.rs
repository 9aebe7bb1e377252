//! The place of a claim in its queue, and what watches it.

use std::sync::Arc;

use crate::contender::Entry;
use crate::mutants;
use crate::wake::{Interest, Waker, Watches};

/// A watch that says nothing may have nothing to say, or may be deaf: after the restore of a snapshot it
/// waits for revisions that are long to come. Every so many renewals the own key is looked at.
const RENEWALS: u32 = 6;
/// Our key in the queue, as the store has shown it.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) entry: Entry,
    /// The revision of the last look.
    pub(crate) seen: i64,
    pub(crate) held: bool,
    /// The renewals since it was last looked at.
    pub(crate) unseen: u32,
    pub(crate) own: Option<Interest>,
    pub(crate) ahead: Option<Ahead>,
}

/// The place before ours.
#[derive(Debug)]
pub(crate) struct Ahead {
    key: Vec<u8>,
    interest: Option<Interest>,
}

impl Place {
    /// A place as it stood at revision `seen`.
    pub(crate) fn new(entry: Entry, seen: i64, ahead: Option<Vec<u8>>) -> Self {
        let ahead = ahead.map(Ahead::new);
        Self { entry, seen, held: false, unseen: 0, own: None, ahead }
    }

    /// Its watch has told that it has gone.
    pub(crate) fn is_deleted(&self) -> bool {
        self.own.as_ref().is_some_and(Interest::is_deleted)
    }

    /// It stands behind `key`.
    pub(crate) fn is_behind(&mut self, key: Vec<u8>) {
        if self.ahead.as_ref().is_none_or(|ahead| ahead.key != key || ahead.is_over()) {
            self.ahead = Some(Ahead::new(key));
        }
    }

    /// Its own deletion is no news any more, nor is that of the place before it.
    pub(crate) fn listen_no_more(&mut self) {
        (self.own, self.ahead) = (None, None);
    }

    /// Notes a look at the own key alone. A watch that has ended begins again after it.
    pub(crate) fn looked(&mut self, revision: i64) {
        self.unseen = 0;
        if self.held {
            self.seen = self.seen.max(revision);
        }
    }

    /// Whether a renewal has to look at the own key. Where its watch stands, it tells when the key goes,
    /// and a look now and then is enough.
    pub(crate) fn is_to_be_looked_at(&mut self) -> bool {
        self.unseen = self.unseen.saturating_add(1);
        let watched = self.own.as_ref().is_some_and(Interest::is_live);
        !watched || (self.unseen >= RENEWALS && !mutants::on("trusts_its_watch"))
    }

    /// Begins the watches that are missing.
    pub(crate) fn listen(&mut self, watches: &Arc<Watches>, waker: &Arc<Waker>) {
        let from = self.seen + 1;
        if self.own.as_ref().is_none_or(Interest::has_ended) && !mutants::on("own_place_unwatched")
        {
            self.own = Some(watches.watch(self.entry.key.clone(), from, waker));
        }
        if let Some(ahead) = &mut self.ahead
            && ahead.interest.is_none()
        {
            ahead.interest = Some(watches.watch(ahead.key.clone(), from, waker));
        }
    }
}

impl Ahead {
    fn new(key: Vec<u8>) -> Self {
        Self { key, interest: None }
    }

    pub(crate) fn is_deleted(&self) -> bool {
        self.interest.as_ref().is_some_and(Interest::is_deleted)
    }

    /// Its watch has told what it can tell.
    fn is_over(&self) -> bool {
        self.is_deleted() || self.interest.as_ref().is_some_and(Interest::has_ended)
    }
}
