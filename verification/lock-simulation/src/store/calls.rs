//! The order of a claim's calls: the contract's table of legal sequences, as a check.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lock_core::{Attempt, Renewal, Result};

use crate::property::{Property, Violation};
use crate::world::World;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    TryAcquire,
    Renew,
    Check,
    Release,
    Changed,
    Detach,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    New,
    Resumed,
    Waiting,
    Refused,
    Held,
    PlaceLost,
    Lost,
    /// An attempt has failed.
    Unknown,
    /// This call goes on, or was dropped.
    Running(Call),
    /// A release has been answered, or has failed.
    Done,
    Detached,
}

impl State {
    fn allows(self, call: Call) -> bool {
        use Call::{Changed, Check, Detach, Release, Renew, TryAcquire};
        let allowed: &[Call] = match self {
            Self::New | Self::Refused | Self::PlaceLost => &[TryAcquire, Release],
            Self::Resumed => &[Renew, Check, Release],
            Self::Waiting => &[TryAcquire, Changed, Renew, Check, Release],
            Self::Held => &[TryAcquire, Renew, Check, Changed, Detach, Release],
            Self::Unknown => &[TryAcquire, Changed, Check, Release],
            Self::Lost | Self::Done | Self::Detached => &[Release],
            Self::Running(_) => &[],
        };
        allowed.contains(&call)
    }
}

/// The calls of one claim.
#[derive(Clone, Debug)]
pub(crate) struct Calls {
    world: World,
    state: Arc<Mutex<Progress>>,
}

#[derive(Debug)]
struct Progress {
    state: State,
    is_held: bool,
    waits: bool,
}

/// A call in progress, and the state before it. Only `changed` may be dropped.
#[must_use]
pub(crate) struct InProgress(Calls, State);

impl Calls {
    pub(crate) fn new(world: &World, is_resumed: bool, waits: bool) -> Self {
        let state = if is_resumed { State::Resumed } else { State::New };
        let state = Arc::new(Mutex::new(Progress { state, is_held: is_resumed, waits }));
        Self { world: world.clone(), state }
    }

    pub(crate) fn begin(&self, call: Call) -> InProgress {
        let mut progress = self.progress();
        let before = progress.state;
        if !before.allows(call) {
            let what = format!("{call:?} of a claim that is {before:?}");
            self.world.violated(Violation::new(Property::LegalCalls, what));
        }
        if call != Call::Changed {
            progress.state = State::Running(call);
        }
        InProgress(self.clone(), before)
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl InProgress {
    pub(crate) fn acquired(self, answer: &Result<Attempt>) {
        let mut progress = self.0.progress();
        progress.state = match answer {
            Ok(Attempt::Granted { .. }) => State::Held,
            Ok(_) if progress.waits => State::Waiting,
            Ok(_) => State::Refused,
            Err(_) => State::Unknown,
        };
        if answer.is_ok() {
            progress.is_held = progress.state == State::Held;
        }
    }

    /// The answer to a renewal or a check.
    pub(crate) fn renewed(self, answer: &Result<Renewal>) {
        let mut progress = self.0.progress();
        let is_held = progress.is_held;
        progress.state = match (answer, self.1) {
            // What an attempt has done is not known from this.
            (_, State::Unknown) | (Err(_), _) => self.1,
            (Ok(Renewal::Lost), _) => {
                if is_held {
                    State::Lost
                } else {
                    State::PlaceLost
                }
            }
            (Ok(_), _) => {
                if is_held {
                    State::Held
                } else {
                    State::Waiting
                }
            }
        };
    }

    pub(crate) fn released(self) {
        self.0.progress().state = State::Done;
    }

    /// After an answer that is too late for whoever has asked for it, the core goes on with the hold.
    pub(crate) fn detached<T>(self, answer: &Result<T>, in_time: bool) {
        let is_detached = answer.is_ok() && in_time;
        self.0.progress().state = if is_detached { State::Detached } else { self.1 };
    }
}
