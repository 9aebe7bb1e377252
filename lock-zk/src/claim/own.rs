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
        #[cfg(feature = "mutants")]
        if crate::mutants::is("create_again") {
            self.unsure = false;
            return Ok(());
        }
        let mut found: Option<(String, i64)> = None;
        for name in self.own_nodes(session).await? {
            let path = format!("{}/{name}", self.parent);
            match session.get(&path).await {
                Ok(None) => {}
                Ok(Some(node)) if found.is_none() && is_of(session, node.owner) => {
                    found = Some((name, node.czxid));
                }
                Ok(Some(_)) => self.remove(session, &path).await.map(drop)?,
                Err(failure) => return Err(self.describe(&failure)),
            }
        }
        match found {
            Some((name, czxid)) => self.take(name, czxid),
            None => {
                self.unsure = false;
                Ok(())
            }
        }
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
        if self.shared.sessions.has_ended_for_good() {
            // All nodes of the one session of this client have gone with it.
            self.unsure = false;
            self.forget();
        }
        if self.session.is_none() && !self.unsure {
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
    #[cfg(feature = "mutants")]
    if crate::mutants::is("trust_any_session") {
        return true;
    }
    owner == session.id()
}
