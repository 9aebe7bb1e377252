//! One task of a process waits at the store, the others wait behind it.
//!
//! Only for stores that do not serve their waiters in order: there every waiter polls, and a
//! hundred pollers of one process cost a hundred times as much as one and help nobody.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, Semaphore};

use super::last::Last;
use crate::{ClockInstant, LockKey};

/// The gates of one `Locks`, one for each name that somebody waits for.
#[derive(Debug, Default)]
pub(crate) struct Gates(Mutex<HashMap<LockKey, Arc<Gate>>>);

/// The waiting line in front of one name.
#[derive(Debug)]
pub(crate) struct Gate {
    /// Held by the one who polls. Fair: first come, first served.
    pub(crate) turn: Semaphore,
    /// A lock of this process with this name was released: worth a look at once.
    pub(crate) released: Notify,
    /// The poller has met an error: those in line look whether it is time to give up.
    pub(crate) failed: Notify,
    local: Mutex<Local>,
}

#[derive(Debug, Default)]
struct Local {
    /// How often in a row the lock went from one task of this process to the next.
    streak: u32,
    /// What the store said last to the one who polled, for those behind, and when it last said anything.
    last: Option<(Last, ClockInstant)>,
}

/// After so many hand-overs inside of one process the next poller is not told at once, so that other
/// processes, which poll, get their turn.
const LONGEST_STREAK: u32 = 16;

/// A place in the line; the gate goes when the last one leaves.
#[derive(Debug)]
pub(crate) struct Ticket<'a> {
    gates: &'a Gates,
    key: LockKey,
    pub(crate) gate: Arc<Gate>,
}

impl Gates {
    /// Whether somebody waits for `key`.
    pub(crate) fn is_contended(&self, key: &LockKey) -> bool {
        self.lock().contains_key(key)
    }

    pub(crate) fn enter(&self, key: &LockKey) -> Ticket<'_> {
        let gate = Arc::clone(self.lock().entry(key.clone()).or_insert_with(|| {
            let (released, failed) = (Notify::new(), Notify::new());
            Arc::new(Gate { turn: Semaphore::new(1), released, failed, local: Mutex::default() })
        }));
        Ticket { gates: self, key: key.clone(), gate }
    }

    /// Tells the poller of this process, if there is one, that `key` was just released here.
    pub(crate) fn released(&self, key: &LockKey) {
        let gates = self.lock();
        if let Some(gate) = gates.get(key) {
            let mut local = gate.local();
            local.streak += 1;
            if local.streak > LONGEST_STREAK {
                local.streak = 0;
            } else {
                // Keeps the permit if the poller is looking right now: no release is missed.
                gate.released.notify_one();
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<LockKey, Arc<Gate>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Gate {
    /// Notes what the store said to the poller.
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

    /// What was noted last, and when the store last answered one of the line.
    pub(super) fn last(&self) -> Option<(Last, ClockInstant)> {
        self.local().last.clone()
    }

    fn local(&self) -> MutexGuard<'_, Local> {
        self.local.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        let mut gates = self.gates.lock();
        // Clones are made under the same lock: this ticket's and the map's are the only ones left.
        if Arc::strong_count(&self.gate) == 2 {
            gates.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gate_lives_as_long_as_its_line() {
        let gates = Gates::default();
        let key = LockKey::new("", "a").unwrap();
        let (first, second) = (gates.enter(&key), gates.enter(&key));
        assert!(Arc::ptr_eq(&first.gate, &second.gate));
        drop(first);
        assert!(gates.is_contended(&key));
        drop(second);
        assert!(!gates.is_contended(&key));
    }

    #[tokio::test]
    async fn a_streak_of_local_hand_overs_ends() {
        let gates = Gates::default();
        let key = LockKey::new("", "a").unwrap();
        let ticket = gates.enter(&key);
        let mut told = 0;
        for _ in 0..=LONGEST_STREAK {
            gates.released(&key);
            let notified = ticket.gate.released.notified();
            if tokio::time::timeout(std::time::Duration::ZERO, notified).await.is_ok() {
                told += 1;
            }
        }
        assert_eq!(told, LONGEST_STREAK);
    }
}
