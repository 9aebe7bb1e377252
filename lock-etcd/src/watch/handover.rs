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

use std::ops::Deref;
use std::sync::Arc;

use lock_core::ClockInstant;
use lock_kit::neighbours::{self, Neighbours, Place};

use crate::queue::entry::{EntryInFront, QueueEntry};
use crate::rules;
use crate::watch::task::Footing;

/// All claims of a client.
#[derive(Debug, Default)]
pub(crate) struct LocalHandover(Arc<Neighbours<WaitingEntry, FirstProof, Listing>>);

pub(crate) type WaiterPlace = Place<WaitingEntry, FirstProof, Listing>;
pub(crate) type ReleaseInFlight = neighbours::ReleaseInFlight<WaitingEntry, FirstProof, Listing>;

/// Where a claim waits.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct WaitingEntry {
    pub(crate) entry: QueueEntry,
    pub(crate) in_front: EntryInFront,
    /// Of the look that has shown it.
    pub(crate) footing: Footing,
}

/// The proof that an entry is the first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FirstProof {
    pub(crate) footing: Footing,
    /// The revision at which it was the first.
    pub(crate) revision: i64,
    /// When the request was sent.
    pub(crate) sent: ClockInstant,
}

/// The entries of a queue at one revision, the oldest first.
#[derive(Debug)]
pub(crate) struct Listing {
    pub(crate) footing: Footing,
    pub(crate) revision: i64,
    entries: Vec<EntryInFront>,
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

impl Deref for LocalHandover {
    type Target = Neighbours<WaitingEntry, FirstProof, Listing>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl LocalHandover {
    /// A claim waits. A key that is no text is not one of ours, so no neighbour is there.
    pub(crate) fn register(&self, waiter: WaitingEntry) -> WaiterPlace {
        let in_front = String::from_utf8_lossy(&waiter.in_front.key).into_owned();
        self.0.register(&in_front, waiter)
    }

    /// The holder at `entry` is about to release, by a request that stands on `footing`; `None` if no claim of this client
    /// waits right behind it.
    pub(crate) fn begin_release(
        &self,
        entry: &QueueEntry,
        footing: Footing,
    ) -> Option<ReleaseInFlight> {
        self.0.begin_release(&entry.key, |next| {
            next.in_front.rev == entry.rev && rules::is_one_history(next.footing, footing)
        })
    }

    /// The entry of another client that may be right behind that of the holder, created at `rev`.
    pub(crate) fn follower(&self, queue: &str, rev: i64) -> Option<EntryInFront> {
        self.listed(queue)?.after(rev).cloned()
    }

    /// The entry at `key` has gone. If one of ours has released it, waits for the answer to that, but not for long.
    pub(crate) async fn release_answered(&self, key: &[u8]) {
        let leaving = std::str::from_utf8(key).ok().and_then(|key| self.leaving(key));
        if let Some(leaving) = leaving {
            rules::answered(leaving).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lock_core::FencingToken;

    fn place(key: &str, rev: i64) -> EntryInFront {
        EntryInFront { key: key.into(), rev }
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

    #[test]
    fn a_key_that_was_made_again_is_another_entry() {
        let (handover, footing) = (LocalHandover::default(), Footing::default());
        let entry = |key: &str, rev| QueueEntry {
            key: key.to_owned(),
            rev,
            value: b"x".to_vec(),
            fence: FencingToken::answered(rev).unwrap(),
        };
        let (own, in_front) = (entry("a/2", 2), place("a/1", 1));
        let _place = handover.register(WaitingEntry { entry: own, in_front, footing });
        assert!(handover.begin_release(&entry("a/1", 1), footing).is_some());
        assert!(handover.begin_release(&entry("a/1", 5), footing).is_none());
    }
}
