//! Many waiters at a store that answers nobody.

use std::time::Duration;

use lock_core::testing::{MemoryBackend, TokioClock};
use lock_core::{Clock, Error, ErrorKind, Lock, LockGuard, Locks, LocksBuilder};
use tokio::task::JoinHandle;

use crate::SECOND;

/// A lock that another client holds, the client of those who wait for it, and what keeps it held.
async fn held(
    store: &MemoryBackend,
    clock: TokioClock,
) -> (LocksBuilder, MemoryBackend, LockGuard) {
    let theirs = Locks::builder(store.clone()).clock(clock).build().unwrap();
    let guard = theirs.named("a").unwrap().acquire().await.unwrap();
    let client = store.client();
    (Locks::builder(client.clone()).clock(clock), client, guard)
}

/// What `count` waiters are told from the beginning of an outage on, and after how long.
async fn told<F>(
    lock: &Lock,
    client: &MemoryBackend,
    count: usize,
    wait: impl Fn(Lock) -> F,
) -> Vec<(Duration, Error)>
where
    F: Future<Output = lock_core::Result<LockGuard>> + Send + 'static,
{
    let waiters: Vec<_> = (0..count).map(|_| tokio::spawn(wait(lock.clone()))).collect();
    tokio::time::sleep(SECOND).await;
    client.refuse();
    let begun = tokio::time::Instant::now();
    let mut told = Vec::new();
    for waiter in waiters {
        let error = waiter.await.unwrap().unwrap_err();
        told.push((begun.elapsed(), error));
    }
    told
}

#[tokio::test(start_paused = true)]
async fn however_many_wait_they_give_up_in_time() {
    for (limit, latest) in [(30 * SECOND, 35 * SECOND), (3 * SECOND, 8 * SECOND)] {
        let clock = TokioClock::default();
        let store = MemoryBackend::queued().with_clock(clock);
        let (locks, client, _guard) = held(&store, clock).await;
        let lock = locks.unavailable_after(limit).build().unwrap().named("a").unwrap();
        let told = told(&lock, &client, 1_000, |lock| async move { lock.acquire().await }).await;
        let last = told.iter().map(|(after, _)| *after).max().unwrap();
        assert!(last <= latest, "{limit:?}: the last after {last:?}");
        for (_, error) in told {
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        }
    }
}

/// Few of them ask a store that answers nobody; the others are told what those have heard.
#[tokio::test(start_paused = true)]
async fn nobody_is_told_that_a_lock_is_held_while_the_store_answers_nobody() {
    let clock = TokioClock::default();
    let store = MemoryBackend::queued().with_clock(clock);
    let (locks, client, _guard) = held(&store, clock).await;
    let lock = locks.build().unwrap().named("a").unwrap();
    let waits = |lock: Lock| async move { lock.acquire_timeout(9 * SECOND).await };
    for (_, error) in told(&lock, &client, 1_000, waits).await {
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }
}

/// So many tasks that wait without a limit.
fn waiting(lock: &Lock, count: usize) -> Vec<JoinHandle<lock_core::Result<()>>> {
    let wait = |lock: Lock| async move { lock.acquire().await.map(drop) };
    (0..count).map(|_| tokio::spawn(wait(lock.clone()))).collect()
}

/// A store that answers some of them is no store that answers nobody.
#[tokio::test(start_paused = true)]
async fn an_outage_that_is_over_ends_no_wait() {
    let clock = TokioClock::default();
    let store = MemoryBackend::queued().with_clock(clock);
    let (locks, client, guard) = held(&store, clock).await;
    let lock = locks.unavailable_after(30 * SECOND).build().unwrap().named("a").unwrap();
    let waiters = waiting(&lock, 50);
    tokio::time::sleep(SECOND).await;
    for _ in 0..6 {
        client.refuse();
        clock.sleep(12 * SECOND).await;
        client.heal();
        clock.sleep(20 * SECOND).await;
    }
    drop(guard);
    for waiter in waiters {
        waiter.await.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_comes_too_late_for_one_tells_the_others_that_the_store_is_there() {
    let clock = TokioClock::default();
    let store = MemoryBackend::queued().with_clock(clock);
    let (locks, client, _guard) = held(&store, clock).await;
    let lock = locks.build().unwrap().named("a").unwrap();
    let other = lock.clone();
    let waits = tokio::spawn(async move { other.acquire_timeout(SECOND).await });
    tokio::time::sleep(SECOND / 10).await;
    client.hold_next_request(SECOND * 6 / 10);
    let error = lock.acquire_timeout(SECOND * 3 / 10).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoAnswer);
    assert_eq!(waits.await.unwrap().unwrap_err().kind(), ErrorKind::NotAcquired);
}

/// While the machine sleeps nobody is asked, so the store has not been silent for that time.
#[tokio::test(start_paused = true)]
async fn a_machine_that_has_slept_gives_the_store_its_time() {
    for asks in [false, true] {
        let clock = TokioClock::default();
        let store = MemoryBackend::queued().with_clock(clock);
        let (locks, client, guard) = held(&store, clock).await;
        let locks = locks.unavailable_after(30 * SECOND).build().unwrap();
        let lock = locks.named("a").unwrap();
        let waiters = waiting(&lock, 3);
        tokio::time::sleep(SECOND).await;
        if asks {
            // A call is under way.
            client.freeze();
            clock.sleep(16 * SECOND).await;
        }
        client.refuse();
        tokio::time::advance(3600 * SECOND).await;
        clock.sleep(20 * SECOND).await;
        client.thaw();
        client.heal();
        drop(guard);
        for waiter in waiters {
            waiter.await.unwrap().unwrap();
        }
    }
}
