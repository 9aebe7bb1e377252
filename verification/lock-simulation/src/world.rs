//! Virtual time, and everything that is due at some time.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::choices::{Choices, Decisions, Scenario};
use crate::property::Variant;
use crate::property::Violation;

/// Nanoseconds of virtual time since the beginning of the run.
pub(crate) type Time = u64;

pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// The shared state of a run. Only one thread uses it: the lock is there because the core demands
/// `Send`.
#[derive(Clone)]
pub(crate) struct World(Arc<Shared>);

struct Shared {
    variant: Option<Variant>,
    scenario: Scenario,
    is_told: bool,
    state: Mutex<State>,
}

struct State {
    now: Time,
    choices: Choices,
    due: BTreeMap<At, Due>,
    next_id: u64,
    /// Changed by everything that may make a task ready.
    activity: u64,
    is_healed: bool,
    /// The task of a user that is being polled.
    task: Option<usize>,
    violation: Option<Violation>,
    story: Vec<String>,
}

/// When something is due. Among what is due at the same time the second number decides, which is a
/// choice.
type At = (Time, usize, u64);

enum Due {
    Wake(Waker),
    Act(Box<dyn FnOnce() + Send>),
}

impl World {
    pub(crate) fn new(choices: Choices, variant: Option<Variant>, is_told: bool) -> Self {
        let scenario = choices.scenario();
        #[cfg(distlock_mutants)]
        lock_core::mutants::make(match variant {
            Some(Variant::Mistake(mistake)) => Some(mistake),
            _ => None,
        });
        let state = State {
            now: 0,
            choices,
            due: BTreeMap::new(),
            next_id: 0,
            activity: 0,
            is_healed: false,
            task: None,
            violation: None,
            story: Vec::new(),
        };
        Self(Arc::new(Shared { variant, scenario, is_told, state: Mutex::new(state) }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn now(&self) -> Time {
        self.state().now
    }

    pub(crate) fn below(&self, limit: usize) -> usize {
        self.state().choices.below(limit)
    }

    pub(crate) fn one_in(&self, times: usize) -> bool {
        self.state().choices.one_in(times)
    }

    /// A fault happens, once in so many times, until the world is healed.
    pub(crate) fn fault(&self, times: usize) -> bool {
        let mut state = self.state();
        !state.is_healed && state.choices.one_in(times)
    }

    pub(crate) fn duration(&self, longest: Duration) -> Duration {
        self.state().choices.duration(longest)
    }

    /// Whether the run has this besides the ordinary.
    pub(crate) fn has(&self, scenario: Scenario) -> bool {
        self.0.scenario.has(scenario)
    }

    /// Whether a process may be closed, or a runtime end: what it held then lasts for as long as its lease,
    /// and its tasks get nothing any more.
    pub(crate) fn loses_processes(&self) -> bool {
        !self.has(Scenario::LONG_TTL) && !self.has(Scenario::CROWD)
    }

    /// Whether this wrong variant is simulated.
    pub(crate) fn is_wrong(&self, variant: Variant) -> bool {
        self.0.variant == Some(variant)
    }

    /// No more faults from now on.
    pub(crate) fn heal(&self) {
        self.state().is_healed = true;
        self.stir();
    }

    pub(crate) fn is_healed(&self) -> bool {
        self.state().is_healed
    }

    /// Something has happened that may make a task ready.
    pub(crate) fn stir(&self) {
        self.state().activity += 1;
    }

    pub(crate) fn activity(&self) -> u64 {
        self.state().activity
    }

    /// Says that this task of a user is polled from now on, or a runtime on which keepers go on.
    pub(crate) fn set_task(&self, task: Option<usize>) {
        self.state().task = task;
    }

    pub(crate) fn task(&self) -> Option<usize> {
        self.state().task
    }

    /// Says what happens, if anybody wants to know.
    pub(crate) fn tell(&self, what: impl FnOnce() -> String) {
        if self.0.is_told {
            let what = what();
            let mut state = self.state();
            let line =
                format!("{:10.3} ms  {what}", Duration::from_nanos(state.now).as_secs_f64() * 1e3);
            state.story.push(line);
        }
    }

    /// What was told.
    pub(crate) fn story(&self) -> Vec<String> {
        std::mem::take(&mut self.state().story)
    }

    /// Only the first violation counts.
    pub(crate) fn violated(&self, violation: Violation) {
        self.tell(|| violation.to_string());
        self.state().violation.get_or_insert(violation);
    }

    pub(crate) fn violation(&self) -> Option<Violation> {
        self.state().violation.clone()
    }

    /// The choices that were made.
    pub(crate) fn taken(&self) -> Decisions {
        self.state().choices.clone().taken()
    }

    /// Does something `after` a while, whoever still cares.
    pub(crate) fn later(&self, after: Duration, act: impl FnOnce() + Send + 'static) {
        let mut state = self.state();
        let at = state.now.saturating_add(nanos(after));
        state.plan(at, Due::Act(Box::new(act)));
    }

    pub(crate) fn sleep_until(&self, at: Time) -> Timer {
        Timer { world: self.clone(), at, planned: None }
    }

    pub(crate) fn sleep(&self, duration: Duration) -> Timer {
        self.sleep_until(self.now().saturating_add(nanos(duration)))
    }

    /// The time of what is due next.
    pub(crate) fn next_due(&self) -> Option<Time> {
        self.state().due.first_key_value().map(|((at, ..), _)| *at)
    }

    /// Does the first thing that is due now.
    pub(crate) fn step(&self) {
        let due = {
            let mut state = self.state();
            let now = state.now;
            let Some(first) = state.due.first_entry().filter(|first| first.key().0 <= now) else {
                return;
            };
            let due = first.remove();
            state.activity += 1;
            due
        };
        match due {
            Due::Wake(waker) => waker.wake(),
            Due::Act(act) => act(),
        }
    }

    pub(crate) fn advance(&self, to: Time) {
        let mut state = self.state();
        state.now = state.now.max(to);
    }
}

impl State {
    fn plan(&mut self, at: Time, due: Due) -> At {
        self.next_id += 1;
        self.activity += 1;
        let at = (at, self.choices.below(3), self.next_id);
        self.due.insert(at, due);
        at
    }
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World").field("now", &self.now()).finish_non_exhaustive()
    }
}

/// Ready at a time.
pub(crate) struct Timer {
    world: World,
    at: Time,
    planned: Option<At>,
}

impl Timer {
    fn forget(&mut self) {
        let old = self.planned.take().and_then(|at| self.world.state().due.remove(&at));
        // A waker is dropped only after the lock, since dropping one may run anything.
        drop(old);
    }
}

impl Future for Timer {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.forget();
        let mut state = self.world.state();
        if state.now >= self.at {
            return Poll::Ready(());
        }
        let at = self.at;
        let planned = (at != Time::MAX).then(|| state.plan(at, Due::Wake(cx.waker().clone())));
        drop(state);
        self.planned = planned;
        Poll::Pending
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        self.forget();
    }
}
