//! Keeping the connection up while somebody waits for pushes.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use lock_core::ClockInstant;

use super::connection::{Inner, Node};

/// A waiting client that has heard nothing for so long asks whether the server is there.
const PING_EVERY: Duration = Duration::from_secs(2);
/// How long it waits for the answer to that.
const PING_LIMIT: Duration = Duration::from_secs(1);
/// The pauses between attempts to reconnect.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// Somebody waits for pushes.
pub(crate) struct Interest(Arc<Inner>);

impl Interest {
    pub(super) fn new(inner: &Arc<Inner>) -> Self {
        if !inner.tended.swap(true, Relaxed) {
            match tokio::runtime::Handle::try_current() {
                Ok(runtime) => {
                    let guard = Tending(Arc::clone(inner));
                    runtime.spawn(async move { guard.0.tend().await });
                }
                Err(_) => inner.tended.store(false, Relaxed),
            }
        }
        if inner.current().is_none() {
            inner.tend.notify_one();
        }
        Self(Arc::clone(inner))
    }
}

impl fmt::Debug for Interest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Interest")
    }
}

impl Drop for Interest {
    fn drop(&mut self) {
        self.0.interest.fetch_sub(1, Relaxed);
    }
}

/// The task that tends a node; if it ends with its runtime, the next interest starts another one.
struct Tending(Arc<Inner>);

impl Drop for Tending {
    fn drop(&mut self) {
        self.0.tended.store(false, Relaxed);
    }
}

impl Inner {
    /// Keeps the connection up while somebody waits for pushes.
    async fn tend(self: &Arc<Self>) {
        let mut failures = 0_u32;
        while !self.closed.load(Relaxed) {
            let wanted = self.interest.load(Relaxed) > 0;
            let pause = if !wanted {
                failures = 0;
                PING_EVERY
            } else if self.current().is_none() {
                let end = self.options.clock.now() + self.options.connect_timeout;
                match self.link(end).await {
                    Ok(_) => {
                        failures = 0;
                        continue;
                    }
                    Err(_) => failures += 1,
                }
                BACK_OFF.0.saturating_mul(1 << failures.min(8)).min(BACK_OFF.1)
            } else {
                let heard = ClockInstant::from_nanos(self.heard.load(Relaxed));
                let silent = self.options.clock.now().since(heard);
                if silent >= PING_EVERY {
                    let node = Node(Arc::clone(self));
                    // A failure gives the connection up, which the next round sees.
                    let _ = node.command(&redis::cmd("PING"), PING_LIMIT).await;
                    Duration::from_millis(100)
                } else {
                    PING_EVERY - silent
                }
            };
            tokio::select! {
                () = self.tend.notified(), if failures == 0 => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }
}
