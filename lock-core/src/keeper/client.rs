//! What all locks and keepers of one `Locks` share.

use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::gate::Gates;
use crate::{Capabilities, Clock, Error, ErrorKind, LockBackend, LockKey, Operation, Result, Rng};

#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) backend: Arc<dyn LockBackend>,
    pub(crate) capabilities: Capabilities,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) rng: Arc<dyn Rng>,
    /// Where the keepers run; `None` if this was not built inside of a runtime.
    pub(crate) runtime: Option<Handle>,
    pub(crate) prefix: Arc<str>,
    pub(crate) defaults: Defaults,
    pub(crate) gates: Gates,
    pub(crate) keepers: TaskTracker,
    /// No new claims; those that wait give up.
    pub(crate) closing: CancellationToken,
    /// Clean-up ends at once: the backend is being closed.
    pub(crate) killed: CancellationToken,
    /// Where the grid of renewals begins, so that processes do not renew in step.
    pub(crate) grid_phase: u64,
}

/// A panic leaves nothing half-done: what is shared is changed in single steps, and a lock that a panic
/// has poisoned is used on.
impl UnwindSafe for Client {}
impl RefUnwindSafe for Client {}

/// What a lock starts with unless it is told otherwise.
#[derive(Clone, Debug)]
pub(crate) struct Defaults {
    /// `None`: 30 s, or what the store allows.
    pub(crate) ttl: Option<Duration>,
    pub(crate) call_timeout: Option<Duration>,
    pub(crate) unavailable_after: Duration,
    pub(crate) label: Option<Arc<str>>,
}

impl Client {
    pub(crate) fn runtime(&self) -> Result<Handle> {
        match &self.runtime {
            Some(runtime) => Ok(runtime.clone()),
            None => Handle::try_current().map_err(|_| no_runtime()),
        }
    }

    /// Says of what and where `error` is.
    pub(crate) fn describe(&self, error: Error, operation: Operation, key: &LockKey) -> Error {
        error.in_operation(operation).for_key(key).on_backend(self.backend.name())
    }

    /// The error for a keeper that vanished: its runtime has ended.
    pub(crate) fn keeper_gone(&self) -> Error {
        Error::new(
            ErrorKind::Closed,
            "the task that keeps this lock has ended: the Tokio runtime on which the `Locks` was built has gone (build it on the one that lives longest), or the backend has panicked",
        )
        .with_unknown_effect()
        .on_backend(self.backend.name())
    }

    /// The error for a keeper that did not answer by its own limit, `waited` ago: nobody drives its
    /// runtime. What was asked is given up when it goes on.
    pub(crate) fn standstill(&self, waited: Duration) -> Error {
        Error::new(
            ErrorKind::NoAnswer,
            format!("the task that keeps this lock did not answer within {waited:.1?}: nobody drives the Tokio runtime on which the `Locks` was built, or the machine is overloaded (build it on a runtime that is driven all the time)"),
        )
        .on_backend(self.backend.name())
    }
}

/// How much later than a limit of the keeper its caller gives it up. An answer that comes in time says
/// more, so a busy machine gets a moment.
pub(crate) const GRACE: Duration = Duration::from_millis(250);

fn no_runtime() -> Error {
    Error::config(
        "there is no Tokio runtime here: build the `Locks` inside of one, or pass its handle to `LocksBuilder::runtime`",
    )
}
