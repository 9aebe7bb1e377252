//! The state shared by all locks and keepers of one `Locks`.

use std::future::{Future, poll_fn};
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::mutex::Mutex;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::line::LocalLines;
use super::polling::KeeperRuntime;
use super::{Patience, no_answer};
use crate::hold::{Defaults, Options};
use crate::kinds::KindsInUse;
use crate::{
    Capabilities, Clock, ClockInstant, Error, ErrorKind, LockBackend, LockEvent, LockKey,
    LockObserver, Operation, Result, Rng, Seen,
};

#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) backend: Arc<dyn LockBackend>,
    pub(crate) observers: Vec<Arc<dyn LockObserver>>,
    pub(crate) capabilities: Capabilities,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) rng: Arc<dyn Rng>,
    /// Where the keepers run; `None` if this was not built inside a runtime.
    pub(crate) runtime: Option<Arc<KeeperRuntime>>,
    /// Otherwise those of the callers.
    pub(crate) visited: Mutex<Vec<Arc<KeeperRuntime>>>,
    pub(crate) prefix: Arc<str>,
    pub(crate) defaults: Defaults,
    pub(crate) lines: LocalLines,
    pub(crate) kinds: KindsInUse,
    pub(crate) silent_store: SilentStore,
    pub(crate) keepers: TaskTracker,
    /// No new claims; waiting ones give up.
    pub(crate) closing: CancellationToken,
    /// Clean-up ends at once: the backend is being closed.
    pub(crate) killed: CancellationToken,
    /// Where the grid of renewals begins, so processes do not renew in step.
    pub(crate) grid_phase: u64,
}

/// A panic leaves nothing half-done: shared state changes in single steps, and a mutex poisoned by
/// a panic stays in use.
impl UnwindSafe for Client {}
impl RefUnwindSafe for Client {}

impl Client {
    /// Where a new keeper runs.
    pub(crate) fn home(&self) -> Result<Arc<KeeperRuntime>> {
        let home = match &self.runtime {
            Some(home) => Arc::clone(home),
            None => self.visit(Handle::try_current().map_err(|_| {
                Error::config(
                    "there is no Tokio runtime here: build the `Locks` inside one, or pass its handle to `LocksBuilder::runtime`",
                )
            })?),
        };
        if home.ended().is_cancelled() && !self.killed.is_cancelled() {
            return Err(self.keeper_gone());
        }
        Ok(home)
    }

    /// Polls a call of the store where the keepers run. A connection that it opens belongs to that runtime, and
    /// not to the caller's, which may end at once.
    pub(crate) async fn at_home<T>(&self, call: impl Future<Output = T>) -> T {
        let mut call = pin!(call);
        let home = self.runtime.as_ref().filter(|home| !home.is_over());
        poll_fn(|cx| {
            let _inside = home.map(|home| home.handle().enter());
            call.as_mut().poll(cx)
        })
        .await
    }

    fn visit(&self, handle: Handle) -> Arc<KeeperRuntime> {
        let mut visited = self.visited.lock();
        if let Some(home) = visited.iter().find(|home| home.handle().id() == handle.id()) {
            return Arc::clone(home);
        }
        visited.retain(|home| !home.ended().is_cancelled());
        let home = KeeperRuntime::new(handle, &self.killed);
        visited.push(Arc::clone(&home));
        home
    }

    /// Tells all who watch.
    pub(crate) fn tell(&self, lock: Option<&LockKey>, event: LockEvent<'_>) {
        for observer in &self.observers {
            observer.observe(self.backend.name(), lock, event);
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

impl Client {
    /// That of a caller who waits for at most `limit` from now on.
    pub(crate) fn patience(&self, limit: Duration) -> Patience {
        if limit.is_zero() { Patience::Try } else { Patience::Until(self.clock.now() + limit) }
    }

    /// # Errors
    ///
    /// If the `Locks` was closed.
    pub(super) fn check_open(&self) -> Result<()> {
        if self.closing.is_cancelled() {
            return Err(Error::new(ErrorKind::Closed, "this connection to the store was closed"));
        }
        Ok(())
    }
}

/// Calls that belong to no claim.
impl Client {
    /// The limit for one of them.
    pub(crate) fn call_limit(&self) -> Duration {
        self.defaults.call_timeout.unwrap_or(Options::LONGEST_CALL)
    }

    /// One of them, which is dropped at its limit.
    pub(crate) async fn within<T>(
        &self,
        limit: Duration,
        operation: Operation,
        call: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let answer = tokio::select! {
            biased;
            answer = self.at_home(call) => answer,
            () = self.clock.sleep(limit) => Err(no_answer(limit)),
        };
        answer.map_err(|error| error.in_operation(operation).on_backend(self.backend.name()))
    }

    /// Whether somebody has these locks, in the order of the keys (clause C18).
    pub(crate) async fn look(&self, keys: &[LockKey]) -> Result<Vec<Seen>> {
        self.check_look()?;
        let look = async {
            let seen = self.backend.look(keys).await?;
            if seen.len() == keys.len() {
                return Ok(seen);
            }
            let text =
                format!("the store was asked for {} names and showed {}", keys.len(), seen.len());
            Err(Error::new(ErrorKind::Store, text))
        };
        let (operation, lock) = (Operation::Look, keys.first().filter(|_| keys.len() == 1));
        let failed = |error: &Error| self.tell(lock, LockEvent::CallFailed { operation, error });
        self.within(self.call_limit(), operation, look).await.inspect_err(failed)
    }

    /// # Errors
    ///
    /// If a [`look`](Self::look) would send nothing.
    pub(crate) fn check_look(&self) -> Result<()> {
        let backend = self.backend.name();
        let can_look = || {
            if self.capabilities.look {
                return Ok(());
            }
            let text = format!("{backend} cannot show who has a lock at this moment");
            Err(Error::unsupported(text))
        };
        let checked = self.check_open().and_then(|()| can_look());
        checked.map_err(|error| error.in_operation(Operation::Look).on_backend(backend))
    }
}

/// How long after the keeper's limit its caller gives up on it. The keeper's own answer says more,
/// so a busy machine gets a moment.
pub(crate) const STANDSTILL_GRACE: Duration = Duration::from_millis(250);

/// So many looks are made in this time while none is answered. A call may take seconds to find out that a
/// store keeps silent, and a thousand waiters would all ask it meanwhile.
const MOST: (u32, Duration) = (8, Duration::from_secs(1));

/// So many pauses a look is put off at the most: with a thousand waiters, each wakes about once a second, and not twenty times.
const MOST_PAUSES: u32 = 16;

/// The looks of waiters that have heard nothing from a store that pushes.
#[derive(Debug, Default)]
pub(crate) struct SilentStore {
    silence: Mutex<Silence>,
    /// How many were asked for since then, or since an answer. Apart from the time, so that an answer takes no
    /// lock.
    unanswered: AtomicU32,
}

#[derive(Debug, Default)]
struct Silence {
    /// When the looks were last counted from nothing.
    since: Option<ClockInstant>,
    /// How the last of them failed, and when.
    failure: Option<(Error, ClockInstant)>,
}

impl SilentStore {
    /// By how many pauses another one is put off at `now`: the more were asked for, the more. With none, it may be made.
    pub(super) fn pauses_before(&self, now: ClockInstant) -> u32 {
        let (most, within) = MOST;
        let mut silence = self.silence.lock();
        if silence.since.is_none_or(|since| now.since(since) >= within) {
            silence.since = Some(now);
            self.unanswered.store(0, Relaxed);
        }
        (self.unanswered.fetch_add(1, Relaxed) / most).min(MOST_PAUSES)
    }

    /// The store has answered.
    pub(super) fn answered(&self) {
        if self.unanswered.load(Relaxed) > 0 {
            self.unanswered.store(0, Relaxed);
            self.silence.lock().failure = None;
        }
    }

    /// A call of a waiter has failed.
    pub(super) fn failed(&self, error: &Error, now: ClockInstant) {
        self.unanswered.fetch_max(1, Relaxed);
        self.silence.lock().failure = Some((error.clone(), now));
    }

    /// What the others have met, if the store has answered nobody since, and a waiter not since `answered_at`.
    pub(super) fn failure(&self, answered_at: ClockInstant) -> Option<Error> {
        let silence = self.silence.lock();
        silence.failure.as_ref().filter(|(_, at)| *at > answered_at).map(|(error, _)| error.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_answers_nobody_is_asked_by_few() {
        let looks = SilentStore::default();
        let (most, within) = MOST;
        let at = |ms: u64| ClockInstant::from_nanos(ms * 1_000_000);
        let pauses: Vec<_> = (0..1_000).map(|ms| looks.pauses_before(at(ms))).collect();
        assert_eq!(pauses.iter().filter(|pauses| **pauses == 0).count(), most as usize);
        // Who comes later is put off for longer, within a limit.
        assert!(pauses.is_sorted());
        assert_eq!((pauses[most as usize], pauses[999]), (1, MOST_PAUSES));
        // Nobody is kept from asking for ever.
        let later = 1 + u64::try_from(within.as_millis()).unwrap();
        assert_eq!(looks.pauses_before(at(later)), 0);
        // A store that answers is asked by all.
        let all_ask = |ms| {
            looks.answered();
            looks.pauses_before(at(ms)) == 0
        };
        assert!((later..later + 900).all(all_ask));
    }
}
