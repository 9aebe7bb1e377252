//! Calls from threads that run no async code.
//!
//! [`Lock::acquire_blocking`](crate::Lock::acquire_blocking) and its like need no Tokio runtime. For any
//! other call there is [`run`].
//!
//! A future that waits on a thread has to be woken by another one. So while a thread waits here, it
//! looks from time to time whether the runtime on which the locks are kept still runs: a thread that
//! blocks the only one that could wake it gets an error, and does not hang.

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use tokio::runtime::{Builder, Handle};
use tokio_util::task::AbortOnDropHandle;

use crate::keeper::Client;
use crate::{Clock, Error, ErrorKind, Result, SystemClock};

/// How long a runtime may take to run a task that is ready.
const PULSE: Duration = Duration::from_secs(3);

/// Runs `future` and waits for it: for what has no blocking form of its own.
///
/// It runs on the Tokio runtime of this thread, or else on a thread of this library. As
/// [`Lock::acquire_blocking`](crate::Lock::acquire_blocking), it is not for async code.
///
/// ```
/// use lock_core::{Locks, blocking, testing::MemoryBackend};
///
/// fn main() -> lock_core::Result<()> {
///     let locks = Locks::new(MemoryBackend::queued());
///     let info = blocking::run(async move { locks.inspect("order:42").await })?;
///     assert!(info.is_none());
///     Ok(())
/// }
/// ```
///
/// # Errors
///
/// Those of the future; [`NoAnswer`](ErrorKind::NoAnswer) if nobody drives the runtime of this thread;
/// [`Internal`](ErrorKind::Internal) if the future panics.
pub fn run<T: Send + 'static>(
    future: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    wait_on(&current_or_own()?, async {
        // What nobody waits for any more is not gone on with.
        let task = AbortOnDropHandle::new(tokio::spawn(future));
        task.await.map_err(|error| {
            Error::new(ErrorKind::Internal, "the task of a blocking call has ended")
                .with_source(error)
        })?
    })
}

/// Waits for a call on the locks of `client`.
pub(crate) fn wait<T>(client: &Client, call: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = match &client.runtime {
        Some(runtime) => runtime.clone(),
        None => current_or_own()?,
    };
    wait_on(&runtime, call)
}

/// Polls `future` on this thread, with `runtime` as its own.
fn wait_on<T>(runtime: &Handle, future: impl Future<Output = Result<T>>) -> Result<T> {
    let is_inside = Handle::try_current().is_ok();
    let _context = runtime.enter();
    let clock = SystemClock::default();
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    let mut beat = runtime.spawn(async {});
    let mut next = clock.now() + PULSE;
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return value;
        }
        if is_inside {
            // The task that a worker has woken last waits in a slot from which no other worker takes it,
            // and this may be a worker that goes to sleep: another task takes the place in the slot.
            drop(runtime.spawn(async {}));
        }
        let now = clock.now();
        if now < next {
            thread::park_timeout(next.since(now));
        } else if beat.is_finished() {
            beat = runtime.spawn(async {});
            next = now + PULSE;
        } else {
            return Err(Error::new(
                ErrorKind::NoAnswer,
                format!(
                    "the Tokio runtime of these locks ran nothing for {PULSE:?} while this thread waited: in async code use the async call, or make this one by `tokio::task::spawn_blocking`"
                ),
            ));
        }
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn current_or_own() -> Result<Handle> {
    Handle::try_current().or_else(|_| own_runtime())
}

/// The runtime of a program that has none: one thread, which begins with the first call that needs it
/// and lives as long as the process.
fn own_runtime() -> Result<Handle> {
    static OWN: Mutex<Option<Handle>> = Mutex::new(None);
    let mut own = OWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(handle) = &*own {
        return Ok(handle.clone());
    }
    let failed = |error| {
        Error::new(ErrorKind::Internal, "the thread for blocking calls could not be started")
            .with_source(error)
    };
    let runtime = Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let handle = runtime.handle().clone();
    thread::Builder::new()
        .name("distlock".to_owned())
        .spawn(move || runtime.block_on(std::future::pending::<()>()))
        .map_err(failed)?;
    *own = Some(handle.clone());
    Ok(handle)
}
