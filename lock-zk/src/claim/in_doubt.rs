//! A contender's own nodes: found after an unknown outcome, and given up.

use lock_core::{Error, Released, Result};

use super::{Entry, ZkClaim};
use crate::connection::reply::{Created, Failure};
use crate::names;
use crate::sessions::OpenSession;

/// The nodes with our owner id.
#[derive(Default)]
pub(super) struct OwnNodes {
    /// The one of this very session. One of an earlier session may vanish at any moment.
    ours: Option<Created>,
    /// The names of all others.
    others: Vec<String>,
}

impl ZkClaim {
    /// Looks for our nodes after an unknown outcome.
    pub(super) async fn search(&self, session: &OpenSession) -> Result<OwnNodes> {
        let mut nodes = OwnNodes::default();
        for name in self.own_names(session).await? {
            match session.get(&self.path(&name)).await {
                Ok(None) => {}
                Ok(Some(node)) if nodes.ours.is_none() && node.owner == session.id() => {
                    nodes.ours = Some(Created { name, czxid: node.czxid });
                }
                Ok(Some(_)) => nodes.others.push(name),
                Err(failure) => return Err(session.describe(&failure)),
            }
        }
        Ok(nodes)
    }

    /// The names of all nodes with our owner id. The request that may have made one is executed before, if
    /// it ever is: on the same connection in order, and a server that has taken over the session refuses
    /// what comes over an older connection; `sync` brings this server up to date.
    async fn own_names(&self, session: &OpenSession) -> Result<Vec<String>> {
        match session.sync_and_list(&self.parent).await {
            Ok(mut children) => {
                children.retain(|child| {
                    child.starts_with(&self.prefix) && names::sequence(child).is_some()
                });
                children.sort_unstable();
                Ok(children)
            }
            Err(Failure::NoNode) => Ok(Vec::new()),
            Err(failure) => Err(session.describe(&failure)),
        }
    }

    /// Ends the doubt: a node of this session is ours, and all others are removed.
    pub(super) async fn settle(&mut self, session: &OpenSession, nodes: OwnNodes) -> Result<()> {
        for name in nodes.others {
            self.remove(session, &self.path(&name)).await?;
        }
        match nodes.ours {
            Some(node) => self.take(session, node).await,
            None => {
                self.in_doubt = false;
                Ok(())
            }
        }
    }

    /// Ends the doubt as far as this can be done without writing: what is not ours is left to the release.
    pub(super) async fn recall(&mut self) -> Result<()> {
        let Some(session) = self.share.as_deref().cloned() else { return Ok(()) };
        if !self.in_doubt || session.has_ended() {
            return Ok(());
        }
        let nodes = self.search(&session).await?;
        if let Some(node) = nodes.ours {
            self.take(&session, node).await?;
            self.in_doubt = !nodes.others.is_empty();
        }
        Ok(())
    }

    /// This node is ours.
    pub(super) async fn take(&mut self, session: &OpenSession, node: Created) -> Result<()> {
        let fence = session.fence_base.fence(session, node.czxid).await;
        let fence = fence.map_err(Error::with_unknown_effect)?;
        self.entry = Some(Entry { path: self.path(&node.name), name: node.name, fence });
        self.in_doubt = false;
        Ok(())
    }

    async fn remove(&self, session: &OpenSession, path: &str) -> Result<Released> {
        match session.delete(path).await {
            Ok(()) => Ok(Released::Freed),
            Err(Failure::NoNode) => Ok(Released::AlreadyGone),
            Err(failure) => Err(session.describe(&failure).with_unknown_effect()),
        }
    }

    /// Gives up our node of this session.
    pub(super) async fn leave(&mut self, session: &OpenSession) -> Result<Released> {
        let Some(entry) = self.entry.clone() else { return Ok(Released::AlreadyGone) };
        let released = self.remove(session, &entry.path).await?;
        self.forget();
        Ok(released)
    }

    /// Gives up all our nodes.
    pub(super) async fn give_up(&mut self) -> Result<Released> {
        if self.share.is_none() && !self.in_doubt {
            return Ok(Released::AlreadyGone);
        }
        let session = self.session().await?;
        if !self.in_doubt {
            return self.leave(&session).await;
        }
        let mut released = Released::AlreadyGone;
        for name in self.own_names(&session).await? {
            if self.remove(&session, &self.path(&name)).await? == Released::Freed {
                released = Released::Freed;
            }
        }
        self.in_doubt = false;
        self.forget();
        Ok(released)
    }
}
