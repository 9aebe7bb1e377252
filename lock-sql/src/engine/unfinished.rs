//! Statements whose callers were dropped.
//!
//! A dropped attempt to acquire may still be executed at any time, even after a release that
//! overtook it on another connection, and would take the lock for a whole ttl. So it is finished in
//! the background, and a release by the same owner waits for that.

use std::pin::Pin;
use std::task::{Context, Poll};

use lock_core::{Clock, ClockInstant, SystemClock};
use tokio::runtime::Handle;
use tokio_util::task::TaskTracker;

/// A future that is driven on after a drop, in the background and until `end`.
pub(super) struct Finished<T: Send + 'static> {
    /// Until it has ended.
    pub(super) work: Option<Pin<Box<dyn Future<Output = T> + Send>>>,
    pub(super) clock: SystemClock,
    pub(super) end: ClockInstant,
    /// Counts what is driven on. It counts as finished even if its runtime ends first.
    pub(super) tracker: TaskTracker,
}

impl<T: Send> Future for Finished<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let Some(work) = &mut self.work else { return Poll::Pending };
        let answer = work.as_mut().poll(context);
        if answer.is_ready() {
            self.work = None;
        }
        answer
    }
}

impl<T: Send> Drop for Finished<T> {
    fn drop(&mut self) {
        let Some(work) = self.work.take() else { return };
        // Without a runtime, or at its end, the connection is closed.
        let Ok(runtime) = Handle::try_current() else { return };
        let (clock, end) = (self.clock.clone(), self.end);
        let rest = async move {
            tokio::select! {
                _ = work => {}
                () = clock.sleep_until(end) => {}
            }
        };
        self.tracker.spawn_on(rest, &runtime);
    }
}
