//! The way to a server, shared by all who need it: it is made once, and a server that is down is left in peace.

pub mod connect_once;
pub mod outage;

use lock_core::OsRng;
use lock_core::backoff::Backoff;
use tokio::time::Instant;

/// Since when attempts fail, and so when the next one may begin.
struct Failures {
    backoff: Backoff,
    pause_until: Option<Instant>,
}

impl Failures {
    fn new(backoff: Backoff) -> Self {
        Self { backoff, pause_until: None }
    }

    fn one_more(&mut self) {
        self.pause_until = Some(Instant::now() + self.backoff.failed(&OsRng));
    }

    fn end(&mut self) {
        self.backoff.reset();
        self.pause_until = None;
    }

    /// When the next attempt begins, if it has to wait.
    fn pause_until(&self, now: Instant) -> Option<Instant> {
        self.pause_until.filter(|at| *at > now)
    }
}
