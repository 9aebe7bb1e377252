//! What the tests of all databases share.

#![allow(dead_code, reason = "each test target uses a part of it")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use lock_core::{Attempt, Claim, ClaimRequest, Error, ErrorKind, FencingToken, LockBackend};
use lock_core::{LockKey, Locks, OsRng, OwnerId};

pub(crate) const TTL: Duration = Duration::from_secs(30);
/// The limit of a call.
pub(crate) const CALL: Duration = Duration::from_secs(2);

pub(crate) fn claim_within(
    backend: &impl LockBackend,
    name: &str,
    (ttl, call_timeout): (Duration, Duration),
    wait: bool,
) -> Box<dyn Claim> {
    let key = LockKey::new("", name).unwrap();
    let owner = OwnerId::generate(&OsRng).unwrap();
    let request =
        ClaimRequest::new(key, owner, ttl).with_wait(wait).with_call_timeout(call_timeout);
    backend.claim(request).unwrap()
}

pub(crate) async fn granted(claim: &mut dyn Claim) -> FencingToken {
    match claim.try_acquire().await.unwrap() {
        Attempt::Granted { token, .. } => token,
        other => panic!("not granted: {other:?}"),
    }
}

pub(crate) fn assert_says(error: &Error, kind: ErrorKind, words: &[&str]) {
    assert_eq!(error.kind(), kind, "{error}");
    for word in words {
        assert!(error.to_string().contains(word), "{word:?} is missing in: {error}");
    }
}

pub(crate) async fn busy(claim: &mut dyn Claim) {
    match claim.try_acquire().await.unwrap() {
        Attempt::Busy { .. } => {}
        other => panic!("not busy: {other:?}"),
    }
}

/// Clients that take one lock in a loop until they are told to stop, and check that no other client
/// has it and that its fences rise.
pub(crate) struct Hammer {
    stop: Arc<AtomicBool>,
    rounds: Arc<AtomicU64>,
    tasks: tokio::task::JoinSet<Vec<Error>>,
}

impl Hammer {
    pub(crate) fn start(clients: Vec<Locks>, ttl: Duration) -> Self {
        let (stop, rounds) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (inside, last) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let mut tasks = tokio::task::JoinSet::new();
        for locks in clients {
            let (stop, rounds) = (Arc::clone(&stop), Arc::clone(&rounds));
            let (inside, last) = (Arc::clone(&inside), Arc::clone(&last));
            tasks.spawn(async move {
                let mut errors = Vec::new();
                let lock = locks.named("hot").unwrap().ttl(ttl);
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
                    lock_testkit::assert_exactly!(
                        !inside.swap(true, SeqCst),
                        "two holders at once"
                    );
                    let fence = guard.token().unwrap().get();
                    lock_testkit::assert_exactly!(
                        last.swap(fence, SeqCst) < fence,
                        "a fence went back"
                    );
                    tokio::task::yield_now().await;
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

    pub(crate) fn rounds(&self) -> u64 {
        self.rounds.load(SeqCst)
    }

    /// Waits until the lock was taken `more` times.
    pub(crate) async fn take(&self, more: u64) {
        let goal = self.rounds() + more;
        for _ in 0..12_000 {
            if self.rounds() >= goal {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("the lock was not taken {more} times in two minutes");
    }

    /// The lock is taken as before, after a time in which the server failed, and calls only as a server fails.
    pub(crate) async fn goes_on(self) {
        self.take(20).await;
        let known = [ErrorKind::Unavailable, ErrorKind::NoAnswer, ErrorKind::Store];
        for error in self.stop().await {
            let is_lost = error.lost_reason().is_some();
            assert!(is_lost || known.contains(&error.kind()), "{error:?}");
        }
    }

    /// Ends it, and says how calls failed.
    pub(crate) async fn stop(mut self) -> Vec<Error> {
        self.stop.store(true, SeqCst);
        let mut errors = Vec::new();
        while let Some(task) = self.tasks.join_next().await {
            errors.extend(task.unwrap());
        }
        errors
    }
}
