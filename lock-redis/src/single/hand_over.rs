//! Checks on locks that this client has handed over.
//!
//! The chosen waiter may be in a stopped process, which still counts as a receiver of the push. The
//! client that handed the lock over checks again when the grace is over, and then passes it on. The
//! next waiters do the same, in case this process has ended; but they may be stopped too.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lock_core::{ClockInstant, Result};

use super::scripts::{MARK, RELEASE};
use crate::names::Keys;
use crate::node::{Node, Reply};

/// The limit for one check.
const LIMIT: Duration = Duration::from_secs(5);

/// The locks being checked on, each with the time of the next check.
#[derive(Debug, Default)]
pub(super) struct HandOvers(Mutex<HashMap<String, ClockInstant>>);

impl HandOvers {
    /// Checks the lock after `pause`, and again as long as it is not confirmed. One task per lock,
    /// however often it is handed over: a lock that is handed over again was confirmed before.
    pub(super) fn look_after(
        self: &Arc<Self>,
        node: &Node,
        keys: &Keys,
        pause: Duration,
        may_pause: bool,
    ) {
        let due = node.clock().now() + pause;
        if self.locks().insert(keys.lock.clone(), due).is_some() {
            return;
        }
        // Made before the task, which may end with its runtime before it has begun.
        let looking =
            Looking { hand_overs: Arc::clone(self), lock: keys.lock.clone(), goes_on: true };
        node.spawn(looking.run(node.clone(), keys.clone(), may_pause));
    }

    fn locks(&self) -> MutexGuard<'_, HashMap<String, ClockInstant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One lock is being checked on until this is dropped, at the latest with its runtime.
struct Looking {
    hand_overs: Arc<HandOvers>,
    lock: String,
    goes_on: bool,
}

impl Looking {
    async fn run(mut self, node: Node, keys: Keys, may_pause: bool) {
        while self.goes_on {
            let due = self.due();
            node.clock().sleep_until(due).await;
            if self.due() == due {
                // An error is left to the waiters, which poll.
                let again = pass_on(&node, &keys, may_pause).await.ok().flatten();
                self.looked(due, again.map(|pause| node.clock().now() + pause));
            }
        }
    }

    fn due(&self) -> ClockInstant {
        self.hand_overs.locks().get(&self.lock).copied().unwrap_or(ClockInstant::FAR_FUTURE)
    }

    /// The check due at `due` was made; the next one is at `next`, unless the lock was handed over
    /// since, which has set another time.
    fn looked(&mut self, due: ClockInstant, next: Option<ClockInstant>) {
        let mut locks = self.hand_overs.locks();
        if locks.get(&self.lock) != Some(&due) {
            return;
        }
        match next {
            Some(next) => locks.insert(self.lock.clone(), next),
            None => {
                self.goes_on = false;
                locks.remove(&self.lock)
            }
        };
    }
}

impl Drop for Looking {
    fn drop(&mut self) {
        if self.goes_on {
            self.hand_overs.locks().remove(&self.lock);
        }
    }
}

/// Passes the lock on if it is free. Returns when to check again, if at all.
async fn pass_on(node: &Node, keys: &Keys, may_pause: bool) -> Result<Option<Duration>> {
    let parts = keys.parts();
    let call =
        RELEASE.call().key(&keys.lock).keys(&parts).key(MARK).arg("").number(0).flag(may_pause);
    let value = node.run(call, LIMIT).await?;
    let ms = Reply::new("a look after a hand-over", &value)?.number(1)?;
    Ok(u64::try_from(ms).ok().map(Duration::from_millis))
}

#[cfg(test)]
mod tests {
    use lock_core::{LockKey, SystemClock};

    use super::*;
    use crate::node::NodeOptions;

    #[test]
    fn a_runtime_that_ends_at_once_leaves_the_lock_to_the_next() {
        let client = redis::Client::open("redis://127.0.0.1:1").unwrap();
        let limit = Duration::from_secs(1);
        let clock = Arc::new(SystemClock::default());
        let options = NodeOptions { connect_timeout: limit, response_timeout: limit, clock };
        let node = Node::new(&client, options, None).unwrap();
        let (hand_overs, keys) =
            (Arc::new(HandOvers::default()), Keys::new(&LockKey::new("", "a").unwrap()));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { hand_overs.look_after(&node, &keys, limit, true) });
        assert!(hand_overs.locks().contains_key(&keys.lock));
        drop(runtime);
        assert!(hand_overs.locks().is_empty());
    }
}
