//! Calls from threads that run no async code.
//!
//! [`Lock::acquire_blocking`](crate::Lock::acquire_blocking) and the other blocking calls need no
//! Tokio runtime. For any other call there is [`run`].
//!
//! A thread that waits for a future must be woken by another thread. So a thread that waits here
//! checks from time to time whether the runtime that keeps the locks still runs: if it blocks the
//! only thread that could wake it, it gets an error instead of hanging.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use tokio::runtime::{Builder, Handle};
use tokio_util::task::AbortOnDropHandle;

use crate::keeper::Client;
use crate::thread::PerProcess;
use crate::{Clock, Error, ErrorKind, Result, SystemClock};

/// How long a runtime may take to run a task that is ready.
const PULSE: Duration = Duration::from_secs(3);

/// Runs `future` and waits for it, for calls that have no blocking form.
///
/// It runs on the Tokio runtime of this thread, or else on a thread of this library. Like
/// [`Lock::acquire_blocking`](crate::Lock::acquire_blocking), it is not for async code.
///
/// ```
/// # use lock_core as distlock;
/// use distlock::{Locks, blocking, testing::MemoryBackend};
///
/// fn main() -> distlock::Result<()> {
///     let locks = Locks::new(MemoryBackend::queued());
///     let info = blocking::run(async move { locks.inspect("order:42").await })?;
///     assert!(info.is_none());
///     Ok(())
/// }
/// ```
///
/// # Errors
///
/// Those of the future; [`NoAnswer`](ErrorKind::NoAnswer) if the runtime of this thread is not
/// driven; [`Internal`](ErrorKind::Internal) if the future panics.
pub fn run<T: Send + 'static>(
    future: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    wait_on(&current_or_own()?, async {
        // If the caller stops waiting, the task is aborted.
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
        Some(_) => client.home()?.handle().clone(),
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
            // The task that a worker woke last waits in a slot from which no other worker takes it,
            // and this thread may be a worker about to sleep: another task takes its place in the
            // slot.
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

/// The runtime of a program that has none: one thread, started by the first call that needs it,
/// which lives as long as the process.
fn own_runtime() -> Result<Handle> {
    static OWN: PerProcess<Option<Handle>> = PerProcess::new(None);
    let failed = |error| {
        Error::new(ErrorKind::Internal, "the thread for blocking calls could not be started")
            .with_source(error)
    };
    OWN.with(|own| {
        if let Some(handle) = own {
            return Ok(handle.clone());
        }
        let runtime = Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let handle = runtime.handle().clone();
        crate::thread::start("distlock", move || runtime.block_on(std::future::pending::<()>()))
            .map_err(failed)?;
        *own = Some(handle.clone());
        Ok(handle)
    })
}
