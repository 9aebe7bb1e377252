//! Keeping the connection up while somebody waits for pushes.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use super::link::Link;

/// A waiting client that has heard nothing for so long asks whether the server is there.
const PING_EVERY: Duration = Duration::from_secs(2);
/// How long it waits for the answer to that.
const PING_LIMIT: Duration = Duration::from_secs(1);
/// The pauses between attempts to reconnect.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// Keeps the connection up, and watches it, for as long as somebody waits for pushes.
pub(super) struct Tender {
    link: Link,
    waiting: AtomicUsize,
    /// The task runs.
    runs: AtomicBool,
}

/// Somebody waits for pushes.
pub(crate) struct Interest(Arc<Tender>);

impl Tender {
    pub(super) fn new(link: Link) -> Self {
        Self { link, waiting: AtomicUsize::new(0), runs: AtomicBool::new(false) }
    }

    pub(super) fn interest(self: &Arc<Self>) -> Interest {
        self.waiting.fetch_add(1, Relaxed);
        if !self.runs.swap(true, Relaxed) {
            let running = Running(Arc::clone(self));
            if let Ok(runtime) = tokio::runtime::Handle::try_current() {
                runtime.spawn(async move { running.0.tend().await });
            }
        }
        if self.link.current().is_none() {
            self.link.pulse().attention.notify_one();
        }
        Interest(Arc::clone(self))
    }

    async fn tend(&self) {
        let mut failures = 0_u32;
        while !self.link.is_closed() {
            let pause = if self.waiting.load(Relaxed) == 0 {
                failures = 0;
                PING_EVERY
            } else if let Some(connection) = self.link.current() {
                match PING_EVERY.checked_sub(self.link.pulse().silent_for()) {
                    Some(quiet) if !quiet.is_zero() => quiet,
                    _ => {
                        let ping = redis::cmd("PING");
                        // A failure gives the connection up, which the next round sees.
                        let _ = connection.exchange(&ping, PING_LIMIT, PING_LIMIT).await;
                        Duration::from_millis(100)
                    }
                }
            } else {
                match self.link.connect().await {
                    Ok(_) => {
                        failures = 0;
                        continue;
                    }
                    Err(_) => failures += 1,
                }
                BACK_OFF.0.saturating_mul(1 << failures.min(8)).min(BACK_OFF.1)
            };
            tokio::select! {
                () = self.link.pulse().attention.notified(), if failures == 0 => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }
}

/// The task runs, until this is dropped, with its runtime if need be: the next interest starts
/// another one then.
struct Running(Arc<Tender>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.runs.store(false, Relaxed);
    }
}

impl fmt::Debug for Interest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Interest")
    }
}

impl Drop for Interest {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Relaxed);
    }
}
