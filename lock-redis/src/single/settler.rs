//! Looking after locks that this client has handed over.
//!
//! The one that was chosen may be in a process that is stopped, which still counts as a receiver of
//! the push. Whoever handed the lock over looks once more when the grace is over, and gives it to
//! the next one then. The next in the queue does the same, should this process have ended.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::Value;

use super::scripts::{MARK, SETTLE};
use crate::names::Keys;
use crate::node::Node;

/// The locks that are looked after, and whether they were handed over again meanwhile.
#[derive(Debug, Default)]
pub(crate) struct Settler(Mutex<HashMap<String, bool>>);

impl Settler {
    fn map(&self) -> MutexGuard<'_, HashMap<String, bool>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets the lock, unless it was handed over during the last look.
    fn is_done(&self, lock: &str) -> bool {
        let mut map = self.map();
        let done = map.get(lock) != Some(&true);
        if done {
            map.remove(lock);
        }
        done
    }

    /// Looks at the lock after `pause`, and again for as long as there is something to look at. One
    /// task per lock, however often it is handed over.
    pub(crate) fn look_after(
        self: &Arc<Self>,
        node: &Node,
        keys: &Keys,
        pause: Duration,
        may_pause: bool,
    ) {
        let known = self.map().insert(keys.lock.clone(), true).is_some();
        if known {
            return;
        }
        let (node, keys) = (node.clone(), keys.clone());
        // Made before the task, which may end with its runtime before it has begun.
        let guard = Guard { settler: Arc::clone(self), lock: keys.lock.clone(), done: false };
        tokio::spawn(async move {
            let mut guard = guard;
            let mut pause = pause;
            loop {
                if let Some(again) = guard.settler.map().get_mut(&keys.lock) {
                    *again = false;
                }
                tokio::time::sleep(pause).await;
                match settle(&node, &keys, may_pause).await {
                    Ok(Some(next)) => pause = next,
                    // An error is left to the waiters, which poll.
                    Ok(None) | Err(_) => {
                        if guard.settler.is_done(&keys.lock) {
                            guard.done = true;
                            return;
                        }
                        pause = AGAIN;
                    }
                }
            }
        });
    }
}

/// The pause before another look at a lock that was handed over during the last one.
const AGAIN: Duration = Duration::from_millis(500);

/// Forgets the lock if the task ends with its runtime.
struct Guard {
    settler: Arc<Settler>,
    lock: String,
    done: bool,
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.done {
            self.settler.map().remove(&self.lock);
        }
    }
}

async fn settle(node: &Node, keys: &Keys, may_pause: bool) -> lock_core::Result<Option<Duration>> {
    let parts = keys.parts();
    let call = SETTLE.call().key(&keys.lock).keys(&parts).key(MARK).flag(may_pause);
    match node.run(call, Duration::from_secs(5)).await? {
        Value::Int(ms) => Ok(u64::try_from(ms).ok().map(Duration::from_millis)),
        other => Err(crate::error::unexpected("a look after a hand-over", &other)),
    }
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
        let (settler, keys) =
            (Arc::new(Settler::default()), Keys::new(&LockKey::new("", "a").unwrap()));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { settler.look_after(&node, &keys, limit, true) });
        assert!(settler.map().contains_key(&keys.lock));
        drop(runtime);
        assert!(settler.map().is_empty());
    }
}
