//! What a waiter and a holder watch: the node just before theirs, and their own.

use std::fmt;
use std::time::Duration;

use crate::connection::reply::{Reply, Watch};
use crate::session::Session;

/// A node of one's own is watched only when it has been there for so long: most locks are held for
/// less, and a renewal would find out as well.
const OWN_AFTER: Duration = Duration::from_millis(25);

/// The watches of a claim. A watch is set again after a reconnect, and one whose node has gone in between
/// is ready then, so nothing is missed while one is set.
#[derive(Default)]
pub(crate) struct Watches {
    /// The path of the node before ours, and the watch on it, once it is set.
    ahead: Option<(String, Option<Watch>)>,
    own: Option<Watch>,
}

impl fmt::Debug for Watches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watches")
            .field("ahead", &self.ahead.as_ref().map(|(path, _)| path))
            .finish_non_exhaustive()
    }
}

impl Watches {
    /// A look has shown this node just before ours, or none. A watch that is set on it stays.
    pub(crate) fn expect(&mut self, ahead: Option<String>) {
        if self.ahead.as_ref().map(|(path, _)| path) != ahead.as_ref() {
            self.ahead = ahead.map(|path| (path, None));
        }
    }

    /// Whether the last look has shown a node before ours, and no change of it is known since.
    pub(crate) fn has_one_ahead(&self) -> bool {
        self.ahead.is_some()
    }

    /// Ready when the node before ours has gone, when ours has changed, or when the session is over.
    ///
    /// # Errors
    ///
    /// If a watch could not be set: then the waiter looks again and again.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: a watch that is set stays set.
    pub(crate) async fn changed(&mut self, session: &Session, own: &str) -> Reply<()> {
        if let Some((path, watch @ None)) = &mut self.ahead {
            *watch = session.watch(path).await?;
            if watch.is_none() {
                self.ahead = None;
                return Ok(());
            }
        }
        let (ahead, mine) = (&mut self.ahead, &mut self.own);
        loop {
            tokio::select! {
                () = session.ended() => return Ok(()),
                () = ready(ahead.as_mut().and_then(|(_, watch)| watch.as_mut())) => {
                    *ahead = None;
                    return Ok(());
                }
                watch = watch_later(session, own), if mine.is_none() => {
                    *mine = watch?;
                    if mine.is_none() {
                        return Ok(());
                    }
                }
                () = ready(mine.as_mut()), if mine.is_some() => {
                    *mine = None;
                    return Ok(());
                }
            }
        }
    }
}

async fn watch_later(session: &Session, own: &str) -> Reply<Option<Watch>> {
    tokio::time::sleep(OWN_AFTER).await;
    session.watch(own).await
}

async fn ready(watch: Option<&mut Watch>) {
    match watch {
        Some(watch) => watch.await,
        None => std::future::pending().await,
    }
}
