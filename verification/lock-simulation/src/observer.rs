//! Compares what holders believe with what the store has.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lock_core::kinds::HeldSet;
use lock_core::{ClaimRequest, FencingToken, Held, LockKey, LockState, OwnerId};
use tokio::runtime::{Handle, Id};

use crate::choices::Scenario;
use crate::order::Order;
use crate::property::{Property, Violation};
use crate::sharing::{Share, Sharers, Wish};
use crate::store::Holder;
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
    /// The holder that the store has.
    stored: BTreeMap<LockKey, Holder>,
    /// Since when.
    stored_since: BTreeMap<LockKey, Time>,
    holds: Vec<Hold>,
    /// The greatest fence that anybody has got.
    greatest: BTreeMap<LockKey, FencingToken>,
    /// The tasks that wait, by the lock.
    waiting: BTreeMap<LockKey, BTreeSet<usize>>,
    /// The tasks whose calls are left alone.
    alone: BTreeSet<usize>,
    /// Since when a lock has been waited for and not used.
    idle_since: BTreeMap<LockKey, Time>,
    claims: Vec<MadeClaim>,
    /// Those that have been told to wait: from then on they need no caller.
    by_themselves: HashSet<OwnerId>,
    /// Those that have been told that they have the lock.
    granted: HashSet<OwnerId>,
    /// What an operator has taken away.
    taken: Vec<(LockKey, Holder)>,
    sharers: Sharers,
    order: Order,
    /// By which value each leader was known.
    leaders: BTreeMap<FencingToken, String>,
    counts: Counts,
}

/// How often something has happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// A task got a lock.
    pub grants: usize,
    /// A task got a permit, a read or a write.
    pub shares: usize,
    /// It got it from another task of its process.
    pub passes: usize,
    /// It got it after it had been left alone.
    pub after_being_alone: usize,
    /// It saw who leads.
    pub observations: usize,
}

/// Where a claim was made.
#[derive(Debug)]
struct MadeClaim {
    owner: OwnerId,
    process: usize,
    task: Option<usize>,
    /// On which its keeper goes on, whoever polls it.
    runtime: Option<Id>,
}

/// What says whether a hold is believed in.
#[derive(Clone, Debug)]
pub(crate) enum View {
    One(Held),
    Set(HeldSet),
}

#[derive(Debug)]
struct Hold {
    key: LockKey,
    view: View,
    fence: FencingToken,
    /// The guard has gone.
    has_left: bool,
}

impl Hold {
    fn is_believed(&self) -> bool {
        let state = match &self.view {
            View::One(held) => held.state(),
            View::Set(held) => held.state(),
        };
        !matches!(state, LockState::Lost(_))
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
    pub(crate) fn store_has(&self, key: &LockKey, holder: Option<Holder>) {
        let mut state = self.state();
        let before = match holder {
            Some(holder) => state.stored.insert(key.clone(), holder),
            None => state.stored.remove(key),
        };
        if before == holder {
            return;
        }
        state.stored_since.insert(key.clone(), self.world.now());
        let owner = |holder: Option<Holder>| holder.map(|holder| holder.owner);
        state.order.stored(key, owner(before), owner(holder), self.world.now());
        if let Some(ended) = before.filter(|before| Some(*before) != holder)
            && let Err(violation) = state.sharers.ended(ended.owner)
        {
            self.world.violated(violation);
        }
        // A hold that has ended is not asked again. Asking is no help to it: it is over already.
        state.holds.retain(|hold| {
            let is_over = hold.key == *key && !holder.is_some_and(|holder| holder.has(hold.fence));
            if is_over && hold.is_believed() {
                let what =
                    format!("fence {} is believed, and the store has {holder:?}", hold.fence);
                self.world.violated(Violation::new(Property::ValidNoLonger, what));
            }
            !is_over
        });
    }

    /// Whether the store still has this hold, or an operator has taken it away.
    pub(crate) fn is_kept(&self, key: &LockKey, fence: FencingToken) -> bool {
        let state = self.state();
        state.stores(key, fence) || state.was_taken(key, fence)
    }

    /// An operator takes this hold away: the holder learns of it after the fact.
    pub(crate) fn taken(&self, key: &LockKey, holder: Holder) {
        let mut state = self.state();
        state.taken.push((key.clone(), holder));
        state.holds.retain(|hold| !(hold.key == *key && holder.has(hold.fence)));
        state.sharers.taken(holder.owner);
        state.order.taken(key, holder.owner, self.world.now());
    }

    /// The task that is being polled begins to wait.
    pub(crate) fn waits(&self, key: &LockKey) {
        let task = self.world.task();
        self.state().waiting.entry(key.clone()).or_default().extend(task);
    }

    /// It no longer waits.
    pub(crate) fn waits_no_longer(&self, key: &LockKey) {
        let (task, mut state) = (self.world.task(), self.state());
        if let Some((waiting, task)) = state.waiting.get_mut(key).zip(task) {
            waiting.remove(&task);
        }
    }

    /// The call of the task that is being polled is neither polled nor dropped from now on.
    pub(crate) fn is_left_alone(&self) {
        let task = self.world.task();
        self.state().alone.extend(task);
    }

    /// Somebody is back to poll or drop it.
    pub(crate) fn is_not_alone(&self) {
        if let Some(task) = self.world.task() {
            self.state().alone.remove(&task);
        }
    }

    /// A call that was left alone has brought the lock.
    pub(crate) fn has_waited_alone(&self) {
        self.state().counts.after_being_alone += 1;
    }

    /// A claim has been told by the store that it has the lock, or has to wait for it.
    pub(crate) fn answered(&self, owner: OwnerId, is_granted: bool) {
        let mut state = self.state();
        let of = if is_granted { &mut state.granted } else { &mut state.by_themselves };
        of.insert(owner);
    }

    /// A task has got the lock, with a fence that is above all that were got before it: as long as it
    /// holds the lock nobody gets a greater one.
    pub(crate) fn acquired(&self, held: &Held, fence: FencingToken) {
        self.acquired_in(View::One(held.clone()), held.key(), fence);
    }

    /// The same, of one of several locks.
    pub(crate) fn acquired_in(&self, view: View, key: &LockKey, fence: FencingToken) {
        let mut state = self.state();
        if state.was_taken(key, fence) {
            return;
        }
        if let Some(before) = state.greatest.get(key).filter(|before| **before >= fence) {
            let what = format!("fence {fence} was granted after {before}");
            self.world.violated(Violation::new(Property::RisingFences, what));
        }
        let is_passed = state.stored.get(key).is_some_and(|holder| holder.first != fence);
        state.counts.passes += usize::from(is_passed);
        drop(state);
        self.granted_in(view, key, fence);
    }

    /// A task has got the lock with this fence, or takes over the hold that has it.
    pub(crate) fn granted(&self, held: &Held, fence: FencingToken) {
        self.granted_in(View::One(held.clone()), held.key(), fence);
    }

    fn granted_in(&self, view: View, key: &LockKey, fence: FencingToken) {
        let mut state = self.state();
        if state.was_taken(key, fence) {
            return;
        }
        state.counts.grants += 1;
        let mut others = state.holds.iter().filter(|hold| hold.key == *key && hold.fence != fence);
        if let Some(other) = others.find(|hold| hold.is_believed()) {
            let what = format!("fences {} and {fence} are both believed", other.fence);
            self.world.violated(Violation::new(Property::OneHolder, what));
        }
        if !state.stores(key, fence) {
            let what = format!("fence {fence} was granted, and the store no longer has it");
            self.world.violated(Violation::new(Property::ValidNoLonger, what));
        }
        let greatest = state.greatest.entry(key.clone()).or_insert(fence);
        *greatest = fence.max(*greatest);
        state.holds.push(Hold { key: key.clone(), view, fence, has_left: false });
    }

    /// The guard with this fence has gone.
    pub(crate) fn left(&self, key: &LockKey, fence: FencingToken) {
        let mut state = self.state();
        let left = state.holds.iter_mut().filter(|hold| hold.key == *key && hold.fence == fence);
        left.for_each(|hold| hold.has_left = true);
    }

    /// A task begins to wait for its share of a name.
    pub(crate) fn waits_for_share(&self, key: &LockKey, wish: Wish) {
        let (task, mut state) = (self.world.task(), self.state());
        state.sharers.waits(key, wish);
        if let Some(task) = task {
            state.order.begins(task, key);
        }
    }

    /// It no longer waits.
    pub(crate) fn waits_for_no_share(&self, key: &LockKey, wish: Wish) {
        let (task, mut state) = (self.world.task(), self.state());
        state.sharers.waits_no_longer(key, wish);
        if let Some(task) = task {
            state.order.ends(task);
        }
    }

    /// The call of the task that is being polled has brought a read.
    pub(crate) fn reads(&self) {
        let task = self.world.task();
        let read = task.map_or(Ok(()), |task| self.state().order.reads(task));
        self.judged(read);
    }

    /// A claim asks the store for its lock, or to keep it.
    pub(crate) fn asks(&self, owner: OwnerId) {
        let mut state = self.state();
        if self.world.is_healed() {
            state.order.healed(self.world.now());
        }
        if !state.granted.contains(&owner) {
            let asked = state.order.asks(owner, self.world.now());
            drop(state);
            self.judged(asked);
        }
    }

    fn judged(&self, result: Result<(), Violation>) {
        if let Err(violation) = result {
            self.world.violated(violation);
        }
    }

    /// A task has got its share of a name.
    pub(crate) fn shares(&self, held: &Held, share: Share) {
        let mut state = self.state();
        let is_stored = state.stored.values().any(|holder| holder.owner == held.owner());
        state.counts.shares += 1;
        if let Err(violation) = state.sharers.granted(held, share, is_stored) {
            self.world.violated(violation);
        }
    }

    /// Somebody leads in this term by this value, or is shown to do so.
    pub(crate) fn leads(&self, term: FencingToken, value: &str) {
        let mut state = self.state();
        let known = state.leaders.entry(term).or_insert_with(|| value.to_owned());
        if known != value {
            let what = format!("term {term} is of {known:?}, and of {value:?}");
            self.world.violated(Violation::new(Property::Terms, what));
        }
    }

    /// A task has been shown who leads.
    pub(crate) fn observes(&self) {
        self.state().counts.observations += 1;
    }

    /// Whether the store has had the same holder since before then.
    pub(crate) fn is_held_since(&self, key: &LockKey, then: Time) -> bool {
        let state = self.state();
        state.stored.contains_key(key) && state.stored_since.get(key).is_some_and(|at| *at < then)
    }

    pub(crate) fn claimed(&self, request: &ClaimRequest, process: usize) {
        let (task, owner) = (self.world.task(), request.owner);
        let runtime = Handle::try_current().ok().map(|handle| handle.id());
        let mut state = self.state();
        state.claims.push(MadeClaim { owner, process, task, runtime });
        let Some(task) = task else { return };
        let claimed = state.order.claims(task, process, request, self.world.now());
        drop(state);
        self.judged(claimed);
    }

    /// The processes and the runtimes on which this owner was.
    pub(crate) fn places_of(&self, owner: OwnerId) -> Vec<(usize, Option<Id>)> {
        let state = self.state();
        let claims = state.claims.iter().filter(|claim| claim.owner == owner);
        claims.map(|claim| (claim.process, claim.runtime)).collect()
    }

    pub(crate) fn counts(&self) -> Counts {
        self.state().counts
    }

    /// Without faults, a lock that is waited for does not lie idle.
    pub(crate) fn look_for_starvation(&self) {
        let now = self.world.now();
        let passes_on = self.world.has(Scenario::COHORTS);
        let mut state = self.state();
        if let Err(violation) = state.sharers.look_for_starvation(now) {
            self.world.violated(violation);
        }
        let mut idle_since = std::mem::take(&mut state.idle_since);
        idle_since.retain(|key, _| state.is_wanted_and_unused(key, passes_on));
        for key in state.waiting.keys().filter(|key| state.is_wanted_and_unused(key, passes_on)) {
            let since = *idle_since.entry(key.clone()).or_insert(now);
            if now - since > nanos(IDLE) {
                let stored = state.stored.get(key);
                let what = format!("the lock is waited for and unused; the store has {stored:?}");
                self.world.violated(Violation::new(Property::NoStarvation, what));
            }
        }
        state.idle_since = idle_since;
    }
}

impl State {
    fn stores(&self, key: &LockKey, fence: FencingToken) -> bool {
        self.stored.get(key).is_some_and(|holder| holder.has(fence))
    }

    fn was_taken(&self, key: &LockKey, fence: FencingToken) -> bool {
        self.taken.iter().any(|(taken, holder)| taken == key && holder.has(fence))
    }

    fn is_wanted_and_unused(&self, key: &LockKey, passes_on: bool) -> bool {
        let Some(waiting) = self.waiting.get(key) else { return false };
        let mut holds = self.holds.iter().filter(|hold| hold.key == *key && !hold.has_left);
        waiting.iter().any(|task| !self.needs_its_caller(*task))
            && !holds.any(|hold| self.stores(key, hold.fence))
            && !waiting.iter().any(|task| self.keeps_for_nobody(*task, key, passes_on))
    }

    /// Nobody polls the task's call, and only its caller can read the store's answer to the first question, or
    /// take the lock that was got for it.
    fn needs_its_caller(&self, task: usize) -> bool {
        let waits = |MadeClaim { owner, .. }: &MadeClaim| {
            self.by_themselves.contains(owner) && !self.granted.contains(owner)
        };
        self.alone.contains(&task) && !self.claim_of(task).is_some_and(waits)
    }

    /// Nobody polls the task's call, and the store has granted it the lock: the others wait until somebody
    /// does. If holds are passed on, it may have that of another task.
    fn keeps_for_nobody(&self, task: usize, key: &LockKey, passes_on: bool) -> bool {
        if !self.alone.contains(&task) {
            return false;
        }
        let Some((stored, mine)) = self.stored.get(key).zip(self.claim_of(task)) else {
            return false;
        };
        let is_of_its_process = |claim: &MadeClaim| {
            passes_on && claim.owner == stored.owner && claim.process == mine.process
        };
        let is_its_own = stored.owner == mine.owner && self.needs_its_caller(task);
        is_its_own || self.claims.iter().any(is_of_its_process)
    }

    /// The last claim of a task.
    fn claim_of(&self, task: usize) -> Option<&MadeClaim> {
        self.claims.iter().rfind(|claim| claim.task == Some(task))
    }
}
