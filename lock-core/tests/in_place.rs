//! A caller polls its keeper itself, for one attempt or one release. What that must not change.

#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use lock_core::memory::MemoryBackend;
use lock_core::{
    Attempt, Binding, Capabilities, Claim, ClaimRequest, Clock, ErrorKind, FencingToken,
    LockBackend, LockState, Locks, LostReason, Released, Renewal, Result, Wake, async_trait,
};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Notify;

const MS: Duration = Duration::from_millis(1);
const PATIENCE: Duration = Duration::from_secs(20);

/// A store whose answers come when the test lets them go. A grant is valid for 300 ms.
#[derive(Clone, Debug, Default)]
struct Held(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    answers: Notify,
    made: Mutex<Vec<&'static str>>,
    renewals: AtomicUsize,
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
        Ok(())
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
    assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::Lost(LostReason::Released));
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
