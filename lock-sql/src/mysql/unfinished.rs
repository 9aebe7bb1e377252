//! Statements whose callers have gone.

use std::collections::HashMap;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use lock_core::{Clock, ClockInstant, SystemClock};
use tokio::runtime::Handle;
use tokio::sync::Notify;

/// Tries to get a lock that were dropped while the server was at them, by owner. A release waits for
/// them: it would go over another connection, could overtake the try, and find nothing to release.
#[derive(Debug, Default)]
pub(super) struct Unfinished {
    tries: Mutex<HashMap<String, usize>>,
    fewer: Notify,
}

impl Unfinished {
    /// Waits until no dropped try of this owner is under way.
    pub(super) async fn none(&self, owner: &str) {
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

    fn begin(&self, owner: &str) {
        *self.tries().entry(owner.to_owned()).or_default() += 1;
    }

    fn end(&self, owner: &str) {
        let mut tries = self.tries();
        if let Some(count) = tries.get_mut(owner) {
            *count -= 1;
            if *count == 0 {
                tries.remove(owner);
            }
        }
        drop(tries);
        self.fewer.notify_waiters();
    }

    fn tries(&self) -> MutexGuard<'_, HashMap<String, usize>> {
        self.tries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A future that is finished also if it is dropped: in the background then, until `end`.
pub(super) struct Finished<T: Send + 'static> {
    work: Option<Pin<Box<dyn Future<Output = T> + Send>>>,
    clock: SystemClock,
    end: ClockInstant,
    noted: Option<(Arc<Unfinished>, String)>,
}

impl<T: Send> Finished<T> {
    pub(super) fn new(
        work: Pin<Box<dyn Future<Output = T> + Send>>,
        clock: SystemClock,
        end: ClockInstant,
        unfinished: Option<(&Arc<Unfinished>, &str)>,
    ) -> Self {
        let noted = unfinished.map(|(list, owner)| (Arc::clone(list), owner.to_owned()));
        Self { work: Some(work), clock, end, noted }
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
        let noted = self.noted.take().map(|(list, owner)| Note::new(list, owner));
        let (clock, end) = (self.clock.clone(), self.end);
        runtime.spawn(async move {
            let _noted = noted;
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

/// An entry of the list. It goes also if its runtime ends before the statement.
struct Note(Arc<Unfinished>, String);

impl Note {
    fn new(list: Arc<Unfinished>, owner: String) -> Self {
        list.begin(&owner);
        Self(list, owner)
    }
}

impl Drop for Note {
    fn drop(&mut self) {
        self.0.end(&self.1);
    }
}
