//! Inspecting locks, and releasing them by force.

use std::collections::BTreeMap;
use std::time::Duration;

use lock_core::{
    Finding, HolderInfo, HolderMark, LockAdmin, LockInfo, LockKey, Released, Result, Victim,
    async_trait,
};

use crate::backend::EtcdBackend;
use crate::doctor;
use crate::queue::entry::{EntryValue, QueueKeys, after, listing, lock_of};
use crate::queue::statements;
use crate::wire::messages::EtcdRequest;
use crate::wire::protobuf::KeyValue;

/// How many keys one page of a listing reads.
const STEP: usize = 1000;

/// A queue entry of any client, as shown by its key.
struct ShownEntry {
    key: Vec<u8>,
    rev: i64,
    lease: i64,
    info: HolderInfo,
}

impl ShownEntry {
    fn read(found: &KeyValue) -> Self {
        let value = EntryValue::read(&found.value);
        let (key, rev) = (found.key.clone(), found.create_revision);
        // No two keys of a cluster have the same name and create revision.
        let mut info = HolderInfo::new(HolderMark::new(rev.to_string()));
        info.owner = value.owner;
        info.fence = value.fence(found.create_revision).ok();
        info.label = match info.owner {
            Some(_) => (!value.label.is_empty()).then(|| value.label.to_owned()),
            // A client other than distlock. Its value may be a secret, so it is not shown.
            None => Some("a client that is not distlock".to_owned()),
        };
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
        let entries = self.entries(key).await?;
        Ok(entries.into_iter().map(|entry| entry.info).collect())
    }

    async fn entries(&self, key: &LockKey) -> Result<Vec<ShownEntry>> {
        let store = &self.store;
        let queue = QueueKeys::new(&store.folder, key);
        let read = statements::read_queue(queue.start());
        let reply = store.cluster.ask(store.limit, read).await?;
        let entries = reply.read(0)?.iter().filter(|found| queue.has(&found.key));
        Ok(entries.map(ShownEntry::read).collect())
    }

    /// How long `lease` lasts without a renewal. A lock held without a lease never expires.
    async fn left(&self, lease: i64) -> Result<Option<Duration>> {
        if lease == 0 {
            return Ok(None);
        }
        let store = &self.store;
        Ok(store.cluster.ask(store.limit, EtcdRequest::TimeToLive { lease }).await?.ttl)
    }

    async fn describe(
        &self,
        key: LockKey,
        mut entries: Vec<ShownEntry>,
    ) -> Result<Option<LockInfo>> {
        if entries.is_empty() {
            return Ok(None);
        }
        let mut holder = entries.remove(0);
        holder.info.expires_in = self.left(holder.lease).await?;
        Ok(Some(LockInfo::new(key, Some(holder.info), Some(entries.len()))))
    }

    /// The entries of all locks with this `prefix` whose name begins with `name_start`, each with its
    /// lock, at one revision, page by page. The values of other keys are not read: they may be large.
    async fn places(&self, prefix: &str, name_start: &str) -> Result<Vec<(LockKey, KeyValue)>> {
        let store = &self.store;
        let start = listing(&store.folder, prefix, name_start);
        let end = after(start.as_bytes());
        let mut next = if start.is_empty() { vec![0] } else { start.into_bytes() };
        let lock = |found: &KeyValue| {
            let key = lock_of(&store.folder, &found.key, found.lease);
            key.filter(|key| key.prefix() == prefix && key.name().starts_with(name_start))
        };
        let (mut places, mut revision) = (Vec::new(), 0);
        loop {
            let step = statements::read_range(&next, &end, revision, STEP);
            let reply = store.cluster.ask(store.limit, step).await?;
            if revision == 0 {
                revision = reply.revision;
            }
            let step = reply.read(0)?;
            let wanted: Vec<_> = step.iter().filter(|found| lock(found).is_some()).collect();
            for wanted in wanted.chunks(statements::MOST_READS) {
                let keys = wanted.iter().map(|found| &*found.key);
                let read = statements::read_all(keys, revision);
                let found = store.cluster.ask(store.limit, read).await?.reads.into_iter().flatten();
                places.extend(found.filter_map(|found| Some((lock(&found)?, found))));
            }
            match step.last() {
                Some(last) if step.len() == STEP => {
                    next = last.key.clone();
                    next.push(0);
                }
                _ => return Ok(places),
            }
        }
    }
}

#[async_trait]
impl LockAdmin for EtcdBackend {
    async fn inspect(&self, key: &LockKey) -> Result<Option<LockInfo>> {
        let entries = self.entries(key).await?;
        self.describe(key.clone(), entries).await
    }

    /// Looks at all keys that matching locks could have, including those of Go clients and `etcdctl`.
    /// A key counts as an entry only if it ends with the lease that it is bound to.
    async fn list(&self, prefix: &str, name_start: &str) -> Result<Vec<LockInfo>> {
        let places = self.places(prefix, name_start).await?;
        let mut locks = BTreeMap::<String, (LockKey, Vec<ShownEntry>)>::new();
        for (key, found) in places {
            let (_, entries) =
                locks.entry(key.name().to_owned()).or_insert_with(|| (key, Vec::new()));
            entries.push(ShownEntry::read(&found));
        }
        let mut list = Vec::with_capacity(locks.len());
        for (_, (key, mut entries)) in locks {
            entries.sort_by_key(|entry| entry.rev);
            list.extend(self.describe(key, entries).await?);
        }
        Ok(list)
    }

    async fn force_release(&self, key: &LockKey, victim: &Victim) -> Result<Released> {
        let entries = self.entries(key).await?;
        let Some(holder) = entries.first() else { return Ok(Released::AlreadyGone) };
        // The store compares the mark, in the transaction that removes the holder.
        let since = match victim {
            Victim::Anybody => Some(holder.rev),
            Victim::Shown(mark) => {
                std::str::from_utf8(mark.as_bytes()).ok().and_then(|rev| rev.parse().ok())
            }
        };
        let Some(since) = since else { return Ok(Released::AlreadyGone) };
        let store = &self.store;
        let reply = store.cluster.ask(store.limit, statements::force(&holder.key, since)).await?;
        Ok(if reply.succeeded { Released::Freed } else { Released::AlreadyGone })
    }

    async fn diagnose(&self) -> Result<Vec<Finding>> {
        doctor::diagnose(&self.store.cluster).await
    }
}
