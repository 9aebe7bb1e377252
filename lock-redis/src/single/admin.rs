//! For operators: inspects locks, releases them by force, and says what is to be known of the server.

use std::collections::BTreeSet;
use std::time::Duration;

use lock_core::{
    ErrorKind, Finding, LockAdmin, LockInfo, LockKey, Released, Result, Victim, async_trait,
};
use redis::Value;

use super::scripts::{FORCE, HELD, INSPECT};
use super::{RedisBackend, holder};
use crate::names::Keys;
use crate::node::{Info, Node, ReplyReader, setting};

/// The limit for one request of an inspection.
const LIMIT: Duration = Duration::from_secs(5);
/// How many locks one request reads.
const BATCH: usize = 100;
/// How many keys one request looks at that may be locks.
const STRINGS: usize = 1_000;

/// A queue, or what may be a lock.
fn queued_or_held(found: &str) -> Option<&str> {
    if Keys::is_part(found) { Keys::lock_of(found, "queue") } else { Some(found) }
}

#[async_trait]
impl LockAdmin for RedisBackend {
    async fn inspect(&self, key: &LockKey) -> Result<Option<LockInfo>> {
        let mut found = self.inspect_all(std::slice::from_ref(key)).await?;
        Ok(found.pop())
    }

    /// Walks through the keys of the database with `SCAN`, which does not block the server, and
    /// finds the locks that this library holds or waits for. A lock that only a plain `SET NX`
    /// client holds looks like any other string: inspect it by name.
    async fn list(&self, prefix: &str, name_start: &str) -> Result<Vec<LockInfo>> {
        let wanted = (prefix, name_start);
        let found = self.client.node.find(wanted, ("", queued_or_held), LIMIT).await?;
        let (mut keys, mut strings) = (BTreeSet::new(), Vec::new());
        for (key, is_queued) in found {
            if is_queued {
                keys.insert(key);
            } else {
                strings.push(key);
            }
        }
        for strings in strings.chunks(STRINGS) {
            keys.extend(self.held_among(strings).await?);
        }
        let keys: Vec<_> = keys.into_iter().collect();
        let mut locks = Vec::with_capacity(keys.len());
        for keys in keys.chunks(BATCH) {
            locks.extend(self.inspect_all(keys).await?);
        }
        Ok(locks)
    }

    async fn force_release(&self, key: &LockKey, victim: &Victim) -> Result<Released> {
        let call = FORCE.call().victim(victim);
        self.client.hand_overs.free(&Keys::new(key), None, call, LIMIT).await
    }

    async fn diagnose(&self) -> Result<Vec<Finding>> {
        let mut keeps_file = false;
        let more = |info: &Info<'_>, at: &str| {
            keeps_file = info.text("aof_enabled") == "1";
            durability(info, at)
        };
        let mut findings = self.client.node.diagnose(more, DOCTOR_LIMIT).await?;
        if keeps_file {
            findings.extend(sync(&self.client.node).await?);
        }
        Ok(findings)
    }
}

impl RedisBackend {
    /// Those of `keys` that hold a lock of this library.
    async fn held_among(&self, keys: &[LockKey]) -> Result<Vec<LockKey>> {
        let names: Vec<_> = keys.iter().map(LockKey::encode).collect();
        let numbers = |value: Value| ReplyReader::numbers("a listing", &value, keys.len());
        let held = self.client.node.ask(HELD.call().keys(&names), LIMIT, numbers).await?;
        let held = keys.iter().zip(held).filter(|(_, is_held)| *is_held == 1);
        Ok(held.map(|(key, _)| key.clone()).collect())
    }

    /// Those of `keys` that are held or waited for.
    async fn inspect_all(&self, keys: &[LockKey]) -> Result<Vec<LockInfo>> {
        let names: Vec<_> = keys.iter().map(Keys::new).collect();
        let parts: Vec<_> = names.iter().map(Keys::parts).collect();
        let mut call = INSPECT.call();
        for (names, parts) in names.iter().zip(&parts) {
            call = call.key(&names.lock).keys(parts);
        }
        self.client.node.ask(call, LIMIT, |value| held_or_waited_for(keys, &value)).await
    }
}

/// Those of `keys` that are held or waited for, by the answer to an inspection.
fn held_or_waited_for(keys: &[LockKey], value: &Value) -> Result<Vec<LockInfo>> {
    let found = ReplyReader::lists("an inspection", value, keys.len(), |lock| {
        let waiters = usize::try_from(lock.count(4)?).unwrap_or(usize::MAX);
        let holder = match lock.number(0)? {
            0 => None,
            _ => Some(holder(lock.bytes(1)?, lock.bytes(3)?, lock.millis(2)?, lock.count(5)?)),
        };
        Ok((holder, waiters))
    })?;
    let found =
        keys.iter().zip(found).filter(|(_, (holder, waiters))| holder.is_some() || *waiters > 0);
    let info =
        |(key, (holder, waiters)): (&LockKey, _)| LockInfo::new(key.clone(), holder, Some(waiters));
    Ok(found.map(info).collect())
}

/// The limit for one request about the server itself.
const DOCTOR_LIMIT: Duration = Duration::from_secs(3);

/// What a restart or a fail-over forgets.
fn durability(info: &Info<'_>, at: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    if info.text("aof_enabled") == "0" {
        findings.push(Finding::warning(
            format!("{at} keeps no append-only file: a restart forgets the locks that are held, which second holders then get"),
            "set appendonly to yes and appendfsync to always, or use a store that keeps what it has acknowledged, such as etcd, ZooKeeper or a database",
        ));
    }
    let replicas = info.text("connected_slaves");
    if !matches!(replicas.as_str(), "" | "0") {
        findings.push(Finding::warning(
            format!("{at} has replicas ({replicas}): a fail-over to one that is behind forgets the locks that are held"),
            "let the resource check the fencing tokens, or use a store with a quorum: redlock, etcd or ZooKeeper",
        ));
    }
    findings
}

/// How much of the append-only file a crash of the machine forgets.
async fn sync(node: &Node) -> Result<Option<Finding>> {
    let mut ask = redis::cmd("CONFIG");
    let answer = match node.command(ask.arg("GET").arg("appendfsync"), DOCTOR_LIMIT).await {
        Err(error) if matches!(error.kind(), ErrorKind::Denied | ErrorKind::Store) => {
            return Ok(None);
        }
        answer => answer?,
    };
    let value = setting(&answer, "appendfsync").unwrap_or_default();
    let at = node.endpoint();
    match value.as_str() {
        "" => return Ok(None),
        "always" => {
            return Ok(Some(Finding::info(format!(
                "the Redis server at {at} syncs each write: a restart forgets no lock"
            ))));
        }
        _ => {}
    }
    Ok(Some(Finding::warning(
        format!(
            "the Redis server at {at} has appendfsync {value}: a crash of its machine forgets the last locks, which second holders then get"
        ),
        "CONFIG SET appendfsync always, and set it in redis.conf",
    )))
}
