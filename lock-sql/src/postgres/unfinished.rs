//! Tries to acquire whose caller has gone before the answer came.
//!
//! Such a statement may be executed at any time, also after a release that has gone ahead of it on
//! another connection, and would take the lock for a whole ttl. So it is heard to its end in a task of
//! its own, and a release by the same owner waits for that.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

/// The tries that are under way, by their owner.
#[derive(Debug, Default)]
pub(super) struct Unfinished(Mutex<Vec<(Arc<str>, watch::Receiver<()>)>>);

/// One of them. Dropped when its statement has ended.
pub(super) struct Try {
    all: Arc<Unfinished>,
    end: watch::Sender<()>,
}

impl Unfinished {
    fn list(&self) -> MutexGuard<'_, Vec<(Arc<str>, watch::Receiver<()>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn begin(self: &Arc<Self>, owner: &str) -> Try {
        let (end, ended) = watch::channel(());
        self.list().push((owner.into(), ended));
        Try { all: Arc::clone(self), end }
    }

    fn of(&self, owner: &str) -> Vec<watch::Receiver<()>> {
        self.list().iter().filter(|one| &*one.0 == owner).map(|one| one.1.clone()).collect()
    }

    /// Waits for the tries of `owner`, for `limit` at most.
    pub(super) async fn ended(&self, owner: &str, limit: Duration) {
        let tries = self.of(owner);
        let ended = async {
            for mut one in tries {
                // An error says that the sender has gone, which is the end.
                while one.changed().await.is_ok() {}
            }
        };
        // What does not end in time is left to the repeats of the release.
        let _ = tokio::time::timeout(limit, ended).await;
    }
}

impl Drop for Try {
    fn drop(&mut self) {
        self.all.list().retain(|one| !one.1.same_channel(&self.end.subscribe()));
    }
}
