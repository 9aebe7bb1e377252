//! The core through its public API, mostly on the memory store and in virtual time.

#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

mod acquire;
mod altered;
mod api;
mod auto_traits;
mod blocking;
mod cohort;
mod in_place;
mod keeper;
mod kinds_all;
mod kinds_election;
mod kinds_rw;
mod kinds_semaphore;
mod kinds_whole;
mod lease;
mod lock_delay;
mod min_hold;
mod outage;
mod overrun;
mod slow;
mod smoke;
mod standstill;

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use lock_core::Locks;
use lock_core::memory::MemoryBackend;
use lock_core::testing::TokioClock;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// A store and locks on it, in virtual time.
fn virtual_locks(store: MemoryBackend) -> (MemoryBackend, Locks, TokioClock) {
    let clock = TokioClock::default();
    let store = store.with_clock(clock);
    (store.clone(), Locks::builder(store).clock(clock).build().unwrap(), clock)
}

/// A store of each flavour.
fn stores() -> [MemoryBackend; 2] {
    [MemoryBackend::queued(), MemoryBackend::poll_only()]
}

/// A client of the store, as if it were another process.
fn another(store: &MemoryBackend, clock: TokioClock) -> Locks {
    Locks::builder(store.client()).clock(clock).build().unwrap()
}

/// Polls a call so many times, and drops it unless it is done then.
async fn dropped_after<T>(polls: usize, call: impl Future<Output = T>) -> Option<T> {
    let (mut call, mut left) = (pin!(call), polls);
    poll_fn(|cx| {
        left -= 1;
        match call.as_mut().poll(cx) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}
