//! Work in the background that ends with the store.
//!
//! ```
//! use std::sync::atomic::{AtomicBool, Ordering};
//! use std::sync::Arc;
//! use std::time::Duration;
//! use lock_kit::tasks::Tasks;
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() {
//! let tasks = Tasks::default();
//! let swept = Arc::new(AtomicBool::new(false));
//! let done = Arc::clone(&swept);
//! tasks.spawn(async move { done.store(true, Ordering::Relaxed) });
//! assert!(tasks.close(Duration::from_secs(5)).await);
//! assert!(swept.load(Ordering::Relaxed));
//! # }
//! ```

use std::fmt;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The background tasks of a store, or of one claim. Each runs on the runtime of the caller that
/// started it.
///
/// If dropped without [`close`](Self::close), it leaves the tasks running and completes
/// [`closing`](Self::closing): a task that does not end otherwise should wait for that.
pub struct Tasks {
    tracker: TaskTracker,
    closing: CancellationToken,
    killed: CancellationToken,
}

impl Tasks {
    /// Runs `work` in the background. Drops it and returns false outside of a runtime, and once
    /// [`close`](Self::close) has begun.
    pub fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) -> bool {
        let Ok(runtime) = Handle::try_current() else { return false };
        if self.closing.is_cancelled() {
            return false;
        }
        let killed = self.killed.clone();
        self.tracker.spawn_on(
            async move {
                let _ = killed.run_until_cancelled(work).await;
            },
            &runtime,
        );
        true
    }

    /// Ready when [`close`](Self::close) has begun.
    pub fn closing(&self) -> impl Future<Output = ()> + Send + 'static {
        self.closing.clone().cancelled_owned()
    }

    /// Waits until nothing runs, for at most `limit`; false if something still runs then. More
    /// tasks may be started during and after this.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn idle(&self, limit: Duration) -> bool {
        tokio::time::timeout(limit, self.tracker.wait()).await.is_ok()
    }

    /// Lets the tasks end within `limit`, then drops the rest; false if there were any. No more
    /// tasks can be started.
    ///
    /// # Cancel safety
    ///
    /// If dropped, closing has begun; call this again to continue.
    pub async fn close(&self, limit: Duration) -> bool {
        self.closing.cancel();
        let in_time = self.idle(limit).await;
        self.killed.cancel();
        in_time
    }
}

impl Default for Tasks {
    fn default() -> Self {
        let tracker = TaskTracker::new();
        // Only a closed tracker reports that it is empty, and it still accepts tasks.
        tracker.close();
        Self { tracker, closing: CancellationToken::new(), killed: CancellationToken::new() }
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        self.closing.cancel();
    }
}

impl fmt::Debug for Tasks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tasks").field("running", &self.tracker.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn closing_waits_for_what_ends_in_time() {
        let tasks = Tasks::default();
        assert!(tasks.spawn(tokio::time::sleep(SECOND)));
        let closing = tasks.closing();
        assert!(tasks.spawn(closing));
        assert!(!tasks.idle(SECOND / 2).await, "both run");
        assert!(tasks.close(2 * SECOND).await);
        assert!(!tasks.spawn(async {}), "nothing more is started");
    }

    #[tokio::test(start_paused = true)]
    async fn what_does_not_end_in_time_is_dropped() {
        let tasks = Tasks::default();
        let (sender, dropped) = tokio::sync::oneshot::channel::<()>();
        tasks.spawn(async move {
            std::future::pending::<()>().await;
            drop(sender);
        });
        assert!(!tasks.close(SECOND).await);
        dropped.await.unwrap_err();
        assert!(tasks.idle(SECOND).await);
    }

    #[tokio::test(start_paused = true)]
    async fn tasks_that_are_left_to_themselves_are_told() {
        let tasks = Tasks::default();
        let closing = tasks.closing();
        drop(tasks);
        closing.await;
    }

    #[test]
    fn a_runtime_that_ends_takes_its_tasks_along() {
        let tasks = Tasks::default();
        assert!(!tasks.spawn(async {}), "there is no runtime");
        let runtime =
            || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let ending = runtime();
        ending.block_on(async { tasks.spawn(std::future::pending()) });
        drop(ending);
        assert!(runtime().block_on(tasks.close(SECOND)));
    }
}
