//! The core through its public API, mostly on the memory store and in virtual time.

#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

mod acquire;
mod api;
mod auto_traits;
mod blocking;
mod cohort;
mod in_place;
mod keeper;
mod kinds_rw;
mod kinds_semaphore;
mod lease;
mod outage;
mod overrun;
mod smoke;
mod standstill;

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
