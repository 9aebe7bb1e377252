//! Load on one lock, while something happens to its store.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use lock_core::{Error, ErrorKind, Locks};
use tokio::task::JoinSet;

/// How long each has the lock: a second holder needs time to be seen.
const HELD: Duration = Duration::from_millis(2);

/// Clients that take one lock in a loop until they are told to stop, and check that no other client
/// has it and that its fences rise.
#[derive(Debug)]
pub struct Hammer {
    stop: Arc<AtomicBool>,
    rounds: Arc<AtomicU64>,
    tasks: JoinSet<Vec<Error>>,
}

impl Hammer {
    /// Each of the clients begins at once.
    ///
    /// # Panics
    ///
    /// In its tasks, if a promise is broken; [`stop`](Self::stop) passes that on.
    pub fn start(clients: Vec<Locks>, ttl: Duration) -> Self {
        let (stop, rounds) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (inside, last) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let mut tasks = JoinSet::new();
        for locks in clients {
            let (stop, rounds) = (Arc::clone(&stop), Arc::clone(&rounds));
            let (inside, last) = (Arc::clone(&inside), Arc::clone(&last));
            tasks.spawn(async move {
                let mut errors = Vec::new();
                let lock = locks.named("hot").expect("a name").ttl(ttl);
                while !stop.load(SeqCst) {
                    let guard = match lock.acquire_timeout(Duration::from_secs(60)).await {
                        Ok(guard) => guard,
                        // The store is not fair, and the machine may be busy.
                        Err(error) if error.kind() == ErrorKind::NotAcquired => continue,
                        Err(error) => {
                            errors.push(error);
                            continue;
                        }
                    };
                    crate::assert_exactly!(!inside.swap(true, SeqCst), "two holders at once");
                    let fence = guard.token().expect("a hold is over after a moment").get();
                    crate::assert_exactly!(last.swap(fence, SeqCst) < fence, "a fence went back");
                    tokio::time::sleep(HELD).await;
                    assert!(inside.swap(false, SeqCst));
                    rounds.fetch_add(1, SeqCst);
                    // An unknown release is cleaned up by the keeper.
                    errors.extend(guard.release().await.err());
                }
                errors
            });
        }
        Self { stop, rounds, tasks }
    }

    /// How often the lock was taken.
    pub fn rounds(&self) -> u64 {
        self.rounds.load(SeqCst)
    }

    /// Waits until the lock was taken `more` times.
    ///
    /// # Panics
    ///
    /// If it takes minutes.
    pub async fn take(&self, more: u64) {
        let goal = self.rounds() + more;
        for _ in 0..12_000 {
            if self.rounds() >= goal {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("the lock was not taken {more} times in two minutes");
    }

    /// The lock is taken as before, after a time in which the server failed, and calls fail only as a server fails.
    ///
    /// # Panics
    ///
    /// If it is otherwise, and as [`stop`](Self::stop).
    pub async fn goes_on(self) {
        self.take(20).await;
        let known = [ErrorKind::Unavailable, ErrorKind::NoAnswer, ErrorKind::Store];
        for error in self.stop().await {
            let is_lost = error.lost_reason().is_some();
            assert!(is_lost || known.contains(&error.kind()), "{error:?}");
        }
    }

    /// Ends it, and says how calls failed.
    ///
    /// # Panics
    ///
    /// If two clients had the lock at once, or a fence fell.
    pub async fn stop(mut self) -> Vec<Error> {
        self.stop.store(true, SeqCst);
        let mut errors = Vec::new();
        while let Some(task) = self.tasks.join_next().await {
            errors.extend(task.expect("a client"));
        }
        errors
    }
}
