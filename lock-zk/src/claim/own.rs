//! A contender's own nodes: found after an unknown outcome, and given up.

use lock_core::{Released, Result};

use super::ZkClaim;
use crate::names;
use crate::session::Session;
use crate::transport::Failure;

impl ZkClaim {
    /// Looks for a node of ours after an unknown outcome. What is found is ours only if it belongs to
    /// this very session: one of an earlier session may vanish at any moment, so it is removed.
    pub(super) async fn find_own(&mut self, session: &Session) -> Result<()> {
        #[cfg(distlock_mutants)]
        if crate::mutants::is("create_again") {
            self.unsure = false;
            return Ok(());
        }
        let (found, others) = self.search(session).await?;
        for name in others {
            self.remove(session, &format!("{}/{name}", self.parent)).await?;
        }
        match found {
            Some((name, czxid)) => self.take(session, name, czxid).await,
            None => {
                self.unsure = false;
                Ok(())
            }
        }
    }

    /// As [`find_own`](Self::find_own) for one who must not write: what is not ours is left to the release.
    pub(super) async fn recall(&mut self) -> Result<()> {
        #[cfg(distlock_mutants)]
        if crate::mutants::is("check_what_is_known") {
            return Ok(());
        }
        let Some(session) = self.seat.as_deref().cloned() else { return Ok(()) };
        if !self.unsure || session.has_ended() {
            return Ok(());
        }
        let (found, others) = self.search(&session).await?;
        if let Some((name, czxid)) = found {
            self.take(&session, name, czxid).await?;
            self.unsure = !others.is_empty();
        }
        Ok(())
    }

    /// The node of this very session and its transaction, and all others with our owner id.
    async fn search(&self, session: &Session) -> Result<(Option<(String, i64)>, Vec<String>)> {
        let (mut found, mut others) = (None, Vec::new());
        for name in self.own_nodes(session).await? {
            match session.get(&format!("{}/{name}", self.parent)).await {
                Ok(None) => {}
                Ok(Some(node)) if found.is_none() && is_of(session, node.owner) => {
                    found = Some((name, node.czxid));
                }
                Ok(Some(_)) => others.push(name),
                Err(failure) => return Err(self.describe(&failure)),
            }
        }
        Ok((found, others))
    }

    /// All nodes with our owner id. The request that may have made one is executed before, if it ever
    /// is: on the same connection in order, and a server that has taken over the session refuses what
    /// comes over an older connection; `sync` brings this server up to date.
    async fn own_nodes(&self, session: &Session) -> Result<Vec<String>> {
        let listing = async {
            session.sync(&self.parent).await?;
            session.list(&self.parent).await
        };
        match listing.await {
            Ok(mut children) => {
                children.retain(|child| {
                    child.starts_with(&self.prefix) && names::sequence(child).is_some()
                });
                children.sort_unstable();
                Ok(children)
            }
            Err(Failure::NoNode) => Ok(Vec::new()),
            Err(failure) => Err(self.describe(&failure)),
        }
    }

    async fn remove(&self, session: &Session, path: &str) -> Result<Released> {
        match session.delete(path).await {
            Ok(()) => Ok(Released::Freed),
            Err(Failure::NoNode) => Ok(Released::AlreadyGone),
            Err(failure) => Err(self.describe(&failure).with_unknown_effect()),
        }
    }

    /// Gives up our node of this session.
    pub(super) async fn leave(&mut self, session: &Session) -> Result<Released> {
        let Some(own) = self.own.clone() else { return Ok(Released::AlreadyGone) };
        let released = self.remove(session, &own.path).await?;
        self.forget();
        Ok(released)
    }

    pub(super) async fn give_up(&mut self) -> Result<Released> {
        if self.seat.is_none() && !self.unsure {
            return Ok(Released::AlreadyGone);
        }
        let session = self.session().await?;
        if !self.unsure {
            return self.leave(&session).await;
        }
        let mut released = Released::AlreadyGone;
        for name in self.own_nodes(&session).await? {
            if self.remove(&session, &format!("{}/{name}", self.parent)).await? == Released::Freed {
                released = Released::Freed;
            }
        }
        self.unsure = false;
        self.forget();
        Ok(released)
    }
}

fn is_of(session: &Session, owner: i64) -> bool {
    #[cfg(distlock_mutants)]
    if crate::mutants::is("trust_any_session") {
        return true;
    }
    owner == session.id()
}
