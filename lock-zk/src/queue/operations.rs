//! What a claim does to its queue, one operation each: enter, look at the place, confirm the own entry, find it,
//! leave. And whether an entry may exist that the claim does not know. In which order it asks is in `claim`.

use lock_core::{ClaimRequest, ClockInstant, Released};
use lock_kit::neighbours::{ReleaseInFlight, UNPLACED};

use super::entry::{self, QueueEntry, QueuePosition};
use super::watches::{FirstProof, Listing, WaitingEntry, ZkNeighbours};
use crate::error::{Reply, RequestFailure};
use crate::sessions::{LeftEntries, SharedSession};
use crate::settings::ZkConfig;
use crate::wire::{Created, Footing};

/// The queue of a lock, as one claim uses it.
#[derive(Debug)]
pub(super) struct ClaimQueue {
    /// The node of the lock.
    pub(super) parent: String,
    /// The beginning of the names of our entries.
    prefix: String,
    data: Vec<u8>,
    /// A request to make an entry was sent, and its reply not seen: the entry may exist, or may later. Or another
    /// session, or another claim of this owner, may have left one.
    pub(super) is_in_doubt: bool,
}

impl ClaimQueue {
    pub(super) fn new(config: &ZkConfig, request: &ClaimRequest) -> Self {
        Self {
            parent: config.path_of(&request.key),
            prefix: entry::node_prefix(&request.owner),
            data: entry::node_data(request.label.as_deref()),
            is_in_doubt: false,
        }
    }

    /// The path of an entry.
    pub(super) fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.parent)
    }

    /// The bytes in the path of one of our entries.
    pub(super) fn path_bytes(&self) -> usize {
        self.parent.len() + 1 + self.prefix.len() + entry::DIGITS
    }

    /// What the claim may leave behind.
    pub(super) fn left(&self, dropped: ClockInstant) -> LeftEntries {
        LeftEntries { parent: self.parent.clone(), prefix: self.prefix.clone(), dropped }
    }

    /// Makes our entry, the last one of the queue, and lists the queue right after it unless that `is_long`. The node of
    /// the lock is made just before, unless that is known. `None` if it was missing all the same: then the next attempt
    /// will not be without it.
    pub(super) async fn enter(
        &mut self,
        session: &SharedSession,
        is_long: bool,
    ) -> Reply<Option<(QueueEntry, Reply<QueuePosition>)>> {
        // This detects a missing right before there is an entry.
        session.fence_base().await?;
        self.is_in_doubt = true;
        let (parent, prefix, data) = (&self.parent, &self.prefix, &self.data);
        let is_known = session.knows(parent);
        let made = match is_long {
            true => session.create_last(parent, prefix, data).await.map(|created| (created, None)),
            false => {
                let made = session.create_and_list(parent, !is_known, prefix, data).await;
                made.map(|(created, listed)| (created, Some(listed)))
            }
        };
        match made {
            Ok((created, listed)) => {
                if !is_known {
                    session.found(&self.parent);
                }
                let entry = with_fence(session, created).await?;
                self.is_in_doubt = false;
                let position = listed.map_or(Ok(QueuePosition::Deep), |listed| {
                    listed.map(|children| entry::position(&children, &entry.name))
                });
                Ok(Some((entry, position)))
            }
            Err(RequestFailure::NoNode) => {
                self.is_in_doubt = false;
                match is_known {
                    true => session.missed(&self.parent),
                    false => session.create_parents(&self.parent).await?,
                }
                Ok(None)
            }
            Err(failure) => {
                self.is_in_doubt = !failure.is_refusal();
                Err(failure)
            }
        }
    }

    /// Whether a mere try finds a contender. A server may be behind and show one that has left, so "busy" is
    /// believed only of one that has caught up.
    pub(super) async fn is_taken(&self, session: &SharedSession) -> Reply<bool> {
        for fresh in [false, true] {
            if !entry::has_contenders(&self.list(session, fresh).await?) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Reads the place of our entry. A `fresh` look is no older than a reply of the leader within this call. Otherwise
    /// any server answers on its own, even one that has not yet heard that an entry was removed and the lock given to
    /// another contender.
    pub(super) async fn look(
        &self,
        session: &SharedSession,
        entry: &QueueEntry,
        fresh: bool,
    ) -> Reply<QueuePosition> {
        Ok(entry::position(&self.list(session, fresh).await?, &entry.name))
    }

    /// The path of the entry in front of ours in a long queue, by a list that is shared with the other claims of this client
    /// since it is not read at once, and what that stands on.
    pub(super) async fn place(
        &self,
        session: &SharedSession,
        neighbours: &ZkNeighbours,
        own: &str,
    ) -> Reply<Option<(String, Footing)>> {
        tokio::time::sleep(UNPLACED).await;
        let read = async {
            let footing = session.footing();
            let listed = self.list(session, false).await;
            listed.map(|children| Listing::new(footing, children))
        };
        // By the watches of now, not of when we began to wait for our turn. One that has our entry is not from before it.
        let is_new = |known: &Listing| known.footing == session.footing() && known.has(own);
        let queue = self.path("");
        let list = neighbours.list(&queue, session.timeout, is_new, read).await?;
        Ok(list.before(own).map(|in_front| (self.path(in_front), list.footing)))
    }

    /// The entries in any order, and other children.
    async fn list(&self, session: &SharedSession, fresh: bool) -> Reply<Vec<String>> {
        match fresh {
            true => session.sync_and_list(&self.parent).await,
            false => session.list(&self.parent).await,
        }
    }

    /// Asks the leader whether our entry exists, together with all others of this session that are due.
    pub(super) async fn renew(&self, session: &SharedSession, entry: &QueueEntry) -> Reply<bool> {
        session.confirmations.confirm(self.path(&entry.name)).await
    }

    /// Asks the leader at once whether our entry exists.
    pub(super) async fn confirm(&self, session: &SharedSession, entry: &QueueEntry) -> Reply<bool> {
        session.check(&self.path(&entry.name)).await
    }

    /// Our entries, after an unknown outcome. The request that may have made one is executed before this listing,
    /// if ever: requests on one connection are executed in order, and a server that has taken over the session
    /// refuses those from an older connection; `sync` brings this server up to date.
    async fn own_names(&self, session: &SharedSession) -> Reply<Vec<String>> {
        let mut children = self.list(session, true).await?;
        children
            .retain(|child| child.starts_with(&self.prefix) && entry::sequence(child).is_some());
        children.sort_unstable();
        Ok(children)
    }

    /// Our entry of this session, and the names of all others, which may vanish at any moment. If there is one of this
    /// session, only the others leave a doubt.
    pub(super) async fn find(
        &mut self,
        session: &SharedSession,
    ) -> Reply<(Option<QueueEntry>, Vec<String>)> {
        let (mut ours, mut others) = (None, Vec::new());
        for name in self.own_names(session).await? {
            match session.get(&self.path(&name)).await? {
                None => {}
                Some(node) if ours.is_none() && node.owner == session.id() => {
                    ours = Some(with_fence(session, Created { name, czxid: node.czxid }).await?);
                }
                Some(_) => others.push(name),
            }
        }
        if ours.is_some() {
            self.is_in_doubt = !others.is_empty();
        }
        Ok((ours, others))
    }

    /// Ends the doubt: an entry of this session is ours, and all others are removed.
    pub(super) async fn settle(&mut self, session: &SharedSession) -> Reply<Option<QueueEntry>> {
        let (ours, others) = self.find(session).await?;
        for name in others {
            self.leave(session, &name).await?;
        }
        self.is_in_doubt = false;
        Ok(ours)
    }

    /// Removes an entry.
    pub(super) async fn leave(&self, session: &SharedSession, name: &str) -> Reply<Released> {
        session.delete(&self.path(name)).await
    }

    /// Removes the entry at `path`, which is the holder's, and proves by the same transaction that the one behind it is the
    /// first, if that exists: see [`FirstProof`].
    pub(super) async fn leave_before(
        &self,
        session: &SharedSession,
        path: &str,
        footing: Footing,
        leaving: ReleaseInFlight<WaitingEntry, FirstProof, Listing>,
    ) -> Reply<Released> {
        let sent = session.now();
        let Some(released) = session.delete_before(path, &leaving.next().own).await? else {
            return session.delete(path).await;
        };
        if released == Released::Freed && session.footing() == footing {
            leaving.hand_on(FirstProof { footing, sent });
        }
        Ok(released)
    }

    /// Removes all entries of this owner, and with them the doubt.
    pub(super) async fn leave_all(&mut self, session: &SharedSession) -> Reply<Released> {
        let mut released = Released::AlreadyGone;
        for name in self.own_names(session).await? {
            if self.leave(session, &name).await? == Released::Freed {
                released = Released::Freed;
            }
        }
        self.is_in_doubt = false;
        Ok(released)
    }

    /// Removes the node of the lock, which the servers refuse while there are entries.
    pub(super) async fn remove(&self, session: &SharedSession) -> Reply<Released> {
        session.delete(&self.parent).await
    }
}

/// An entry that was just made, or found.
async fn with_fence(session: &SharedSession, created: Created) -> Reply<QueueEntry> {
    Ok(QueueEntry { fence: session.fence(created.czxid).await?, name: created.name })
}
