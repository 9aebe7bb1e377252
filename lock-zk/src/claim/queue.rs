//! How an attempt reads the queue, and enters it.

use lock_core::{Attempt, Busy, ClockInstant, Error, ErrorKind, Released};

use super::{Entry, ZkClaim};
use crate::connection::reply::{Failure, Reply};
use crate::names::{self, Position};
use crate::sessions::OpenSession;
use crate::timeline::Timeline;

/// How often an attempt starts over because the node of the lock, or our own, was removed
/// meanwhile.
const ROUNDS: usize = 16;
/// A lock is granted only with at least a quarter of the session timeout left: less may run out
/// before a renewal can prolong it.
const LEAST: u32 = 4;

/// The children of the lock's node in one listing.
struct Listing {
    children: Vec<String>,
    /// Whether it is no older than a reply of the leader within this call. Any server answers a
    /// listing on its own, even one that has not yet heard that our node was removed and the lock
    /// given to another contender.
    fresh: bool,
}

impl ZkClaim {
    pub(super) async fn look(&mut self, start: ClockInstant) -> Reply<Attempt> {
        let session = self.session().await?;
        for _ in 0..ROUNDS {
            if self.in_doubt {
                self.settle(&session).await?;
            }
            let listing = match self.list(&session).await? {
                Some(listing) => listing,
                None => match self.enter(&session).await? {
                    Some(listing) => listing,
                    None => continue,
                },
            };
            let Some(entry) = self.entry.clone() else { return Ok(Attempt::Busy(Busy::default())) };
            self.refuse_near_the_end(&session, &entry).await?;
            match names::position(&listing.children, &entry.name) {
                Position::First => {
                    // The next round asks the leader.
                    self.watches.expect(None);
                    if listing.fresh && self.is_valid_for_long(&session, &entry, start).await? {
                        let valid_for = Some(session.valid_for(start));
                        return Ok(Attempt::Granted { token: entry.fence, valid_for });
                    }
                }
                // An operator removed our node: take a new place.
                Position::Missing => self.forget(),
                Position::After(ahead) => {
                    if !self.request.wait {
                        self.leave(&session).await?;
                        return Ok(Attempt::Busy(Busy::default()));
                    }
                    self.watches.expect(Some(self.path(ahead)));
                    let busy = Busy::default().with_place(session.valid_for(start));
                    return Ok(Attempt::Busy(busy));
                }
            }
        }
        let why = format!("the node {} is repeatedly removed while in use", self.parent);
        Err(Error::new(ErrorKind::Unavailable, why).into())
    }

    /// Whether the session of a lock that is ours lasts long enough. For an idle session that is
    /// not known, since only a write proves it. After the servers were silent a write does not
    /// prove it either, until they have answered for a while: see [`Timeline`]. Then this waits a
    /// little, and returns false.
    async fn is_valid_for_long(
        &mut self,
        session: &OpenSession,
        entry: &Entry,
        start: ClockInstant,
    ) -> Reply<bool> {
        let is_long = || session.valid_for(session.now()) >= session.timeout / LEAST;
        if is_long() {
            return Ok(true);
        }
        if !session.check(&entry.path).await? {
            self.forget();
            return Ok(false);
        }
        if is_long() {
            return Ok(true);
        }
        let beat = Timeline::beat(session.timeout);
        let spent = (self.now() + beat).since(start);
        if spent > self.request.call_timeout * 3 / 4 {
            return Err(Error::new(
                ErrorKind::Unavailable,
                format!(
                    "the ZooKeeper ensemble at {} was silent for a while: how long it keeps our session of {:?} is uncertain until it has answered again for two fifths of that time",
                    self.sessions.ensemble.endpoint,
                    session.timeout
                ),
            )
            .into());
        }
        tokio::time::sleep(beat).await;
        Ok(false)
    }

    /// The queue with our node, or without it if an attempt that does not wait finds others in it;
    /// `None` if our node must be created first.
    async fn list(&mut self, session: &OpenSession) -> Reply<Option<Listing>> {
        let is_in = self.entry.is_some();
        if !is_in && self.request.wait {
            return Ok(None);
        }
        // No contender seems to be before us.
        let fresh = is_in && !self.watches.has_one_ahead();
        let mut listed = match fresh {
            true => session.sync_and_list(&self.parent).await,
            false => session.list(&self.parent).await,
        };
        // A server may be behind and show a contender that has left, so a mere try is told "busy"
        // only by one that has caught up.
        if !is_in && listed.as_ref().is_ok_and(|children| names::has_contenders(children)) {
            listed = session.sync_and_list(&self.parent).await;
        }
        match listed {
            Ok(children) if is_in || names::has_contenders(&children) => {
                Ok(Some(Listing { children, fresh }))
            }
            Ok(_) => Ok(None),
            Err(Failure::NoNode) => {
                self.forget();
                Ok(None)
            }
            Err(failure) => Err(failure),
        }
    }

    /// Creates our node, and lists the queue. `None`: start over.
    async fn enter(&mut self, session: &OpenSession) -> Reply<Option<Listing>> {
        // This detects a missing right before there is a node.
        session.fence_base().await?;
        self.in_doubt = true;
        let entered = session.create_and_list(&self.parent, &self.prefix, &self.data).await;
        let (created, children) = match entered {
            Ok(entered) => entered,
            Err(Failure::NoNode) => {
                self.in_doubt = false;
                session.create_parents(&self.parent).await?;
                return Ok(None);
            }
            Err(failure) => {
                self.in_doubt = !failure.is_refusal();
                return Err(failure);
            }
        };
        self.take(session, created).await?;
        self.in_doubt = false;
        Ok(Some(Listing { children: children?, fresh: true }))
    }

    /// Curator and kazoo order the numbers as text, so a queue must not come near their end. Its
    /// node is removed when the queue is empty, and the numbers start over.
    async fn refuse_near_the_end(&mut self, session: &OpenSession, entry: &Entry) -> Reply<()> {
        let number = names::sequence(&entry.name).unwrap_or(i64::MAX);
        if number < self.sessions.ensemble.config.sequence_limit {
            return Ok(());
        }
        self.leave(session).await?;
        // Fails while there are others.
        if matches!(session.delete(&self.parent).await, Ok(Released::Freed)) {
            tracing::info!(target: "distlock", node = %self.parent, "the sequence numbers of a lock start over");
        }
        Err(Error::new(
            ErrorKind::Store,
            format!(
                "the queue at {} has used up its sequence numbers (this one is {number}): no client may enter until those in the queue have left and the node is removed",
                self.parent
            ),
        )
        .with_retryable(true)
        .into())
    }
}
