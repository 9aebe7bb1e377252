//! Tries to acquire whose caller has gone before the answer came.
//!
//! Such a statement may be executed at any time, also after a release that has gone ahead of it on
//! another connection, and would take the lock for a whole ttl. So it is heard to its end in a task of
//! its own, and a release by the same owner waits for that.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

/// How many tries of each owner are under way.
#[derive(Debug, Default)]
pub(super) struct Unfinished(Mutex<HashMap<Arc<str>, watch::Sender<usize>>>);

/// One of them. Dropped when its statement has ended.
pub(super) struct Try {
    all: Arc<Unfinished>,
    owner: Arc<str>,
}

impl Unfinished {
    fn numbers(&self) -> MutexGuard<'_, HashMap<Arc<str>, watch::Sender<usize>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn begin(self: &Arc<Self>, owner: &str) -> Try {
        let owner: Arc<str> = owner.into();
        self.numbers().entry(Arc::clone(&owner)).or_default().send_modify(|number| *number += 1);
        Try { all: Arc::clone(self), owner }
    }

    /// Waits for the tries of `owner`, for `limit` at most.
    pub(super) async fn ended(&self, owner: &str, limit: Duration) {
        let Some(mut number) = self.numbers().get(owner).map(watch::Sender::subscribe) else {
            return;
        };
        // What does not end in time is left to the repeats of the release. An error of the channel says
        // that the sender has gone, which is the end.
        let _ = tokio::time::timeout(limit, number.wait_for(|number| *number == 0)).await;
    }
}

impl Drop for Try {
    fn drop(&mut self) {
        let mut numbers = self.all.numbers();
        if let Some(number) = numbers.get(&self.owner) {
            number.send_modify(|number| *number -= 1);
            if *number.borrow() == 0 {
                numbers.remove(&self.owner);
            }
        }
    }
}
