//! Inspecting locks, and releasing them by force.

use std::time::Duration;

use lock_core::{
    Finding, HolderInfo, HolderMark, LockAdmin, LockInfo, LockKey, Released, Result, Victim,
    async_trait,
};
use tokio::task::JoinSet;

use crate::backend::ZkBackend;
use crate::doctor;
use crate::error::Reply;
use crate::queue::entry;
use crate::queue::fences::known_fence;

/// The timeout of each request of an inspection.
const LIMIT: Duration = Duration::from_secs(5);
/// How many locks are inspected concurrently.
const BATCH: usize = 64;

#[async_trait]
impl LockAdmin for ZkBackend {
    async fn inspect(&self, key: &LockKey) -> Result<Option<LockInfo>> {
        self.sessions.bounded(LIMIT, self.look_at(key)).await
    }

    /// Inspects every matching lock under the root of this client, with one listing each.
    async fn list(&self, prefix: &str, name_start: &str) -> Result<Vec<LockInfo>> {
        let root = &self.sessions.ensemble.config.root;
        let listed = self.sessions.bounded(LIMIT, self.children(root)).await?;
        let mut keys: Vec<_> = listed
            .iter()
            .filter_map(|child| entry::decode(child))
            .filter(|key| key.prefix() == prefix && key.name().starts_with(name_start))
            .collect();
        keys.sort_unstable();
        let mut locks = Vec::new();
        for keys in keys.chunks(BATCH) {
            let mut looks = JoinSet::new();
            for key in keys {
                let (backend, key) = (self.clone(), key.clone());
                looks.spawn(async move { backend.inspect(&key).await });
            }
            for found in looks.join_all().await {
                locks.extend(found?);
            }
        }
        locks.sort_unstable_by(|a: &LockInfo, b| a.key.cmp(&b.key));
        Ok(locks)
    }

    async fn force_release(&self, key: &LockKey, victim: &Victim) -> Result<Released> {
        self.sessions.bounded(LIMIT, self.remove_holder(key, victim)).await
    }

    async fn diagnose(&self) -> Result<Vec<Finding>> {
        Ok(doctor::diagnose(&self.sessions).await)
    }
}

impl ZkBackend {
    async fn children(&self, path: &str) -> Reply<Vec<String>> {
        self.sessions.any_seat(LIMIT).await?.sync_and_list(path).await
    }

    async fn look_at(&self, key: &LockKey) -> Reply<Option<LockInfo>> {
        let session = self.sessions.any_seat(LIMIT).await?;
        let parent = self.sessions.ensemble.config.path_of(key);
        // A holder may leave between the two requests; then the next one is inspected.
        loop {
            let children = session.sync_and_list(&parent).await?;
            let queue = entry::contenders(&children);
            let Some((first, waiters)) = queue.split_first() else { return Ok(None) };
            let Some(node) = session.get(&format!("{parent}/{first}")).await? else { continue };
            let mut holder = HolderInfo::new(mark_of(first));
            holder.fence = known_fence(session.known_base().await?, node.czxid)?;
            match entry::label_in(&node.data) {
                Some(label) => {
                    holder.owner = entry::owner_of(first);
                    holder.label = Some(label).filter(|label| !label.is_empty());
                }
                None => holder.label = Some("a client that is not distlock".to_owned()),
            }
            return Ok(Some(LockInfo::new(key.clone(), Some(holder), Some(waiters.len()))));
        }
    }

    async fn remove_holder(&self, key: &LockKey, victim: &Victim) -> Reply<Released> {
        let session = self.sessions.any_seat(LIMIT).await?;
        let parent = self.sessions.ensemble.config.path_of(key);
        let children = session.sync_and_list(&parent).await?;
        let holder = entry::contenders(&children).first().copied();
        let Some(holder) = holder.filter(|holder| victim.is(&mark_of(holder))) else {
            return Ok(Released::AlreadyGone);
        };
        // Its name is never reused, so no other contender is affected.
        session.delete(&format!("{parent}/{holder}")).await
    }
}

/// No two nodes of a parent ever have the same name.
fn mark_of(node: &str) -> HolderMark {
    HolderMark::new(node.to_owned())
}
