//! The state shared by all locks and keepers of one `Locks`.

use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use super::gate::Gates;
use super::looks::Looks;
use crate::{Capabilities, Clock, Error, ErrorKind, LockBackend, LockKey, Operation, Result, Rng};

#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) backend: Arc<dyn LockBackend>,
    pub(crate) capabilities: Capabilities,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) rng: Arc<dyn Rng>,
    /// Where the keepers run; `None` if this was not built inside a runtime.
    pub(crate) runtime: Option<Home>,
    pub(crate) prefix: Arc<str>,
    pub(crate) defaults: Defaults,
    pub(crate) gates: Gates,
    pub(crate) looks: Looks,
    pub(crate) keepers: TaskTracker,
    /// No new claims; waiting ones give up.
    pub(crate) closing: CancellationToken,
    /// Clean-up ends at once: the backend is being closed.
    pub(crate) killed: CancellationToken,
    /// Where the grid of renewals begins, so processes do not renew in step.
    pub(crate) grid_phase: u64,
}

/// A runtime that is driven by somebody else, and may end.
#[derive(Debug)]
pub(crate) struct Home {
    handle: Handle,
    /// Ends with the runtime. A lock that is taken after that would be kept by nobody.
    lives: AbortOnDropHandle<()>,
}

impl Home {
    pub(crate) fn new(handle: Handle) -> Self {
        let lives = AbortOnDropHandle::new(handle.spawn(std::future::pending()));
        Self { handle, lives }
    }
}

/// A panic leaves nothing half-done: shared state changes in single steps, and a mutex poisoned by
/// a panic stays in use.
impl UnwindSafe for Client {}
impl RefUnwindSafe for Client {}

/// A lock's settings unless it overrides them.
#[derive(Clone, Debug)]
pub(crate) struct Defaults {
    /// `None`: 30 s, or what the store allows.
    pub(crate) ttl: Option<Duration>,
    pub(crate) call_timeout: Option<Duration>,
    pub(crate) unavailable_after: Duration,
    pub(crate) label: Option<Arc<str>>,
    pub(crate) cohort: u32,
}

impl Client {
    pub(crate) fn runtime(&self) -> Result<Handle> {
        match &self.runtime {
            Some(home) if home.lives.is_finished() => Err(self.keeper_gone()),
            Some(home) => Ok(home.handle.clone()),
            None => Handle::try_current().map_err(|_| no_runtime()),
        }
    }

    /// Adds the operation, the lock and the backend to `error`.
    pub(crate) fn describe(&self, error: Error, operation: Operation, key: &LockKey) -> Error {
        error.in_operation(operation).for_key(key).on_backend(self.backend.name())
    }

    /// The error for a keeper that vanished: its runtime has ended.
    pub(crate) fn keeper_gone(&self) -> Error {
        Error::new(
            ErrorKind::Closed,
            "the task that keeps this lock has ended: the Tokio runtime on which the `Locks` was built has shut down (build it on the one that lives longest), or the backend has panicked",
        )
        .with_unknown_effect()
        .on_backend(self.backend.name())
    }

    /// The error for a keeper that did not answer by its own limit, `waited` ago: its runtime is
    /// not driven. When it resumes, the request is given up.
    pub(crate) fn standstill(&self, waited: Duration) -> Error {
        Error::new(
            ErrorKind::NoAnswer,
            format!("the task that keeps this lock did not answer within {waited:.1?}: the Tokio runtime on which the `Locks` was built is not driven, or the machine is overloaded (build it on a runtime that is driven all the time)"),
        )
        .on_backend(self.backend.name())
    }
}

/// How long after the keeper's limit its caller gives up on it. The keeper's own answer says more,
/// so a busy machine gets a moment.
pub(crate) const GRACE: Duration = Duration::from_millis(250);

fn no_runtime() -> Error {
    Error::config(
        "there is no Tokio runtime here: build the `Locks` inside one, or pass its handle to `LocksBuilder::runtime`",
    )
}
