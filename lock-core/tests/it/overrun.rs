//! A store whose calls do not end (clause C12): nobody hangs with them.

use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lock_core::memory::MemoryBackend;
use lock_core::testing::TokioClock;
use lock_core::{
    Attempt, Bytes, Capabilities, Claim, ClaimRequest, Clock, ClockInstant, ErrorKind, LockBackend,
    LockEvent, LockKey, LockLayer, LockObserver, LockState, Locks, LocksBuilder, LostReason,
    Released, Renewal, Result, async_trait,
};

use crate::SECOND;

/// Which of its calls never end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Deaf {
    Not,
    ToRenewals,
    ToAll,
}

#[derive(Clone, Debug)]
struct Store {
    inner: MemoryBackend,
    deaf: Arc<AtomicU8>,
}

#[derive(Debug)]
struct DeafClaim(Box<dyn Claim>, Arc<AtomicU8>);

impl Store {
    fn is(&self, deaf: Deaf) {
        self.deaf.store(deaf as u8, Relaxed);
    }
}

impl DeafClaim {
    async fn hears(&mut self, call: Deaf) {
        if self.1.load(Relaxed) >= call as u8 {
            std::future::pending().await
        }
    }
}

#[async_trait]
impl LockBackend for Store {
    fn name(&self) -> &'static str {
        "deaf"
    }
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }
    fn claim(&self, request: ClaimRequest) -> Result<Box<dyn Claim>> {
        Ok(Box::new(DeafClaim(self.inner.claim(request)?, Arc::clone(&self.deaf))))
    }
    async fn ping(&self) -> Result<()> {
        Ok(())
    }
}

#[async_trait]
impl Claim for DeafClaim {
    async fn try_acquire(&mut self) -> Result<Attempt> {
        let answer = self.0.try_acquire().await;
        self.hears(Deaf::ToAll).await;
        answer
    }
    async fn renew(&mut self) -> Result<Renewal> {
        self.hears(Deaf::ToRenewals).await;
        self.0.renew().await
    }
    async fn check(&mut self) -> Result<Renewal> {
        self.hears(Deaf::ToAll).await;
        self.0.check().await
    }
    async fn release(&mut self) -> Result<Released> {
        self.hears(Deaf::ToAll).await;
        self.0.release().await
    }
    async fn changed(&mut self) -> Result<()> {
        self.0.changed().await
    }
    /// This one is answered when the store hears again.
    async fn detach(&mut self) -> Result<Bytes> {
        while self.1.load(Relaxed) >= Deaf::ToAll as u8 {
            tokio::time::sleep(SECOND / 100).await;
        }
        self.0.detach().await
    }
}

/// What is told of the locks.
#[derive(Clone, Debug, Default)]
struct Told(Arc<Mutex<Vec<String>>>);

impl Told {
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

impl LockLayer for Told {
    fn observer(&self) -> Option<Arc<dyn LockObserver>> {
        Some(Arc::new(self.clone()))
    }
}

impl LockObserver for Told {
    fn observe(&self, _: &'static str, _: Option<&LockKey>, event: LockEvent<'_>) {
        let told = match event {
            LockEvent::Ended { end, .. } => format!("{end:?}"),
            LockEvent::CallFailed { operation, .. } => format!("{operation} failed"),
            LockEvent::Granted { .. } => "granted".to_owned(),
            LockEvent::GivenUp { .. } => "given up".to_owned(),
            _ => return,
        };
        self.0.lock().unwrap().push(told);
    }
}

/// With a call timeout of one second, so a call is given up after two.
fn shop() -> (Store, Locks, TokioClock) {
    let (store, locks, clock) = builder();
    (store, locks.build().unwrap(), clock)
}

fn builder() -> (Store, LocksBuilder, TokioClock) {
    let clock = TokioClock::default();
    let (inner, deaf) = (MemoryBackend::queued().with_clock(clock), Arc::default());
    let store = Store { inner, deaf };
    let locks = Locks::builder(store.clone()).clock(clock).call_timeout(SECOND);
    (store, locks, clock)
}

/// Asserts that a call took as long as it was to take.
fn assert_took(clock: TokioClock, begun: ClockInstant, expected: Duration) {
    let took = clock.now().since(begun);
    assert!((expected..expected + SECOND / 100).contains(&took), "{took:?}, not {expected:?}");
}

async fn is_free(store: &Store) -> bool {
    let key = LockKey::new("", "a").unwrap();
    store.inner.client().admin().unwrap().inspect(&key).await.unwrap().is_none()
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_is_answered_in_time() {
    for (limit, after) in
        [(SECOND / 3, SECOND / 3), (Duration::ZERO, SECOND), (9 * SECOND, 2 * SECOND)]
    {
        let (store, locks, clock) = shop();
        store.is(Deaf::ToAll);
        let begun = clock.now();
        let error = locks.named("a").unwrap().acquire_timeout(limit).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoAnswer);
        assert_took(clock, begun, after);
        // The store has granted the lock, and hears again: after the call that has not ended, or the release that
        // has not ended either, a new claim of the same owner frees it.
        assert!(!is_free(&store).await);
        store.is(Deaf::Not);
        clock.sleep(2 * SECOND + SECOND / 10).await;
        assert!(is_free(&store).await, "{limit:?}");
        locks.close(SECOND).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_hold_ends_by_the_clock_and_that_is_told() {
    let ((store, locks, clock), told) = (builder(), Told::default());
    let locks = locks.layer(told.clone()).build().unwrap();
    let guard = locks.named("a").unwrap().ttl(6 * SECOND).acquire().await.unwrap();
    let until = guard.valid_until();
    store.is(Deaf::ToRenewals);
    // Those who ask are answered at the limit of the call, and after it at once.
    let begun = clock.now();
    assert_eq!(guard.renew().await.unwrap_err().kind(), ErrorKind::NoAnswer);
    assert_took(clock, begun, SECOND);
    clock.sleep(SECOND).await;
    assert_eq!(guard.check().await.unwrap_err().kind(), ErrorKind::NoAnswer);
    assert_took(clock, begun, 2 * SECOND);
    assert_eq!(guard.state(), LockState::AtRisk);
    guard.lost().cancellation_token().cancelled().await;
    assert!(clock.now() < until && until.since(clock.now()) < SECOND / 10);
    assert_eq!(guard.lost().await, LostReason::Expired);
    clock.sleep(SECOND / 10).await;
    assert_eq!(told.take(), ["granted", "renew failed", "Lost(Expired)"]);
    // A new claim releases it, of which nobody is told.
    store.is(Deaf::Not);
    drop(guard);
    locks.close(SECOND).await.unwrap();
    assert!(is_free(&store).await);
    assert_eq!(told.take(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_release_waits_for_the_call_in_progress_and_no_longer() {
    let (store, locks, clock) = shop();
    let guard = locks.named("a").unwrap().acquire().await.unwrap();
    store.is(Deaf::ToRenewals);
    let begun = clock.now();
    tokio::time::timeout(SECOND / 10, guard.renew()).await.unwrap_err();
    assert_eq!(guard.release().await.unwrap(), Released::Freed);
    assert_took(clock, begun, 2 * SECOND);
    // Whoever releases does not wait for more than one call of its own.
    let guard = locks.named("a").unwrap().acquire().await.unwrap();
    store.is(Deaf::ToAll);
    let begun = clock.now();
    assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::NoAnswer);
    assert_took(clock, begun, SECOND);
}

#[tokio::test(start_paused = true)]
async fn whoever_detaches_is_answered_in_time_and_keeps_the_guard() {
    let (store, locks, clock) = shop();
    let guard = locks.named("a").unwrap().acquire().await.unwrap();
    store.is(Deaf::ToAll);
    let begun = clock.now();
    let failed = guard.detach().await.unwrap_err();
    assert_eq!(failed.error().kind(), ErrorKind::NoAnswer);
    assert_took(clock, begun, SECOND);
    // The answer comes too late to be of use, and costs nothing.
    store.is(Deaf::Not);
    clock.sleep(2 * SECOND).await;
    let guard = failed.into_guard();
    assert_eq!(guard.renew().await.unwrap(), LockState::Secure);
    let _token = guard.detach().await.unwrap();
    assert!(!is_free(&store).await);
    // Nobody waits beyond the end of the lock.
    let guard = locks.named("b").unwrap().ttl(6 * SECOND).no_renew().acquire().await.unwrap();
    let until = guard.valid_until();
    clock.sleep(until.since(clock.now()) - SECOND / 2).await;
    store.is(Deaf::ToAll);
    let failed = guard.detach().await.unwrap_err();
    assert!(clock.now() < until, "{:?} too late", clock.now().since(until));
    clock.sleep(SECOND / 10).await;
    assert_eq!(failed.into_guard().state(), LockState::Lost(LostReason::Expired));
}

/// The price of letting a call end: a release goes out when the renewal before it has ended.
#[tokio::test(start_paused = true)]
async fn a_release_behind_a_silent_renewal_goes_out_at_its_limit() {
    let (store, locks, clock) = shop();
    for left in [SECOND * 9 / 10, SECOND / 2, SECOND / 10] {
        let guard = locks.named("a").unwrap().acquire().await.unwrap();
        let ends = clock.now() + SECOND;
        store.inner.hold_next_request(60 * SECOND);
        tokio::time::timeout(SECOND - left, guard.renew()).await.unwrap_err();
        let begun = clock.now();
        assert_eq!(guard.release().await.unwrap(), Released::Freed);
        println!("{left:?} before the renewal ends: released after {:?}", clock.now().since(begun));
        assert_took(clock, begun, ends.since(begun));
    }
}

#[tokio::test(start_paused = true)]
async fn closing_does_not_wait_for_calls_that_do_not_end() {
    let (store, locks, clock) = shop();
    let _guard = locks.named("a").unwrap().ttl(60 * SECOND).acquire().await.unwrap();
    let waits = locks.named("b").unwrap();
    store.is(Deaf::ToAll);
    let waiter = tokio::spawn(async move { waits.acquire().await });
    clock.sleep(SECOND / 10).await;
    let begun = clock.now();
    assert_eq!(locks.close(SECOND).await.unwrap_err().kind(), ErrorKind::Timeout);
    assert_took(clock, begun, SECOND);
    assert_eq!(waiter.await.unwrap().unwrap_err().kind(), ErrorKind::Closed);
}
