//! Requests that fall together, for the backends whose stores can answer many at once. The core brings
//! the renewals of one client together on a grid.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long the first request waits for others.
const COLLECT: Duration = Duration::from_millis(2);

/// What is collected for a moment, and then sent together.
pub struct Collector<T>(Mutex<Collected<T>>);

struct Collected<T> {
    waiting: Vec<T>,
    /// A task is under way that sends what waits.
    scheduled: bool,
}

impl<T> Default for Collector<T> {
    fn default() -> Self {
        Self(Mutex::new(Collected::default()))
    }
}

impl<T> Default for Collected<T> {
    fn default() -> Self {
        Self { waiting: Vec::new(), scheduled: false }
    }
}

impl<T> fmt::Debug for Collector<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Collector").finish_non_exhaustive()
    }
}

impl<T: Send + 'static> Collector<T> {
    /// Adds `item` to what is collected at this moment. If it is the first, a task on the current runtime
    /// gives all of it to `send`, 2 ms later. That is always after this call, which does not wait.
    ///
    /// If that runtime ends before, what was collected is dropped, and the next call makes a new task on
    /// a runtime of its own. So an item should own the sender of an answer, whose end tells who waits.
    pub fn add(self: &Arc<Self>, item: T, send: impl FnOnce(Vec<T>) + Send + 'static) {
        let scheduled = {
            let mut collected = self.collected();
            collected.waiting.push(item);
            std::mem::replace(&mut collected.scheduled, true)
        };
        if scheduled {
            return;
        }
        // Made before the task, which may end with its runtime before it has begun.
        let scheduled = Scheduled { collector: Arc::clone(self), taken: false };
        // A task of its own, since the caller may be dropped and the others go on.
        tokio::spawn(async move {
            tokio::time::sleep(COLLECT).await;
            send(scheduled.take());
        });
    }

    fn collected(&self) -> MutexGuard<'_, Collected<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The task that sends what has been collected.
struct Scheduled<T: Send + 'static> {
    collector: Arc<Collector<T>>,
    taken: bool,
}

impl<T: Send + 'static> Scheduled<T> {
    /// From here on whoever adds something makes a task of its own.
    fn take(mut self) -> Vec<T> {
        self.taken = true;
        std::mem::take(&mut *self.collector.collected()).waiting
    }
}

impl<T: Send + 'static> Drop for Scheduled<T> {
    fn drop(&mut self) {
        if !self.taken {
            let dropped = std::mem::take(&mut *self.collector.collected());
            // Without the lock: an item may do something when it goes.
            drop(dropped);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::{mpsc, oneshot};

    use super::*;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
    }

    #[test]
    fn what_falls_together_is_sent_together() {
        let collector = Arc::<Collector<u32>>::default();
        let (sent, mut batches) = mpsc::unbounded_channel();
        runtime().block_on(async {
            for item in 0..3 {
                let sent = sent.clone();
                collector.add(item, move |batch| sent.send(batch).unwrap());
            }
            assert_eq!(batches.recv().await, Some(vec![0, 1, 2]));
            let sent = sent.clone();
            collector.add(3, move |batch| sent.send(batch).unwrap());
            assert_eq!(batches.recv().await, Some(vec![3]));
        });
        assert!(batches.try_recv().is_err(), "nothing is sent twice");
    }

    #[test]
    fn the_end_of_a_runtime_stops_nobody_else() {
        let collector = Arc::<Collector<oneshot::Sender<()>>>::default();
        let (first, answer) = oneshot::channel();
        let ending = runtime();
        ending.block_on(async { collector.add(first, |_| panic!("it has ended")) });
        drop(ending);
        assert!(answer.blocking_recv().is_err(), "who waits is told");
        let (second, answer) = oneshot::channel();
        runtime().block_on(async {
            collector.add(second, |batch| batch.into_iter().for_each(|one| one.send(()).unwrap()));
            answer.await.unwrap();
        });
    }
}
