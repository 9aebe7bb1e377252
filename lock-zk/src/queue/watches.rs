//! What a waiter and a holder watch: the node just before theirs, and their own.

use std::fmt;
use std::time::Duration;

use crate::error::{Reply, RequestFailure};
use crate::wire::Session;
use crate::wire::{NodeWatch, WatchOutcome};

/// Our own node is watched only once it has existed for this long: most locks are held for less,
/// and a renewal would notice a loss as well.
const OWN_AFTER: Duration = Duration::from_millis(25);
/// The pause after an attempt to set a watch that got no reply.
const PAUSE: Duration = Duration::from_millis(5);

/// The watches of a claim. A watch lost with its connection is set again on the next one, which
/// shows whether its node is gone, so nothing is missed.
#[derive(Default)]
pub(crate) struct ClaimWatches {
    /// The path of the node before ours, and the watch on it, once it is set.
    in_front: Option<(String, Option<NodeWatch>)>,
    own: Option<NodeWatch>,
}

impl fmt::Debug for ClaimWatches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClaimWatches")
            .field("in_front", &self.in_front.as_ref().map(|(path, _)| path))
            .finish_non_exhaustive()
    }
}

impl ClaimWatches {
    /// A look has shown no node before ours.
    pub(crate) fn stands(&mut self) {
        self.in_front = None;
    }

    /// A look has shown this node just before ours. A watch already set on it stays.
    pub(crate) fn is_behind(&mut self, in_front: String) {
        if self.in_front.as_ref().is_none_or(|(path, _)| *path != in_front) {
            self.in_front = Some((in_front, None));
        }
    }

    /// Whether the last look has shown a node before ours, and no change of it is known since.
    pub(crate) fn has_one_in_front(&self) -> bool {
        self.in_front.is_some()
    }

    /// Resolves when the node before ours is gone, when ours has changed, or when the session is
    /// over.
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
            let in_front = self.in_front.as_mut().and_then(|(_, watch)| watch.as_mut());
            tokio::select! {
                () = session.ended() => return Ok(()),
                event = ready(in_front) => match event {
                    WatchOutcome::Change => {
                        self.in_front = None;
                        return Ok(());
                    }
                    WatchOutcome::Cut => self.in_front.iter_mut().for_each(|(_, watch)| *watch = None),
                },
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
