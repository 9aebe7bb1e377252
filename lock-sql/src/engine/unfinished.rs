//! Statements whose callers were dropped.
//!
//! A dropped attempt to acquire may still be executed at any time, even after a release that
//! overtook it on another connection, and would take the lock for a whole ttl. So it is finished in
//! the background, and a release by the same owner waits for that.

use std::collections::HashMap;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use lock_core::{Clock, ClockInstant, SystemClock};
use tokio::runtime::Handle;
use tokio::sync::Notify;

/// Dropped tries that are still under way, by owner.
#[derive(Debug, Default)]
pub(crate) struct Unfinished {
    tries: Mutex<HashMap<String, usize>>,
    fewer: Notify,
}

impl Unfinished {
    /// Waits until no dropped try of this owner is under way.
    pub(crate) async fn none(&self, owner: &str) {
        loop {
            let fewer = self.fewer.notified();
            let mut fewer = std::pin::pin!(fewer);
            fewer.as_mut().enable();
            if !self.tries().contains_key(owner) {
                return;
            }
            fewer.await;
        }
    }

    fn begin(self: &Arc<Self>, owner: String) -> Dropped {
        *self.tries().entry(owner.clone()).or_default() += 1;
        Dropped(Arc::clone(self), owner)
    }

    fn tries(&self) -> MutexGuard<'_, HashMap<String, usize>> {
        self.tries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A dropped try. It counts as finished even if its runtime ends before the statement does.
struct Dropped(Arc<Unfinished>, String);

impl Drop for Dropped {
    fn drop(&mut self) {
        let mut tries = self.0.tries();
        if let Some(count) = tries.get_mut(&self.1) {
            *count -= 1;
            if *count == 0 {
                tries.remove(&self.1);
            }
        }
        drop(tries);
        self.0.fewer.notify_waiters();
    }
}

/// A future that is driven on after a drop, in the background and until `end`.
pub(crate) struct Finished<T: Send + 'static> {
    work: Option<Pin<Box<dyn Future<Output = T> + Send>>>,
    clock: SystemClock,
    end: ClockInstant,
    /// The owner whose release waits for it.
    owner: Option<(Arc<Unfinished>, String)>,
}

impl<T: Send> Finished<T> {
    pub(crate) fn new(
        work: impl Future<Output = T> + Send + 'static,
        clock: SystemClock,
        end: ClockInstant,
        owner: Option<(Arc<Unfinished>, String)>,
    ) -> Self {
        Self { work: Some(Box::pin(work)), clock, end, owner }
    }
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
        let dropped = self.owner.take().map(|(unfinished, owner)| unfinished.begin(owner));
        let (clock, end) = (self.clock.clone(), self.end);
        runtime.spawn(async move {
            let _dropped = dropped;
            tokio::select! {
                _ = work => {}
                () = clock.sleep_until(end) => {}
            }
        });
    }
}

impl<T: Send> fmt::Debug for Finished<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Finished").field("end", &self.end).finish_non_exhaustive()
    }
}
