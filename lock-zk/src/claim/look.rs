//! How a try looks at the queue, and enters it.

use lock_core::{Attempt, ClockInstant, Effect, Error, ErrorKind, Result};

use super::{Own, ZkClaim};
use crate::names::{self, Place};
use crate::session::Session;
use crate::transport::{Checked, Failure};

/// How often a try begins again because the node of the lock, or our own, was removed meanwhile.
const ROUNDS: usize = 16;
/// A lock is granted with a fourth of the session timeout left at least: less may be over before a
/// renewal can prolong it.
const LEAST: u32 = 4;

/// The children of the lock's node, as one listing has shown them.
struct Seen {
    children: Vec<String>,
    /// Whether it is no older than an answer of the leader within this very call. Any server lists by
    /// itself, also one that has not heard yet that our node was taken away and the lock given to
    /// somebody else.
    fresh: bool,
}

impl ZkClaim {
    pub(super) async fn look(&mut self, start: ClockInstant) -> Result<Attempt> {
        let session = self.session().await?;
        for _ in 0..ROUNDS {
            if self.unsure {
                self.find_own(&session).await?;
            }
            let Some(Seen { children, fresh }) = self.see(&session).await? else { continue };
            let Some(own) = self.own.clone() else {
                // Busy, without a place.
                return Ok(Attempt::Busy { valid_for: None, retry_after: None });
            };
            self.refuse_near_the_end(&session, &own).await?;
            match names::place(&children, &own.name) {
                Place::First => {
                    // From now on the next round asks the leader.
                    self.ears.expect(None);
                    if fresh && self.is_valid_for_long(&session, &own, start).await? {
                        let valid_for = Some(session.valid_for(start));
                        return Ok(Attempt::Granted { token: own.fence, valid_for });
                    }
                }
                // An operator has removed our node: a new place is taken.
                Place::Missing => self.forget(),
                Place::After(ahead) => {
                    if !self.request.wait {
                        self.leave(&session).await?;
                        return Ok(Attempt::Busy { valid_for: None, retry_after: None });
                    }
                    self.ears.expect(Some(format!("{}/{ahead}", self.parent)));
                    let valid_for = Some(session.valid_for(start));
                    return Ok(Attempt::Busy { valid_for, retry_after: None });
                }
            }
        }
        Err(Error::new(
            ErrorKind::Unavailable,
            format!("{} is removed again and again while it is used", self.parent),
        )
        .with_unknown_effect())
    }

    /// Whether the session of a lock that is ours lasts for long enough. A session that was idle is not
    /// known to, since only a write shows it. After a silence of the servers a write does not show it
    /// either, until they have answered for a while: see [`Timeline`](crate::timeline::Timeline). Then
    /// this waits a little, and the answer is no.
    async fn is_valid_for_long(
        &mut self,
        session: &Session,
        own: &Own,
        start: ClockInstant,
    ) -> Result<bool> {
        let is_long = || session.left() >= session.timeout() / LEAST;
        if is_long() {
            return Ok(true);
        }
        match session.check(&[&own.path]).await {
            Ok(Checked::All) if is_long() => return Ok(true),
            Ok(Checked::All) => {}
            Ok(Checked::Missing(_)) => {
                self.forget();
                return Ok(false);
            }
            Err(failure) => return Err(self.describe(&failure)),
        }
        let beat = session.beat();
        let spent = (self.now() + beat).since(start);
        if spent > self.request.call_timeout * 3 / 4 {
            return Err(Error::new(
                ErrorKind::Unavailable,
                format!(
                    "the ZooKeeper ensemble at {} was silent for a while: how long it keeps our session of {:?} is not certain before it has answered for two fifths of that again",
                    self.shared.sessions.endpoint(),
                    session.timeout()
                ),
            )
            .with_unknown_effect());
        }
        tokio::time::sleep(beat).await;
        Ok(false)
    }

    /// The children of the lock's node, listed after our own node was made if we want one. `None`: begin
    /// again.
    async fn see(&mut self, session: &Session) -> Result<Option<Seen>> {
        let fresh = self.own.is_some() && !self.ears.waits();
        let listed = match &self.own {
            // Nobody seems to be before us.
            Some(_) if fresh && !is_careless() => session.sync_and_list(&self.parent).await,
            Some(_) => session.list(&self.parent).await,
            None if self.request.wait => return self.enter(session).await,
            None => self.others(session).await,
        };
        match listed {
            Ok(children) if self.own.is_some() || has_contenders(&children) => {
                Ok(Some(Seen { children, fresh }))
            }
            Ok(_) => self.enter(session).await,
            Err(Failure::NoNode) => {
                self.forget();
                self.enter(session).await
            }
            Err(failure) => Err(self.describe(&failure)),
        }
    }

    /// The children as a mere try sees them. A server may be behind and show somebody who has left, so
    /// "busy" is said only by one that has caught up.
    async fn others(&self, session: &Session) -> Result<Vec<String>, Failure> {
        let children = session.list(&self.parent).await?;
        if !has_contenders(&children) {
            return Ok(children);
        }
        session.sync(&self.parent).await?;
        session.list(&self.parent).await
    }

    /// Makes our node.
    async fn enter(&mut self, session: &Session) -> Result<Option<Seen>> {
        // A right that is missing is found out before there is a node.
        session.ensure_base().await?;
        self.unsure = true;
        let (entered, children) = session.enter(&self.parent, &self.prefix, &self.data).await;
        let entered = match entered {
            Ok(entered) => entered,
            Err(Failure::NoNode) => {
                self.unsure = false;
                let parents = session.create_parents(&self.parent).await;
                return parents.map(|()| None).map_err(|failure| self.describe(&failure));
            }
            Err(failure) => {
                let error = self.describe(&failure);
                self.unsure = error.effect() == Effect::Unknown;
                return Err(error);
            }
        };
        self.take(session, entered.name, entered.czxid).await?;
        let children = children.map_err(|failure| self.describe(&failure))?;
        Ok(Some(Seen { children, fresh: true }))
    }

    pub(super) async fn take(&mut self, session: &Session, name: String, czxid: i64) -> Result<()> {
        #[cfg(distlock_mutants)]
        let czxid = crate::mutants::fence(czxid, &name);
        let fence = session.fence(czxid).await.map_err(Error::with_unknown_effect)?;
        let path = format!("{}/{name}", self.parent);
        self.own = Some(Own { name, path, fence });
        self.unsure = false;
        Ok(())
    }

    /// Curator and kazoo order the numbers as text, so a queue must not come near their end. Its node
    /// is removed when nobody is in it, and the numbers begin again.
    async fn refuse_near_the_end(&mut self, session: &Session, own: &Own) -> Result<()> {
        let number = names::sequence(&own.name).unwrap_or(i32::MIN);
        if number >= 0 && number < self.shared.config.sequence_limit {
            return Ok(());
        }
        self.leave(session).await?;
        // Fails as long as there are others.
        let removed = session.delete(&self.parent).await;
        if removed.is_ok() {
            tracing::info!(target: "distlock", node = %self.parent, "the sequence numbers of a lock begin again");
        }
        Err(Error::new(
            ErrorKind::Store,
            format!(
                "the queue at {} has used up its sequence numbers (this one is {number}): nobody may enter until those who are in it have left, and the node is removed",
                self.parent
            ),
        )
        .with_retryable(true))
    }
}

fn has_contenders(children: &[String]) -> bool {
    children.iter().any(|child| names::sequence(child).is_some())
}

/// What a mutant does: takes the listing of any server for fresh.
fn is_careless() -> bool {
    #[cfg(distlock_mutants)]
    return crate::mutants::is("grant_by_read");
    #[cfg(not(distlock_mutants))]
    false
}
