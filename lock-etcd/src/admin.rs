//! Inspecting locks, and releasing them by force.

use std::collections::BTreeMap;
use std::time::Duration;

use lock_core::{
    Finding, HolderInfo, HolderMark, LockAdmin, LockInfo, LockKey, Released, Result, async_trait,
};

use crate::backend::EtcdBackend;
use crate::doctor;
use crate::entry::Value;
use crate::error::Failed;
use crate::names::{QueueKeys, after, listing, lock_of};
use crate::proto::KeyValue;
use crate::statements;
use crate::wire::Request;

/// How many keys one page of a listing reads.
const STEP: usize = 1000;

/// A queue entry of any client, as shown by its key.
struct Stranger {
    key: Vec<u8>,
    rev: i64,
    lease: i64,
    info: HolderInfo,
}

impl Stranger {
    fn read(found: &KeyValue) -> Self {
        let value = Value::read(&found.value);
        let mut info = HolderInfo::new(value.owner);
        info.fence = value.fence(found.create_revision).ok();
        info.label = match info.owner {
            Some(_) => (!value.label.is_empty()).then(|| value.label.to_owned()),
            // A client other than distlock. Its value may be a secret, so it is not shown.
            None => Some("a client that is not distlock".to_owned()),
        };
        let (key, rev) = (found.key.clone(), found.create_revision);
        // No two keys of a cluster have the same name and create revision.
        info.mark = Some(HolderMark::new(rev.to_string()));
        Self { key, rev, lease: found.lease, info }
    }
}

impl EtcdBackend {
    /// Returns the holder of `key` and its waiters, in queue order. The remaining time of their
    /// leases is not looked up.
    ///
    /// # Errors
    ///
    /// Those of any call to the store.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn queue(&self, key: &LockKey) -> Result<Vec<HolderInfo>> {
        let entries = self.entries(key).await.map_err(|failed| failed.error)?;
        Ok(entries.into_iter().map(|entry| entry.info).collect())
    }

    async fn entries(&self, key: &LockKey) -> Result<Vec<Stranger>, Failed> {
        let store = &self.store;
        let queue = QueueKeys::new(&store.folder, key);
        let read = statements::read_queue(queue.start());
        let reply = store.cluster.ask(store.limit, read).await?;
        let entries = reply.read(0)?.iter().filter(|found| queue.has(&found.key));
        Ok(entries.map(Stranger::read).collect())
    }

    /// How long `lease` lasts without a renewal. A lock held without a lease never expires.
    async fn left(&self, lease: i64) -> Result<Option<Duration>, Failed> {
        if lease == 0 {
            return Ok(None);
        }
        let store = &self.store;
        Ok(store.cluster.ask(store.limit, Request::TimeToLive { lease }).await?.ttl)
    }

    async fn describe(
        &self,
        key: LockKey,
        mut entries: Vec<Stranger>,
    ) -> Result<Option<LockInfo>, Failed> {
        if entries.is_empty() {
            return Ok(None);
        }
        let mut holder = entries.remove(0);
        holder.info.expires_in = self.left(holder.lease).await?;
        Ok(Some(LockInfo::new(key, Some(holder.info), Some(entries.len()))))
    }

    /// All keys that begin with `start`, at one revision, page by page.
    async fn keys(&self, start: &str) -> Result<Vec<KeyValue>, Failed> {
        let store = &self.store;
        let end = after(start.as_bytes());
        let mut next = if start.is_empty() { vec![0] } else { start.as_bytes().to_vec() };
        let (mut found, mut revision) = (Vec::new(), 0);
        loop {
            let step = statements::read_range(&next, &end, revision, STEP);
            let reply = store.cluster.ask(store.limit, step).await?;
            if revision == 0 {
                revision = reply.revision;
            }
            let step = reply.read(0)?;
            found.extend_from_slice(step);
            match step.last() {
                Some(last) if step.len() == STEP => {
                    next = last.key.clone();
                    next.push(0);
                }
                _ => return Ok(found),
            }
        }
    }
}

#[async_trait]
impl LockAdmin for EtcdBackend {
    async fn inspect(&self, key: &LockKey) -> Result<Option<LockInfo>> {
        let entries = self.entries(key).await.map_err(|failed| failed.error)?;
        self.describe(key.clone(), entries).await.map_err(|failed| failed.error)
    }

    /// Reads all keys that matching locks could have, including those of Go clients and `etcdctl`.
    /// A key counts as an entry only if it ends with the lease that it is bound to.
    async fn list(&self, prefix: &str, name_start: &str) -> Result<Vec<LockInfo>> {
        let folder = &self.store.folder;
        let keys = self.keys(&listing(folder, prefix, name_start)).await;
        let mut locks = BTreeMap::<String, (LockKey, Vec<Stranger>)>::new();
        for found in keys.map_err(|failed| failed.error)? {
            let Some(key) = lock_of(folder, &found.key, found.lease) else { continue };
            if key.prefix() != prefix || !key.name().starts_with(name_start) {
                continue;
            }
            let (_, entries) =
                locks.entry(key.name().to_owned()).or_insert_with(|| (key, Vec::new()));
            entries.push(Stranger::read(&found));
        }
        let mut list = Vec::with_capacity(locks.len());
        for (_, (key, mut entries)) in locks {
            entries.sort_by_key(|entry| entry.rev);
            list.extend(self.describe(key, entries).await.map_err(|failed| failed.error)?);
        }
        Ok(list)
    }

    async fn force_release(
        &self,
        key: &LockKey,
        expected: Option<&HolderMark>,
    ) -> Result<Released> {
        let entries = self.entries(key).await.map_err(|failed| failed.error)?;
        let Some(holder) = entries.first() else { return Ok(Released::AlreadyGone) };
        // The store compares the mark, in the transaction that removes the holder.
        let since = match expected {
            None => Some(holder.rev),
            Some(mark) => {
                std::str::from_utf8(mark.as_bytes()).ok().and_then(|rev| rev.parse().ok())
            }
        };
        let Some(since) = since else { return Ok(Released::AlreadyGone) };
        let store = &self.store;
        let reply = store.cluster.ask(store.limit, statements::force(&holder.key, since)).await;
        let reply = reply.map_err(|failed| failed.error)?;
        Ok(if reply.succeeded { Released::Freed } else { Released::AlreadyGone })
    }

    async fn diagnose(&self) -> Result<Vec<Finding>> {
        doctor::diagnose(&self.store.cluster).await
    }
}
