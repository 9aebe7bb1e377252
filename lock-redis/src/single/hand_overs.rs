//! Releases, which hand a lock over to those that wait, and checks on the locks that this client has handed over.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use lock_core::{ClockInstant, OwnerId, Released, Result};
use parking_lot::Mutex;
use redis::Value;

use super::scripts::{DECLINE, MARK, RELEASE};
use crate::names::Keys;
use crate::node::{Node, ReplyReader, ScriptCall};

/// The limit for one request about a lock that was handed over.
const LIMIT: Duration = Duration::from_secs(5);

/// Frees locks, and checks on those that this client has handed over.
///
/// The chosen waiter may be in a stopped process, which still counts as a receiver of the push. The
/// client that handed the lock over checks again when the grace is over, and then passes it on. The
/// next waiters do the same, in case this process has ended; but they may be stopped too.
pub(super) struct HandOvers {
    node: Arc<Node>,
    may_pause: bool,
    /// By the lock.
    checks: Mutex<HashMap<String, HandOverCheck>>,
}

/// One lock is being checked on.
struct HandOverCheck {
    due: ClockInstant,
    /// The task that checks has the other half, which ends with its runtime at the latest.
    task: Weak<()>,
}

impl HandOvers {
    pub(super) fn new(node: Arc<Node>, may_pause: bool) -> Self {
        Self { node, may_pause, checks: Mutex::default() }
    }

    /// Runs a script that frees the lock, or gives a place up, with `gone` as its last key if it has one.
    pub(super) async fn free(
        self: &Arc<Self>,
        keys: &Keys,
        gone: Option<&str>,
        call: ScriptCall<'_>,
        limit: Duration,
    ) -> Result<Released> {
        let (freed, again) = self.ask(keys, gone, call, limit).await?;
        self.check_after(keys, again);
        Ok(if freed == 0 { Released::AlreadyGone } else { Released::Freed })
    }

    /// Whether something was freed, and after how many ms to check the lock again, if not negative.
    async fn ask(
        &self,
        keys: &Keys,
        gone: Option<&str>,
        call: ScriptCall<'_>,
        limit: Duration,
    ) -> Result<(i64, i64)> {
        let parts = keys.parts();
        let call = call.key(&keys.lock).keys(&parts).key(MARK).keys(gone.as_slice());
        let read = |value: Value| {
            let reply = ReplyReader::new("a release", &value)?;
            Ok((reply.number(0)?, reply.number(1)?))
        };
        self.node.ask(call.flag(self.may_pause), limit, read).await
    }

    /// Checks the lock after `ms`, unless negative, and again as long as it is not confirmed. One task
    /// per lock, however often it is handed over: a lock that is handed over again was confirmed before.
    pub(super) fn check_after(self: &Arc<Self>, keys: &Keys, ms: i64) {
        let Ok(ms) = u64::try_from(ms) else { return };
        let due = self.node.clock().now() + Duration::from_millis(ms);
        let mut checks = self.checks.lock();
        if let Some(check) = checks.get_mut(&keys.lock)
            && check.task.strong_count() > 0
        {
            check.due = due;
            return;
        }
        if checks.len() == checks.capacity() {
            // Those whose runtimes have ended.
            checks.retain(|_, check| check.task.strong_count() > 0);
        }
        let task = Arc::new(());
        checks.insert(keys.lock.clone(), HandOverCheck { due, task: Arc::downgrade(&task) });
        drop(checks);
        let (itself, keys) = (Arc::clone(self), keys.clone());
        self.node.spawn(async move {
            itself.check(&keys).await;
            drop(task);
        });
    }

    async fn check(&self, keys: &Keys) {
        let due_now = || self.checks.lock().get(&keys.lock).map(|check| check.due);
        while let Some(due) = due_now() {
            self.node.clock().sleep_until(due).await;
            if due_now() != Some(due) {
                continue;
            }
            let call = RELEASE.call().arg("").number(0);
            // An error is left to the waiters, which poll.
            let again = self.ask(keys, None, call, LIMIT).await.map_or(-1, |(_, again)| again);
            let mut checks = self.checks.lock();
            // If it was handed over since, that has set another time.
            if let Some(check) = checks.get_mut(&keys.lock)
                && check.due == due
            {
                let Ok(ms) = u64::try_from(again) else {
                    checks.remove(&keys.lock);
                    return;
                };
                check.due = self.node.clock().now() + Duration::from_millis(ms);
            }
        }
    }

    /// Passes a lock on that was handed to a claim which is not there any more: others would wait for its
    /// grace, and take this whole client for dead.
    pub(super) fn decline(self: &Arc<Self>, keys: Keys, owner: OwnerId) {
        let itself = Arc::clone(self);
        self.node.spawn(async move {
            let who = format!("{}|", owner.to_hex());
            // Without an answer it is as if nobody had heard the push.
            let _ = itself.free(&keys, None, DECLINE.call().arg(&who), LIMIT).await;
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lock_core::{LockKey, SystemClock};

    #[test]
    fn a_runtime_that_ends_at_once_leaves_the_lock_to_the_next() {
        let address = redis::Client::open("redis://127.0.0.1:1").unwrap().into();
        let limit = Duration::from_secs(1);
        let clock = Arc::new(SystemClock::default());
        let node = Node::new(&address, (limit, limit), clock, None).unwrap();
        let hand_overs = Arc::new(HandOvers::new(node, true));
        let keys = Keys::new(&LockKey::new("", "a").unwrap());
        let is_checked = || hand_overs.checks.lock()[&keys.lock].task.strong_count() > 0;
        for _ in 0..2 {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async { hand_overs.check_after(&keys, 1_000) });
            assert!(is_checked());
            drop(runtime);
            assert!(!is_checked());
        }
    }
}
