//! The life of a lock, on both flavours of the memory store and in virtual time. The conformance
//! suite covers every corner; this must hold before the suite is of any use.

use lock_core::memory::MemoryBackend;
use lock_core::testing::{ManualClock, TokioClock};
use lock_core::{
    Attempt, ClaimRequest, Clock, ErrorKind, LockAdmin as _, LockBackend as _, LockKey, LockState,
    Locks, LostReason, OwnerId, Released,
};

use crate::SECOND;

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
        assert!(second.token().unwrap() > token, "violated: a fence falls");
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

#[tokio::test]
async fn stores_are_shared_by_name_while_they_are_in_use() {
    let locks = |name| Locks::new(MemoryBackend::named(name)).named("x").unwrap();
    let guard = locks("one").acquire().await.unwrap();
    assert!(locks("one").try_acquire().await.unwrap().is_none());
    assert!(locks("other").try_acquire().await.unwrap().is_some());
    drop(guard);
}

/// At the very moment at which a lease ends, it has ended.
#[tokio::test]
async fn a_lease_ends_with_its_ttl() {
    let clock = ManualClock::default();
    let store = MemoryBackend::queued().with_clock(clock.clone());
    let claim = |n: u8, ttl| {
        let key = LockKey::new("", "x").unwrap();
        let request = ClaimRequest::new(key, OwnerId::from_bytes([n; 16]), ttl);
        store.claim(request.with_wait(n > 1)).unwrap()
    };
    let shown = async || {
        let info = store.inspect(&LockKey::new("", "x").unwrap()).await.unwrap();
        info.map(|info| (info.holder.is_some(), info.waiters))
    };
    let [mut holder, mut waiter] = [claim(1, SECOND), claim(2, 2 * SECOND)];
    holder.try_acquire().await.unwrap();
    waiter.try_acquire().await.unwrap();
    assert_eq!(shown().await, Some((true, Some(1))));
    // An inspection changes nothing, so the waiter has not got the lock.
    clock.advance(SECOND);
    assert_eq!(shown().await, Some((false, Some(1))));
    clock.advance(SECOND);
    assert_eq!(shown().await, None);
    let next = claim(3, SECOND).try_acquire().await.unwrap();
    assert!(matches!(next, Attempt::Granted { .. }), "{next:?}");
}

/// For tests that drop calls half-way.
#[tokio::test]
async fn a_stepwise_store_yields_before_and_after_it_acts() {
    for (store, polls) in [(MemoryBackend::queued(), 1), (MemoryBackend::queued().stepwise(), 3)] {
        let (mut ping, mut polled) = (store.ping(), 0);
        std::future::poll_fn(|cx| {
            polled += 1;
            ping.as_mut().poll(cx)
        })
        .await
        .unwrap();
        assert_eq!(polled, polls);
    }
}
