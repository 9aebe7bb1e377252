//! The data of the memory store. Every method is one atomic step of the store.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::mutex::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;

use crate::contract::Fences;
use crate::{
    Attempt, Busy, ClaimRequest, Clock, ClockInstant, FencingToken, HolderInfo, LockInfo, LockKey,
    OwnerId, Released, Renewal, Result, Resume, Seen,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flavour {
    Queued,
    PollOnly,
}

#[derive(Debug)]
pub(super) struct MemoryStore {
    pub(super) flavour: Flavour,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) stepwise: bool,
    pub(super) frozen: watch::Sender<bool>,
    data: Mutex<StoreData>,
}

#[derive(Debug, Default)]
struct StoreData {
    /// The greatest fence ever given, of all names: so nothing has to be kept for a free lock.
    last_fence: u64,
    locks: BTreeMap<LockKey, MemoryLine>,
}

/// A lock that is held or waited for.
#[derive(Debug, Default)]
struct MemoryLine {
    holder: Option<(MemoryEntry, Fences)>,
    waiters: VecDeque<MemoryEntry>,
    /// Tells the reaper that there is now another holder, or none.
    turned: Arc<Notify>,
    /// The task that ends leases while there are waiters.
    reaper: Option<AbortHandle>,
}

/// What a claim has in the store: a place, or the lock.
#[derive(Debug)]
struct MemoryEntry {
    request: Arc<ClaimRequest>,
    /// That of the bearer who has renewed it last.
    ttl: Duration,
    /// Tells the claim that its entry has changed. Keeps one permit, so nothing is missed between
    /// two waits.
    changed: Arc<Notify>,
    since: ClockInstant,
    until: ClockInstant,
}

impl MemoryEntry {
    fn shown(&self, fences: Fences, now: ClockInstant) -> HolderInfo {
        let ClaimRequest { owner, label, .. } = &*self.request;
        let mut info = HolderInfo::new(*owner);
        info.owner = Some(*owner);
        info.label.clone_from(label);
        info.fence = Some(fences.first);
        info.expires_in = Some(self.until.since(now));
        info.held_for = Some(now.since(self.since));
        info
    }

    /// Whether whoever asks this has the lock by it. A lease token has only the hold with the very fences that it
    /// claims (clause C14) …
    fn is_hold_of(&self, asks: &ClaimRequest, fences: Fences) -> bool {
        let claimed = |resume: &Resume| Fences { first: resume.fence, count: asks.fences };
        self.request.owner == asks.owner
            && asks.resume.as_ref().is_none_or(|resume| claimed(resume) == fences)
    }

    /// … and no place in a queue.
    fn is_place_of(&self, asks: &ClaimRequest) -> bool {
        self.request.owner == asks.owner && asks.resume.is_none()
    }
}

impl MemoryStore {
    pub(super) fn new(flavour: Flavour, clock: Arc<dyn Clock>, stepwise: bool) -> Self {
        Self { flavour, clock, stepwise, frozen: watch::Sender::new(false), data: Mutex::default() }
    }

    pub(super) fn try_acquire(
        self: &Arc<Self>,
        request: &Arc<ClaimRequest>,
        changed: Arc<Notify>,
    ) -> Result<Attempt> {
        let now = self.clock.now();
        let ClaimRequest { key, owner, ttl, wait, .. } = &**request;
        let until = now + *ttl;
        let me =
            || MemoryEntry { request: Arc::clone(request), ttl: *ttl, changed, since: now, until };
        let mut data = self.data.lock();
        data.settle(key, now)?;
        let StoreData { last_fence, locks } = &mut *data;
        let line = locks.entry(key.clone()).or_default();
        match &mut line.holder {
            Some((holder, fences)) if holder.request.owner == *owner => {
                holder.until = holder.until.max(until);
                Ok(Attempt::Granted { token: fences.first, valid_for: Some(*ttl) })
            }
            // `settle` has handed a free lock to the head of the queue, so there are no waiters
            // here.
            None => {
                let fences = next_fences(last_fence, request.fences)?;
                line.holder = Some((me(), fences));
                Ok(Attempt::Granted { token: fences.first, valid_for: Some(*ttl) })
            }
            Some((holder, fences)) => {
                let busy = Busy::default()
                    .with_retry_after(holder.until.since(now))
                    .with_holder(holder.shown(*fences, now));
                if !wait || self.flavour == Flavour::PollOnly {
                    return Ok(Attempt::Busy(busy));
                }
                match line.waiters.iter_mut().find(|waiter| waiter.request.owner == *owner) {
                    Some(place) => place.until = place.until.max(until),
                    None => line.waiters.push_back(me()),
                }
                if line.reaper.as_ref().is_none_or(AbortHandle::is_finished)
                    && let Ok(runtime) = Handle::try_current()
                {
                    let reaper =
                        Self::reap(Arc::downgrade(self), key.clone(), Arc::clone(&line.turned));
                    line.reaper = Some(runtime.spawn(reaper).abort_handle());
                }
                Ok(Attempt::Busy(busy.with_place(*ttl)))
            }
        }
    }

    pub(super) fn renew(&self, request: &ClaimRequest) -> Result<Renewal> {
        let (now, ttl) = (self.clock.now(), request.ttl);
        self.with_entry(request, now, |entry| {
            entry.ttl = ttl;
            // A bearer with another ttl, or a request that is late, takes nothing back (clause C17).
            entry.until = entry.until.max(now + ttl);
            Renewal::Alive { valid_for: Some(ttl) }
        })
    }

    pub(super) fn check(&self, request: &ClaimRequest) -> Result<Renewal> {
        let now = self.clock.now();
        self.with_entry(request, now, |entry| Renewal::Alive {
            valid_for: Some(entry.until.since(now)),
        })
    }

    pub(super) fn release(&self, request: &ClaimRequest) -> Result<Released> {
        let (now, key) = (self.clock.now(), &request.key);
        let mut data = self.data.lock();
        data.settle(key, now)?;
        let Some(line) = data.locks.get_mut(key) else { return Ok(Released::AlreadyGone) };
        let entries = line.waiters.len() + usize::from(line.holder.is_some());
        line.waiters.retain(|waiter| !waiter.is_place_of(request));
        line.holder.take_if(|(holder, fences)| holder.is_hold_of(request, *fences));
        let left = line.waiters.len() + usize::from(line.holder.is_some());
        data.settle(key, now)?;
        Ok(if left < entries { Released::Freed } else { Released::AlreadyGone })
    }

    /// Ends leases in time while there are waiters, as a server does: the next waiter is told when
    /// it gets the lock, without polling. Ends with the last waiter.
    async fn reap(store: Weak<Self>, key: LockKey, turned: Arc<Notify>) {
        loop {
            let Some(store) = store.upgrade() else { return };
            let Some(lease_end) = store.lease_end(&key, &turned) else { return };
            let sleep = store.clock.sleep_until(lease_end);
            drop(store);
            tokio::select! {
                () = turned.notified() => {}
                () = sleep => {}
            }
        }
    }

    /// Ends what is over, and returns when the current holder's lease ends; `None` if the line with
    /// this mark is gone or has no waiters.
    fn lease_end(&self, key: &LockKey, turned: &Arc<Notify>) -> Option<ClockInstant> {
        let mut data = self.data.lock();
        // A store that has run out of fences says so to the next one that acquires.
        let _ = data.settle(key, self.clock.now());
        let line = data.locks.get_mut(key).filter(|line| Arc::ptr_eq(&line.turned, turned))?;
        if line.waiters.is_empty() {
            line.reaper = None;
            return None;
        }
        line.holder.as_ref().map(|(holder, _)| holder.until)
    }

    pub(super) fn list(&self, wanted: impl Fn(&LockKey) -> bool) -> Vec<LockInfo> {
        let now = self.clock.now();
        let data = self.data.lock();
        let lines = data.locks.iter().filter(|(key, _)| wanted(key));
        lines
            .filter_map(|(key, line)| {
                let holder = line.holder.as_ref().filter(|(entry, _)| entry.until > now);
                let waiters = line.waiters.iter().filter(|waiter| waiter.until > now).count();
                let holder = holder.map(|(entry, fences)| entry.shown(*fences, now));
                let known = self.flavour == Flavour::Queued;
                (holder.is_some() || waiters > 0)
                    .then(|| LockInfo::new(key.clone(), holder, known.then_some(waiters)))
            })
            .collect()
    }

    pub(super) fn look(&self, keys: &[LockKey]) -> Result<Vec<Seen>> {
        let now = self.clock.now();
        let mut data = self.data.lock();
        keys.iter()
            .map(|key| {
                data.settle(key, now)?;
                let holder = data.locks.get(key).and_then(|line| line.holder.as_ref());
                Ok(match holder {
                    Some((entry, fences)) => {
                        Seen::Held { fence: Some(fences.first), label: entry.request.label.clone() }
                    }
                    None => Seen::Free { floor: FencingToken::new(data.last_fence).ok() },
                })
            })
            .collect()
    }

    /// Ends the holds of these names that are of these owners.
    pub(super) fn take_away(
        &self,
        wanted: impl Fn(&LockKey) -> bool,
        from: impl Fn(&OwnerId) -> bool,
    ) -> Released {
        let now = self.clock.now();
        let mut data = self.data.lock();
        let mut freed = Released::AlreadyGone;
        let keys: Vec<_> = data.locks.keys().filter(|key| wanted(key)).cloned().collect();
        for key in keys {
            // A store that has run out of fences has said so to the next one that acquires.
            let _ = data.settle(&key, now);
            if let Some(line) = data.locks.get_mut(&key)
                && let Some((old, _)) =
                    line.holder.take_if(|(holder, _)| from(&holder.request.owner))
            {
                old.changed.notify_one();
                freed = Released::Freed;
            }
            let _ = data.settle(&key, now);
        }
        freed
    }

    fn with_entry(
        &self,
        request: &ClaimRequest,
        now: ClockInstant,
        act: impl FnOnce(&mut MemoryEntry) -> Renewal,
    ) -> Result<Renewal> {
        let mut data = self.data.lock();
        data.settle(&request.key, now)?;
        let entry = data.locks.get_mut(&request.key).and_then(|line| {
            let MemoryLine { holder, waiters, .. } = line;
            let holder =
                holder.as_mut().filter(|(entry, fences)| entry.is_hold_of(request, *fences));
            let place = waiters.iter_mut().find(|entry| entry.is_place_of(request));
            holder.map(|(entry, _)| entry).or(place)
        });
        Ok(entry.map_or(Renewal::Lost, act))
    }
}

impl StoreData {
    /// Brings one lock up to date: expired entries are removed, and a free lock is handed to the
    /// head of its queue, with its full TTL.
    fn settle(&mut self, key: &LockKey, now: ClockInstant) -> Result<()> {
        let Some(line) = self.locks.get_mut(key) else { return Ok(()) };
        if let Some((old, _)) = line.holder.take_if(|(holder, _)| holder.until <= now) {
            old.changed.notify_one();
        }
        line.waiters.retain(|waiter| waiter.until > now);
        if line.holder.is_none()
            && let Some(mut next) = line.waiters.pop_front()
        {
            next.until = now + next.ttl;
            next.since = now;
            next.changed.notify_one();
            let fences = next_fences(&mut self.last_fence, next.request.fences)?;
            line.holder = Some((next, fences));
            line.turned.notify_one();
        }
        if line.holder.is_none() {
            line.turned.notify_one();
            self.locks.remove(key);
        }
        Ok(())
    }
}

fn next_fences(last: &mut u64, count: u32) -> Result<Fences> {
    let first = FencingToken::answered(*last + 1)?;
    *last = FencingToken::answered(*last + u64::from(count))?.get();
    Ok(Fences { first, count })
}
