//! Who has a lock at this moment (clause C18).
//!
//! The first contender under the node of a lock has it. The floor of a free lock is the last transaction that has created
//! or removed a child of this node. That is read together with the children, so no contender from before it was created
//! by a later transaction, and none from after it by an earlier one.
//!
//! Of several names one request reads the node, its children and the node again, one after the other. If the node shows the
//! same last transaction both times, no child has come or gone in between, and it belongs to the list. If it does not, and
//! nobody is in the list, these locks are listed again, too.
//!
//! If that node does not exist, the nearest one above it tells: the servers remove the node of a lock when it is empty,
//! which changes the one above. While nothing changes there, no node of a lock comes or goes. So what is read before and
//! after the lists must be the same, or these locks are listed again, a few times: where locks come and go all the
//! time, they have no floor.

use std::sync::Arc;

use lock_core::{LockKey, Seen};
use tokio::task::JoinSet;

use super::entry;
use super::fences::known_fence;
use crate::error::{Reply, RequestFailure, no_chroot, parent};
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
            let pack = self.pack();
            let round = async {
                let listings = self.list_all(&above, &asked, pack).await?;
                let is_rootless = listings.above.iter().all(|both| *both == [None, None]);
                let are_last = lists + u32::from(!is_rootless) >= MOST_LISTS;
                let shown = self.shown(&asked, &listings, are_last, pack).await?;
                Reply::Ok((is_rootless, shown))
            };
            let (is_rootless, shown) = match round.await {
                // By a server that reads one node at a time. So it is asked from now on.
                Err(RequestFailure::TooOld) if pack > 1 => continue,
                answer => answer?,
            };
            lists += u32::from(!is_rootless);
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
        pack: usize,
    ) -> Reply<Vec<Option<Seen>>> {
        let base = self.known_base().await?;
        let (mut seen, mut firsts) = (Vec::with_capacity(paths.len()), Vec::new());
        let above = listings.above.iter().find(|both| **both != [None, None]);
        let above = above.and_then(|[before, after]| before.filter(|_| before == after));
        for (at, (path, children)) in paths.iter().zip(&listings.children).enumerate() {
            let queue = children.as_ref().map(|children| entry::contenders(&children.names));
            let first = queue.as_ref().and_then(|queue| queue.first());
            let changed = match (first, children) {
                (Some(first), _) => {
                    firsts.push((at, format!("{path}/{first}")));
                    None
                }
                (None, Some(children)) => children.changed,
                (None, None) => above,
            };
            let is_free = first.is_none();
            seen.push(match changed {
                None if is_free && are_last => Some(Seen::Free { floor: None }),
                Some(changed) => Some(Seen::Free { floor: known_fence(base, changed)? }),
                None => None,
            });
        }
        let mut reads = JoinSet::new();
        for firsts in firsts.chunks(pack) {
            let (places, paths): (Vec<_>, Vec<_>) = firsts.iter().cloned().unzip();
            let session = Arc::clone(self);
            reads.spawn(async move { (places, session.get_all(&paths).await) });
        }
        for (places, nodes) in reads.join_all().await {
            for (at, node) in places.into_iter().zip(nodes?) {
                if let Some(node) = node {
                    seen[at] = Some(held_by(base, &node)?);
                }
            }
        }
        Ok(seen)
    }
}

fn held_by(base: Option<u64>, node: &NodeRecord) -> Reply<Seen> {
    let fence = known_fence(base, node.czxid)?;
    let label = entry::label_in(&node.data).filter(|label| !label.is_empty());
    Ok(Seen::Held { fence, label })
}
