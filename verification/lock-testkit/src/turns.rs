//! Tasks that take a lock in turn.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use lock_core::Lock;
use tokio::task::JoinSet;

/// Tasks that take a lock, let it go a millisecond later, and queue again.
#[derive(Debug)]
pub struct Turns {
    taken: Arc<AtomicU64>,
    tasks: JoinSet<()>,
}

impl Turns {
    /// A task for each of these, which are the same lock for several clients.
    pub fn begin(locks: impl IntoIterator<Item = Lock>) -> Self {
        let (taken, mut tasks) = (Arc::<AtomicU64>::default(), JoinSet::new());
        for lock in locks {
            let taken = Arc::clone(&taken);
            tasks.spawn(async move {
                loop {
                    let guard = lock.acquire().await.expect("the lock");
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    taken.fetch_add(1, Relaxed);
                    guard.release().await.expect("a release");
                }
            });
        }
        Self { taken, tasks }
    }

    /// How often the lock was taken.
    pub fn taken(&self) -> u64 {
        self.taken.load(Relaxed)
    }

    /// Stops all tasks.
    ///
    /// # Panics
    ///
    /// If one of them has panicked.
    pub async fn end(mut self) {
        self.tasks.abort_all();
        while let Some(ended) = self.tasks.join_next().await {
            if let Err(error) = ended
                && error.is_panic()
            {
                std::panic::resume_unwind(error.into_panic());
            }
        }
    }
}
