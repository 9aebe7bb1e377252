//! Looking at the locks of a quorum, and taking them away.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use lock_core::{
    Error, ErrorKind, FencingToken, HolderInfo, HolderMark, LockAdmin, LockInfo, LockKey, Released,
    Result, async_trait,
};
use redis::Value;

use super::backend::{LIMIT, RedlockBackend};
use super::reply::text;
use super::scripts::SCRIPTS;
use crate::error::unexpected;
use crate::names::{Keys, escape_glob};

/// How many keys one step of a listing visits.
const STEP: usize = 1000;

/// What one node knows of a lock.
#[derive(Clone, Debug)]
struct Seen {
    value: String,
    left: Option<Duration>,
    counter: Option<u64>,
    since: Option<u64>,
    label: String,
    now: u64,
}

#[async_trait]
impl LockAdmin for RedlockBackend {
    /// The lock is held if a quorum of nodes show the same holder.
    async fn inspect(&self, key: &LockKey) -> Result<Option<LockInfo>> {
        let keys = Keys::new(key);
        let parts = Arc::new((keys.part("vote"), keys.lock));
        let answers = self
            .ask_all(|node| {
                let (quorum, parts) = (Arc::clone(&self.quorum), Arc::clone(&parts));
                async move {
                    let call = SCRIPTS.look.call().key(&parts.1).key(&parts.0);
                    seen(&quorum.run(node, call, LIMIT).await?)
                }
            })
            .await?;
        Ok(self.holder(answers).map(|holder| LockInfo::new(key.clone(), Some(holder), None)))
    }

    /// Walks over the keys of every node with `SCAN`, which does not block it.
    async fn list(&self, prefix: &str, name_start: &str) -> Result<Vec<LockInfo>> {
        let start = LockKey::encoded_start(prefix, name_start);
        let pattern: Arc<str> = format!("*{}*\u{1e}*vote", escape_glob(&start)).into();
        let answers = self
            .ask_all(|node| {
                let (server, pattern) = (self.quorum.node(node).clone(), Arc::clone(&pattern));
                async move { scan(&server, &pattern).await }
            })
            .await?;
        let wanted = |key: &LockKey| key.prefix() == prefix && key.name().starts_with(name_start);
        let keys: BTreeSet<_> = answers
            .iter()
            .flatten()
            .filter_map(|found| Keys::lock_of(found, "vote"))
            .filter_map(|lock| LockKey::decode(lock).ok())
            .filter(wanted)
            .collect();
        let mut locks = Vec::new();
        for key in keys {
            locks.extend(self.inspect(&key).await?);
        }
        Ok(locks)
    }

    async fn force_release(
        &self,
        key: &LockKey,
        expected: Option<&HolderMark>,
    ) -> Result<Released> {
        let keys = Keys::new(key);
        let expected = match expected {
            Some(mark) => format!("={}", String::from_utf8_lossy(mark.as_bytes())),
            None => "any".to_owned(),
        };
        let parts = [keys.part("vote"), keys.part("waiters"), keys.lock, expected];
        let parts = Arc::new(parts);
        let answers = self
            .ask_all(|node| {
                let (quorum, parts) = (Arc::clone(&self.quorum), Arc::clone(&parts));
                async move {
                    let [vote, waiters, lock, expected] = &*parts;
                    let call = SCRIPTS.force.call().key(lock).key(vote).key(waiters);
                    let call = call.arg(expected).arg(lock);
                    match quorum.run(node, call, LIMIT).await? {
                        Value::Int(freed) => Ok(freed == 1),
                        other => Err(unexpected("a forced release", &other)),
                    }
                }
            })
            .await?;
        Ok(if answers.contains(&true) { Released::Freed } else { Released::AlreadyGone })
    }
}

impl RedlockBackend {
    /// The answers of all nodes that answer, at least a quorum.
    async fn ask_all<T, F>(&self, ask: impl Fn(usize) -> F) -> Result<Vec<T>>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let mut round = self.quorum.all(ask);
        let (mut answers, mut failures) = (Vec::new(), Vec::new());
        while let Some((_, answer)) = round.next().await {
            match answer {
                Ok(answer) => answers.push(answer),
                Err(error) => failures.push(error.to_string()),
            }
        }
        if answers.len() >= self.quorum.needed() {
            return Ok(answers);
        }
        Err(Error::new(
            ErrorKind::Unavailable,
            format!(
                "{} of {} nodes answer, and {} are needed: {}",
                answers.len(),
                self.quorum.len(),
                self.quorum.needed(),
                failures.join("; ")
            ),
        )
        .with_unknown_effect())
    }

    fn holder(&self, answers: Vec<Option<Seen>>) -> Option<HolderInfo> {
        let seen: Vec<_> = answers.into_iter().flatten().collect();
        let name = |seen: &Seen| seen.value.split('.').next().unwrap_or_default().to_owned();
        let votes_for = |who: &str| seen.iter().filter(|other| name(other) == who).count();
        let first = seen.iter().find(|seen| votes_for(&name(seen)) >= self.quorum.needed())?;
        let who = name(first);
        let all = || seen.iter().filter(|seen| name(seen) == who);
        let mut info = HolderInfo::new(who.parse().ok());
        info.mark = Some(HolderMark::new(who.clone()));
        if info.owner.is_some() {
            // The value that a quorum shows is the fence; the others joined later.
            let counters: Vec<_> = all().filter_map(|seen| seen.counter).collect();
            let same = |value: &&u64| {
                counters.iter().filter(|other| other == value).count() >= self.quorum.needed()
            };
            info.fence = counters.iter().find(same).and_then(|f| FencingToken::answered(*f).ok());
            let since = all().filter_map(|seen| Some(seen.now.saturating_sub(seen.since?)));
            info.held_for = since.max().map(Duration::from_micros);
            info.label = all().map(|seen| seen.label.clone()).find(|label| !label.is_empty());
        }
        let mut left: Vec<_> = all().filter_map(|seen| seen.left).collect();
        left.sort_by(|a, b| b.cmp(a));
        info.expires_in = left.get(self.quorum.needed() - 1).copied();
        Some(info)
    }
}

fn seen(value: &Value) -> Result<Option<Seen>> {
    match value {
        Value::Array(parts) if parts.len() == 1 => Ok(None),
        Value::Array(parts) if parts.len() == 6 => {
            let left = match parts.get(1) {
                Some(Value::Int(ms)) => u64::try_from(*ms).ok().map(Duration::from_millis),
                _ => None,
            };
            Ok(Some(Seen {
                value: text(parts, 0),
                left,
                counter: text(parts, 2).parse().ok(),
                since: text(parts, 3).parse().ok(),
                label: text(parts, 4),
                now: text(parts, 5).parse().unwrap_or(0),
            }))
        }
        other => Err(unexpected("a look at a lock", other)),
    }
}

async fn scan(server: &crate::node::Node, pattern: &str) -> Result<Vec<String>> {
    let mut found = Vec::new();
    let mut cursor = "0".to_owned();
    loop {
        let mut scan = redis::cmd("SCAN");
        scan.arg(&cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(STEP);
        let answer = server.command(&scan, LIMIT).await?;
        let Value::Array(parts) = &answer else { return Err(unexpected("SCAN", &answer)) };
        let [_, Value::Array(keys)] = parts.as_slice() else {
            return Err(unexpected("SCAN", &answer));
        };
        // Whole keys: `text` cuts long ones.
        found.extend(keys.iter().filter_map(|key| match key {
            Value::BulkString(bytes) => String::from_utf8(bytes.clone()).ok(),
            _ => None,
        }));
        cursor = text(parts, 0);
        if cursor == "0" {
            return Ok(found);
        }
    }
}
