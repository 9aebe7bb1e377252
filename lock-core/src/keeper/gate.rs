//! One task of a process waits at the store, the others wait behind it.
//!
//! Only for stores that do not serve their waiters in order: there every waiter polls, and a
//! hundred pollers in one process cost a hundred times as much as one, to no benefit.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, Semaphore};

use super::last::Last;
use crate::{ClockInstant, LockKey};

/// The gates of one `Locks`, one for each name with waiters.
#[derive(Debug, Default)]
pub(crate) struct Gates(Mutex<HashMap<LockKey, Arc<Gate>>>);

/// The waiting line in front of one name.
#[derive(Debug)]
pub(crate) struct Gate {
    /// Held by the task that polls. Fair: first come, first served.
    pub(crate) turn: Semaphore,
    /// This process has released a lock with this name: try again at once.
    pub(crate) released: Notify,
    /// The poller has met an error: those in line check whether it is time to give up.
    pub(crate) failed: Notify,
    local: Mutex<Local>,
}

#[derive(Debug, Default)]
struct Local {
    /// How often in a row the lock went from one task of this process to the next.
    streak: u32,
    /// The store's last answer to the poller, for those behind it, and when the store last
    /// answered.
    last: Option<(Last, ClockInstant)>,
}

/// After this many hand-overs within one process the next poller is not told at once, so other
/// processes, which poll, get their turn.
const LONGEST_STREAK: u32 = 16;

/// A place in the line; the gate is removed when the last one leaves.
#[derive(Debug)]
pub(crate) struct Ticket<'a> {
    gates: &'a Gates,
    key: LockKey,
    pub(crate) gate: Arc<Gate>,
}

impl Gates {
    /// Whether there are waiters for `key`.
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

    /// Tells this process's poller, if there is one, that `key` was just released here.
    pub(crate) fn released(&self, key: &LockKey) {
        let gates = self.lock();
        if let Some(gate) = gates.get(key) {
            let mut local = gate.local();
            local.streak += 1;
            if local.streak > LONGEST_STREAK {
                local.streak = 0;
            } else {
                // Keeps the permit if the poller is asking the store right now: no release is
                // missed.
                gate.released.notify_one();
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<LockKey, Arc<Gate>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Gate {
    /// Records what the store said to the poller.
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

    /// What was recorded last, and when the store last answered a task in the line.
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
