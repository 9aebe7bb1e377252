//! Inspects locks and releases them by force.

use std::collections::BTreeSet;
use std::time::Duration;

use lock_core::{Finding, HolderMark, LockAdmin, LockInfo, LockKey, Released, Result, async_trait};

use super::backend::RedisBackend;
use super::doctor;
use super::holder::holder;
use super::scripts::{FORCE, INSPECT, MARK};
use crate::names::Keys;
use crate::node::Reply;

/// The limit for one request of an inspection.
const LIMIT: Duration = Duration::from_secs(5);
/// How many locks one request reads.
const BATCH: usize = 100;

#[async_trait]
impl LockAdmin for RedisBackend {
    async fn inspect(&self, key: &LockKey) -> Result<Option<LockInfo>> {
        let mut found = self.look_at(std::slice::from_ref(key)).await?;
        Ok(found.pop())
    }

    /// Walks through the keys of the database with `SCAN`, which does not block the server, and
    /// finds the locks that this library holds or waits for. A lock that only a plain `SET NX`
    /// client holds looks like any other string: inspect it by name.
    async fn list(&self, prefix: &str, name_start: &str) -> Result<Vec<LockInfo>> {
        let found = self.store.node.find((prefix, name_start), &["hold", "queue"], LIMIT).await?;
        let keys: BTreeSet<_> = found.into_iter().collect();
        let keys: Vec<_> = keys.into_iter().collect();
        let mut locks = Vec::with_capacity(keys.len());
        for keys in keys.chunks(BATCH) {
            locks.extend(self.look_at(keys).await?);
        }
        Ok(locks)
    }

    async fn force_release(
        &self,
        key: &LockKey,
        expected: Option<&HolderMark>,
    ) -> Result<Released> {
        let keys = Keys::new(key);
        let parts = keys.parts();
        let call = FORCE
            .call()
            .key(&keys.lock)
            .keys(&parts)
            .key(MARK)
            .expects(expected)
            .flag(self.store.may_pause);
        let value = self.store.node.run(call, LIMIT).await?;
        let reply = Reply::new("a forced release", &value)?;
        self.store.look_after(&keys, reply.number(1)?);
        Ok(if reply.number(0)? == 0 { Released::AlreadyGone } else { Released::Freed })
    }

    async fn diagnose(&self) -> Result<Vec<Finding>> {
        doctor::diagnose(&self.store).await
    }
}

impl RedisBackend {
    /// Those of `keys` that are held or waited for.
    async fn look_at(&self, keys: &[LockKey]) -> Result<Vec<LockInfo>> {
        let names: Vec<_> = keys.iter().map(Keys::new).collect();
        let parts: Vec<_> = names
            .iter()
            .map(|keys| ["hold", "queue", "waiters"].map(|part| keys.part(part)))
            .collect();
        let mut call = INSPECT.call();
        for (names, parts) in names.iter().zip(&parts) {
            call = call.key(&names.lock).keys(parts);
        }
        let value = self.store.node.run(call, LIMIT).await?;
        let reply = Reply::new("an inspection", &value)?;
        if reply.len() != keys.len() {
            return Err(reply.wrong());
        }
        let mut locks = Vec::new();
        for (at, key) in keys.iter().enumerate() {
            let lock = reply.list(at)?;
            let waiters = usize::try_from(lock.count(4)?).unwrap_or(usize::MAX);
            let holder = match lock.number(0)? {
                0 => None,
                _ => {
                    let (mark, record) = (lock.bytes(1)?, lock.bytes(3)?);
                    Some(holder(mark, record, lock.millis(2)?, lock.count(5)?))
                }
            };
            if holder.is_some() || waiters > 0 {
                locks.push(LockInfo::new(key.clone(), holder, Some(waiters)));
            }
        }
        Ok(locks)
    }
}
