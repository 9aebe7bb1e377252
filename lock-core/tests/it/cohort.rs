//! Holds that tasks of one process pass on. The suite checks on each store what a user can see of them;
//! these are the corners that need the memory store.

use lock_core::memory::MemoryBackend;
use lock_core::testing::{ManualClock, TokioClock};
use lock_core::{Clock, ErrorKind, Lock, LockGuard, LockState, Locks, LostReason, Result};
use tokio::task::JoinHandle;

use crate::MS;

/// A store, locks on it whose tasks pass on, and the time.
fn locks(store: MemoryBackend) -> (MemoryBackend, Locks, TokioClock) {
    let clock = TokioClock::default();
    let store = store.with_clock(clock);
    let locks = Locks::builder(store.clone()).clock(clock).cohort(8).build().unwrap();
    (store, locks, clock)
}

/// A task that waits in the line.
async fn joins(lock: &Lock) -> JoinHandle<Result<LockGuard>> {
    let lock = lock.clone();
    let task = tokio::spawn(async move { lock.acquire().await });
    settled().await;
    task
}

/// All tasks have done what they can do at this moment.
async fn settled() {
    for _ in 0..8 {
        tokio::task::yield_now().await;
    }
}

async fn got(task: JoinHandle<Result<LockGuard>>) -> LockGuard {
    task.await.unwrap().unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_pass_asks_the_store_nothing() {
    for store in [MemoryBackend::queued(), MemoryBackend::poll_only()] {
        let (store, locks, _) = locks(store);
        let lock = locks.named("x").unwrap();
        let mut guard = lock.acquire().await.unwrap();
        let first = guard.token().unwrap().get();
        let mut tasks = Vec::new();
        for _ in 0..7 {
            tasks.push(joins(&lock).await);
        }
        for (turn, task) in (1..).zip(tasks) {
            drop(guard);
            guard = got(task).await;
            assert_eq!(guard.token().unwrap().get(), first + turn);
        }
        assert_eq!(store.requests(), 1, "the first try and nothing else");
        // There is no fence left.
        let next = joins(&lock).await;
        guard.release().await.unwrap();
        assert_eq!(got(next).await.token().unwrap().get(), first + 8);
    }
}

#[tokio::test(start_paused = true)]
async fn the_first_in_line_goes_to_the_store_when_the_time_is_over() {
    let (store, locks, clock) = locks(MemoryBackend::queued());
    let lock = locks.named("x").unwrap();
    let guard = lock.acquire().await.unwrap();
    let (first, second) = (joins(&lock).await, joins(&lock).await);
    clock.sleep(49 * MS).await;
    assert_eq!(store.requests(), 1);
    clock.sleep(2 * MS).await;
    assert_eq!(store.requests(), 2, "the first of them, and not the other");
    let waiters = locks.inspect("x").await.unwrap().unwrap().waiters;
    assert_eq!(waiters, Some(1), "it has a place there");
    guard.release().await.unwrap();
    drop(got(first).await);
    drop(got(second).await);
    locks.close(1000 * MS).await.unwrap();
    assert_eq!(locks.inspect("x").await.unwrap(), None);
}

#[tokio::test(start_paused = true)]
async fn a_time_that_is_over_also_ends_the_waiting_of_those_behind() {
    let (_, locks, clock) = locks(MemoryBackend::queued());
    let lock = locks.named("x").unwrap();
    let guard = lock.acquire().await.unwrap();
    let (second, third) = (joins(&lock).await, joins(&lock).await);
    drop(guard);
    let _second = got(second).await;
    clock.sleep(51 * MS).await;
    let waiters = locks.inspect("x").await.unwrap().unwrap().waiters;
    assert_eq!(waiters, Some(1), "the third was not the first when it came");
    third.abort();
}

#[tokio::test(start_paused = true)]
async fn without_a_cohort_the_first_in_line_asks_at_once() {
    let (store, locks, _) = locks(MemoryBackend::poll_only());
    let lock = locks.named("x").unwrap().cohort(1);
    let _guard = lock.acquire().await.unwrap();
    let next = joins(&lock).await;
    assert_eq!(store.requests(), 2);
    next.abort();
}

#[tokio::test(start_paused = true)]
async fn a_panic_of_the_holder_passes_on() {
    let (_, locks, _) = locks(MemoryBackend::queued());
    let lock = locks.named("x").unwrap();
    let guard = lock.acquire().await.unwrap();
    let first = guard.token().unwrap().get();
    let next = joins(&lock).await;
    let panicked = tokio::spawn(async move {
        let _guard = guard;
        panic!("the work of a holder");
    });
    assert!(panicked.await.unwrap_err().is_panic());
    assert_eq!(got(next).await.token().unwrap().get(), first + 1);
}

#[tokio::test(start_paused = true)]
async fn each_holder_has_the_longest_hold_from_its_own_start() {
    let (_, locks, clock) = locks(MemoryBackend::queued());
    let lock = locks.named("x").unwrap().max_hold(40 * MS);
    let guard = lock.acquire().await.unwrap();
    let next = joins(&lock).await;
    clock.sleep(30 * MS).await;
    drop(guard);
    let guard = got(next).await;
    clock.sleep(30 * MS).await;
    assert!(guard.token().is_ok());
    assert_eq!(guard.lost().await, LostReason::MaxHold);
}

#[tokio::test(start_paused = true)]
async fn a_hold_without_renewals_is_whole_again_for_the_next() {
    let (_, locks, clock) = locks(MemoryBackend::queued());
    let lock = locks.named("x").unwrap().ttl(100 * MS).no_renew();
    let guard = lock.acquire().await.unwrap();
    let next = joins(&lock).await;
    clock.sleep(40 * MS).await;
    drop(guard);
    let guard = got(next).await;
    clock.sleep(1 * MS).await;
    assert!(guard.remaining() > 90 * MS, "{:?} of 100 ms", guard.remaining());
}

#[tokio::test(start_paused = true)]
async fn a_hold_without_renewals_that_is_whole_is_not_renewed_for_the_next() {
    let (store, locks, clock) = locks(MemoryBackend::queued());
    let lock = locks.named("x").unwrap().ttl(10_000 * MS).no_renew();
    let guard = lock.acquire().await.unwrap();
    let next = joins(&lock).await;
    drop(guard);
    let _next = got(next).await;
    clock.sleep(1 * MS).await;
    assert_eq!(store.requests(), 1, "the first try and nothing else");
}

/// Its holder leaves in time, and its keeper sees it too late.
#[tokio::test]
async fn a_hold_whose_time_is_over_at_the_pass_is_released() {
    let clock = ManualClock::default();
    let store = MemoryBackend::queued().with_clock(clock.clone());
    let builder = Locks::builder(store.clone()).clock(clock.clone()).cohort(8);
    let lock = builder.build().unwrap().named("x").unwrap();
    let guard = lock.acquire().await.unwrap();
    let first = guard.token().unwrap().get();
    let next = joins(&lock).await;
    drop(guard);
    clock.advance(50 * MS);
    assert_eq!(got(next).await.token().unwrap().get(), first + 8);
}

/// A release tells the line of this process, unless others have waited for a whole cohort.
#[tokio::test(start_paused = true)]
async fn the_release_of_a_hold_that_was_not_passed_on_is_heard_at_once() {
    let (_, locks, clock) = locks(MemoryBackend::poll_only());
    let lock = locks.named("x").unwrap();
    let guard = lock.acquire().await.unwrap();
    let next = joins(&lock).await;
    // Long enough that it polls with the longest pause.
    clock.sleep(2_000 * MS).await;
    let released = clock.now();
    guard.release().await.unwrap();
    drop(got(next).await);
    assert!(clock.now().since(released) < 1 * MS);
}

#[tokio::test(start_paused = true)]
async fn the_release_of_a_hold_that_was_passed_on_lets_others_be_first() {
    let (store, locks, clock) = locks(MemoryBackend::poll_only());
    let lock = locks.named("x").unwrap();
    let guard = lock.acquire().await.unwrap();
    let (second, third) = (joins(&lock).await, joins(&lock).await);
    drop(guard);
    let guard = got(second).await;
    clock.sleep(2_000 * MS).await;
    settled().await;
    let asked = store.requests();
    guard.release().await.unwrap();
    settled().await;
    assert_eq!(store.requests(), asked + 1, "the release and nothing else");
    drop(got(third).await);
}

#[tokio::test(start_paused = true)]
async fn a_hold_that_is_passed_to_a_task_that_gives_up_is_released() {
    let (_, locks, clock) = locks(MemoryBackend::queued());
    let lock = locks.named("x").unwrap();
    let guard = lock.acquire().await.unwrap();
    let next = joins(&lock).await;
    // The keeper of the hold runs before that of the task, which is then told of both.
    drop(guard);
    next.abort();
    clock.sleep(1 * MS).await;
    assert_eq!(locks.inspect("x").await.unwrap(), None);
}

#[tokio::test(start_paused = true)]
async fn a_pushed_loss_that_was_not_looked_at_is_not_passed_on() {
    let (store, locks, _) = locks(MemoryBackend::queued());
    let lock = locks.named("x").unwrap();
    let guard = lock.acquire().await.unwrap();
    let first = guard.token().unwrap().get();
    let next = joins(&lock).await;
    store.lose_now("x");
    let error = guard.release().await.unwrap_err();
    assert_eq!(error.lost_reason(), Some(LostReason::Taken), "the release has asked");
    assert!(got(next).await.token().unwrap().get() > first + 7);
}

#[tokio::test(start_paused = true)]
async fn closing_ends_the_line_and_passes_nothing_on() {
    let (store, locks, clock) = locks(MemoryBackend::queued());
    let lock = locks.named("x").unwrap();
    let guard = lock.acquire().await.unwrap();
    let next = joins(&lock).await;
    let closing = tokio::spawn({
        let locks = locks.clone();
        async move { locks.close(1000 * MS).await }
    });
    clock.sleep(1 * MS).await;
    assert_eq!(next.await.unwrap().unwrap_err().kind(), ErrorKind::Closed);
    guard.release().await.unwrap();
    closing.await.unwrap().unwrap();
    assert_eq!(store.requests(), 2, "one try and one release");
}

#[tokio::test(start_paused = true)]
async fn a_wait_in_line_that_ends_says_that_the_lock_is_held() {
    let (store, locks, _) = locks(MemoryBackend::queued());
    let lock = locks.named("x").unwrap();
    let guard = lock.acquire().await.unwrap();
    let error = lock.acquire_timeout(10 * MS).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotAcquired);
    assert!(lock.try_acquire().await.unwrap().is_none());
    assert_eq!(store.requests(), 2, "only `try_acquire` asks the store");
    drop(guard);
}

#[tokio::test(start_paused = true)]
async fn a_detach_ends_the_cohort() {
    let (_, locks, clock) = locks(MemoryBackend::queued());
    let lock = locks.named("x").unwrap();
    let guard = lock.acquire().await.unwrap();
    let next = joins(&lock).await;
    let token = guard.detach().await.unwrap();
    clock.sleep(1 * MS).await;
    let waiters = locks.inspect("x").await.unwrap().unwrap().waiters;
    assert_eq!(waiters, Some(1), "the next one has gone to the store");
    lock.release(token).await.unwrap();
    drop(got(next).await);
}

#[tokio::test]
async fn a_cohort_out_of_range_is_refused() {
    let locks = Locks::new(MemoryBackend::queued());
    for holders in [0, 1025, u32::MAX] {
        let error = locks.named("x").unwrap().cohort(holders).acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains(&holders.to_string()), "{error}");
        let built = Locks::builder(MemoryBackend::queued()).cohort(holders).build();
        assert_eq!(built.unwrap_err().kind(), ErrorKind::InvalidInput);
    }
}

#[test]
fn a_hold_that_was_passed_to_another_runtime_outlives_the_first_one() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let (first, second) = (runtime(), runtime());
    let locks = Locks::builder(MemoryBackend::queued()).cohort(8).build().unwrap();
    let lock = locks.named("x").unwrap();
    let guard = first.block_on(lock.acquire()).unwrap();
    let fence = guard.token().unwrap().get();
    let task = second.block_on(joins(&lock));
    first.block_on(guard.release()).unwrap();
    let guard = second.block_on(got(task));
    assert_eq!(guard.token().unwrap().get(), fence + 1, "it was passed on");
    drop(first);
    assert_eq!(guard.state(), LockState::Secure);
    second.block_on(guard.release()).unwrap();
}
