//! Who has a lock at this moment (clause C18).
//!
//! The first contender under the node of a lock has it. The floor of a free lock is the last transaction that has created
//! or removed a child of this node. That is read together with the children, so no contender from before it was created
//! by a later transaction, and none from after it by an earlier one.
//!
//! If that node does not exist, the nearest one above it tells: the servers remove the node of a lock when it is empty,
//! which changes the one above. While nothing changes there, no node of a lock comes or goes. So what is read before and
//! after the lists must be the same, or these locks are listed again, a few times: where locks come and go all the
//! time, they have no floor.

use std::sync::Arc;

use lock_core::{LockKey, Seen};
use tokio::task::JoinSet;

use super::entry;
use crate::error::{Reply, no_chroot, parent};
use crate::sessions::SharedSession;
use crate::wire::{Listings, NodeRecord};

/// How often locks without a node are listed for a floor.
const MOST_LISTS: u32 = 4;

impl SharedSession {
    pub(crate) async fn look(self: &Arc<Self>, keys: &[LockKey]) -> Reply<Vec<Seen>> {
        let paths: Vec<_> = keys.iter().map(|key| self.config.path_of(key)).collect();
        let mut above = vec![self.config.root.as_str()];
        let (mut seen, mut lists) = (vec![None; paths.len()], 0);
        loop {
            let open: Vec<_> = (0..seen.len()).filter(|at| seen[*at].is_none()).collect();
            if open.is_empty() {
                return Ok(seen.into_iter().flatten().collect());
            }
            let asked: Vec<_> = open.iter().map(|at| paths[*at].clone()).collect();
            let listings = self.list_all(&above, &asked).await?;
            let is_rootless = listings.above.iter().all(|both| *both == [None, None]);
            lists += u32::from(!is_rootless);
            let shown = self.shown(&asked, &listings, lists >= MOST_LISTS).await?;
            for (at, found) in open.into_iter().zip(shown) {
                seen[at] = found;
            }
            // Without a base of the fences in it, the root goes with the last lock.
            if is_rootless {
                match above.last() {
                    Some(&"/") | None => return Err(no_chroot().into()),
                    Some(highest) => above.push(parent(highest)),
                }
            }
        }
    }

    /// What these listings of the nodes at `paths` show of each lock; nothing where it has changed meanwhile, but for
    /// free locks if these are the `last`.
    async fn shown(
        self: &Arc<Self>,
        paths: &[String],
        listings: &Listings,
        are_last: bool,
    ) -> Reply<Vec<Option<Seen>>> {
        let (mut seen, mut reads) = (Vec::with_capacity(paths.len()), JoinSet::new());
        let above = listings.above.iter().find(|both| **both != [None, None]);
        let above = above.and_then(|[before, after]| before.filter(|_| before == after));
        for (at, (path, children)) in paths.iter().zip(&listings.children).enumerate() {
            let queue = children.as_ref().map(|children| entry::contenders(&children.names));
            let first = queue.as_ref().and_then(|queue| queue.first());
            let changed = match (first, children) {
                (Some(first), _) => {
                    let (session, path) = (Arc::clone(self), format!("{path}/{first}"));
                    reads.spawn(async move { (at, session.get(&path).await) });
                    None
                }
                (None, Some(children)) => Some(children.changed),
                (None, None) => above,
            };
            let is_free = first.is_none();
            seen.push(match changed {
                None if is_free && are_last => Some(Seen::Free { floor: None }),
                Some(changed) => Some(Seen::Free { floor: self.known_fence(changed).await? }),
                None => None,
            });
        }
        for (at, node) in reads.join_all().await {
            if let Some(node) = node? {
                seen[at] = Some(self.held_by(&node).await?);
            }
        }
        Ok(seen)
    }

    async fn held_by(&self, node: &NodeRecord) -> Reply<Seen> {
        let fence = self.known_fence(node.czxid).await?;
        let label = entry::label_in(&node.data).filter(|label| !label.is_empty());
        Ok(Seen::Held { fence, label })
    }
}
