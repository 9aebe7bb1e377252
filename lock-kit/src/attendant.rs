//! One task in the background while somebody needs it, which may end with its runtime at any moment.
//!
//! Whoever needs something done hands it to the attendant. If no task is there, the caller begins one. The task
//! ends when nothing has been asked of it for as long as it likes to wait; whoever asks then begins the next one.
//! Nothing falls between the two, since the task ends by closing the way on which requests come. If the runtime of
//! the task ends, its requests are dropped with it, which their callers notice, and the next request begins
//! another task where it is made. One that is made in that very moment may stay until then, so a caller needs a limit
//! of its own.
//!
//! ```
//! use std::time::Duration;
//! use lock_kit::attendant::{Attendants, Requests};
//! use tokio::sync::oneshot;
//!
//! /// Answers each question by twice its number; a real store would use a stream opened here.
//! async fn serve(mut questions: Requests<(u32, oneshot::Sender<u32>)>) {
//!     while let Some(questions) = questions.next(Duration::from_secs(60)).await {
//!         for (number, answer) in questions {
//!             let _ = answer.send(number * 2);
//!         }
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() {
//! let attendants = Attendants::default();
//! let (answer, answered) = oneshot::channel();
//! attendants.ask((21, answer), serve);
//! assert_eq!(answered.await.unwrap(), 42);
//! # }
//! ```

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::{Handle, Id};
use tokio::sync::mpsc::error::SendError;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// The way to the task that serves requests `T`, if there is one. It lives in the mutex of what the task attends to.
/// Dropping it ends the task after the requests that were made.
pub struct Attendant<T>(Option<UnboundedSender<T>>);

/// What the attendant is asked for, for its task. When this is dropped, at the latest with the runtime of the task,
/// so are the requests, and the next one begins another task.
pub struct Requests<T> {
    line: UnboundedReceiver<T>,
    /// The line was closed because nothing came.
    is_closed: bool,
}

impl<T> Attendant<T> {
    /// Makes a request. If no task is there to serve it, the caller must begin one with the requests that this returns,
    /// outside of its mutex: a runtime that is ending drops the task, and the requests with it, right there.
    #[must_use = "the caller begins the task"]
    pub fn ask(&mut self, request: T) -> Option<Requests<T>> {
        let request = match &self.0 {
            Some(task) => match task.send(request) {
                Ok(()) => return None,
                Err(SendError(request)) => request,
            },
            None => request,
        };
        let (task, requests) = unbounded_channel();
        let _ = task.send(request);
        self.0 = Some(task);
        Some(Requests { line: requests, is_closed: false })
    }

    fn is_there(&self) -> bool {
        self.0.as_ref().is_some_and(|task| !task.is_closed())
    }
}

impl<T> Requests<T> {
    /// The requests made by now, or the next ones. `None` if there were none for as long as `idle`: the task should end.
    /// Those that came at the very last moment have as much time as others: `None` follows only after `idle`.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: no request is lost.
    pub async fn next(&mut self, idle: Duration) -> Option<Vec<T>> {
        if self.is_closed {
            tokio::time::sleep(idle).await;
            return None;
        }
        let mut requests = Vec::new();
        let some = self.line.recv_many(&mut requests, usize::MAX);
        if tokio::time::timeout(idle, some).await.is_err() {
            self.line.close();
            // Those that came at the last moment.
            self.is_closed = self.line.recv_many(&mut requests, usize::MAX).await > 0;
        }
        (!requests.is_empty()).then_some(requests)
    }
}

/// One attendant on each runtime that makes requests. Clones share them.
///
/// A store may be used from several runtimes at a time: each worker of a web server has one, and `block_on` makes
/// one for a moment. So a runtime that has ended, or is not being driven, holds up only the requests made on it.
pub struct Attendants<T>(Arc<Mutex<HashMap<Id, Attendant<T>>>>);

impl<T: Send + 'static> Attendants<T> {
    /// Makes a request of the task of this runtime. If there is none, `serve` makes one; it should be the same for all
    /// requests.
    ///
    /// # Panics
    ///
    /// Outside of a Tokio runtime.
    pub fn ask<F>(&self, request: T, serve: impl FnOnce(Requests<T>) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let runtime = Handle::current();
        let begun = {
            let mut by_runtime = self.0.lock();
            let begun = by_runtime.entry(runtime.id()).or_default().ask(request);
            if begun.is_some() {
                by_runtime.retain(|_, attendant| attendant.is_there());
            }
            begun
        };
        if let Some(requests) = begun {
            runtime.spawn(serve(requests));
        }
    }
}

impl<T> Default for Attendant<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T> Clone for Attendants<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Default for Attendants<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

/// Omits the requests, which may name owners.
impl<T> fmt::Debug for Attendant<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attendant").field("is_there", &self.is_there()).finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for Requests<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Requests").field("waiting", &self.line.len()).finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for Attendants<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.lock().values()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::oneshot;
    use tokio::time::Instant;

    const IDLE: Duration = Duration::from_secs(60);

    impl<T> Attendants<T> {
        pub(crate) fn is_anyone_there(&self) -> bool {
            self.0.lock().values().any(Attendant::is_there)
        }
    }

    /// Serves by forwarding, and sends `None` at its end.
    async fn pass(mut asked: Requests<u32>, to: UnboundedSender<Option<u32>>) {
        while let Some(requests) = asked.next(IDLE).await {
            requests.into_iter().for_each(|request| to.send(Some(request)).unwrap());
        }
        let _ = to.send(None);
    }

    #[tokio::test(start_paused = true)]
    async fn one_task_serves_until_nothing_was_asked_for_a_while() {
        let (attendants, (to, mut served)) = (Attendants::default(), unbounded_channel());
        let start = Instant::now();
        for round in 0..3 {
            for request in 0..3 {
                attendants.ask(request, |asked| pass(asked, to.clone()));
            }
            for request in 0..3 {
                assert_eq!(served.recv().await.unwrap(), Some(request));
            }
            tokio::time::sleep(IDLE / 2).await;
            assert!(served.try_recv().is_err(), "it has ended in round {round}");
        }
        assert_eq!(served.recv().await.unwrap(), None);
        assert_eq!(start.elapsed(), 2 * IDLE);
        assert!(!attendants.is_anyone_there());
        attendants.ask(7, |asked| pass(asked, to.clone()));
        assert_eq!(served.recv().await.unwrap(), Some(7));
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_that_is_dropped_loses_nothing() {
        let attendants = Attendants::default();
        let (to, mut served) = unbounded_channel();
        attendants.ask(1, |mut asked: Requests<u32>| async move {
            for _ in 0..3 {
                to.send(asked.next(IDLE).await).unwrap();
                let dropped = tokio::time::timeout(IDLE / 4, asked.next(IDLE)).await;
                assert!(dropped.is_err());
            }
        });
        for request in 2..4 {
            assert!(served.recv().await.unwrap().is_some());
            tokio::time::sleep(IDLE / 3).await;
            attendants.ask(request, |_| async { unreachable!("it is served") });
        }
        assert_eq!(served.recv().await.unwrap(), Some(vec![3]));
    }

    #[tokio::test(start_paused = true)]
    async fn what_came_at_the_last_moment_has_time_to_be_served() {
        // No test meets that moment, so this begins right after it.
        let mut asked = Attendant::default().ask(1).unwrap();
        assert_eq!(asked.next(IDLE).await, Some(vec![1]));
        (asked.is_closed, _) = (true, asked.line.close());
        let start = Instant::now();
        let cut = tokio::time::timeout(IDLE / 2, asked.next(IDLE)).await;
        assert!(cut.is_err(), "its task ends while it serves");
        assert_eq!(asked.next(IDLE).await, None);
        assert_eq!(start.elapsed(), IDLE / 2 + IDLE);
    }

    #[tokio::test]
    async fn requests_that_nobody_serves_any_more_are_dropped() {
        let attendants = Attendants::default();
        let (request, dropped) = oneshot::channel::<()>();
        attendants.ask(request, async |asked| drop(asked));
        dropped.await.unwrap_err();
        assert!(!attendants.is_anyone_there());
    }

    /// However closely its end and a request meet.
    #[tokio::test(flavor = "multi_thread")]
    async fn no_request_is_lost_when_its_task_ends() {
        let attendants = Attendants::default();
        let mut callers = tokio::task::JoinSet::new();
        for _ in 0..4 {
            let attendants = attendants.clone();
            callers.spawn(async move {
                for _ in 0..1000 {
                    let (answer, answered) = oneshot::channel();
                    attendants.ask(answer, |mut asked: Requests<oneshot::Sender<()>>| async move {
                        while let Some(answers) = asked.next(Duration::ZERO).await {
                            answers.into_iter().for_each(|answer| answer.send(()).unwrap());
                        }
                    });
                    answered.await.unwrap();
                }
            });
        }
        callers.join_all().await;
    }

    #[test]
    fn a_runtime_that_ends_takes_the_task_and_its_requests_along() {
        let runtime =
            || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (ending, mut attendant) = (runtime(), Attendant::default());
        let (request, mut dropped) = oneshot::channel::<()>();
        let asked = attendant.ask(request).unwrap();
        assert!(attendant.ask(oneshot::channel().0).is_none(), "one task is enough");
        ending.spawn(async move {
            let _asked = asked;
            std::future::pending::<()>().await
        });
        drop(ending);
        dropped.try_recv().unwrap_err();
        let mut asked = attendant.ask(oneshot::channel().0).unwrap();
        drop(attendant);
        runtime().block_on(async {
            assert_eq!(asked.next(IDLE).await.unwrap().len(), 1);
            assert!(asked.next(IDLE).await.is_none(), "nobody can ask any more");
        });
    }
}
