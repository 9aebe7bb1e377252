//! The calls for threads that run no async code: with a runtime, without one, and inside one.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use lock_core::testing::MemoryBackend;
use lock_core::{Clock, ErrorKind, Locks, LostReason, Released, Result, SystemClock, blocking};
use tokio::runtime::{Builder, Handle};

use crate::{MS, SECOND};

/// Every blocking call, on this thread.
fn whole_course(locks: &Locks) {
    let lock = locks.named("a").unwrap();
    let guard = lock.acquire_blocking().unwrap();
    assert!(lock.try_acquire_blocking().unwrap().is_none());
    let error = lock.acquire_timeout_blocking(500 * MS).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotAcquired, "{error}");
    let waiter = thread::spawn({
        let lock = lock.clone();
        move || lock.acquire_blocking().unwrap().release_blocking()
    });
    assert_eq!(guard.release_blocking().unwrap(), Released::Freed);
    assert_eq!(waiter.join().unwrap().unwrap(), Released::Freed);
    let dropped = lock.try_acquire_blocking().unwrap().unwrap();
    drop(dropped);
    lock.acquire_timeout_blocking(Duration::from_secs(20)).unwrap().release_blocking().unwrap();
}

#[test]
fn without_any_runtime() {
    assert!(Handle::try_current().is_err());
    for store in [MemoryBackend::queued(), MemoryBackend::poll_only()] {
        let locks = Locks::new(store);
        whole_course(&locks);
        locks.close_blocking(Duration::from_secs(20)).unwrap();
        let error = locks.named("a").unwrap().acquire_blocking().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
    }
    assert!(Handle::try_current().is_err(), "the library's runtime is not left behind here");
}

#[test]
fn without_any_runtime_permits_are_counted() {
    let locks = Locks::new(MemoryBackend::queued());
    let gpus = locks.semaphore("gpu", 2).unwrap();
    let one = gpus.try_acquire_blocking().unwrap().unwrap();
    let other = gpus.acquire_blocking().unwrap();
    let slot = other.slot();
    assert_ne!(one.slot(), slot);
    assert!(gpus.try_acquire_blocking().unwrap().is_none());
    let error = gpus.acquire_timeout_blocking(500 * MS).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotAcquired, "{error}");
    let waiter = thread::spawn({
        let gpus = gpus.clone();
        move || gpus.acquire_blocking().unwrap()
    });
    assert_eq!(other.release_blocking().unwrap(), Released::Freed);
    let next = waiter.join().unwrap();
    assert_eq!(next.slot(), slot);
    assert_eq!(one.release_blocking().unwrap(), Released::Freed);
    drop(gpus.acquire_timeout_blocking(20 * SECOND).unwrap());
    drop(next);
    locks.close_blocking(20 * SECOND).unwrap();
    assert_eq!(gpus.acquire_blocking().unwrap_err().kind(), ErrorKind::Closed);
}

#[test]
fn without_any_runtime_readers_are_together_and_writers_alone() {
    let locks = Locks::new(MemoryBackend::queued());
    let prices = locks.rw_lock("prices").unwrap();
    prices.try_write_blocking().unwrap().unwrap().release_blocking().unwrap();
    let reads = [
        prices.read_blocking().unwrap(),
        prices.try_read_blocking().unwrap().unwrap(),
        prices.read_timeout_blocking(20 * SECOND).unwrap(),
    ];
    assert!(prices.try_write_blocking().unwrap().is_none());
    let error = prices.write_timeout_blocking(500 * MS).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotAcquired, "{error}");
    for read in reads {
        assert_eq!(read.release_blocking().unwrap(), Released::Freed);
    }
    let write = prices.write_blocking().unwrap();
    assert!(prices.try_read_blocking().unwrap().is_none());
    let error = prices.read_timeout_blocking(500 * MS).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotAcquired, "{error}");
    let waiter = thread::spawn({
        let prices = prices.clone();
        move || prices.read_blocking().unwrap().release_blocking()
    });
    assert_eq!(write.release_blocking().unwrap(), Released::Freed);
    assert_eq!(waiter.join().unwrap().unwrap(), Released::Freed);
    drop(prices.write_timeout_blocking(20 * SECOND).unwrap());
    locks.close_blocking(20 * SECOND).unwrap();
    assert_eq!(prices.read_blocking().unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(prices.write_blocking().unwrap_err().kind(), ErrorKind::Closed);
}

/// A lock is renewed on the library's thread even if nothing is awaited.
#[test]
fn without_any_runtime_a_lock_is_renewed_and_its_loss_is_seen() {
    let store = MemoryBackend::queued();
    let locks = Locks::new(store.clone());
    let guard = locks.named("a").unwrap().ttl(300 * MS).acquire_blocking().unwrap();
    let stop = guard.lost().cancellation_token();
    blocking::run(async {
        SystemClock::default().sleep(900 * MS).await;
        Ok(())
    })
    .unwrap();
    assert!(guard.token().is_ok(), "renewed: {:?}", guard.state());
    store.lose_now("a");
    let reason = blocking::run({
        let held = guard.held().clone();
        async move { Ok(held.lost().wait().await) }
    });
    assert_eq!(reason.unwrap(), LostReason::Taken);
    assert!(stop.is_cancelled());
    assert_eq!(guard.release_blocking().unwrap_err().kind(), ErrorKind::Lost(LostReason::Taken));
}

#[test]
fn on_the_runtime_of_the_locks_that_another_thread_drives() {
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let locks = Locks::builder(MemoryBackend::queued()).runtime(runtime.handle().clone());
    whole_course(&locks.build().unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_spawn_blocking() {
    let locks = Locks::new(MemoryBackend::queued());
    tokio::task::spawn_blocking(move || whole_course(&locks)).await.unwrap();
}

#[test]
fn in_spawn_blocking_of_a_runtime_of_one_thread() {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let locks = Locks::new(MemoryBackend::queued());
        tokio::task::spawn_blocking(move || whole_course(&locks)).await.unwrap();
    });
}

/// Wrong, but another worker drives the runtime: it works, and does not panic.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn in_async_code_with_other_workers() {
    let locks = Locks::new(MemoryBackend::queued());
    tokio::spawn(async move { whole_course(&locks) }).await.unwrap();
}

/// Wrong, and no worker is left that could answer: an error that says what to do, and no hang.
#[test]
fn in_async_code_that_blocks_its_only_thread() {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let locks = Locks::new(MemoryBackend::queued());
        let lock = locks.named("a").unwrap();
        let guard = lock.acquire().await.unwrap();
        let error = lock.acquire_blocking().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoAnswer, "{error}");
        assert!(error.to_string().contains("spawn_blocking"), "{error}");
        // The attempt was given up with its call: nobody waits.
        guard.release().await.unwrap();
        drop(lock.acquire_timeout(Duration::from_secs(20)).await.unwrap());
        let error = blocking::run(async { Ok(()) }).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoAnswer, "{error}");
    });
}

/// A runtime that has ended answers nothing.
#[test]
fn on_a_runtime_that_has_gone() {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let locks = runtime.block_on(async { Locks::new(MemoryBackend::queued()) });
    drop(runtime);
    let error = locks.named("a").unwrap().acquire_blocking().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Closed | ErrorKind::NoAnswer), "{error}");
}

#[test]
fn a_panic_in_a_future_is_an_error() {
    let panicked: Result<()> = blocking::run(async { panic!("on purpose") });
    assert_eq!(panicked.unwrap_err().kind(), ErrorKind::Internal);
}

#[test]
fn many_threads_take_turns() {
    let locks = Locks::new(MemoryBackend::queued());
    let inside = Arc::new(std::sync::Mutex::new(0_u32));
    let threads: Vec<_> = (0..16)
        .map(|_| {
            let (lock, inside) = (locks.named("a").unwrap(), Arc::clone(&inside));
            thread::spawn(move || {
                for _ in 0..20 {
                    let guard = lock.acquire_blocking().unwrap();
                    *inside.try_lock().expect("one at a time") += 1;
                    guard.release_blocking().unwrap();
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(*inside.lock().unwrap(), 320);
}
