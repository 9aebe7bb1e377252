//! A lock that is kept from others for a while, even if it is released sooner.

use std::time::Duration;

use lock_core::memory::MemoryBackend;
use lock_core::testing::TokioClock;
use lock_core::{Clock, ClockInstant, ErrorKind, Lock, LockState, Locks, LostReason, Released};

use crate::{MS, SECOND, another, dropped_after, stores, virtual_locks};

/// The same lock of another process.
fn other(store: &MemoryBackend, clock: TokioClock) -> Lock {
    another(store, clock).named("x").unwrap()
}

/// When it is free, by the time since `begun`.
async fn free_after(lock: &Lock, clock: TokioClock, begun: ClockInstant) -> Duration {
    while lock.try_acquire().await.unwrap().is_none() {
        clock.sleep(MS).await;
    }
    clock.now().since(begun)
}

/// The least time, but for a moment of the tests.
fn is_least(held_for: Duration) -> bool {
    held_for >= 10 * SECOND && held_for <= 10 * SECOND + 2 * MS
}

#[tokio::test(start_paused = true)]
async fn a_release_takes_effect_when_the_time_is_over() {
    for store in stores() {
        for (ttl, renews) in [(30 * SECOND, true), (3 * SECOND, true), (3 * SECOND, false)] {
            let (store, locks, clock) = virtual_locks(store.clone());
            let other = other(&store, clock);
            let lock = locks.named("x").unwrap().ttl(ttl).min_hold(10 * SECOND);
            let lock = if renews { lock } else { lock.no_renew() };
            let (guard, granted_at) = (lock.acquire().await.unwrap(), clock.now());
            clock.sleep(SECOND).await;
            let held = guard.held().clone();
            let released = tokio::spawn(guard.release());
            clock.sleep(MS).await;
            assert_eq!(held.state(), LockState::Lost(LostReason::Released), "at once");
            assert!(!released.is_finished());
            assert!(is_least(free_after(&other, clock, granted_at).await));
            assert_eq!(released.await.unwrap().unwrap(), Released::Freed);
            assert!(is_least(clock.now().since(granted_at)));

            // A dropped guard, and a release that is dropped at any await.
            for polls in 0..4 {
                clock.sleep(SECOND).await;
                let (guard, granted_at) = (lock.acquire().await.unwrap(), clock.now());
                match polls {
                    0 => drop(guard),
                    _ => drop(dropped_after(polls, guard.release()).await),
                }
                assert!(is_least(free_after(&other, clock, granted_at).await));
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_release_after_the_time_is_at_once() {
    let (store, locks, clock) = virtual_locks(MemoryBackend::queued());
    let guard = locks.named("x").unwrap().min_hold(10 * SECOND).acquire().await.unwrap();
    clock.sleep(10 * SECOND).await;
    let begun = clock.now();
    assert_eq!(guard.release().await.unwrap(), Released::Freed);
    assert_eq!(free_after(&other(&store, clock), clock, begun).await, Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_is_lost_while_it_is_kept_is_told() {
    let (store, locks, clock) = virtual_locks(MemoryBackend::queued());
    let lock = locks.named("x").unwrap().ttl(3 * SECOND).min_hold(60 * SECOND);
    for (reason, within) in [(LostReason::Taken, SECOND), (LostReason::Expired, 4 * SECOND)] {
        let guard = lock.acquire().await.unwrap();
        let released = tokio::spawn(guard.release());
        // Its first lease has long ended.
        clock.sleep(20 * SECOND).await;
        let begun = clock.now();
        match reason {
            LostReason::Taken => store.lose_now("x"),
            _ => store.partition(),
        }
        let error = released.await.unwrap().unwrap_err();
        assert_eq!(error.lost_reason(), Some(reason), "{error}");
        let after = clock.now().since(begun);
        assert!(after <= within, "{reason}: {after:?}");
        store.heal();
        clock.sleep(10 * SECOND).await;
        assert!(other(&store, clock).try_acquire().await.unwrap().is_some());
    }
}

/// A renewal that fails is repeated.
#[tokio::test(start_paused = true)]
async fn a_kept_lock_outlives_a_failed_renewal() {
    let (store, locks, clock) = virtual_locks(MemoryBackend::queued());
    let guard =
        locks.named("x").unwrap().ttl(3 * SECOND).min_hold(10 * SECOND).acquire().await.unwrap();
    let granted_at = clock.now();
    store.lose_next_request();
    drop(guard);
    assert!(is_least(free_after(&other(&store, clock), clock, granted_at).await));
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_was_lost_before_is_not_kept() {
    let (store, locks, clock) = virtual_locks(MemoryBackend::queued());
    let guard = locks.named("x").unwrap().min_hold(60 * SECOND).acquire().await.unwrap();
    store.lose_now("x");
    guard.lost().await;
    drop(guard);
    clock.sleep(MS).await;
    assert_eq!(locks.health().await.unwrap().in_use, 0);
    assert!(other(&store, clock).try_acquire().await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn closing_does_not_wait_longer_than_it_may() {
    let (_, locks, clock) = virtual_locks(MemoryBackend::queued());
    let lock = locks.named("x").unwrap().min_hold(60 * SECOND);
    drop(lock.acquire().await.unwrap());
    let begun = clock.now();
    assert_eq!(locks.close(SECOND).await.unwrap_err().kind(), ErrorKind::Timeout);
    assert_eq!(clock.now().since(begun), SECOND);
}

#[tokio::test(start_paused = true)]
async fn a_cohort_does_not_pass_on_what_is_kept() {
    let (_, locks, clock) = virtual_locks(MemoryBackend::queued());
    let lock = locks.named("x").unwrap().cohort(8).min_hold(SECOND);
    let guard = lock.acquire().await.unwrap();
    let begun = clock.now();
    let next = tokio::spawn(async move { lock.acquire().await.unwrap() });
    clock.sleep(MS).await;
    drop(guard);
    clock.sleep(MS).await;
    let waiters = locks.inspect("x").await.unwrap().unwrap().waiters;
    assert_eq!(waiters, Some(1), "it asks the store, and waits in no line");
    drop(next.await.unwrap());
    assert!(clock.now().since(begun) >= SECOND);
}

/// What was handed over is released by whoever has it.
#[tokio::test(start_paused = true)]
async fn an_attached_lock_is_not_kept() {
    let (_, locks, clock) = virtual_locks(MemoryBackend::queued());
    let lock = locks.named("x").unwrap().min_hold(60 * SECOND);
    let token = lock.acquire().await.unwrap().detach().await.unwrap();
    let begun = clock.now();
    assert_eq!(lock.attach(&token).await.unwrap().release().await.unwrap(), Released::Freed);
    assert_eq!(clock.now(), begun);
}

#[tokio::test]
async fn the_least_time_fits_the_longest() {
    let locks = Locks::new(MemoryBackend::queued());
    let lock = locks.named("x").unwrap().max_hold(SECOND);
    let error = lock.clone().min_hold(SECOND + MS).acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.to_string().contains("1.001s"), "{error}");
    lock.min_hold(SECOND).acquire().await.unwrap().check().await.unwrap();
}

/// For a command that could not be started, others need not wait.
#[tokio::test(start_paused = true)]
async fn it_can_be_set_once_the_lock_is_held() {
    for store in stores() {
        let (store, locks, clock) = virtual_locks(store);
        let (other, lock) = (other(&store, clock), locks.named("x").unwrap().ttl(3 * SECOND));
        let (guard, granted_at) = (lock.acquire().await.unwrap(), clock.now());
        assert_eq!(guard.free_at(), granted_at);
        clock.sleep(SECOND).await;
        guard.set_min_hold(10 * SECOND);
        guard.set_min_hold(2 * SECOND);
        assert_eq!(guard.free_at(), granted_at + 10 * SECOND, "it never becomes shorter");
        let released = tokio::spawn(guard.release());
        assert!(is_least(free_after(&other, clock, granted_at).await));
        assert_eq!(released.await.unwrap().unwrap(), Released::Freed);
    }
}

#[tokio::test(start_paused = true)]
async fn a_default_is_for_locks_that_set_none() {
    let clock = TokioClock::default();
    let store = MemoryBackend::queued().with_clock(clock);
    let builder = Locks::builder(store.client()).clock(clock);
    let locks = builder.min_hold(10 * SECOND).lock_delay(5 * SECOND).build().unwrap();
    assert_eq!(locks.min_hold(), 10 * SECOND);
    let (lock, other) = (locks.named("x").unwrap().ttl(SECOND), other(&store, clock));
    let granted_at = clock.now();
    drop(lock.acquire().await.unwrap());
    assert!(is_least(free_after(&other, clock, granted_at).await));
    let plain = lock.clone().min_hold(Duration::ZERO);
    drop(plain.acquire().await.unwrap());
    clock.sleep(MS).await;
    assert!(other.try_acquire().await.unwrap().is_some(), "its own time is none");
    // The holder counts on its ttl, and others wait for the delay after it.
    let lease = |lock: Lock| async move { lock.no_renew().acquire().await.unwrap().detach().await };
    let _lease = lease(plain).await.unwrap();
    let (delayed, begun) = (locks.inspect("x").await.unwrap().unwrap(), 6 * SECOND);
    assert!(delayed.holder.unwrap().expires_in.unwrap() >= begun);
}

/// What is taken on the way to a lock of another kind is given back at once; the lock itself is kept.
#[tokio::test(start_paused = true)]
async fn kinds_are_kept_and_their_parts_are_not() {
    for store in stores() {
        let (store, locks, clock) = virtual_locks(store);
        let process = another(&store, clock);
        let begun = clock.now();
        // A writer is there, so the reader gives its slot back; and one name of a set is busy.
        let prices = process.rw_lock("prices").unwrap();
        let (writes, busy) =
            (prices.write().await.unwrap(), process.named("b").unwrap().acquire().await.unwrap());
        let read = locks.rw_lock("prices").unwrap().min_hold(10 * SECOND);
        assert!(read.try_read().await.unwrap().is_none());
        let set = locks.all(["a", "b"]).unwrap().min_hold(10 * SECOND);
        assert!(set.try_acquire().await.unwrap().is_none());
        writes.release().await.unwrap();
        busy.release().await.unwrap();
        assert!(prices.try_write().await.unwrap().is_some(), "no slot is kept");
        assert!(process.named("a").unwrap().try_acquire().await.unwrap().is_some());
        assert!(clock.now().since(begun) < SECOND);

        let begun = clock.now();
        let gpus = locks.semaphore("gpu", 1).unwrap().min_hold(10 * SECOND);
        drop((
            gpus.acquire().await.unwrap(),
            read.read().await.unwrap(),
            set.acquire().await.unwrap(),
        ));
        let gpus = process.semaphore("gpu", 1).unwrap();
        let [a, b] = ["a", "b"].map(|name| process.named(name).unwrap());
        clock.sleep(10 * SECOND - MS).await;
        assert!(gpus.try_acquire().await.unwrap().is_none());
        assert!(prices.try_write().await.unwrap().is_none());
        assert!(
            a.try_acquire().await.unwrap().is_none() && b.try_acquire().await.unwrap().is_none()
        );
        drop((gpus.acquire().await.unwrap(), prices.write().await.unwrap()));
        drop((a.acquire().await.unwrap(), b.acquire().await.unwrap()));
        assert!(is_least(clock.now().since(begun)));
        // The turnstile is never kept: a second waiter is not held up by the first.
        let turns = locks.semaphore("gpu", 1).unwrap().min_hold(10 * SECOND);
        let held = gpus.acquire().await.unwrap();
        assert!(turns.acquire_timeout(100 * MS).await.is_err());
        let begun = clock.now();
        assert!(gpus.acquire_timeout(100 * MS).await.is_err());
        held.release().await.unwrap();
        gpus.acquire_timeout(SECOND).await.unwrap().release().await.unwrap();
        assert!(clock.now().since(begun) < SECOND);
    }
}

#[tokio::test]
async fn a_kind_refuses_a_least_time_above_the_longest() {
    let locks = Locks::new(MemoryBackend::queued());
    let gpus = locks.semaphore("gpu", 2).unwrap().max_hold(SECOND).min_hold(2 * SECOND);
    let error = gpus.acquire().await.unwrap_err();
    assert_eq!((error.kind(), error.key()), (ErrorKind::InvalidInput, Some("gpu")));
    let set = locks.all(["b", "a"]).unwrap().max_hold(SECOND).min_hold(2 * SECOND);
    assert_eq!(set.acquire().await.unwrap_err().kind(), ErrorKind::InvalidInput);
}

/// The gate of a writer, and the slot in which others read already, were granted long before.
#[tokio::test(start_paused = true)]
async fn a_kind_is_kept_from_when_it_is_whole() {
    // Whoever polls comes a little later.
    let kept = |lasted| (10 * SECOND..15 * SECOND).contains(&lasted);
    for store in stores() {
        let (store, locks, clock) = virtual_locks(store);
        let process = another(&store, clock);
        let prices = locks.rw_lock("prices").unwrap();
        let keeps = prices.clone().min_hold(10 * SECOND);
        let other = process.rw_lock("prices").unwrap();
        let reads = other.read().await.unwrap();
        let writes = tokio::spawn(async move { keeps.write().await });
        clock.sleep(20 * SECOND).await;
        reads.release().await.unwrap();
        let begun = clock.now();
        drop(writes.await.unwrap().unwrap());
        drop(other.write().await.unwrap());
        assert!(kept(clock.now().since(begun)));

        let first = prices.read().await.unwrap();
        clock.sleep(20 * SECOND).await;
        let begun = clock.now();
        let second = prices.read().await.unwrap();
        second.set_min_hold(10 * SECOND);
        drop((first, second));
        drop(other.write().await.unwrap());
        assert!(kept(clock.now().since(begun)));
    }
}
