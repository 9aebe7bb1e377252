//! What a waiter and a holder watch: the node just before theirs, and their own.

use std::fmt;
use std::time::Duration;

use crate::connection::reply::{Failure, Reply};
use crate::connection::{Event, Watch};
use crate::wire::Session;

/// Our own node is watched only once it has existed for this long: most locks are held for less,
/// and a renewal would notice a loss as well.
const OWN_AFTER: Duration = Duration::from_millis(25);
/// The pause after an attempt to set a watch that got no reply.
const PAUSE: Duration = Duration::from_millis(5);

/// The watches of a claim. A watch lost with its connection is set again on the next one, which
/// shows whether its node is gone, so nothing is missed.
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
    /// A listing has shown this node just before ours, or none. A watch already set on it stays.
    pub(crate) fn expect(&mut self, ahead: Option<String>) {
        if self.ahead.as_ref().map(|(path, _)| path) != ahead.as_ref() {
            self.ahead = ahead.map(|path| (path, None));
        }
    }

    /// Whether the last listing showed a node before ours, and no change of it is known since.
    pub(crate) fn has_one_ahead(&self) -> bool {
        self.ahead.is_some()
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
            if let Some((path, watch @ None)) = &mut self.ahead {
                *watch = set(session, path).await?;
                if watch.is_none() {
                    self.ahead = None;
                    return Ok(());
                }
            }
            let ahead = self.ahead.as_mut().and_then(|(_, watch)| watch.as_mut());
            tokio::select! {
                () = session.ended() => return Ok(()),
                event = ready(ahead) => match event {
                    Event::Change => {
                        self.ahead = None;
                        return Ok(());
                    }
                    Event::Cut => self.ahead.iter_mut().for_each(|(_, watch)| *watch = None),
                },
                watch = set_later(session, own), if self.own.is_none() => {
                    self.own = watch?;
                    if self.own.is_none() {
                        return Ok(());
                    }
                }
                event = ready(self.own.as_mut()), if self.own.is_some() => {
                    self.own = None;
                    if event == Event::Change {
                        return Ok(());
                    }
                }
            }
        }
    }
}

/// Sets a watch, on the next connection if this one is lost.
async fn set(session: &Session, path: &str) -> Reply<Option<Watch>> {
    loop {
        match session.watch(path).await {
            Err(Failure::Unknown(_)) => tokio::time::sleep(PAUSE).await,
            answer => return answer,
        }
    }
}

async fn set_later(session: &Session, own: &str) -> Reply<Option<Watch>> {
    tokio::time::sleep(OWN_AFTER).await;
    set(session, own).await
}

async fn ready(watch: Option<&mut Watch>) -> Event {
    match watch {
        Some(watch) => watch.await,
        None => std::future::pending().await,
    }
}
