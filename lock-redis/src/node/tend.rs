//! Keeping the connection up while somebody waits for pushes.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lock_core::ErrorKind;

use super::link::Link;

/// A waiting client that has heard nothing for so long asks whether the server is there.
const PING_EVERY: Duration = Duration::from_secs(2);
/// How long it waits for the answer to that.
const PING_LIMIT: Duration = Duration::from_secs(1);
/// The pause after that, and for how long the task waits for a connection before it looks whether it is
/// still wanted.
const PAUSE: Duration = Duration::from_millis(100);
const CONNECTING: Duration = Duration::from_secs(3);

/// Keeps the connection up, and watches it, for as long as somebody waits for pushes.
pub(super) struct Tender {
    link: Link,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// How many wait for pushes.
    waiting: usize,
    /// The task runs.
    runs: bool,
}

/// Somebody waits for pushes.
pub(crate) struct Interest(Arc<Tender>);

impl Tender {
    pub(super) fn new(link: Link) -> Self {
        Self { link, state: Mutex::default() }
    }

    pub(super) fn interest(self: &Arc<Self>) -> Interest {
        let begins = {
            let mut state = self.state();
            state.waiting += 1;
            !std::mem::replace(&mut state.runs, true)
        };
        if begins {
            // Made before the task, which may end with its runtime before it has begun.
            let running = Running(Arc::clone(self));
            self.link.pulse().tasks.spawn(async move { running.0.tend().await });
        } else if self.link.current().is_none() {
            self.link.pulse().attention.notify_one();
        }
        Interest(Arc::clone(self))
    }

    async fn tend(&self) {
        let pulse = self.link.pulse();
        while self.is_wanted() {
            let pause = match self.link.current() {
                None => {
                    // Attempts that fail are spaced by the link.
                    let made = self.link.connection(pulse.clock.now() + CONNECTING).await;
                    if made.is_err_and(|error| error.kind() == ErrorKind::Closed) {
                        return;
                    }
                    continue;
                }
                Some(connection) => match PING_EVERY.saturating_sub(pulse.silent_for()) {
                    Duration::ZERO => {
                        let ping = redis::cmd("PING");
                        // A failure gives the connection up, which the next round sees.
                        let _ = connection.exchange(&ping, PING_LIMIT, PING_LIMIT).await;
                        PAUSE
                    }
                    left => left,
                },
            };
            tokio::select! {
                () = pulse.attention.notified() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Whether somebody waits. If nobody does, the task ends, and the next interest begins another one.
    fn is_wanted(&self) -> bool {
        let mut state = self.state();
        state.runs = state.waiting > 0;
        state.runs
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The task runs, until this is dropped, with its runtime if need be.
struct Running(Arc<Tender>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.state().runs = false;
    }
}

impl fmt::Debug for Interest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Interest")
    }
}

impl Drop for Interest {
    fn drop(&mut self) {
        self.0.state().waiting -= 1;
    }
}
