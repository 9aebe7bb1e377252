//! Looking at locks, and taking them away.

use std::collections::BTreeMap;
use std::time::Duration;

use etcd_client::{GetOptions, KeyValue, SortOrder, SortTarget};
use lock_core::{
    FencingToken, HoldMark, HolderInfo, LockAdmin, LockInfo, LockKey, Released, Result, async_trait,
};

use crate::backend::EtcdBackend;
use crate::error::Failed;
use crate::keys::{Queue, listing, lock_of};
use crate::mutants;
use crate::statements::{self, Shown};

/// How many keys one step of a listing reads.
const STEP: i64 = 1000;

/// A place in a queue, as its key shows it.
struct Place {
    key: Vec<u8>,
    rev: i64,
    lease: i64,
    info: HolderInfo,
}

impl Place {
    fn read(found: &KeyValue) -> Self {
        let value = String::from_utf8_lossy(found.value());
        let (owner, label) = value.split_once(' ').unwrap_or((&*value, ""));
        let mut info = HolderInfo::new(owner.parse().ok());
        info.fence = u64::try_from(found.create_revision())
            .ok()
            .and_then(|fence| FencingToken::new(fence).ok());
        info.label = match info.owner {
            Some(_) => (!label.is_empty()).then(|| label.to_owned()),
            // A client that is not this library. Its value may be a secret, so it is not shown.
            None => Some("a client that is not distlock".to_owned()),
        };
        let (key, rev) = (found.key().to_vec(), found.create_revision());
        // No two keys of a cluster are made at one revision and under one name.
        info.mark = Some(HoldMark::new(rev.to_string()));
        Self { key, rev, lease: found.lease(), info }
    }
}

impl EtcdBackend {
    /// Who holds `key` and who waits for it, in their order. How long their leases last is not looked
    /// up.
    ///
    /// # Errors
    ///
    /// As any call to the store.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn queue(&self, key: &LockKey) -> Result<Vec<HolderInfo>> {
        let places = self.places(key).await.map_err(|failed| failed.error)?;
        Ok(places.into_iter().map(|place| place.info).collect())
    }

    async fn places(&self, key: &LockKey) -> Result<Vec<Place>, Failed> {
        let shared = &self.shared;
        let queue = Queue::new(&shared.folder, key);
        let start = queue.start();
        let answer = shared
            .node
            .call(shared.limit, |mut client| {
                let options = GetOptions::new()
                    .with_prefix()
                    .with_sort(SortTarget::Create, SortOrder::Ascend);
                async move { client.get(start, Some(options)).await }
            })
            .await?;
        let places = answer.kvs().iter().filter(|found| queue.has(found.key()));
        Ok(places.map(Place::read).collect())
    }

    /// How long `lease` lasts without a renewal. Who holds a lock without a lease holds it for ever.
    async fn left(&self, lease: i64) -> Result<Option<Duration>, Failed> {
        if lease == 0 {
            return Ok(None);
        }
        let shared = &self.shared;
        let answer = shared
            .node
            .call(
                shared.limit,
                |mut client| async move { client.lease_time_to_live(lease, None).await },
            )
            .await?;
        Ok(u64::try_from(answer.ttl()).ok().map(Duration::from_secs))
    }

    async fn describe(
        &self,
        key: LockKey,
        mut places: Vec<Place>,
    ) -> Result<Option<LockInfo>, Failed> {
        if places.is_empty() {
            return Ok(None);
        }
        let mut holder = places.remove(0);
        holder.info.expires_in = self.left(holder.lease).await?;
        Ok(Some(LockInfo::new(key, Some(holder.info), Some(places.len()))))
    }

    /// All keys that begin with `start`, at one revision, in steps.
    async fn keys(&self, start: &str) -> Result<Vec<KeyValue>, Failed> {
        let shared = &self.shared;
        let end = after(start.as_bytes());
        let mut next = if start.is_empty() { vec![0] } else { start.as_bytes().to_vec() };
        let (mut found, mut revision) = (Vec::new(), 0);
        loop {
            let (from, end) = (&next, &end);
            let mut answer = shared
                .node
                .call(shared.limit, |mut client| {
                    let options = GetOptions::new()
                        .with_range(end.clone())
                        .with_revision(revision)
                        .with_limit(STEP);
                    async move { client.get(from.clone(), Some(options)).await }
                })
                .await?;
            if revision == 0 {
                revision = answer.header().map_or(0, |header| header.revision());
            }
            let more = answer.more();
            found.extend(answer.take_kvs());
            match found.last() {
                Some(last) if more => {
                    next = last.key().to_vec();
                    next.push(0);
                }
                _ => return Ok(found),
            }
        }
    }
}

/// The first key behind all that begin with `start`.
fn after(start: &[u8]) -> Vec<u8> {
    let mut end = start.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end;
        }
    }
    vec![0]
}

#[async_trait]
impl LockAdmin for EtcdBackend {
    async fn inspect(&self, key: &LockKey) -> Result<Option<LockInfo>> {
        let places = self.places(key).await.map_err(|failed| failed.error)?;
        self.describe(key.clone(), places).await.map_err(|failed| failed.error)
    }

    /// Reads all keys that a lock of this name could have, also those of Go clients and `etcdctl`. A
    /// key counts as a place only if it ends with the lease that it is bound to.
    async fn list(&self, prefix: &str, name_start: &str) -> Result<Vec<LockInfo>> {
        let folder = &self.shared.folder;
        let keys = self.keys(&listing(folder, prefix, name_start)).await;
        let mut locks = BTreeMap::<String, (LockKey, Vec<Place>)>::new();
        for found in keys.map_err(|failed| failed.error)? {
            let Some(key) = lock_of(folder, found.key(), found.lease()) else { continue };
            if key.prefix() != prefix || !key.name().starts_with(name_start) {
                continue;
            }
            let (_, places) =
                locks.entry(key.name().to_owned()).or_insert_with(|| (key, Vec::new()));
            places.push(Place::read(&found));
        }
        let mut list = Vec::with_capacity(locks.len());
        for (_, (key, mut places)) in locks {
            places.sort_by_key(|place| place.rev);
            list.extend(self.describe(key, places).await.map_err(|failed| failed.error)?);
        }
        Ok(list)
    }

    async fn force_release(&self, key: &LockKey, expected: Option<&HoldMark>) -> Result<Released> {
        let places = self.places(key).await.map_err(|failed| failed.error)?;
        let Some(holder) = places.first() else { return Ok(Released::AlreadyGone) };
        let meets = expected.is_none_or(|expected| holder.info.mark.as_ref() == Some(expected));
        if !meets && !mutants::on("force_needs_no_owner") {
            return Ok(Released::AlreadyGone);
        }
        let shared = &self.shared;
        let answer = shared
            .node
            .call(shared.limit, |mut client| {
                let txn = statements::force(&holder.key, holder.rev);
                async move { client.txn(txn).await }
            })
            .await
            .and_then(|answer| Shown::read(&answer));
        let shown = answer.map_err(|failed| failed.error)?;
        Ok(if shown.succeeded { Released::Freed } else { Released::AlreadyGone })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_range_comes_after_all_of_it() {
        assert_eq!(after(b"ab"), b"ac");
        assert_eq!(after(&[b'a', 0xff]), b"b");
        assert_eq!(after(b""), [0]);
    }
}
