//! Inspects the locks of a quorum and releases them by force.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use lock_core::{
    Error, FencingToken, Finding, HolderInfo, HolderMark, LockAdmin, LockInfo, LockKey, Released,
    Result, async_trait,
};
use redis::Value;

use super::backend::{LIMIT, RedlockBackend};
use super::doctor;
use super::scripts::{FORCE_VOTE, LOOK};
use crate::error::unexpected;
use crate::names::Keys;
use crate::node::{Node, Reply};

/// What one node knows about a lock.
#[derive(Clone, Debug)]
pub(super) struct Known {
    /// Names the hold, and is the owner of one of ours.
    mark: Vec<u8>,
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
        let keys = Arc::new(Keys::new(key));
        let answers = self.ask_all(|node| {
            let keys = Arc::clone(&keys);
            async move {
                let vote = keys.part("vote");
                seen(&node.run(LOOK.call().key(&keys.lock).key(&vote), LIMIT).await?)
            }
        });
        let holder = self.holder(answers.await?);
        Ok(holder.map(|holder| LockInfo::new(key.clone(), Some(holder), None)))
    }

    /// Walks through the keys of every node with `SCAN`, which does not block the node.
    async fn list(&self, prefix: &str, name_start: &str) -> Result<Vec<LockInfo>> {
        let wanted: Arc<(String, String)> = Arc::new((prefix.to_owned(), name_start.to_owned()));
        let answers = self.ask_all(|node| {
            let wanted = Arc::clone(&wanted);
            async move { node.find((&wanted.0, &wanted.1), &["vote"], LIMIT).await }
        });
        let keys: BTreeSet<_> = answers.await?.into_iter().flatten().collect();
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
        let keys = Arc::new(Keys::new(key));
        let expected = expected.cloned();
        let answers = self.ask_all(|node| {
            let (keys, expected) = (Arc::clone(&keys), expected.clone());
            async move {
                let parts = ["vote", "waiters"].map(|part| keys.part(part));
                let call = FORCE_VOTE.call().key(&keys.lock).keys(&parts);
                match node.run(call.expects(expected.as_ref()).arg(&keys.lock), LIMIT).await? {
                    Value::Int(freed) => Ok(freed == 1),
                    other => Err(unexpected("a forced release", &other)),
                }
            }
        });
        let freed = answers.await?.contains(&true);
        Ok(if freed { Released::Freed } else { Released::AlreadyGone })
    }

    async fn diagnose(&self) -> Result<Vec<Finding>> {
        doctor::diagnose(self).await
    }

    async fn recover(&self) -> Result<()> {
        Self::recover(self).await
    }
}

impl RedlockBackend {
    /// The answers of all nodes that answer, at least a quorum.
    async fn ask_all<T, F>(&self, ask: impl Fn(Node) -> F) -> Result<Vec<T>>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let (needed, all) = (self.quorum.needed(), self.quorum.len());
        let answers = self.quorum.all(ask).collect(needed, all).await;
        answers.map_err(Error::with_unknown_effect)
    }

    fn holder(&self, answers: Vec<Option<Known>>) -> Option<HolderInfo> {
        let seen: Vec<_> = answers.into_iter().flatten().collect();
        let all_with = |mark| seen.iter().filter(move |seen| &seen.mark == mark);
        let is_quorum = |mark| all_with(mark).count() >= self.quorum.needed();
        let mark = seen.iter().map(|seen| &seen.mark).find(|mark| is_quorum(*mark))?;
        let all = || all_with(mark);
        let owner = std::str::from_utf8(mark).ok().and_then(|owner| owner.parse().ok());
        let mut info = HolderInfo::new(owner);
        info.mark = Some(HolderMark::new(mark.clone()));
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

pub(super) fn seen(value: &Value) -> Result<Option<Known>> {
    let reply = Reply::new("an inspection", value)?;
    if reply.len() == 1 {
        return Ok(None);
    }
    let number = |at| reply.text(at).map(|text| text.parse().ok());
    Ok(Some(Known {
        mark: reply.bytes(0)?.to_vec(),
        left: reply.millis(1)?,
        counter: number(2)?,
        since: number(3)?,
        label: reply.text(4)?,
        now: number(5)?.unwrap_or(0),
    }))
}
