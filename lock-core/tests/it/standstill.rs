//! The runtime of the `Locks` stalls: it is no longer driven. Everything with a time limit keeps to
//! it, since the clock needs no runtime.

use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lock_core::memory::MemoryBackend;
use lock_core::{Error, ErrorKind, LockState, Locks, LostReason, Released, Result};
use tokio::runtime::{Builder, Runtime};

use crate::MS;

/// What a busy machine may need; far less than forever.
const PATIENCE: Duration = Duration::from_secs(20);

/// A single-threaded runtime that is driven until it is told to stop.
struct Keepers {
    stop: tokio::sync::oneshot::Sender<()>,
    driver: JoinHandle<Runtime>,
}

impl Keepers {
    fn start() -> (Self, Locks) {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let (send, handle) = mpsc::channel();
        let driver = std::thread::spawn(move || {
            send.send(runtime.handle().clone()).unwrap();
            let _ = runtime.block_on(stopped);
            runtime
        });
        let builder = Locks::builder(MemoryBackend::queued()).runtime(handle.recv().unwrap());
        (Self { stop, driver }, builder.call_timeout(100 * MS).build().unwrap())
    }

    /// Returns the runtime, which is no longer driven.
    fn stand_still(self) -> Runtime {
        self.stop.send(()).unwrap();
        self.driver.join().unwrap()
    }
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(PATIENCE, work).await.expect("it hangs") })
}

fn is_timeout<T>(result: Result<T>) {
    let error: Error = result.err().expect("there is nothing that could have answered");
    assert_eq!(error.kind(), ErrorKind::NoAnswer, "{error}");
    assert!(error.to_string().contains("runtime"), "{error}");
}

#[test]
#[allow(clippy::disallowed_methods, reason = "the test has its own clock")]
fn a_loss_is_signalled_before_the_lease_ends() {
    let (keepers, locks) = Keepers::start();
    let began = Instant::now();
    let guard = block_on(locks.named("a").unwrap().ttl(600 * MS).acquire()).unwrap();
    let _standing = keepers.stand_still();
    assert_eq!(block_on(guard.lost().wait()), LostReason::Expired);
    assert!(guard.remaining().is_zero() && guard.token().is_err());
    // It was renewed at most once or twice before its keeper stalled.
    assert!(began.elapsed() >= 500 * MS, "{:?}", began.elapsed());
}

#[test]
fn a_close_is_signalled() {
    let (keepers, locks) = Keepers::start();
    let guard = block_on(locks.named("a").unwrap().acquire()).unwrap();
    let _standing = keepers.stand_still();
    let lost = guard.lost();
    let (reason, closed) =
        block_on(async { tokio::join!(lost.wait(), locks.close(Duration::ZERO)) });
    assert_eq!(reason, LostReason::Closed);
    assert_eq!(closed.unwrap_err().kind(), ErrorKind::Timeout);
}

#[test]
fn run_stops_its_body() {
    let (keepers, locks) = Keepers::start();
    let mut standing = None;
    let stopped = block_on(locks.named("a").unwrap().ttl(600 * MS).run(async |held| {
        assert_eq!(held.state(), LockState::Secure);
        standing = Some(keepers.stand_still());
        std::future::pending::<()>().await;
    }));
    assert_eq!(stopped.unwrap_err().lost_reason(), Some(LostReason::Expired));
}

#[test]
fn run_gives_back_what_its_body_gave() {
    let (keepers, locks) = Keepers::start();
    let mut standing = None;
    let value = block_on(locks.named("a").unwrap().run(async |_| {
        standing = Some(keepers.stand_still());
        7
    }));
    assert_eq!(value.unwrap(), 7);
}

#[test]
fn an_acquisition_with_a_limit_ends_at_it() {
    let (keepers, locks) = Keepers::start();
    let _standing = keepers.stand_still();
    let lock = locks.named("a").unwrap();
    // One attempt needs the store and the caller, and this store needs no runtime.
    let guard = block_on(lock.acquire()).unwrap();
    assert!(block_on(lock.try_acquire()).unwrap().is_none());
    is_timeout(block_on(lock.acquire_timeout(200 * MS)));
    assert_eq!(guard.state(), LockState::Secure);
}

#[test]
fn a_hold_that_nobody_can_renew_ends_with_its_lease() {
    let (keepers, locks) = Keepers::start();
    let _standing = keepers.stand_still();
    let guard = block_on(locks.named("a").unwrap().ttl(300 * MS).acquire()).unwrap();
    assert_eq!(block_on(guard.lost().wait()), LostReason::Expired);
}

#[test]
fn what_a_guard_asks_of_its_keeper_has_a_limit() {
    let (keepers, locks) = Keepers::start();
    let guard = block_on(locks.named("a").unwrap().acquire()).unwrap();
    let other = block_on(locks.named("b").unwrap().acquire()).unwrap();
    let standing = keepers.stand_still();
    is_timeout(block_on(guard.renew()));
    is_timeout(block_on(guard.check()));
    assert_eq!(guard.state(), LockState::Secure, "that says nothing about the lock");
    let failed = block_on(other.detach()).unwrap_err();
    is_timeout::<()>(Err(failed.error().clone()));
    let other = failed.into_guard();
    assert_eq!(
        block_on(guard.release()).unwrap(),
        Released::Freed,
        "the caller is enough for that"
    );
    // It resumes where it stopped. What was given up is not done: the guard that was given back has its lock.
    standing.block_on(locks.clock().sleep(300 * MS));
    assert_eq!(standing.block_on(locks.inspect("a")).unwrap(), None);
    assert_eq!(other.state(), LockState::Secure);
    assert!(standing.block_on(locks.inspect("b")).unwrap().is_some());
    assert_eq!(standing.block_on(other.renew()).unwrap(), LockState::Secure);
}

#[test]
fn what_is_done_with_a_lease_token_ends() {
    let (keepers, locks) = Keepers::start();
    let lock = locks.named("a").unwrap();
    let token = block_on(async { Ok::<_, Error>(lock.acquire().await?.detach().await?) }).unwrap();
    let _standing = keepers.stand_still();
    let guard = block_on(lock.attach(&token)).unwrap();
    is_timeout(block_on(guard.renew()));
    block_on(lock.renew(&token)).unwrap();
    assert_eq!(block_on(lock.release(token)).unwrap(), Released::Freed);
}

/// Those who wait for one name wait behind one another. The runtime of the first, which has polled once, is not
/// driven any more; its caller has left, or has not.
#[test]
fn nobody_waits_for_a_runtime_that_stands_still() {
    for store in [MemoryBackend::poll_only(), MemoryBackend::queued()] {
        for has_left in [true, false] {
            let locks = Locks::builder(store.clone()).call_timeout(100 * MS).build().unwrap();
            let lock = locks.named("a").unwrap().ttl(2_000 * MS).cohort(8);
            let new = || Builder::new_current_thread().enable_all().build().unwrap();
            let (holder, first) = (new(), new());
            let guard = holder.block_on(lock.acquire()).unwrap();
            let mut acquiring = Box::pin(lock.acquire());
            let limited = async { tokio::time::timeout(300 * MS, acquiring.as_mut()).await };
            first.block_on(limited).unwrap_err();
            let acquiring = Some(acquiring).filter(|_| !has_left);
            holder.block_on(guard.release()).unwrap();
            let next = block_on(lock.acquire());
            assert!(next.is_ok(), "{has_left} {next:?}");
            drop(acquiring);
        }
    }
}
