//! A contender's own nodes: found after an unknown outcome, and deleted.

use lock_core::Released;

use super::{Entry, ZkClaim};
use crate::connection::reply::{Created, Reply, none_if_missing};
use crate::names;
use crate::sessions::OpenSession;

/// The nodes with our owner id.
#[derive(Default)]
struct OwnNodes {
    /// The one of this session. One of an earlier session may vanish at any moment.
    ours: Option<Created>,
    /// The names of all others.
    others: Vec<String>,
}

impl ZkClaim {
    /// Searches for our nodes after an unknown outcome.
    async fn search(&self, session: &OpenSession) -> Reply<OwnNodes> {
        let mut nodes = OwnNodes::default();
        for name in self.own_names(session).await? {
            match session.get(&self.path(&name)).await? {
                None => {}
                Some(node) if nodes.ours.is_none() && node.owner == session.id() => {
                    nodes.ours = Some(Created { name, czxid: node.czxid });
                }
                Some(_) => nodes.others.push(name),
            }
        }
        Ok(nodes)
    }

    /// The names of all nodes with our owner id. The request that may have created one is executed
    /// before this listing, if ever: requests on one connection are executed in order, and a server
    /// that has taken over the session refuses those from an older connection; `sync` brings this
    /// server up to date.
    async fn own_names(&self, session: &OpenSession) -> Reply<Vec<String>> {
        let listed = session.sync_and_list(&self.parent).await;
        let mut children = none_if_missing(listed)?.unwrap_or_default();
        children
            .retain(|child| child.starts_with(&self.prefix) && names::sequence(child).is_some());
        children.sort_unstable();
        Ok(children)
    }

    /// Ends the doubt: a node of this session is ours, and all others are removed.
    pub(super) async fn settle(&mut self, session: &OpenSession) -> Reply<()> {
        let nodes = self.search(session).await?;
        for name in nodes.others {
            session.delete(&self.path(&name)).await?;
        }
        if let Some(node) = nodes.ours {
            self.take(session, node).await?;
        }
        self.in_doubt = false;
        Ok(())
    }

    /// Ends the doubt as far as possible without writing: other nodes are left to the release.
    pub(super) async fn recall(&mut self) -> Reply<()> {
        let session = self.share.as_deref().cloned().filter(|session| !session.has_ended());
        let Some(session) = session.filter(|_| self.in_doubt) else { return Ok(()) };
        let nodes = self.search(&session).await?;
        if let Some(node) = nodes.ours {
            self.take(&session, node).await?;
            self.in_doubt = !nodes.others.is_empty();
        }
        Ok(())
    }

    /// This node is ours.
    pub(super) async fn take(&mut self, session: &OpenSession, node: Created) -> Reply<()> {
        let fence = session.fence(node.czxid).await?;
        self.entry = Some(Entry { path: self.path(&node.name), name: node.name, fence });
        Ok(())
    }

    /// Deletes our node of this session.
    pub(super) async fn leave(&mut self, session: &OpenSession) -> Reply<Released> {
        let Some(entry) = &self.entry else { return Ok(Released::AlreadyGone) };
        let released = session.delete(&entry.path).await?;
        self.forget();
        Ok(released)
    }

    /// Deletes all our nodes.
    pub(super) async fn give_up(&mut self) -> Reply<Released> {
        if self.share.is_none() && !self.in_doubt {
            return Ok(Released::AlreadyGone);
        }
        let session = self.session().await?;
        if !self.in_doubt {
            return self.leave(&session).await;
        }
        let mut released = Released::AlreadyGone;
        for name in self.own_names(&session).await? {
            if session.delete(&self.path(&name)).await? == Released::Freed {
                released = Released::Freed;
            }
        }
        self.in_doubt = false;
        self.forget();
        Ok(released)
    }
}
