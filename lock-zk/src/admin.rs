//! Looking at locks, and taking them away.

use std::time::Duration;

use lock_core::{
    HoldMark, HolderInfo, LockAdmin, LockInfo, LockKey, Released, Result, async_trait,
};
use tokio::task::JoinSet;

use crate::backend::ZkBackend;
use crate::error::{describe, no_answer};
use crate::names;
use crate::session::Session;
use crate::transport::Failure;

/// The limit for one of the requests that an inspection is made of.
const LIMIT: Duration = Duration::from_secs(5);
/// How many locks are looked at side by side.
const BATCH: usize = 64;
/// What the data of our nodes begin with; the label follows.
const MARK: &[u8] = b"distlock\n";

/// The data of a node: they mark it as ours, and carry the label. Nothing is decided by them.
pub(crate) fn node_data(label: Option<&str>) -> Vec<u8> {
    [MARK, label.unwrap_or_default().as_bytes()].concat()
}

#[async_trait]
impl LockAdmin for ZkBackend {
    async fn inspect(&self, key: &LockKey) -> Result<Option<LockInfo>> {
        match tokio::time::timeout(LIMIT, self.look_at(key.clone())).await {
            Ok(found) => found,
            Err(_) => Err(no_answer(LIMIT, self.shared.sessions.endpoint())),
        }
    }

    /// Looks at every lock under the root of this client, one listing each.
    async fn list(&self, prefix: &str, name_start: &str) -> Result<Vec<LockInfo>> {
        let session = self.shared.sessions.any_seat(LIMIT).await?;
        let children = self.children(&session, &self.shared.config.root).await?.unwrap_or_default();
        let mut keys: Vec<_> = children
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

    async fn force_release(&self, key: &LockKey, expected: Option<&HoldMark>) -> Result<Released> {
        let session = self.shared.sessions.any_seat(LIMIT).await?;
        let parent = self.shared.parent(key);
        let Some(children) = self.children(&session, &parent).await? else {
            return Ok(Released::AlreadyGone);
        };
        let holder = names::contenders(&children).first().map(|name| (*name).to_owned());
        let holder = holder.filter(|name| match expected {
            Some(expected) => expected.as_bytes() == name.as_bytes(),
            None => true,
        });
        let Some(holder) = holder else { return Ok(Released::AlreadyGone) };
        // Its name is never used again, so nobody else is hit.
        match session.delete(&format!("{parent}/{holder}")).await {
            Ok(()) => Ok(Released::Freed),
            Err(Failure::NoNode) => Ok(Released::AlreadyGone),
            Err(failure) => Err(self.describe(&failure)),
        }
    }
}

impl ZkBackend {
    fn describe(&self, failure: &Failure) -> lock_core::Error {
        describe(failure, self.shared.sessions.endpoint())
    }

    /// The children of a node, by a server that has caught up with the leader; `None` if there is no
    /// such node.
    async fn children(&self, session: &Session, path: &str) -> Result<Option<Vec<String>>> {
        let listing = async {
            session.sync(path).await?;
            session.list(path).await
        };
        match listing.await {
            Ok(children) => Ok(Some(children)),
            Err(Failure::NoNode) => Ok(None),
            Err(failure) => Err(self.describe(&failure)),
        }
    }

    async fn look_at(&self, key: LockKey) -> Result<Option<LockInfo>> {
        let session = self.shared.sessions.any_seat(LIMIT).await?;
        let parent = self.shared.parent(&key);
        // A holder may leave between the two requests; then the next one is looked at.
        loop {
            let Some(children) = self.children(&session, &parent).await? else { return Ok(None) };
            let queue = names::contenders(&children);
            let Some((first, waiters)) = queue.split_first() else { return Ok(None) };
            let node = session.get(&format!("{parent}/{first}")).await;
            let Some(node) = node.map_err(|failure| self.describe(&failure))? else { continue };
            let mut holder = HolderInfo::new(None);
            // No two nodes of a parent ever have the same name.
            holder.mark = Some(HoldMark::new((*first).to_owned()));
            holder.fence = session.known_fence(node.czxid).await?;
            match node.data.strip_prefix(MARK) {
                Some(label) => {
                    holder.owner = names::owner_of(first);
                    let label = String::from_utf8_lossy(label);
                    holder.label = (!label.is_empty()).then(|| label.into_owned());
                }
                None => holder.label = Some("a client that is not distlock".to_owned()),
            }
            return Ok(Some(LockInfo::new(key, Some(holder), Some(waiters.len()))));
        }
    }
}
