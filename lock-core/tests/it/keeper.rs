//! Corner cases of the keeper and the guard that were once wrong. Each test is named after what
//! must hold.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use lock_core::memory::MemoryBackend;
use lock_core::testing::TokioClock;
use lock_core::{
    Attempt, Bytes, Capabilities, Claim, ClaimRequest, Clock, Held, LockBackend, LockKey,
    LockState, Locks, LostReason, OwnerId, Released, Renewal, Result, SystemClock, async_trait,
};

use crate::slow::SlowStore;
use crate::{MS, SECOND, virtual_locks};

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

#[test]
fn renewals_outlive_the_runtime_of_the_first_sleeper() {
    let locks = Locks::new(MemoryBackend::queued());
    let first = runtime();
    first.block_on(async {
        let guard = locks.named("a").unwrap().acquire().await.unwrap();
        locks.clock().sleep(20 * MS).await;
        guard.release().await.unwrap();
    });
    drop(first);
    runtime().block_on(async {
        let guard = locks.named("b").unwrap().ttl(600 * MS).acquire().await.unwrap();
        locks.clock().sleep(2000 * MS).await;
        assert_eq!(guard.state(), LockState::Secure);
    });
}

#[test]
fn the_clock_needs_no_runtime() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(SystemClock::default().sleep(10 * MS));
}

#[tokio::test(start_paused = true)]
async fn a_late_try_is_undone_also_after_a_place_was_freed() {
    let (store, locks, clock) = virtual_locks(MemoryBackend::queued());
    let client = store.client();
    let other = Locks::builder(client.clone()).clock(clock).build().unwrap();
    let guard = locks.named("x").unwrap().acquire().await.unwrap();
    let waiter =
        tokio::spawn(
            async move { other.named("x").unwrap().acquire_timeout(300 * MS).await.map(drop) },
        );
    clock.sleep(100 * MS).await;
    client.hold_next_request(500 * MS);
    guard.release().await.unwrap();
    assert!(waiter.await.unwrap().is_err());
    clock.sleep(Duration::from_secs(5)).await;
    assert_eq!(locks.inspect("x").await.unwrap(), None);
}

#[tokio::test(start_paused = true)]
async fn what_had_no_effect_is_not_undone() {
    let (store, locks, _) = virtual_locks(MemoryBackend::queued());
    store.refuse();
    assert!(locks.named("x").unwrap().try_acquire().await.is_err());
    locks.close(MS).await.unwrap();
    assert_eq!(store.requests(), 2, "the two attempts and nothing else");
}

#[tokio::test(start_paused = true)]
async fn a_try_in_doubt_is_undone_although_later_ones_had_no_effect() {
    let (store, locks, clock) = virtual_locks(MemoryBackend::queued());
    let client = store.client();
    let lock = Locks::builder(client.clone()).clock(clock).build().unwrap().named("x").unwrap();
    client.lose_next_reply();
    let gives_up = tokio::spawn(async move { lock.acquire_timeout(300 * MS).await.map(drop) });
    clock.sleep(10 * MS).await;
    client.refuse();
    assert!(gives_up.await.unwrap().is_err());
    client.heal();
    clock.sleep(Duration::from_secs(2)).await;
    assert_eq!(locks.inspect("x").await.unwrap(), None);
}

#[tokio::test(start_paused = true)]
async fn a_failing_renewal_is_never_a_tight_loop() {
    let (store, locks, clock) = virtual_locks(MemoryBackend::queued());
    let lock = locks.named("x").unwrap().ttl(1000 * MS).renew_every(20 * MS);
    let guard = lock.acquire().await.unwrap();
    (0..10_000).for_each(|_| store.lose_next_request());
    clock.sleep(120 * MS).await;
    assert!((2..20).contains(&store.requests()), "{} requests", store.requests());
    drop(guard);
}

/// After a slow attempt, the store's promise is all there is. Where place and lock are one lease,
/// part of which has passed in the queue, the lock is renewed once.
#[tokio::test(start_paused = true)]
async fn a_lock_without_renewals_is_not_renewed_after_a_slow_grant() {
    let (store, locks, clock) = virtual_locks(MemoryBackend::queued());
    let lock = locks.named("x").unwrap().ttl(1000 * MS).no_renew();
    store.delay_next(300 * MS);
    let sent = clock.now();
    let guard = lock.acquire().await.unwrap();
    clock.sleep(500 * MS).await;
    assert_eq!(store.requests(), 1, "the attempt and nothing else");
    assert!(guard.valid_until() < sent + 1000 * MS);
    assert_eq!(guard.lost().await, LostReason::Expired);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_behind_the_gate_that_gives_up_sends_nothing() {
    let mut witness = Witness::new();
    let clock = TokioClock::default();
    witness.store = MemoryBackend::poll_only().with_clock(clock);
    let locks = Locks::builder(witness.clone()).clock(clock).build().unwrap();
    let guard = locks.named("x").unwrap().acquire().await.unwrap();
    let wait = || {
        let lock = locks.named("x").unwrap();
        tokio::spawn(async move { lock.acquire().await.map(drop) })
    };
    let poller = wait();
    clock.sleep(50 * MS).await;
    let behind = wait();
    clock.sleep(50 * MS).await;
    behind.abort();
    clock.sleep(500 * MS).await;
    assert!(witness.calls.lock().unwrap().is_empty(), "it has nothing to release");
    poller.abort();
    clock.sleep(500 * MS).await;
    assert_eq!(*witness.calls.lock().unwrap(), ["released"], "the poller may have");
    drop(guard);
}

/// A store that proposes to retry at the end of time is asked at the usual pace.
#[tokio::test(start_paused = true)]
async fn a_look_that_is_proposed_for_the_end_of_time_comes_in_time() {
    let mut witness = Witness::new();
    let clock = TokioClock::default();
    witness.store = MemoryBackend::poll_only().with_clock(clock);
    witness.retry_after = Some(Duration::MAX);
    let locks = Locks::builder(witness.clone()).clock(clock).build().unwrap();
    let guard = locks.named("x").unwrap().acquire().await.unwrap();
    let lock = locks.named("x").unwrap();
    let waiter = tokio::spawn(async move { lock.acquire_timeout(60_000 * MS).await });
    clock.sleep(1000 * MS).await;
    let requests = witness.store.requests();
    assert!((5..200).contains(&requests), "{requests} requests");
    guard.release().await.unwrap();
    let start = clock.now();
    drop(waiter.await.unwrap().unwrap());
    assert!(clock.now().since(start) < 1000 * MS);
}

#[tokio::test(start_paused = true)]
async fn the_first_renewal_counts_from_the_sending_of_the_try() {
    let (store, locks, clock) = virtual_locks(MemoryBackend::queued());
    store.delay_next(280 * MS);
    let lock = locks.named("x").unwrap().ttl(900 * MS).renew_every(600 * MS);
    let guard = lock.acquire().await.unwrap();
    clock.sleep(Duration::from_secs(5)).await;
    assert_eq!(guard.state(), LockState::Secure);
}

#[tokio::test(start_paused = true)]
async fn a_short_longest_hold_is_a_hold() {
    let (_, locks, clock) = virtual_locks(MemoryBackend::queued());
    let guard = locks.named("x").unwrap().max_hold(45 * MS).acquire().await.unwrap();
    clock.sleep(35 * MS).await;
    assert_eq!(guard.state(), LockState::Secure);
    assert_eq!(guard.lost().await, LostReason::MaxHold);
}

#[tokio::test(start_paused = true)]
async fn the_release_of_an_attached_lock_is_repeated() {
    let (store, locks, clock) = virtual_locks(MemoryBackend::queued());
    let other = Locks::builder(store.client()).clock(clock).build().unwrap();
    let lock = locks.named("x").unwrap();
    let token = lock.acquire().await.unwrap().detach().await.unwrap();
    let guard = lock.attach(&token).await.unwrap();
    (0..3).for_each(|_| store.lose_next_request());
    guard.release().await.unwrap_err();
    clock.sleep(Duration::from_secs(5)).await;
    assert_eq!(other.inspect("x").await.unwrap(), None);
}

#[tokio::test(start_paused = true)]
async fn a_lease_token_that_nobody_gets_blocks_nobody() {
    let (_, locks, clock) = virtual_locks(MemoryBackend::queued());
    let guard = locks.named("x").unwrap().acquire().await.unwrap();
    let mut detaching = Box::pin(guard.detach());
    // Polled once, and dropped when the answer has arrived but has not been read.
    std::future::poll_fn(|cx| std::task::Poll::Ready(detaching.as_mut().poll(cx).is_ready())).await;
    clock.sleep(10 * MS).await;
    drop(detaching);
    clock.sleep(500 * MS).await;
    assert_eq!(locks.inspect("x").await.unwrap(), None);
}

#[tokio::test(start_paused = true)]
async fn a_check_does_not_hide_a_failed_renewal() {
    let (store, locks, _) = virtual_locks(MemoryBackend::queued());
    let guard = locks.named("x").unwrap().no_renew().acquire().await.unwrap();
    store.lose_next_request();
    guard.renew().await.unwrap_err();
    assert_eq!(guard.check().await.unwrap(), LockState::AtRisk);
    assert_eq!(guard.renew().await.unwrap(), LockState::Secure);
}

#[tokio::test(start_paused = true)]
async fn behind_a_gate_all_give_a_silent_store_up_together() {
    let clock = TokioClock::default();
    let store = MemoryBackend::poll_only().with_clock(clock);
    let builder = Locks::builder(store.clone()).clock(clock);
    let locks = builder.unavailable_after(300 * MS).call_timeout(400 * MS).build().unwrap();
    let guard = locks.named("x").unwrap().acquire().await.unwrap();
    let start = clock.now();
    let waiters: Vec<_> = (0..8)
        .map(|_| {
            let lock = locks.named("x").unwrap();
            tokio::spawn(async move {
                lock.acquire().await.unwrap_err();
                clock.now().since(start)
            })
        })
        .collect();
    clock.sleep(50 * MS).await;
    store.partition();
    for waiter in waiters {
        assert!(waiter.await.unwrap() < 1500 * MS);
    }
    drop(guard);
}

#[tokio::test(start_paused = true)]
async fn a_lost_lock_is_valid_until_its_loss() {
    let (store, locks, clock) = virtual_locks(MemoryBackend::queued());
    let guard = locks.named("x").unwrap().acquire().await.unwrap();
    store.lose_now("x");
    assert_eq!(guard.lost().await, LostReason::Taken);
    assert!(guard.valid_until() <= clock.now());
}

#[tokio::test(start_paused = true)]
async fn a_release_that_the_lease_has_overtaken_is_no_theft() {
    let clock = TokioClock::default();
    let store = MemoryBackend::queued().with_clock(clock);
    let locks = Locks::builder(store.clone()).clock(clock).call_timeout(500 * MS).build().unwrap();
    let guard = locks.named("x").unwrap().ttl(200 * MS).no_renew().acquire().await.unwrap();
    clock.sleep(120 * MS).await;
    store.hold_next_request(100 * MS);
    assert_eq!(guard.release().await.unwrap(), Released::AlreadyGone);
}

#[tokio::test(start_paused = true)]
async fn a_push_to_a_client_that_is_cut_off_is_kept() {
    let (store, _, clock) = virtual_locks(MemoryBackend::queued());
    let client = store.client();
    let request = |n| {
        let key = LockKey::new("", "x").unwrap();
        ClaimRequest::new(key, OwnerId::from_bytes([n; 16]), 30_000 * MS).with_wait(true)
    };
    let (mut holder, mut waiter) =
        (store.claim(request(1)).unwrap(), client.claim(request(2)).unwrap());
    holder.try_acquire().await.unwrap();
    waiter.try_acquire().await.unwrap();
    client.partition();
    holder.release().await.unwrap();
    tokio::select! {
        _ = waiter.changed() => panic!("a push came through a cut link"),
        () = clock.sleep(20 * MS) => {}
    }
    client.heal();
    tokio::select! {
        changed = waiter.changed() => changed.unwrap(),
        () = clock.sleep(20 * MS) => panic!("the push was lost"),
    }
}

/// Records the calls that reach the store, and the state of a guard while the store is being
/// closed.
#[derive(Clone, Debug)]
struct Witness {
    store: MemoryBackend,
    calls: Arc<Mutex<Vec<&'static str>>>,
    held: Arc<Mutex<Option<Held>>>,
    /// The retry time that it proposes to clients that find the lock busy.
    retry_after: Option<Duration>,
}

impl Witness {
    fn new() -> Self {
        Self {
            store: MemoryBackend::queued(),
            calls: Arc::default(),
            held: Arc::default(),
            retry_after: None,
        }
    }

    fn note(&self, call: &'static str) {
        self.calls.lock().unwrap().push(call);
    }
}

#[async_trait]
impl LockBackend for Witness {
    fn name(&self) -> &'static str {
        "witness"
    }

    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    fn claim(&self, request: ClaimRequest) -> Result<Box<dyn Claim>> {
        Ok(Box::new(WitnessClaim { claim: self.store.claim(request)?, witness: self.clone() }))
    }

    async fn ping(&self) -> Result<()> {
        Ok(())
    }

    async fn close(&self) -> Result<()> {
        let state = self.held.lock().unwrap().as_ref().map(Held::state);
        self.note(match state {
            Some(LockState::Lost(LostReason::Closed)) => "close: lost",
            _ => "close: held",
        });
        Ok(())
    }
}

#[derive(Debug)]
struct WitnessClaim {
    claim: Box<dyn Claim>,
    witness: Witness,
}

#[async_trait]
impl Claim for WitnessClaim {
    async fn try_acquire(&mut self) -> Result<Attempt> {
        let mut attempt = self.claim.try_acquire().await?;
        if let Attempt::Busy(busy) = &mut attempt {
            busy.retry_after = self.witness.retry_after.or(busy.retry_after);
        }
        Ok(attempt)
    }

    async fn renew(&mut self) -> Result<Renewal> {
        let renewal = self.claim.renew().await;
        self.witness.note(if renewal.is_ok() { "renewed" } else { "renewal failed" });
        renewal
    }

    async fn check(&mut self) -> Result<Renewal> {
        self.claim.check().await
    }

    async fn release(&mut self) -> Result<Released> {
        self.witness.note("released");
        self.claim.release().await
    }

    async fn detach(&mut self) -> Result<Bytes> {
        self.witness.note("detached");
        self.claim.detach().await
    }
}

#[tokio::test]
async fn a_guard_is_lost_before_its_store_is_closed() {
    let witness = Witness::new();
    let locks = Locks::new(witness.clone());
    let guard = locks.named("x").unwrap().acquire().await.unwrap();
    *witness.held.lock().unwrap() = Some(guard.held().clone());
    locks.close(10 * MS).await.unwrap_err();
    assert_eq!(*witness.calls.lock().unwrap(), ["close: lost"]);
    assert_eq!(guard.lost().await, LostReason::Closed);
}

/// Guards are shared. However many ask at a silent store, each is told that it is silent, and one call answers all.
#[tokio::test(start_paused = true)]
async fn those_who_share_a_guard_ask_with_one_call() {
    let clock = TokioClock::default();
    let store = MemoryBackend::queued().with_clock(clock);
    let locks = Locks::builder(store.clone()).clock(clock).call_timeout(SECOND).build().unwrap();
    let guard = Arc::new(locks.named("a").unwrap().ttl(60 * SECOND).acquire().await.unwrap());
    // Those who have given up are not asked for.
    for _ in 0..8 {
        tokio::time::timeout(SECOND / 10, guard.check()).await.ok();
    }
    store.freeze();
    let asks: Vec<_> = (0..16)
        .map(|at| {
            let guard = Arc::clone(&guard);
            tokio::spawn(async move {
                if at % 2 == 0 { guard.check().await } else { guard.renew().await }
            })
        })
        .collect();
    for ask in asks {
        let error = ask.await.unwrap().unwrap_err();
        assert!(error.message().starts_with("the store did not answer"), "{error}");
    }
    store.thaw();
    // What was due meanwhile is done.
    clock.sleep(5 * SECOND).await;
    let sent = store.requests();
    let (one, other, third) = tokio::join!(guard.check(), guard.check(), guard.check());
    assert!(one.is_ok() && other.is_ok() && third.is_ok());
    assert_eq!(store.requests() - sent, 1);
}

fn slowly_renewed(takes: Duration) -> (Locks, TokioClock) {
    let clock = TokioClock::default();
    let store = MemoryBackend::queued().with_clock(clock);
    let store = SlowStore { renewal: takes, ..SlowStore::of(store) };
    let locks = Locks::builder(store).clock(clock).call_timeout(takes + SECOND);
    (locks.build().unwrap(), clock)
}

#[tokio::test(start_paused = true)]
async fn what_a_guard_asks_comes_before_the_renewal_after_the_next() {
    let (locks, clock) = slowly_renewed(400 * MS);
    let lock = locks.named("x").unwrap().ttl(3 * SECOND).renew_every(200 * MS);
    let guard = lock.acquire().await.unwrap();
    clock.sleep(5 * SECOND).await;
    let begun = clock.now();
    let checked = tokio::time::timeout(10 * SECOND, guard.check()).await;
    assert_eq!(checked.expect("renewals keep it out").unwrap(), LockState::Secure);
    assert!(clock.now().since(begun) <= 800 * MS, "{:?}", clock.now().since(begun));
    clock.sleep(5 * SECOND).await;
    assert_eq!(guard.state(), LockState::Secure, "it is still renewed");
    guard.release().await.unwrap();
}

/// Its place in the queue is to be renewed every second.
#[tokio::test(start_paused = true)]
async fn a_push_comes_before_the_renewal_after_the_next() {
    let (locks, clock) = slowly_renewed(1_200 * MS);
    let lock = locks.named("x").unwrap().ttl(3 * SECOND);
    let guard = locks.named("x").unwrap().ttl(60 * SECOND).acquire().await.unwrap();
    let waits = tokio::spawn(async move { lock.acquire().await });
    clock.sleep(5 * SECOND).await;
    guard.release().await.unwrap();
    let granted = tokio::time::timeout(3 * SECOND, waits).await;
    drop(granted.expect("renewals keep the push out").unwrap().unwrap());
}
