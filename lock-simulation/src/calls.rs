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
    /// This call failed, was dropped, or is in progress.
    Unknown(Call),
    Done,
    Detached,
}

impl State {
    fn allows(self, call: Call) -> bool {
        use Call::{Changed, Check, Detach, Release, Renew, TryAcquire};
        let allowed: &[Call] = match self {
            Self::New | Self::Refused | Self::PlaceLost => &[TryAcquire],
            Self::Resumed => &[Renew, Check],
            Self::Waiting => &[TryAcquire, Changed, Renew, Check],
            Self::Held => &[TryAcquire, Renew, Check, Changed, Detach],
            Self::Unknown(same) => &[same, Changed, Check],
            Self::Lost | Self::Done | Self::Detached => &[],
        };
        call == Release || allowed.contains(&call)
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

/// A call in progress. If it is dropped, its effect is unknown.
#[must_use]
pub(crate) struct InProgress(Calls);

impl Calls {
    pub(crate) fn new(world: &World, is_resumed: bool, waits: bool) -> Self {
        let state = if is_resumed { State::Resumed } else { State::New };
        let state = Arc::new(Mutex::new(Progress { state, is_held: is_resumed, waits }));
        Self { world: world.clone(), state }
    }

    pub(crate) fn begin(&self, call: Call) -> InProgress {
        let mut progress = self.progress();
        if !progress.state.allows(call) {
            let what = format!("{call:?} of a claim that is {:?}", progress.state);
            self.world.violated(Violation::new(Property::LegalCalls, what));
        }
        if !matches!(call, Call::Changed | Call::Check) {
            progress.state = State::Unknown(call);
        }
        InProgress(self.clone())
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl InProgress {
    pub(crate) fn acquired(self, answer: &Result<Attempt>) {
        let mut progress = self.0.progress();
        match answer {
            Ok(Attempt::Granted { .. }) => {
                progress.is_held = true;
                progress.state = State::Held;
            }
            Ok(_) => {
                progress.is_held = false;
                progress.state = if progress.waits { State::Waiting } else { State::Refused };
            }
            Err(_) => {}
        }
    }

    /// The answer to a renewal or a check.
    pub(crate) fn renewed(self, answer: &Result<Renewal>) {
        let mut progress = self.0.progress();
        let is_held = progress.is_held;
        match (answer, progress.state) {
            // What an attempt has done is not known from this.
            (_, State::Unknown(Call::TryAcquire)) => {}
            (Ok(Renewal::Alive { .. }), _) => {
                progress.state = if is_held { State::Held } else { State::Waiting };
            }
            (Ok(Renewal::Lost), _) => {
                progress.state = if is_held { State::Lost } else { State::PlaceLost };
            }
            _ => {}
        }
    }

    /// The end of a release or of a detach.
    pub(crate) fn ended<T>(self, answer: &Result<T>, leads_to_done: bool) {
        if answer.is_ok() {
            self.0.progress().state = if leads_to_done { State::Done } else { State::Detached };
        }
    }
}
