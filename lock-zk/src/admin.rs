//! Inspecting locks, and releasing them by force.

use std::time::Duration;

use lock_core::{
    Finding, HolderInfo, HolderMark, LockAdmin, LockInfo, LockKey, Released, Result, async_trait,
};
use tokio::task::JoinSet;

use crate::backend::ZkBackend;
use crate::connection::reply::{Reply, none_if_missing};
use crate::doctor;
use crate::names;

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
        let listed = self.sessions.bounded(LIMIT, self.children(root)).await?.unwrap_or_default();
        let mut keys: Vec<_> = listed
            .iter()
            .filter_map(|child| names::decode(child))
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

    async fn force_release(
        &self,
        key: &LockKey,
        expected: Option<&HolderMark>,
    ) -> Result<Released> {
        self.sessions.bounded(LIMIT, self.remove_holder(key, expected)).await
    }

    async fn diagnose(&self) -> Result<Vec<Finding>> {
        Ok(doctor::diagnose(&self.sessions).await)
    }
}

impl ZkBackend {
    async fn children(&self, path: &str) -> Reply<Option<Vec<String>>> {
        let session = self.sessions.any_share(LIMIT).await?;
        none_if_missing(session.sync_and_list(path).await)
    }

    async fn look_at(&self, key: &LockKey) -> Reply<Option<LockInfo>> {
        let session = self.sessions.any_share(LIMIT).await?;
        let parent = self.sessions.ensemble.config.path_of(key);
        // A holder may leave between the two requests; then the next one is inspected.
        loop {
            let Some(children) = none_if_missing(session.sync_and_list(&parent).await)? else {
                return Ok(None);
            };
            let queue = names::contenders(&children);
            let Some((first, waiters)) = queue.split_first() else { return Ok(None) };
            let Some(node) = session.get(&format!("{parent}/{first}")).await? else { continue };
            let mut holder = HolderInfo::new(None);
            // No two nodes of a parent ever have the same name.
            holder.mark = Some(HolderMark::new((*first).to_owned()));
            holder.fence = session.known_fence(node.czxid).await?;
            match names::label_in(&node.data) {
                Some(label) => {
                    holder.owner = names::owner_of(first);
                    holder.label = Some(label).filter(|label| !label.is_empty());
                }
                None => holder.label = Some("a client that is not distlock".to_owned()),
            }
            return Ok(Some(LockInfo::new(key.clone(), Some(holder), Some(waiters.len()))));
        }
    }

    async fn remove_holder(&self, key: &LockKey, expected: Option<&HolderMark>) -> Reply<Released> {
        let session = self.sessions.any_share(LIMIT).await?;
        let parent = self.sessions.ensemble.config.path_of(key);
        let children = none_if_missing(session.sync_and_list(&parent).await)?.unwrap_or_default();
        let holder = names::contenders(&children).first().copied();
        let is_meant =
            |name: &&str| expected.is_none_or(|expected| expected.as_bytes() == name.as_bytes());
        let Some(holder) = holder.filter(is_meant) else { return Ok(Released::AlreadyGone) };
        // Its name is never reused, so no other contender is affected.
        session.delete(&format!("{parent}/{holder}")).await
    }
}
