//! A caller polls its keeper itself, for one attempt or one release. What that must not change.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use lock_core::memory::MemoryBackend;
use lock_core::{
    Attempt, Binding, Capabilities, Claim, ClaimRequest, Clock, Effect, ErrorKind, FencingToken,
    Lock, LockBackend, LockState, Locks, LostReason, Released, Renewal, Result, Wake, async_trait,
};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Notify;

use crate::MS;

const PATIENCE: Duration = Duration::from_secs(20);

/// A store whose answers come when the test lets them go. A grant is valid for 300 ms.
#[derive(Clone, Debug, Default)]
struct Held(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    answers: Notify,
    made: Mutex<Vec<&'static str>>,
    renewals: AtomicUsize,
    ran_on: Mutex<Vec<tokio::runtime::Id>>,
    panics_in: Mutex<Option<&'static str>>,
}

impl Held {
    fn locks(&self) -> Locks {
        Locks::new(self.clone())
    }

    fn made(&self) -> Vec<&'static str> {
        self.0.made.lock().unwrap().clone()
    }

    async fn ask(&self, call: &'static str) {
        self.0.made.lock().unwrap().push(call);
        let panics_in = *self.0.panics_in.lock().unwrap();
        assert_ne!(panics_in, Some(call), "on purpose");
        self.0.answers.notified().await;
    }

    async fn until_made(&self, calls: &[&str]) {
        let all = async {
            while self.made() != calls {
                tokio::time::sleep(MS).await;
            }
        };
        tokio::time::timeout(PATIENCE, all).await.unwrap_or_else(|_| panic!("{:?}", self.made()));
    }
}

#[async_trait]
impl LockBackend for Held {
    fn name(&self) -> &'static str {
        "held"
    }

    fn capabilities(&self) -> Capabilities {
        let mut can = Capabilities::new(Binding::Lease, Wake::Poll);
        can.fair = true;
        can
    }

    fn claim(&self, _: ClaimRequest) -> Result<Box<dyn Claim>> {
        Ok(Box::new(self.clone()))
    }

    async fn ping(&self) -> Result<()> {
        self.0.ran_on.lock().unwrap().push(tokio::runtime::Handle::current().id());
        tokio::task::yield_now().await;
        self.0.ran_on.lock().unwrap().push(tokio::runtime::Handle::current().id());
        Ok(())
    }

    async fn close(&self) -> Result<()> {
        self.ping().await
    }
}

#[async_trait]
impl Claim for Held {
    async fn try_acquire(&mut self) -> Result<Attempt> {
        self.ask("try").await;
        let (token, valid_for) = (FencingToken::new(1).unwrap(), Some(300 * MS));
        Ok(Attempt::Granted { token, valid_for })
    }

    async fn renew(&mut self) -> Result<Renewal> {
        self.0.renewals.fetch_add(1, SeqCst);
        Ok(Renewal::Alive { valid_for: Some(300 * MS) })
    }

    async fn check(&mut self) -> Result<Renewal> {
        Ok(Renewal::Alive { valid_for: None })
    }

    async fn release(&mut self) -> Result<Released> {
        self.ask("release").await;
        Ok(Released::Freed)
    }
}

/// Polls `call` once, so that it waits for the store.
fn begin<T>(call: std::pin::Pin<&mut impl Future<Output = T>>) {
    let is_ready = call.poll(&mut Context::from_waker(Waker::noop())).is_ready();
    assert!(!is_ready, "the store has not answered");
}

/// How often a caller was woken.
#[derive(Default)]
struct Woken(AtomicUsize);

impl std::task::Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

/// Tokio polls a task once more that is woken while it runs, and wakes a thread for that.
#[tokio::test]
async fn a_caller_is_not_woken_by_the_answer_that_it_is_given() {
    let (store, woken) = (Held::default(), Arc::<Woken>::default());
    let waker = Waker::from(Arc::clone(&woken));
    let mut cx = Context::from_waker(&waker);
    let lock = store.locks().named("x").unwrap().ttl(300 * MS);
    let mut acquiring = Box::pin(lock.acquire());
    assert!(acquiring.as_mut().poll(&mut cx).is_pending());
    store.0.answers.notify_one();
    assert_eq!(woken.0.load(SeqCst), 1, "by the store");
    let Poll::Ready(guard) = acquiring.as_mut().poll(&mut cx) else { panic!("not acquired") };
    let mut releasing = Box::pin(guard.unwrap().release());
    assert!(releasing.as_mut().poll(&mut cx).is_pending());
    assert_eq!(woken.0.load(SeqCst), 1);
    store.0.answers.notify_one();
    assert!(releasing.as_mut().poll(&mut cx).is_ready());
    assert_eq!(woken.0.load(SeqCst), 2, "by the store");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_caller_leaves_goes_on() {
    let store = Held::default();
    let lock = store.locks().named("a").unwrap().ttl(300 * MS);
    let mut acquire = Box::pin(lock.acquire());
    begin(acquire.as_mut());
    drop(acquire);
    store.0.answers.notify_one();
    store.until_made(&["try", "release"]).await;
    store.0.answers.notify_one();

    store.0.answers.notify_one();
    let guard = lock.acquire().await.unwrap();
    let mut release = Box::pin(guard.release());
    begin(release.as_mut());
    drop(release);
    store.until_made(&["try", "release", "try", "release"]).await;
    store.0.answers.notify_one();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_is_renewed_although_nobody_polls_for_it() {
    let store = Held::default();
    let locks = store.locks();
    store.0.answers.notify_one();
    let guard = locks.named("a").unwrap().ttl(300 * MS).acquire().await.unwrap();
    locks.clock().sleep(900 * MS).await;
    assert!(store.0.renewals.load(SeqCst) >= 2);
    assert_eq!(guard.state(), LockState::Secure);
}

/// It is not granted a lock that has ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_that_does_not_poll_for_long_asks_again() {
    let store = Held::default();
    let locks = store.locks();
    let lock = locks.named("a").unwrap().ttl(300 * MS);
    let mut acquire = Box::pin(lock.acquire());
    begin(acquire.as_mut());
    store.0.answers.notify_one();
    locks.clock().sleep(400 * MS).await;
    tokio::select! {
        _ = &mut acquire => panic!("its lease has ended"),
        () = store.until_made(&["try", "try"]) => {}
    }
    store.0.answers.notify_one();
    assert_eq!(acquire.await.unwrap().state(), LockState::Secure);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_of_the_store_is_an_error_of_the_caller() {
    let store = Held::default();
    let lock = store.locks().named("a").unwrap().ttl(300 * MS);
    *store.0.panics_in.lock().unwrap() = Some("try");
    let error = lock.acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
    *store.0.panics_in.lock().unwrap() = Some("release");
    store.0.answers.notify_one();
    let guard = lock.acquire().await.unwrap();
    let signal = guard.lost();
    // The store may keep the lock.
    let error = guard.release().await.unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Closed, Effect::Unknown), "{error}");
    assert_eq!(signal.wait().await, LostReason::Released);
}

/// The caller has another runtime, and that of the locks ends meanwhile.
#[test]
fn nobody_keeps_a_hold_when_the_runtime_ends() {
    let new = || Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (keepers, callers): (Runtime, Runtime) = (new(), new());
    let store = Held::default();
    let locks = keepers.block_on(async { store.locks() });
    let lock = locks.named("a").unwrap().ttl(300 * MS);
    callers.block_on(async {
        store.0.answers.notify_one();
        let guard = lock.acquire().await.unwrap();
        let mut acquire = Box::pin(lock.acquire());
        begin(acquire.as_mut());
        keepers.shutdown_background();
        assert_eq!(guard.lost().wait().await, LostReason::Closed);
        store.0.answers.notify_one();
        let error = acquire.await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
        let error = guard.release().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Lost(LostReason::Closed), "{error}");
    });
}

/// A task that takes and releases a lock that is always free leaves the processor to others in between.
#[test]
fn a_task_that_never_has_to_wait_lets_others_run() {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let turns = runtime.block_on(async {
        let locks = Locks::new(MemoryBackend::queued());
        let turns = Arc::new(AtomicUsize::new(0));
        let other = Arc::clone(&turns);
        let other = tokio::spawn(async move {
            loop {
                other.fetch_add(1, SeqCst);
                tokio::task::yield_now().await;
            }
        });
        for name in ["a", "b"].repeat(1_000) {
            locks.named(name).unwrap().acquire().await.unwrap().release().await.unwrap();
        }
        other.abort();
        turns.load(SeqCst)
    });
    assert!(turns >= 200, "{turns} turns beside 2 000 locks");
}

/// Keeps a worker busy, while three others are idle.
#[allow(clippy::disallowed_methods, reason = "it is to block a worker")]
fn compute(time: Duration) {
    std::thread::sleep(time);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_hold_is_renewed_while_its_holder_computes() {
    let store = Held::default();
    let lock = store.locks().named("a").unwrap().ttl(300 * MS);
    store.0.answers.notify_one();
    let computes = tokio::spawn(async move {
        let guard = lock.acquire().await.unwrap();
        compute(1_000 * MS);
        guard.state()
    });
    assert_eq!(computes.await.unwrap(), LockState::Secure);
    assert!(store.0.renewals.load(SeqCst) >= 2);
}

/// The same under `run`, whose result would be thrown away.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_work_of_run_may_compute() {
    let store = Held::default();
    let lock = store.locks().named("a").unwrap().ttl(300 * MS);
    store.0.answers.notify_one();
    let computes = tokio::spawn(async move {
        let work = async |_| {
            compute(1_000 * MS);
            7
        };
        lock.run(work).await
    });
    assert_eq!(computes.await.unwrap().unwrap(), 7);
    assert!(store.0.renewals.load(SeqCst) >= 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_lock_that_was_taken_over_is_renewed_while_its_holder_computes() {
    let lock = Locks::new(MemoryBackend::queued()).named("a").unwrap().ttl(600 * MS);
    let token = lock.acquire().await.unwrap().detach().await.unwrap();
    let computes = tokio::spawn(async move {
        let guard = lock.attach(&token).await.unwrap();
        guard.keep_alive();
        compute(1_500 * MS);
        guard.state()
    });
    assert_eq!(computes.await.unwrap(), LockState::Secure);
}

/// A task gives its lock up and computes: whoever waits in the same process has it meanwhile.
async fn gives_up_and_computes(lock: Lock, by_drop: bool) {
    let guard = lock.acquire().await.unwrap();
    let is_busy = Arc::new(AtomicBool::new(true));
    let (next, busy) = (lock.clone(), Arc::clone(&is_busy));
    let waits = tokio::spawn(async move {
        let guard = next.acquire().await.unwrap();
        assert!(busy.load(SeqCst), "it was given the lock when the other task had computed");
        guard.release().await.unwrap();
    });
    // It waits in its own task by then.
    tokio::time::sleep(100 * MS).await;
    let computes = tokio::spawn(async move {
        if by_drop {
            drop(guard);
        } else {
            guard.release().await.unwrap();
        }
        compute(1_000 * MS);
        is_busy.store(false, SeqCst);
    });
    waits.await.unwrap();
    computes.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_lock_goes_on_while_the_one_who_gave_it_up_computes() {
    for store in [MemoryBackend::queued(), MemoryBackend::poll_only()] {
        let locks = Locks::new(store);
        for cohort in [1, 8] {
            for by_drop in [false, true] {
                let lock = locks.named("a").unwrap().ttl(30_000 * MS).cohort(cohort);
                gives_up_and_computes(lock, by_drop).await;
            }
        }
    }
}

/// A task gives up its wait and computes: whoever waits behind it has the lock meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_lock_goes_on_while_one_who_has_given_up_computes() {
    for store in [MemoryBackend::queued(), MemoryBackend::poll_only()] {
        let lock = Locks::new(store).named("a").unwrap().ttl(30_000 * MS);
        let guard = lock.acquire().await.unwrap();
        let is_busy = Arc::new(AtomicBool::new(true));
        let (first, busy) = (lock.clone(), Arc::clone(&is_busy));
        let computes = tokio::spawn(async move {
            tokio::time::timeout(50 * MS, first.acquire()).await.unwrap_err();
            compute(1_000 * MS);
            busy.store(false, SeqCst);
        });
        tokio::time::sleep(20 * MS).await;
        let waits = tokio::spawn(async move {
            let guard = lock.acquire().await.unwrap();
            assert!(is_busy.load(SeqCst), "it was given the lock when the other task had computed");
            guard.release().await.unwrap();
        });
        tokio::time::sleep(80 * MS).await;
        guard.release().await.unwrap();
        waits.await.unwrap();
        computes.await.unwrap();
    }
}

/// The same where it has given up the first request already.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_was_given_up_is_released_while_the_caller_computes() {
    let store = Held::default();
    let lock = store.locks().named("a").unwrap().ttl(300 * MS);
    let computes = tokio::spawn(async move {
        tokio::time::timeout(50 * MS, lock.acquire()).await.unwrap_err();
        compute(1_000 * MS);
    });
    tokio::time::sleep(100 * MS).await;
    store.0.answers.notify_one();
    store.until_made(&["try", "release"]).await;
    assert!(!computes.is_finished(), "it was released when the caller had computed");
    store.0.answers.notify_one();
    computes.await.unwrap();
}

/// The `Locks` has no runtime of its own.
#[test]
fn a_hold_ends_with_the_runtime_of_its_caller() {
    let locks = Locks::new(MemoryBackend::queued());
    let new = || Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (caller, other): (Runtime, Runtime) = (new(), new());
    let guard = caller.block_on(locks.named("a").unwrap().acquire()).unwrap();
    assert_eq!(guard.state(), LockState::Secure);
    caller.shutdown_background();
    assert_eq!(other.block_on(guard.lost().wait()), LostReason::Closed);
    other.block_on(locks.close(20_000 * MS)).unwrap();
}

/// A connection that is opened belongs to the runtime of the `Locks`, and not to one that ends with the call.
#[test]
fn what_an_operator_asks_runs_where_the_locks_do() {
    let new = || Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (keepers, caller): (Runtime, Runtime) = (new(), new());
    let store = Held::default();
    let locks = keepers.block_on(async { store.locks() });
    caller.block_on(locks.health()).unwrap();
    caller.block_on(locks.close(Duration::ZERO)).unwrap();
    assert_eq!(*store.0.ran_on.lock().unwrap(), [keepers.handle().id(); 4]);
}
