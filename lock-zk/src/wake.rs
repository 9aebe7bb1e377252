//! How a waiter is woken: by a watch on the node just before its own, and by nothing else. So a
//! hand-over wakes one waiter, however many there are.

use std::fmt;
use std::time::Duration;

use crate::session::Session;
use crate::transport::{Failure, Watch};

/// A node of one's own is watched only when it has been there for so long: most locks are held for
/// less, and a renewal would find out as well.
const OWN_AFTER: Duration = Duration::from_millis(25);

/// What a claim listens to. A watch is set again after a reconnect, and one whose node has gone in between
/// is ready then, so nothing is missed while one is set.
#[derive(Default)]
pub(crate) struct Ears {
    /// The path of the node before ours, and the watch on it, once it is set.
    ahead: Option<(String, Option<Watch>)>,
    own: Option<Watch>,
}

impl fmt::Debug for Ears {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ears")
            .field("ahead", &self.ahead.as_ref().map(|(path, _)| path))
            .finish_non_exhaustive()
    }
}

impl Ears {
    /// A look has found this node just before ours, or none. A watch that is set on it stays.
    pub(crate) fn expect(&mut self, ahead: Option<String>) {
        if self.ahead.as_ref().map(|(path, _)| path) != ahead.as_ref() {
            self.ahead = ahead.map(|path| (path, None));
        }
    }

    /// Whether the last look has found a node before ours, and nothing was heard of it since.
    pub(crate) fn waits(&self) -> bool {
        self.ahead.is_some()
    }

    /// Forgets everything: the node has gone.
    pub(crate) fn deafen(&mut self) {
        *self = Self::default();
    }

    /// Ready when the node before ours has gone, when ours has changed, or when the session is over.
    ///
    /// # Errors
    ///
    /// If a watch could not be set: then the one who waits looks again and again.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: a watch that is set stays set.
    pub(crate) async fn changed(&mut self, session: &Session, own: &str) -> Result<(), Failure> {
        if let Some((path, watch @ None)) = &mut self.ahead {
            *watch = arm(session, path).await?;
            if watch.is_none() {
                self.ahead = None;
                return Ok(());
            }
        }
        let (ahead, mine) = (&mut self.ahead, &mut self.own);
        loop {
            tokio::select! {
                () = session.ended() => return Ok(()),
                () = heard(ahead.as_mut().and_then(|(_, watch)| watch.as_mut())) => {
                    *ahead = None;
                    return Ok(());
                }
                armed = arm_later(session, own), if mine.is_none() => {
                    *mine = armed?;
                    if mine.is_none() {
                        return Ok(());
                    }
                }
                () = heard(mine.as_mut()), if mine.is_some() => {
                    *mine = None;
                    return Ok(());
                }
            }
        }
    }
}

async fn arm(session: &Session, path: &str) -> Result<Option<Watch>, Failure> {
    #[cfg(distlock_mutants)]
    if crate::mutants::is("watch_the_parent")
        && let Some(parent) = path.rfind('/')
    {
        return session.watch_children(&path[..parent]).await;
    }
    session.watch(path).await
}

async fn arm_later(session: &Session, own: &str) -> Result<Option<Watch>, Failure> {
    tokio::time::sleep(OWN_AFTER).await;
    session.watch(own).await
}

async fn heard(watch: Option<&mut Watch>) {
    match watch {
        Some(watch) => watch.await,
        None => std::future::pending().await,
    }
}
