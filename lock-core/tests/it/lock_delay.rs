//! Others are kept away for a while after a holder has counted its lock as lost.

use std::time::Duration;

use lock_core::memory::MemoryBackend;
use lock_core::{Clock, ErrorKind, LockState, LostReason, Released};

use crate::{MS, SECOND, another, stores, virtual_locks};

#[tokio::test(start_paused = true)]
async fn others_come_later_than_the_holder_believes_by_the_delay() {
    for store in stores() {
        for (ttl, delay) in [(10 * SECOND, 5 * SECOND), (100 * MS, SECOND)] {
            let (store, locks, clock) = virtual_locks(store.clone());
            let others = another(&store, clock);
            let lock = locks.named("x").unwrap().ttl(ttl).lock_delay(delay);
            let guard = lock.acquire().await.unwrap();
            assert_eq!(guard.ttl(), ttl);
            // It is renewed in time.
            clock.sleep(ttl * 5).await;
            assert_eq!(guard.state(), LockState::Secure);
            assert!(guard.remaining() <= ttl && guard.remaining() > ttl / 4);
            store.partition();
            let next = tokio::spawn({
                let lock = others.named("x").unwrap();
                async move { lock.acquire().await.unwrap() }
            });
            assert_eq!(guard.lost().await, LostReason::Expired);
            let lost_at = clock.now();
            let next = next.await.unwrap();
            let after = clock.now().since(lost_at);
            assert!(after >= delay && after <= delay * 3 / 2, "{after:?} after the loss");
            store.heal();
            assert!(next.check().await.is_ok());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_release_frees_the_lock_at_once() {
    for store in stores() {
        let (store, locks, clock) = virtual_locks(store);
        let lock = locks.named("x").unwrap().lock_delay(60 * SECOND);
        let guard = lock.acquire().await.unwrap();
        assert_eq!(guard.release().await.unwrap(), Released::Freed);
        let other = another(&store, clock).named("x").unwrap();
        drop(other.try_acquire().await.unwrap().unwrap());
    }
}

/// Where place and lock are renewed as one, a waiter must not find its grant over.
#[tokio::test(start_paused = true)]
async fn a_waiter_gets_a_lock_that_it_can_count_on() {
    for store in stores() {
        let (store, locks, clock) = virtual_locks(store);
        let theirs = another(&store, clock).named("x").unwrap().acquire().await.unwrap();
        let lock = locks.named("x").unwrap().ttl(SECOND).lock_delay(10 * SECOND);
        let waits = tokio::spawn(async move { lock.acquire().await.unwrap() });
        clock.sleep(100 * SECOND).await;
        theirs.release().await.unwrap();
        let guard = waits.await.unwrap();
        assert!(guard.remaining() > SECOND / 2);
        clock.sleep(10 * SECOND).await;
        assert_eq!(guard.state(), LockState::Secure);
    }
}

#[tokio::test(start_paused = true)]
async fn ttl_and_delay_obey_the_limits_of_a_ttl_together() {
    let (_, locks, _) = virtual_locks(MemoryBackend::queued());
    let year = 366 * 24 * 3600 * SECOND;
    let lock = |ttl| locks.named("x").unwrap().ttl(ttl);
    let too_much = [
        lock(year).lock_delay(SECOND),
        lock(SECOND).lock_delay(10 * SECOND + MS),
        lock(SECOND).lock_delay(Duration::MAX),
        lock(5 * MS).lock_delay(10 * MS),
    ];
    for bad in too_much {
        assert_eq!(bad.acquire().await.unwrap_err().kind(), ErrorKind::InvalidInput);
    }
    // A renewal has to fit the ttl, whatever comes after it.
    let bad = lock(SECOND).lock_delay(10 * SECOND).renew_every(SECOND);
    assert_eq!(bad.acquire().await.unwrap_err().kind(), ErrorKind::InvalidInput);
    for good in [lock(year / 2).lock_delay(year / 3), lock(10 * MS).lock_delay(100 * MS)] {
        good.acquire().await.unwrap().release().await.unwrap();
    }
}
