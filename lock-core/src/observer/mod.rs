//! What happens to locks, for those who watch.

#[cfg(feature = "metrics")]
mod metrics;

use std::fmt::Debug;
use std::time::Duration;

use crate::{Error, LockKey, LostReason, Operation};

#[cfg(feature = "metrics")]
pub use metrics::MetricsLayer;

/// Gets an event for everything that happens to the locks of a [`Locks`](crate::Locks), from the view of that
/// `Locks`: see [`LockLayer::observer`](crate::LockLayer::observer).
///
/// It is called during a request, so it must neither wait nor panic.
///
/// ```
/// # use lock_core as distlock;
/// use std::sync::Arc;
/// use distlock::{EndOfHold, LockEvent, LockKey, LockLayer, LockObserver, Locks, testing::MemoryBackend};
///
/// /// Prints which locks are lost.
/// #[derive(Clone, Debug)]
/// struct Losses;
///
/// impl LockObserver for Losses {
///     fn observe(&self, _store: &'static str, lock: Option<&LockKey>, event: LockEvent<'_>) {
///         if let (Some(lock), LockEvent::Ended { end: EndOfHold::Lost(reason), .. }) = (lock, event) {
///             println!("{lock}: {reason}");
///         }
///     }
/// }
///
/// impl LockLayer for Losses {
///     fn observer(&self) -> Option<Arc<dyn LockObserver>> {
///         Some(Arc::new(self.clone()))
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> lock_core::Result<()> {
/// let locks = Locks::builder(MemoryBackend::queued()).layer(Losses).build()?;
/// locks.named("a")?.acquire().await?.release().await?;
/// # Ok(()) }
/// ```
pub trait LockObserver: Debug + Send + Sync + 'static {
    /// Called for each event in this kind of store; `lock` is `None` if the event does not concern a lock.
    fn observe(&self, store: &'static str, lock: Option<&LockKey>, event: LockEvent<'_>);
}

/// What has happened to a lock. All times are by the clock of the `Locks`.
///
/// Each `Wanted` is followed by one `Granted` or `GivenUp`, and each `Granted` or `Attached` by one `Ended`.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum LockEvent<'a> {
    /// A call wants the lock, and waits for it unless it is a [try](crate::Lock::try_acquire).
    Wanted {
        /// Whether it waits, be it in the store's queue or behind others of its process.
        waits: bool,
    },
    /// That call has it: by an answer of the store, or from another task of its process.
    Granted {
        /// As it was [wanted](Self::Wanted).
        waits: bool,
        /// How long that took.
        after: Duration,
    },
    /// That call has ended without it.
    GivenUp {
        /// As it was [wanted](Self::Wanted).
        waits: bool,
        /// How long that took.
        after: Duration,
    },
    /// A hold that began elsewhere was [attached](crate::Lock::attach).
    Attached,
    /// The store has answered the renewal of a hold, or of a place in its queue.
    Renewed {
        /// Whether it is still ours.
        is_alive: bool,
        /// What was left of a hold then, without this renewal, if that says how long it now lasts.
        left: Option<Duration>,
    },
    /// A hold has ended here.
    Ended {
        /// How.
        end: EndOfHold,
        /// How long it was held; unknown if it was attached.
        after: Option<Duration>,
    },
    /// A call to the store has failed, or did not end in time.
    CallFailed {
        /// Which call.
        operation: Operation,
        /// Why.
        error: &'a Error,
    },
}

/// How a hold has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EndOfHold {
    /// The store has confirmed its release.
    Released,
    /// It was passed on to another task of the process, for which it now is one of its own.
    PassedOn,
    /// It was lost, while its guard was alive.
    Lost(LostReason),
    /// Nobody keeps it here any more, and its lease ends it: it was detached, or attached and dropped, its
    /// `Locks` or runtime has ended, or no release was confirmed in time.
    Dropped,
}
