//! Looking after locks that this client has handed over.
//!
//! The one that was chosen may be in a process that is stopped, which still counts as a receiver of
//! the push. Whoever handed the lock over looks once more when the grace is over, and gives it to
//! the next one then. The next in the queue does the same, should this process have ended.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::Value;

use crate::keys::Keys;
use crate::node::Node;
use crate::scripts::{MARK, SETTLE};

/// The locks that are looked after, and whether they were handed over again meanwhile.
#[derive(Debug, Default)]
pub(crate) struct Settler(Mutex<HashMap<String, bool>>);

impl Settler {
    fn map(&self) -> MutexGuard<'_, HashMap<String, bool>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
        let (settler, node, keys) = (Arc::clone(self), node.clone(), keys.clone());
        tokio::spawn(async move {
            let mut guard = Guard { settler: &settler, lock: &keys.lock, done: false };
            let mut pause = pause;
            loop {
                if let Some(again) = settler.map().get_mut(&keys.lock) {
                    *again = false;
                }
                tokio::time::sleep(pause).await;
                match settle(&node, &keys, may_pause).await {
                    Ok(Some(next)) => pause = next,
                    // An error is left to the waiters, which poll.
                    Ok(None) | Err(_) => {
                        let mut map = settler.map();
                        if map.get(&keys.lock) != Some(&true) {
                            map.remove(&keys.lock);
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
struct Guard<'a> {
    settler: &'a Settler,
    lock: &'a str,
    done: bool,
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if !self.done {
            self.settler.map().remove(self.lock);
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
