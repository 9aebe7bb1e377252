//! The signal that a lock is lost.

use std::future::{Future, IntoFuture};
use std::pin::Pin;

use tokio_util::sync::CancellationToken;

use super::held::{Held, LockState};
use crate::LostReason;

/// Fires when the lock is lost; awaiting it returns the reason. Cheap to clone, and any number of
/// tasks may await it.
///
/// ```
/// # use lock_core::{Locks, LostReason, memory::MemoryBackend};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> lock_core::Result<()> {
/// # let store = MemoryBackend::queued();
/// # let locks = Locks::new(store.clone());
/// let guard = locks.named("order:42")?.acquire().await?;
/// # store.lose_now("order:42");
/// tokio::select! {
///     reason = guard.lost() => assert_eq!(reason, LostReason::Taken),
///     () = async { /* the work */ std::future::pending().await } => {}
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a signal does nothing unless it is awaited or asked"]
pub struct LostSignal(Held);

impl Held {
    /// A signal that fires when the lock is lost: at the latest min(50 ms, ttl / 10) before the end
    /// of validity, as soon as the runtime runs. It needs no I/O.
    pub fn lost(&self) -> LostSignal {
        LostSignal(self.clone())
    }
}

impl LostSignal {
    /// Why the lock is lost, if it is.
    pub fn reason(&self) -> Option<LostReason> {
        match self.0.state() {
            LockState::Lost(reason) => Some(reason),
            LockState::Secure | LockState::AtRisk => None,
        }
    }

    /// A token that is cancelled when the lock is lost, for code that takes one. Cancelling it
    /// affects neither the lock nor other tokens.
    ///
    /// It is cancelled by the task that keeps the lock, so the runtime of the `Locks` must be
    /// driven; [`wait`](Self::wait) depends on the clock alone.
    ///
    /// ```
    /// # use lock_core::{Locks, testing::MemoryBackend};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lock_core::Result<()> {
    /// # let store = MemoryBackend::queued();
    /// # let locks = Locks::new(store.clone());
    /// let guard = locks.named("order:42")?.acquire().await?;
    /// let stop = guard.lost().cancellation_token();
    /// let work = tokio::spawn(async move { stop.run_until_cancelled(std::future::pending::<()>()).await });
    /// store.lose_now("order:42");
    /// assert_eq!(work.await.unwrap(), None, "stopped");
    /// # Ok(()) }
    /// ```
    #[must_use = "a token does nothing unless it is asked or awaited"]
    pub fn cancellation_token(&self) -> CancellationToken {
        self.0.loss_token().child_token()
    }

    /// Waits until the lock is lost. Fires a moment before the end of validity by the clock alone, and
    /// when the `Locks` is closed, so for these it needs neither the store nor the runtime of the
    /// `Locks`.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn wait(&self) -> LostReason {
        loop {
            // Arm, then check, then wait.
            let mut notified = std::pin::pin!(self.0.lost_notify().notified());
            notified.as_mut().enable();
            if let Some(reason) = self.reason() {
                return reason;
            }
            // A renewal moves it; this then waits again.
            let end = self.0.signal_at();
            if self.0.clock().now() >= end {
                return self.0.expire();
            }
            tokio::select! {
                biased;
                () = notified => {}
                // The keeper says so, too, but its runtime may stand still.
                () = self.0.killed() => {}
                () = self.0.clock().sleep_until(end) => {}
            }
        }
    }
}

impl IntoFuture for LostSignal {
    type Output = LostReason;
    type IntoFuture = Pin<Box<dyn Future<Output = LostReason> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.wait().await })
    }
}
