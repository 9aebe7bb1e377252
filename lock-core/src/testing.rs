//! For tests of your own code: a memory store that can be made to fail, and clocks that a test
//! moves.
//!
//! # Which clock
//!
//! | clock | time moves | use it for |
//! |---|---|---|
//! | [`ManualClock`] | when the test moves it | the end of a lease, seen from code that does not wait |
//! | [`TokioClock`] in a test with `start_paused` | to the next timer, when every task waits | code that waits, with limits and pauses |
//! | [`SystemClock`](crate::SystemClock), the default | as it does | real servers, with short TTLs |
//!
//! [`locks_on`] gives the store and the `Locks` the same clock. With two clocks, a lease would end
//! for one of them and not for the other.
//!
//! # What hangs, or fails, by surprise
//!
//! - **Every limit is counted on the clock of the `Locks`.** On a [`ManualClock`] that is not
//!   moved, `acquire_timeout` of a held lock, a call to a store that is cut off, and `close` wait
//!   forever. Move the clock from another task, or use a [`TokioClock`] with paused time.
//! - **`advance` runs nothing.** It wakes the tasks that are due; they run at the next await of the
//!   test. [`Held::state`](crate::Held::state) and [`Held::token`](crate::Held::token) need no
//!   task: they are up to date at once.
//! - **Paused time and a real server do not go together.** Tokio advances paused time when every
//!   task waits, even if they wait for a server's answer. So the timers of a connection pool, a
//!   driver or a call fire before the answer arrives. Use `start_paused` only with the memory
//!   store.
//! - **A [`TokioClock`] begins when it is made**, so make it inside the test, not in a `static`.
//!   Tokio cannot pause the time of a runtime with several threads.
//! - **At its end a test does not wait for the release of a guard that it has dropped.** If that
//!   matters to the next test, use another name or another store, or end with `close`.
//!
//! ```
//! # use lock_core as distlock;
//! use std::time::Duration;
//! use distlock::{LockState, LostReason, testing};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> lock_core::Result<()> {
//! let clock = testing::ManualClock::default();
//! let (store, locks) = testing::locks_on(clock.clone());
//! let guard = locks.named("order:42")?.ttl(Duration::from_secs(30)).acquire().await?;
//! store.partition(); // from now on no renewal gets through …
//! clock.advance(Duration::from_secs(30)); // … and the lease ends
//! assert_eq!(guard.state(), LockState::Lost(LostReason::Expired));
//! # Ok(()) }
//! ```

use std::sync::LazyLock;

use crate::{Clock, Locks};

pub use crate::clock::test_clocks::ManualClock;
pub use crate::clock::test_clocks::TokioClock;
pub use crate::memory::MemoryBackend;

/// A new memory store that serves its waiters in order, and locks of it, on the same clock.
///
/// Faults are made on the store: see [`MemoryBackend`]. To simulate another process, use
/// `Locks::builder(store.client()).clock(clock)`.
pub fn locks_on(clock: impl Clock + Clone) -> (MemoryBackend, Locks) {
    let store = MemoryBackend::queued().with_clock(clock.clone());
    let locks = Locks::on_clock(store.clone(), clock);
    (store, locks)
}

/// A known mistake of a store, or of the core, that a test build can be told to make: so its tests
/// are tested, by `conformance_tests::mutation`.
#[derive(Clone, Copy, Debug)]
pub struct Mutant {
    /// Its name.
    pub name: &'static str,
    /// What is wrong.
    pub what: &'static str,
    /// The case of the suite, or the scene, that fails for it.
    pub killed_by: &'static str,
}

impl Mutant {
    /// The environment variable that names the mistake to make.
    pub const VARIABLE: &'static str = "DISTLOCK_MUTANT";

    /// Whether this process is to make the mistake of this name.
    pub fn is_wanted(name: &str) -> bool {
        static WANTED: LazyLock<String> =
            LazyLock::new(|| std::env::var(Mutant::VARIABLE).unwrap_or_default());
        *WANTED == name
    }
}
