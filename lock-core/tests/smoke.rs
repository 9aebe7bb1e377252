//! The life of a lock, on both flavours of the memory store and in virtual time. The conformance
//! suite covers every corner; this must hold before the suite is of any use.

#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

use std::time::Duration;

use lock_core::memory::MemoryBackend;
use lock_core::testing::TokioClock;
use lock_core::{Clock, ErrorKind, LockState, Locks, LostReason, Released};

const SECOND: Duration = Duration::from_secs(1);

fn stores() -> Vec<(MemoryBackend, TokioClock)> {
    let clock = TokioClock::default();
    [MemoryBackend::queued(), MemoryBackend::poll_only()]
        .into_iter()
        .map(|store| (store.with_clock(clock), clock))
        .collect()
}

fn locks(store: &MemoryBackend, clock: TokioClock) -> Locks {
    Locks::builder(store.client()).clock(clock).build().unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_lock_is_taken_refused_handed_over_and_released() {
    for (store, clock) in stores() {
        let (a, b) = (locks(&store, clock), locks(&store, clock));
        let first = a.named("x").unwrap().acquire().await.unwrap();
        assert!(b.named("x").unwrap().try_acquire().await.unwrap().is_none());
        let error = b.named("x").unwrap().acquire_timeout(2 * SECOND).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotAcquired);
        let waiter = tokio::spawn({
            let lock = b.named("x").unwrap();
            async move { lock.acquire().await }
        });
        // Far longer than the ttl: the renewals hold it.
        clock.sleep(100 * SECOND).await;
        assert_eq!(first.state(), LockState::Secure);
        assert!(!waiter.is_finished());
        let token = first.token().unwrap();
        assert_eq!(first.release().await.unwrap(), Released::Freed);
        let second = waiter.await.unwrap().unwrap();
        assert!(second.token().unwrap() > token);
        drop(second);
        assert!(b.named("x").unwrap().acquire_timeout(SECOND).await.is_ok());
        a.close(SECOND).await.unwrap();
        b.close(SECOND).await.unwrap();
        assert!(a.named("x").unwrap().acquire().await.is_err());
    }
}

#[tokio::test(start_paused = true)]
async fn a_partitioned_holder_knows_before_the_store_moves_on() {
    for (store, clock) in stores() {
        let client = store.client();
        let a = Locks::builder(client.clone()).clock(clock).build().unwrap();
        let b = locks(&store, clock);
        let guard = a.named("x").unwrap().ttl(10 * SECOND).acquire().await.unwrap();
        client.partition();
        let next = tokio::spawn({
            let lock = b.named("x").unwrap();
            async move { lock.acquire().await }
        });
        assert_eq!(guard.lost().await, LostReason::Expired);
        assert!(!next.is_finished());
        let next = next.await.unwrap().unwrap();
        assert_eq!(guard.state(), LockState::Lost(LostReason::Expired));
        assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::Lost(LostReason::Expired));
        client.heal();
        clock.sleep(20 * SECOND).await;
        assert_eq!(next.check().await.unwrap(), LockState::Secure);
    }
}

#[tokio::test(start_paused = true)]
async fn run_stops_the_work_when_the_lock_is_taken_away() {
    let (store, clock) = stores().remove(0);
    let locks = locks(&store, clock);
    let lock = locks.named("x").unwrap();
    assert!(lock.run(async |held| held.token().is_ok()).await.unwrap());
    let error = lock
        .run(async |_| {
            store.lose_now("x");
            std::future::pending::<()>().await;
        })
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost(LostReason::Taken));
}

#[tokio::test(start_paused = true)]
async fn a_detached_lock_stays_held_until_somebody_attaches() {
    for (store, clock) in stores() {
        let (a, b) = (locks(&store, clock), locks(&store, clock));
        let guard = a.named("x").unwrap().ttl(5 * SECOND).acquire().await.unwrap();
        let fence = guard.token().unwrap();
        let token = guard.detach().await.unwrap();
        clock.sleep(3 * SECOND).await;
        assert!(b.named("x").unwrap().try_acquire().await.unwrap().is_none());
        let lock = b.named("x").unwrap().ttl(5 * SECOND);
        let guard = lock.attach(&token.to_text().parse().unwrap()).await.unwrap();
        assert_eq!(guard.token().unwrap(), fence);
        clock.sleep(3 * SECOND).await;
        guard.keep_alive();
        clock.sleep(30 * SECOND).await;
        assert_eq!(guard.release().await.unwrap(), Released::Freed);
        let error = lock.attach(&token).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Lost(LostReason::Taken));
    }
}
