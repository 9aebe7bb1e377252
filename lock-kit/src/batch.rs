//! Requests made at about the same time travel as one.
//!
//! A store that can answer many requests at once is asked once for all that coincide: the core
//! aligns the renewals of one `Locks` to a grid, so ten thousand held locks cost a few statements
//! every few seconds.
//!
//! ```
//! use lock_core::Result;
//! use lock_kit::batch::{Batches, Entry};
//!
//! /// One statement for all of them, in a real store.
//! async fn send(batch: Vec<Entry<String, bool>>) {
//!     for entry in batch {
//!         let alive = entry.request == "ours";
//!         entry.answer(alive);
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<()> {
//! let renewals = Batches::of_at_most(500);
//! let (ours, theirs) =
//!     tokio::join!(renewals.ask("ours".to_owned(), send), renewals.ask("theirs".to_owned(), send));
//! assert!(ours? && !theirs?);
//! # Ok(()) }
//! ```
//!
//! Each runtime has its own [attendant](crate::attendant).

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use crate::attendant::{Attendants, Requests};
use lock_core::{Error, ErrorKind, Result};

/// How long requests wait for others. The first one after a quiet period does not wait.
const WINDOW: Duration = Duration::from_millis(2);
/// Behind so many, the next ones wait for longer: where thousands of renewals are due at one moment, it takes their tasks
/// tens of milliseconds to ask.
const MANY: usize = 32;
const WINDOW_OF_MANY: Duration = Duration::from_millis(4);

/// Batches requests `T`, each of which gets its own answer `A`. Clones share them.
pub struct Batches<T, A> {
    limits: Arc<BatchLimits<T>>,
    attendants: Attendants<Entry<T, A>>,
}

/// The heaviest batch, and what one request weighs.
type Weight<T> = (usize, fn(&T) -> usize);

/// How large a batch may be.
struct BatchLimits<T> {
    most: usize,
    weight: Option<Weight<T>>,
}

/// One request of a batch. If dropped without an answer, it fails.
pub struct Entry<T, A> {
    /// The request.
    pub request: T,
    reply: oneshot::Sender<A>,
}

impl<T, A> Entry<T, A> {
    /// Answers this request. The others in its batch may be answered earlier or later.
    pub fn answer(self, answer: A) {
        // A caller that has left needs no answer.
        let _ = self.reply.send(answer);
    }
}

impl<T: Send + 'static, A: Send + 'static> Batches<T, A> {
    /// Batches of one to `most` requests.
    pub fn of_at_most(most: usize) -> Self {
        Self::new(BatchLimits { most, weight: None })
    }

    /// Batches of one to `most` requests, and of one request or a `weight` of at most `heaviest`.
    pub fn weighing(most: usize, heaviest: usize, weight: fn(&T) -> usize) -> Self {
        Self::new(BatchLimits { most, weight: Some((heaviest, weight)) })
    }

    fn new(limits: BatchLimits<T>) -> Self {
        Self { limits: Arc::new(limits), attendants: Attendants::default() }
    }

    /// Makes `request` together with the others made on this runtime within 2 ms (4 ms behind many),
    /// or at once if there were none. It is sent after this call, so the store's promise counts from this call at
    /// the earliest (clause C4). Batches run concurrently.
    ///
    /// `send` gets a batch and answers each of its entries. It should be the same for all requests,
    /// since the first request's `send` also serves later ones; and it should have its own time
    /// limit, since a batch has none. If it panics, only its own batch fails.
    ///
    /// # Errors
    ///
    /// [`Unavailable`](ErrorKind::Unavailable) with an unknown effect if the entry was dropped
    /// without an answer, for instance because the runtime ended.
    ///
    /// # Cancel safety
    ///
    /// If dropped before the batch is sent, the request is not made. If dropped later, it is made
    /// anyway.
    ///
    /// # Panics
    ///
    /// Outside of a Tokio runtime with timers.
    pub async fn ask<S, F>(&self, request: T, send: S) -> Result<A>
    where
        S: Fn(Vec<Entry<T, A>>) -> F + Send + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let limits = Arc::clone(&self.limits);
        self.attendants.ask(Entry { request, reply }, |entries| limits.serve(entries, send));
        answer.await.map_err(|_| {
            Error::new(ErrorKind::Unavailable, "the runtime that served this request has ended")
                .with_unknown_effect()
        })
    }
}

impl<T: Send + 'static> BatchLimits<T> {
    async fn serve<A, S, F>(self: Arc<Self>, mut entries: Requests<Entry<T, A>>, send: S)
    where
        A: Send + 'static,
        S: Fn(Vec<Entry<T, A>>) -> F,
        F: Future<Output = ()> + Send + 'static,
    {
        while let Some(entries) = entries.next(Duration::ZERO).await {
            let window = if entries.len() >= MANY { WINDOW_OF_MANY } else { WINDOW };
            for batch in self.split(entries) {
                tokio::spawn(send(batch));
            }
            tokio::time::sleep(window).await;
        }
    }

    fn split<A>(&self, entries: Vec<Entry<T, A>>) -> Vec<Vec<Entry<T, A>>> {
        let mut batches = Vec::new();
        let (mut batch, mut weight) = (Vec::new(), 0_usize);
        for entry in entries {
            // Nothing is sent for a caller that has left.
            if entry.reply.is_closed() {
                continue;
            }
            let (heaviest, more) = match self.weight {
                Some((heaviest, weight)) => (heaviest, weight(&entry.request)),
                None => (0, 0),
            };
            weight = weight.saturating_add(more);
            if batch.len() == self.most.max(1) || (!batch.is_empty() && weight > heaviest) {
                batches.push(std::mem::take(&mut batch));
                weight = more;
            }
            batch.push(entry);
        }
        if !batch.is_empty() {
            batches.push(batch);
        }
        batches
    }
}

impl<T, A> Clone for Batches<T, A> {
    fn clone(&self) -> Self {
        Self { limits: Arc::clone(&self.limits), attendants: self.attendants.clone() }
    }
}

/// Omits the requests, which may name owners.
impl<T, A> fmt::Debug for Batches<T, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batches").field("most", &self.limits.most).finish_non_exhaustive()
    }
}

impl<T, A> fmt::Debug for Entry<T, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use tokio::runtime::{Builder, Runtime};
    use tokio::time::Instant;

    use super::*;

    type Numbers = Batches<u32, u32>;

    /// Records the size of each batch and answers with the number itself.
    fn echo(
        sizes: &Arc<Mutex<Vec<usize>>>,
    ) -> impl Fn(Vec<Entry<u32, u32>>) -> std::future::Ready<()> + Send + 'static {
        let sizes = Arc::clone(sizes);
        move |batch| {
            sizes.lock().unwrap().push(batch.len());
            for entry in batch {
                let number = entry.request;
                entry.answer(number);
            }
            std::future::ready(())
        }
    }

    /// Asks for all of `numbers` at the same time, and returns the sizes of the batches.
    async fn sizes(batches: &Numbers, numbers: impl Iterator<Item = u32>) -> Vec<usize> {
        let sizes = Arc::<Mutex<Vec<usize>>>::default();
        let mut tasks = tokio::task::JoinSet::new();
        for number in numbers {
            let (batches, send) = (batches.clone(), echo(&sizes));
            tasks
                .spawn(async move { assert_eq!(batches.ask(number, send).await.unwrap(), number) });
        }
        tasks.join_all().await;
        sizes.lock().unwrap().clone()
    }

    fn runtime() -> Runtime {
        Builder::new_current_thread().enable_all().build().unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn what_falls_together_travels_as_one_up_to_the_limits() {
        assert_eq!(sizes(&Numbers::of_at_most(500), 0..1200).await, [500, 500, 200]);
        // Ten times 7 are the weight of one batch.
        let heavy = Numbers::weighing(500, 75, |_| 7);
        assert_eq!(sizes(&heavy, 0..23).await, [10, 10, 3]);
        let few = Numbers::weighing(4, 75, |_| 7);
        assert_eq!(sizes(&few, 0..9).await, [4, 4, 1]);
        // A request too heavy for any batch travels alone.
        let giants = Numbers::weighing(500, 75, |&number| if number == 1 { 1000 } else { 7 });
        assert_eq!(sizes(&giants, 0..4).await, [1, 1, 2]);
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_does_not_wait_and_the_next_do_for_a_moment() {
        let batches = Numbers::of_at_most(500);
        let sizes = Arc::default();
        let start = Instant::now();
        batches.ask(1, echo(&sizes)).await.unwrap();
        assert_eq!(start.elapsed(), Duration::ZERO);
        let both = tokio::join!(batches.ask(2, echo(&sizes)), batches.ask(3, echo(&sizes)));
        assert_eq!((both.0.unwrap(), both.1.unwrap(), start.elapsed()), (2, 3, WINDOW));
        // After a quiet period there is nothing to wait for.
        tokio::time::sleep(WINDOW * 2).await;
        assert!(!batches.attendants.is_anyone_there(), "the task has ended");
        let start = Instant::now();
        batches.ask(4, echo(&sizes)).await.unwrap();
        assert_eq!(start.elapsed(), Duration::ZERO);
        assert_eq!(*sizes.lock().unwrap(), [1, 2, 1]);
    }

    #[tokio::test(start_paused = true)]
    async fn behind_many_the_next_wait_for_longer() {
        let batches = Numbers::of_at_most(500);
        for (many, window) in [(MANY - 1, WINDOW), (MANY, WINDOW_OF_MANY)] {
            sizes(&batches, 0..u32::try_from(many).unwrap()).await;
            let start = Instant::now();
            batches.ask(1, echo(&Arc::default())).await.unwrap();
            assert_eq!(start.elapsed(), window, "behind {many}");
            tokio::time::sleep(WINDOW_OF_MANY * 2).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_is_given_up_in_time_is_not_made() {
        let batches = Numbers::of_at_most(500);
        let sizes = Arc::default();
        batches.ask(1, echo(&sizes)).await.unwrap();
        let given_up = tokio::time::timeout(WINDOW / 2, batches.ask(2, echo(&sizes))).await;
        assert!(given_up.is_err());
        batches.ask(3, echo(&sizes)).await.unwrap();
        assert_eq!(*sizes.lock().unwrap(), [1, 1]);
    }

    #[tokio::test(start_paused = true)]
    async fn each_batch_and_each_entry_has_a_fate_of_its_own() {
        let batches = Numbers::of_at_most(2);
        // 0 and 1 panic, 2 has no answer, 3 is answered, and 4 before its batch has ended.
        let send = |batch: Vec<Entry<u32, u32>>| async move {
            for entry in batch {
                let number = entry.request;
                assert!(number != 0, "a defect of the store");
                if number > 2 {
                    entry.answer(number);
                }
                if number == 4 {
                    std::future::pending::<()>().await;
                }
            }
        };
        let answers = tokio::join!(
            batches.ask(0, send),
            batches.ask(1, send),
            batches.ask(2, send),
            batches.ask(3, send),
            batches.ask(4, send)
        );
        for failed in [answers.0, answers.1, answers.2] {
            let error = failed.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable);
            assert_eq!(error.effect(), lock_core::Effect::Unknown);
        }
        assert_eq!((answers.3.unwrap(), answers.4.unwrap()), (3, 4));
    }

    /// Asks on `runtime`, and leaves it in the window opened by the answer, with a request in it.
    #[allow(clippy::async_yields_async, reason = "the remaining future is not awaited")]
    fn leave_in_the_window(
        runtime: &Runtime,
        batches: &Numbers,
    ) -> tokio::task::JoinHandle<Result<u32>> {
        let sizes = Arc::default();
        runtime.block_on(async {
            batches.ask(1, echo(&sizes)).await.unwrap();
            let (batches, send) = (batches.clone(), echo(&sizes));
            let left = tokio::spawn(async move { batches.ask(2, send).await });
            tokio::task::yield_now().await;
            left
        })
    }

    fn answered_elsewhere(batches: &Numbers) {
        let elsewhere = runtime();
        elsewhere.block_on(async {
            for number in 0..3 {
                let answer = batches.ask(number, echo(&Arc::default()));
                let answer = tokio::time::timeout(Duration::from_secs(10), answer).await;
                assert_eq!(answer.expect("it waits for another runtime").unwrap(), number);
            }
        });
    }

    #[test]
    fn the_end_of_a_runtime_in_a_window_stops_nobody_else() {
        let batches = Numbers::of_at_most(500);
        let ending = runtime();
        let left = leave_in_the_window(&ending, &batches);
        drop(ending);
        assert!(left.is_finished());
        assert!(
            !batches.attendants.is_anyone_there(),
            "nothing is kept for a runtime that has ended"
        );
        answered_elsewhere(&batches);
    }

    #[test]
    fn a_caller_that_outlives_its_runtime_is_told() {
        let batches = Numbers::of_at_most(500);
        let (ending, sizes) = (runtime(), Arc::default());
        ending.block_on(batches.ask(1, echo(&sizes))).unwrap();
        let mut moved = Box::pin(batches.ask(2, echo(&sizes)));
        ending.block_on(async {
            assert!(futures_poll(moved.as_mut()).await.is_none(), "before it is sent");
        });
        drop(ending);
        let error = runtime().block_on(moved).unwrap_err();
        assert_eq!(
            (error.kind(), error.effect()),
            (ErrorKind::Unavailable, lock_core::Effect::Unknown)
        );
    }

    /// One poll.
    async fn futures_poll<F: Future>(mut future: std::pin::Pin<&mut F>) -> Option<F::Output> {
        std::future::poll_fn(|cx| {
            std::task::Poll::Ready(match future.as_mut().poll(cx) {
                std::task::Poll::Ready(value) => Some(value),
                std::task::Poll::Pending => None,
            })
        })
        .await
    }

    #[test]
    fn the_standstill_of_a_runtime_stops_nobody_else() {
        let batches = Numbers::of_at_most(500);
        let standing = runtime();
        let left = leave_in_the_window(&standing, &batches);
        answered_elsewhere(&batches);
        // It resumes where it stopped.
        assert_eq!(standing.block_on(left).unwrap().unwrap(), 2);
    }

    #[test]
    fn a_runtime_that_is_ending_takes_no_more() {
        static ASKED: AtomicUsize = AtomicUsize::new(0);

        /// Asks while its runtime drops it.
        struct Late(Numbers);
        impl Drop for Late {
            fn drop(&mut self) {
                let mut late = std::pin::pin!(self.0.ask(7, echo(&Arc::default())));
                let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
                // The first poll makes the task, the second one sees that it was dropped.
                let _ = late.as_mut().poll(&mut cx);
                ASKED.fetch_add(1, Relaxed);
            }
        }

        let batches = Numbers::of_at_most(500);
        let ending = runtime();
        let late = Late(batches.clone());
        ending.spawn(async move {
            std::future::pending::<()>().await;
            drop(late);
        });
        ending.block_on(tokio::task::yield_now());
        drop(ending);
        assert_eq!(ASKED.load(Relaxed), 1);
        assert!(!batches.attendants.is_anyone_there(), "a line that is not served");
        answered_elsewhere(&batches);
    }
}
