//! All requests made on one runtime are served by one task there, which exists as long as there are
//! requests.
//!
//! A store may be used from several runtimes at a time: each worker of a web server has one, and
//! `block_on` makes one for a moment. Each runtime has its own line, and the task that serves it
//! runs on that runtime. So a runtime that has ended, or is not being driven, holds up only the
//! requests made on it.
//!
//! ```
//! use std::time::Duration;
//! use lock_core::kit::lines::{Line, Lines};
//! use tokio::sync::oneshot;
//!
//! /// Answers each question by twice its number; a real store would use a stream opened here.
//! async fn serve(mut line: Line<(u32, oneshot::Sender<u32>)>) {
//!     while let Some(questions) = line.next(Duration::from_secs(60)).await {
//!         for (number, answer) in questions {
//!             let _ = answer.send(number * 2);
//!         }
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() {
//! let lines = Lines::default();
//! let (answer, answered) = oneshot::channel();
//! lines.push((21, answer), serve);
//! assert_eq!(answered.await.unwrap(), 42);
//! # }
//! ```

use std::collections::HashMap;
use std::collections::hash_map::Entry::{Occupied, Vacant};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::{Handle, Id};
use tokio::sync::Notify;

/// The lines for one kind of request `T`. Clones share them.
pub struct Lines<T>(Arc<Mutex<HashMap<Id, Waiting<T>>>>);

struct Waiting<T> {
    requests: Vec<T>,
    more: Arc<Notify>,
}

/// The line of one runtime, for the task that serves it. Dropping it, as a runtime that ends does,
/// drops the waiting requests; the next request starts a new line.
pub struct Line<T> {
    lines: Lines<T>,
    runtime: Id,
    more: Arc<Notify>,
    is_open: bool,
}

impl<T: Send + 'static> Lines<T> {
    /// Puts a request into the line of this runtime. If no task serves it, `serve` starts one;
    /// `serve` should be the same for all requests.
    ///
    /// # Panics
    ///
    /// Outside of a Tokio runtime.
    pub fn push<F>(&self, request: T, serve: impl FnOnce(Line<T>) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let runtime = Handle::current().id();
        let more = Arc::new(Notify::new());
        match self.by_runtime().entry(runtime) {
            Occupied(mut waiting) => {
                waiting.get_mut().requests.push(request);
                waiting.get().more.notify_one();
                return;
            }
            Vacant(line) => {
                line.insert(Waiting { requests: vec![request], more: Arc::clone(&more) });
            }
        }
        // Created before its task, because a runtime that ends drops the task before it starts; and
        // spawned outside the lock, since that drop happens right here.
        let line = Line { lines: self.clone(), runtime, more, is_open: true };
        tokio::spawn(serve(line));
    }
}

impl<T> Lines<T> {
    fn by_runtime(&self) -> MutexGuard<'_, HashMap<Id, Waiting<T>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.by_runtime().is_empty()
    }
}

impl<T> Line<T> {
    /// The waiting requests. If there are none, the line is closed and the task should end; the
    /// next request starts a new line.
    pub fn take(&mut self) -> Option<Vec<T>> {
        if !self.is_open {
            return None;
        }
        let mut lines = self.lines.by_runtime();
        match lines.get_mut(&self.runtime) {
            Some(waiting) if !waiting.requests.is_empty() => {
                Some(std::mem::take(&mut waiting.requests))
            }
            _ => {
                lines.remove(&self.runtime);
                self.is_open = false;
                None
            }
        }
    }

    /// The same, after waiting for requests for at most `idle`.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: no request is lost, and the line stays open.
    pub async fn next(&mut self, idle: Duration) -> Option<Vec<T>> {
        if self.is_open {
            let more = async {
                // A permit may be left over from requests taken before.
                while self.is_idle() {
                    self.more.notified().await;
                }
            };
            let _ = tokio::time::timeout(idle, more).await;
        }
        self.take()
    }

    fn is_idle(&self) -> bool {
        let lines = self.lines.by_runtime();
        lines.get(&self.runtime).is_some_and(|waiting| waiting.requests.is_empty())
    }
}

/// Waiters notice when their requests are dropped.
impl<T> Drop for Line<T> {
    fn drop(&mut self) {
        if self.is_open {
            let waiting = self.lines.by_runtime().remove(&self.runtime);
            // Outside the lock: dropping a request may run code.
            drop(waiting);
        }
    }
}

impl<T> Clone for Lines<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Default for Lines<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

/// Omits the requests, which may name owners.
impl<T> fmt::Debug for Lines<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lines").field("open", &self.by_runtime().len()).finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for Line<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Line").field("is_open", &self.is_open).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::mpsc;
    use tokio::time::Instant;

    const IDLE: Duration = Duration::from_secs(60);

    /// Serves by forwarding, and sends `None` at its end.
    async fn pass(mut line: Line<u32>, to: mpsc::UnboundedSender<Option<u32>>) {
        while let Some(requests) = line.next(IDLE).await {
            requests.into_iter().for_each(|request| to.send(Some(request)).unwrap());
        }
        let _ = to.send(None);
    }

    #[tokio::test(start_paused = true)]
    async fn one_task_serves_until_nothing_was_asked_for_a_while() {
        let (lines, (to, mut served)) = (Lines::default(), mpsc::unbounded_channel());
        let start = Instant::now();
        for round in 0..3 {
            for request in 0..3 {
                lines.push(request, |line| pass(line, to.clone()));
            }
            for request in 0..3 {
                assert_eq!(served.recv().await.unwrap(), Some(request));
            }
            tokio::time::sleep(IDLE / 2).await;
            assert!(served.try_recv().is_err(), "it has ended in round {round}");
        }
        assert_eq!(served.recv().await.unwrap(), None);
        assert_eq!(start.elapsed(), 2 * IDLE);
        assert!(lines.is_empty());
        lines.push(7, |line| pass(line, to.clone()));
        assert_eq!(served.recv().await.unwrap(), Some(7));
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_that_is_dropped_loses_nothing() {
        let lines = Lines::default();
        let (to, mut served) = mpsc::unbounded_channel();
        lines.push(1, |mut line: Line<u32>| async move {
            for _ in 0..3 {
                to.send(line.next(IDLE).await).unwrap();
                let dropped = tokio::time::timeout(IDLE / 4, line.next(IDLE)).await;
                assert!(dropped.is_err());
            }
        });
        for request in 2..4 {
            assert!(served.recv().await.unwrap().is_some());
            tokio::time::sleep(IDLE / 3).await;
            lines.push(request, |_| async { unreachable!("it is served") });
        }
        assert_eq!(served.recv().await.unwrap(), Some(vec![3]));
    }

    #[tokio::test]
    async fn requests_that_nobody_serves_any_more_are_dropped() {
        let lines = Lines::default();
        let (request, dropped) = tokio::sync::oneshot::channel::<()>();
        lines.push(request, async |line| drop(line));
        dropped.await.unwrap_err();
        assert!(lines.is_empty());
    }
}
