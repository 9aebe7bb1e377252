//! Compares what holders believe with what the store has.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lock_core::{FencingToken, Held, LockKey, LockState, OwnerId};

use crate::property::{Property, Violation};
use crate::world::{Time, World, nanos};

/// How long a lock that is waited for may lie idle when there are no faults: a few ways to the
/// store, or the longest pause between two polls.
const IDLE: Duration = Duration::from_secs(1);

#[derive(Clone, Debug)]
pub(crate) struct Observer {
    world: World,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    /// The fence of the holder that the store has.
    stored: BTreeMap<LockKey, FencingToken>,
    holds: Vec<Hold>,
    /// The greatest fence that anybody has got.
    greatest: BTreeMap<LockKey, FencingToken>,
    /// The tasks that wait, by the lock.
    waiting: BTreeMap<LockKey, usize>,
    /// Since when a lock has been waited for and not used.
    idle_since: BTreeMap<LockKey, Time>,
    /// Which runtime each claim was made on.
    owners: Vec<(OwnerId, usize)>,
    /// What an operator has taken away.
    taken: Vec<(LockKey, FencingToken)>,
    grants: usize,
}

#[derive(Debug)]
struct Hold {
    key: LockKey,
    held: Held,
    fence: FencingToken,
    /// The guard has gone.
    has_left: bool,
}

impl Hold {
    fn is_believed(&self) -> bool {
        !matches!(self.held.state(), LockState::Lost(_))
    }
}

impl Observer {
    pub(crate) fn new(world: &World) -> Self {
        Self { world: world.clone(), state: Arc::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The store has this holder now: nobody else may believe in the lock.
    pub(crate) fn store_has(&self, key: &LockKey, fence: Option<FencingToken>) {
        let mut state = self.state();
        let before = match fence {
            Some(fence) => state.stored.insert(key.clone(), fence),
            None => state.stored.remove(key),
        };
        if before == fence {
            return;
        }
        // A hold that has ended is not asked again. Asking is no help to it: it is over already.
        state.holds.retain(|hold| {
            let is_over = hold.key == *key && Some(hold.fence) != fence;
            if is_over && hold.is_believed() {
                let what = format!("fence {} is believed, and the store has {fence:?}", hold.fence);
                self.world.violated(Violation::new(Property::ValidNoLonger, what));
            }
            !is_over
        });
    }

    /// Whether the store still has this hold, or an operator has taken it away.
    pub(crate) fn is_kept(&self, key: &LockKey, fence: FencingToken) -> bool {
        let state = self.state();
        state.stored.get(key) == Some(&fence) || state.taken.contains(&(key.clone(), fence))
    }

    /// An operator takes this hold away: the holder learns of it after the fact.
    pub(crate) fn taken(&self, key: &LockKey, fence: FencingToken) {
        let mut state = self.state();
        state.taken.push((key.clone(), fence));
        state.holds.retain(|hold| !(hold.key == *key && hold.fence == fence));
    }

    /// A task begins to wait. Returns the greatest fence so far.
    pub(crate) fn waits(&self, key: &LockKey) -> Option<FencingToken> {
        let mut state = self.state();
        *state.waiting.entry(key.clone()).or_default() += 1;
        state.greatest.get(key).copied()
    }

    /// It no longer waits.
    pub(crate) fn waits_no_longer(&self, key: &LockKey) {
        if let Some(waiting) = self.state().waiting.get_mut(key) {
            *waiting -= 1;
        }
    }

    /// A task has got the lock with this fence, after it had seen fences up to `before`.
    pub(crate) fn granted(&self, held: &Held, fence: FencingToken, before: Option<FencingToken>) {
        let key = held.key();
        let mut state = self.state();
        if state.taken.contains(&(key.clone(), fence)) {
            return;
        }
        state.grants += 1;
        let mut others = state.holds.iter().filter(|hold| hold.key == *key && hold.fence != fence);
        if let Some(other) = others.find(|hold| hold.is_believed()) {
            let what = format!("fences {} and {fence} are both believed", other.fence);
            self.world.violated(Violation::new(Property::OneHolder, what));
        }
        if let Some(before) = before.filter(|before| *before >= fence) {
            let what = format!("fence {fence} was granted after {before} had been seen");
            self.world.violated(Violation::new(Property::RisingFences, what));
        }
        if state.stored.get(key) != Some(&fence) {
            let what = format!("fence {fence} was granted, and the store no longer has it");
            self.world.violated(Violation::new(Property::ValidNoLonger, what));
        }
        let greatest = state.greatest.entry(key.clone()).or_insert(fence);
        *greatest = fence.max(*greatest);
        state.holds.push(Hold { key: key.clone(), held: held.clone(), fence, has_left: false });
    }

    /// The guard with this fence has gone.
    pub(crate) fn left(&self, key: &LockKey, fence: FencingToken) {
        let mut state = self.state();
        let left = state.holds.iter_mut().filter(|hold| hold.key == *key && hold.fence == fence);
        left.for_each(|hold| hold.has_left = true);
    }

    pub(crate) fn claimed(&self, owner: OwnerId) {
        let runtime = self.world.current();
        self.state().owners.push((owner, runtime));
    }

    /// The runtimes on which this owner was.
    pub(crate) fn runtimes_of(&self, owner: OwnerId) -> Vec<usize> {
        let state = self.state();
        state.owners.iter().filter(|(other, _)| *other == owner).map(|(_, on)| *on).collect()
    }

    pub(crate) fn grants(&self) -> usize {
        self.state().grants
    }

    /// Without faults, a lock that is waited for does not lie idle.
    pub(crate) fn look_for_starvation(&self) {
        let now = self.world.now();
        let mut state = self.state();
        let State { stored, holds, waiting, idle_since, .. } = &mut *state;
        for (key, _) in waiting.iter().filter(|(_, tasks)| **tasks > 0) {
            let stored = stored.get(key);
            let uses =
                |hold: &Hold| hold.key == *key && Some(&hold.fence) == stored && !hold.has_left;
            if holds.iter().any(uses) {
                idle_since.remove(key);
                continue;
            }
            let since = *idle_since.entry(key.clone()).or_insert(now);
            if now - since > nanos(IDLE) {
                let what = format!("the lock is waited for and unused; the store has {stored:?}");
                self.world.violated(Violation::new(Property::NoStarvation, what));
            }
        }
        idle_since.retain(|key, _| waiting.get(key).is_some_and(|tasks| *tasks > 0));
    }
}
