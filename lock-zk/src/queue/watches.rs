//! What a waiter and a holder watch: the node just before theirs, and their own.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lock_core::ClockInstant;
use lock_kit::neighbours::{self, Neighbours, Place};

use super::entry::sequence;
use crate::error::{Reply, RequestFailure};
use crate::wire::{Footing, NodeWatch, Session, WatchOutcome};

/// Our own node is watched only once it has existed for this long: most locks are held for less,
/// and a renewal would notice a loss as well.
const OWN_AFTER: Duration = Duration::from_millis(25);
/// The pause after an attempt to set a watch that got no reply.
const PAUSE: Duration = Duration::from_millis(5);

/// Where a claim waits.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct WaitingEntry {
    /// The path of its node.
    pub(crate) own: String,
    /// Of the look that has shown the node in front of it.
    pub(crate) footing: Footing,
}

/// The entries of a long queue, as they were listed.
#[derive(Debug)]
pub(crate) struct Listing {
    pub(crate) footing: Footing,
    /// With their numbers, in their order.
    entries: Vec<(i64, String)>,
}

impl Listing {
    pub(crate) fn new(footing: Footing, children: Vec<String>) -> Self {
        let numbered = children.into_iter().filter_map(|child| Some((sequence(&child)?, child)));
        let mut entries: Vec<_> = numbered.collect();
        entries.sort_unstable();
        Self { footing, entries }
    }

    /// Where the entry of this name stands.
    fn at(&self, own: &str) -> Option<usize> {
        let number = sequence(own)?;
        let found = |(at, name): &(i64, String)| (*at, name.as_str()).cmp(&(number, own));
        self.entries.binary_search_by(found).ok()
    }

    pub(crate) fn has(&self, own: &str) -> bool {
        self.at(own).is_some()
    }

    /// The entry in front of it, if both are there.
    pub(crate) fn before(&self, own: &str) -> Option<&str> {
        let (_, in_front) = self.entries.get(self.at(own)?.checked_sub(1)?)?;
        Some(in_front)
    }
}

/// The claims of a client, of which some wait right behind each other.
pub(crate) type ZkNeighbours = Neighbours<WaitingEntry, FirstProof, Listing>;

/// The proof of a neighbour that a node is the first.
///
/// The last look of a waiter showed the node directly in front of its own, and nothing ever comes between the two: the
/// numbers of new nodes are higher than both, and the node of the lock, with which they would begin again, is not
/// removed while there are any. The holder was the first when it was granted the lock, and for the same reason nothing
/// ever comes before it. So when the holder's is the node in front, and the leader commits that it is deleted and that
/// the waiter's exists, the waiter is the first. If the holder's node is gone already, by force or with its session, or
/// the waiter's is, the transaction says so and does nothing.
///
/// Of two looks on different connections the servers may have been restored in between. So all of that must have been
/// seen on one connection of one session; otherwise the waiter looks at the queue.
#[derive(Debug)]
pub(crate) struct FirstProof {
    pub(crate) footing: Footing,
    /// When the request was sent.
    pub(crate) sent: ClockInstant,
}

/// The watches of a claim. A watch lost with its connection is set again on the next one, which
/// shows whether its node is gone, so nothing is missed.
pub(crate) struct ClaimWatches {
    neighbours: Arc<ZkNeighbours>,
    /// The path of the node before ours, and the watch on it, once it is set.
    in_front: Option<(String, Option<NodeWatch>)>,
    own: Option<NodeWatch>,
    /// Where we wait.
    place: Option<Place<WaitingEntry, FirstProof, Listing>>,
}

impl fmt::Debug for ClaimWatches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClaimWatches")
            .field("in_front", &self.in_front.as_ref().map(|(path, _)| path))
            .finish_non_exhaustive()
    }
}

impl ClaimWatches {
    pub(crate) fn new(neighbours: Arc<ZkNeighbours>) -> Self {
        Self { neighbours, in_front: None, own: None, place: None }
    }

    /// Nothing that is still told matters any more.
    pub(crate) fn clear(&mut self) {
        (self.in_front, self.own, self.place) = (None, None, None);
    }

    /// A look has shown no node before ours.
    pub(crate) fn stands(&mut self) {
        (self.in_front, self.place) = (None, None);
    }

    /// A look has shown this node just before ours. A watch already set on it stays.
    pub(crate) fn is_behind(&mut self, in_front: String, waiter: WaitingEntry) {
        let is_known = self.in_front.as_ref().is_some_and(|(path, _)| *path == in_front);
        if !is_known || self.place.as_ref().is_none_or(|place| *place.waiter() != waiter) {
            self.place = Some(self.neighbours.register(&in_front, waiter));
        }
        if !is_known {
            self.in_front = Some((in_front, None));
        }
    }

    /// Whether a neighbour has proven that our node is the first, on `footing`, and no longer ago than a look could take.
    pub(crate) fn is_proven(&self, footing: Footing, now: ClockInstant, limit: Duration) -> bool {
        let proof = self.place.as_ref().and_then(Place::take);
        proof.is_some_and(|proof| proof.footing == footing && now.since(proof.sent) <= limit)
    }

    /// Whether the last look has shown a node before ours, and no change of it is known since.
    pub(crate) fn has_one_in_front(&self) -> bool {
        self.in_front.is_some()
    }

    /// Resolves when the node before ours is gone and, if one of our neighbours has released it, that was answered; when
    /// ours has changed; or when the session is over.
    ///
    /// # Errors
    ///
    /// If a watch could not be set: then the waiter polls.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: watches already set stay set.
    pub(crate) async fn changed(&mut self, session: &Session, own: &str) -> Reply<()> {
        loop {
            if let Some((path, watch @ None)) = &mut self.in_front {
                *watch = set(session, path).await?;
                if watch.is_none() {
                    self.in_front = None;
                    return Ok(());
                }
            }
            let place = &self.place;
            let in_front = self.in_front.as_mut().and_then(|(_, watch)| watch.as_mut());
            tokio::select! {
                () = session.ended() => return Ok(()),
                Some(()) = async { place.as_ref()?.proven().await; Some(()) } => return Ok(()),
                event = ready(in_front) => {
                    // If this call is given up meanwhile, the next one sees that the node is gone.
                    let path = self.in_front.as_mut().map(|(path, watch)| { *watch = None; &*path });
                    if event == WatchOutcome::Change {
                        let leaving = path.and_then(|path| self.neighbours.leaving(path));
                        if let Some(leaving) = leaving {
                            neighbours::answered(leaving).await;
                        }
                        self.in_front = None;
                        return Ok(());
                    }
                }
                watch = set_later(session, own), if self.own.is_none() => {
                    self.own = watch?;
                    if self.own.is_none() {
                        return Ok(());
                    }
                }
                event = ready(self.own.as_mut()), if self.own.is_some() => {
                    self.own = None;
                    if event == WatchOutcome::Change {
                        return Ok(());
                    }
                }
            }
        }
    }
}

/// Sets a watch, on the next connection if this one is lost.
async fn set(session: &Session, path: &str) -> Reply<Option<NodeWatch>> {
    loop {
        match session.watch(path).await {
            Err(RequestFailure::Unknown(_)) => tokio::time::sleep(PAUSE).await,
            answer => return answer,
        }
    }
}

async fn set_later(session: &Session, own: &str) -> Reply<Option<NodeWatch>> {
    tokio::time::sleep(OWN_AFTER).await;
    set(session, own).await
}

async fn ready(watch: Option<&mut NodeWatch>) -> WatchOutcome {
    match watch {
        Some(watch) => watch.await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_shows_who_is_in_front() {
        let names = ["b-lock-0000000007", "leases", "a-lock-0000000009", "c-lock-0000000003"];
        let names = names.map(str::to_owned);
        let list = Listing::new(Footing::default(), names.into());
        assert_eq!(list.before("a-lock-0000000009"), Some("b-lock-0000000007"));
        assert_eq!(list.before("c-lock-0000000003"), None);
        assert!(list.has("c-lock-0000000003") && !list.has("c-lock-0000000004"));
        assert_eq!(list.before("x-lock-0000000009"), None, "it is not there");
    }
}
