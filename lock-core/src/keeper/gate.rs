//! The line of the tasks of this process that want one name.
//!
//! The first of them goes to the store, the others wait behind it. On a store that does not serve its
//! waiters in order every waiter polls, and a hundred pollers in one process cost a hundred times as
//! much as one, to no benefit. A [cohort](super::cohort) passes a hold on along the same line, so
//! there it is used on every store.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::cohort::Pass;
use super::last::Last;
use super::terms::Terms;
use crate::{Clock, ClockInstant, LockKey};

/// The gates of one `Locks`, one for each name with waiters or a cohort.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gates(Arc<Mutex<HashMap<LockKey, Kept>>>);

#[derive(Debug)]
struct Kept {
    gate: Arc<Gate>,
    tickets: usize,
}

/// The line in front of one name.
#[derive(Debug)]
pub(crate) struct Gate {
    /// This process has released a lock with this name: try again at once.
    pub(super) released: Notify,
    /// The first has met an error: those in line check whether it is time to give up.
    pub(super) failed: Notify,
    local: Mutex<Local>,
}

#[derive(Debug, Default)]
struct Local {
    line: VecDeque<Arc<Place>>,
    /// The cohort that may pass its hold on, and until when.
    open: Option<(u64, ClockInstant)>,
    cohorts: u64,
    /// How often in a row the lock went from one task of this process to the next.
    streak: u32,
    /// The store's last answer to the first in line, for those behind it, and when the store last
    /// answered.
    last: Option<(Last, ClockInstant)>,
}

/// After this many hand-overs within one process the first in line is not told at once, so other
/// processes, which poll, get their turn.
const LONGEST_STREAK: u32 = 16;

/// One task in the line.
#[derive(Debug)]
struct Place {
    terms: Terms,
    /// Wakes the task when its turn may have come.
    turned: Notify,
    state: Mutex<State>,
}

#[derive(Debug)]
enum State {
    Waiting,
    /// It has been told that it is its turn: it asks the store, and no hold is passed to it.
    AtStore,
    /// It has been given a hold, which it has not taken yet.
    Given(Box<Pass>),
    Gone,
}

/// Whether a task may go to the store.
#[derive(Debug)]
pub(super) enum Turn {
    Now,
    /// A hold was passed to it.
    Passed(Box<Pass>),
    /// It is the first, and the cohort before it may pass its hold on until then.
    At(ClockInstant),
    /// Others are first.
    Later,
}

/// Keeps a gate; it is removed with the last one.
#[derive(Debug)]
pub(super) struct Ticket {
    gates: Gates,
    key: LockKey,
    pub(super) gate: Arc<Gate>,
}

/// A task's place in the line, which it leaves when this is dropped.
#[derive(Debug)]
pub(crate) struct Spot {
    ticket: Ticket,
    place: Arc<Place>,
}

/// A cohort that may pass its hold on. When this is dropped it has ended, and the first in line goes
/// to the store.
#[derive(Debug)]
pub(super) struct Opened {
    ticket: Ticket,
    id: u64,
}

impl Gates {
    /// Whether anybody waits for `key`, or may pass it on.
    pub(super) fn is_contended(&self, key: &LockKey) -> bool {
        self.lock().contains_key(key)
    }

    /// Takes the last place in the line for `key`.
    pub(super) fn enter(&self, key: &LockKey, terms: Terms) -> Spot {
        let ticket = self.ticket(key);
        let (turned, state) = (Notify::new(), Mutex::new(State::Waiting));
        let place = Arc::new(Place { terms, turned, state });
        ticket.gate.local().line.push_back(Arc::clone(&place));
        Spot { ticket, place }
    }

    /// Opens a cohort of `key` until then.
    pub(super) fn open(&self, key: &LockKey, until: ClockInstant) -> Opened {
        let ticket = self.ticket(key);
        let id = {
            let mut local = ticket.gate.local();
            local.cohorts += 1;
            local.open = Some((local.cohorts, until));
            local.cohorts
        };
        Opened { ticket, id }
    }

    fn ticket(&self, key: &LockKey) -> Ticket {
        let mut gates = self.lock();
        let kept = gates.entry(key.clone()).or_insert_with(|| {
            let (released, failed) = (Notify::new(), Notify::new());
            let gate = Arc::new(Gate { released, failed, local: Mutex::default() });
            Kept { gate, tickets: 0 }
        });
        kept.tickets += 1;
        Ticket { gates: self.clone(), key: key.clone(), gate: Arc::clone(&kept.gate) }
    }

    /// Tells the first in line, if there is one, that `key` was just released here.
    pub(crate) fn released(&self, key: &LockKey) {
        let gates = self.lock();
        if let Some(Kept { gate, .. }) = gates.get(key) {
            let mut local = gate.local();
            local.streak += 1;
            if local.streak > LONGEST_STREAK {
                local.streak = 0;
            } else {
                // Keeps the permit if the first is asking the store right now: no release is
                // missed.
                gate.released.notify_one();
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<LockKey, Kept>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Gate {
    /// Records what the store said to the first in line.
    pub(super) fn note(&self, last: Last, answered_at: ClockInstant) {
        let failed = matches!(last, Last::Failure(_));
        {
            let mut local = self.local();
            let before = local.last.take().map_or(answered_at, |(_, before)| before);
            local.last = Some((last, answered_at.max(before)));
        }
        if failed {
            self.failed.notify_waiters();
        }
    }

    /// What is known here of the lock, and since when: the store's last answer, or that a task of
    /// this process has it.
    pub(super) fn last(&self, now: ClockInstant) -> Option<(Last, ClockInstant)> {
        let local = self.local();
        match local.open {
            Some(_) => Some((Last::Answer(None), now)),
            None => local.last.clone(),
        }
    }

    fn local(&self) -> MutexGuard<'_, Local> {
        self.local.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Local {
    fn wake_first(&self) {
        if let Some(first) = self.line.front() {
            first.turned.notify_one();
        }
    }
}

impl Place {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Spot {
    pub(super) fn gate(&self) -> &Gate {
        &self.ticket.gate
    }

    /// Ready when [`turn`](Self::turn) may have changed; nothing is missed in between.
    pub(super) async fn turned(&self) {
        self.place.turned.notified().await;
    }

    /// Whether it is this task's turn. Once it is, no hold is passed to it any more.
    pub(super) fn turn(&self, clock: &dyn Clock) -> Turn {
        let local = self.ticket.gate.local();
        let mut state = self.place.state();
        if let State::Given(_) = *state
            && let State::Given(pass) = std::mem::replace(&mut *state, State::Gone)
        {
            return Turn::Passed(pass);
        }
        if !local.line.front().is_some_and(|first| Arc::ptr_eq(first, &self.place)) {
            return Turn::Later;
        }
        match local.open {
            // Read while the line is locked, as in `pass`: it goes to the store before or after the
            // moment until which holds are passed on.
            Some((_, until)) if clock.now() < until => Turn::At(until),
            _ => {
                *state = State::AtStore;
                Turn::Now
            }
        }
    }

    /// Leaves the line, for a task that no longer waits: the hold that was passed to it meanwhile,
    /// if any.
    pub(super) fn leave(self) -> Option<Box<Pass>> {
        match std::mem::replace(&mut *self.place.state(), State::Gone) {
            State::Given(pass) => Some(pass),
            State::Waiting | State::AtStore | State::Gone => None,
        }
    }
}

impl Drop for Spot {
    fn drop(&mut self) {
        let mut local = self.ticket.gate.local();
        local.line.retain(|place| !Arc::ptr_eq(place, &self.place));
        local.wake_first();
    }
}

impl Opened {
    /// Gives the hold to the first in line if that waits for one on these `terms` and the cohort
    /// has not ended; otherwise returns it.
    pub(super) fn pass(pass: Box<Pass>, clock: &dyn Clock) -> Result<(), Box<Pass>> {
        let Self { ticket, id } = pass.opened();
        let (gate, id) = (Arc::clone(&ticket.gate), *id);
        let mut local = gate.local();
        let is_gone = |place: &Arc<Place>| matches!(*place.state(), State::Gone);
        while local.line.front().is_some_and(is_gone) {
            local.line.pop_front();
        }
        let Some(first) = local.line.front() else { return Err(pass) };
        let mut state = first.state();
        let is_open = local.open.is_some_and(|(open, until)| open == id && clock.now() < until);
        if !is_open || !matches!(*state, State::Waiting) || !pass.suits(&first.terms) {
            drop(state);
            drop(local);
            return Err(pass);
        }
        *state = State::Given(pass);
        first.turned.notify_one();
        drop(state);
        local.line.pop_front();
        Ok(())
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        let mut local = self.ticket.gate.local();
        local.open = local.open.filter(|(open, _)| *open != self.id);
        local.wake_first();
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut gates = self.gates.lock();
        if let Some(kept) = gates.get_mut(&self.key) {
            kept.tickets -= 1;
            if kept.tickets == 0 {
                gates.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::testing::ManualClock;

    fn gates() -> (Gates, LockKey, Terms) {
        (Gates::default(), LockKey::new("", "a").unwrap(), Terms::for_a_test())
    }

    #[test]
    fn a_gate_lives_as_long_as_its_line() {
        let (gates, key, terms) = gates();
        let (first, second) = (gates.enter(&key, terms.clone()), gates.enter(&key, terms));
        assert!(Arc::ptr_eq(&first.ticket.gate, &second.ticket.gate));
        drop(first);
        assert!(gates.is_contended(&key));
        drop(second);
        assert!(!gates.is_contended(&key));
    }

    #[test]
    fn a_cohort_keeps_the_first_in_line_waiting_until_its_time_is_over() {
        let (gates, key, terms) = gates();
        let clock = ManualClock::default();
        let until = clock.now() + Duration::from_millis(50);
        let (before, open) = (gates.open(&key, clock.now()), gates.open(&key, until));
        // That one belongs to a hold which has been lost meanwhile.
        drop(before);
        let spot = gates.enter(&key, terms);
        assert!(matches!(spot.turn(&clock), Turn::At(at) if at == until));
        clock.advance(Duration::from_millis(50));
        assert!(matches!(spot.turn(&clock), Turn::Now));
        drop(open);
        assert!(matches!(spot.turn(&clock), Turn::Now));
    }

    #[tokio::test]
    async fn a_streak_of_local_hand_overs_ends() {
        let (gates, key, terms) = gates();
        let spot = gates.enter(&key, terms);
        let mut told = Vec::new();
        for _ in 0..LONGEST_STREAK + 2 {
            gates.released(&key);
            let notified = spot.gate().released.notified();
            told.push(tokio::time::timeout(Duration::ZERO, notified).await.is_ok());
        }
        let mut expected = [true; LONGEST_STREAK as usize + 2];
        expected[LONGEST_STREAK as usize] = false;
        assert_eq!(told, expected);
    }
}
