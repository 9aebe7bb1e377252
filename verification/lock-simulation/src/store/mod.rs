//! The simulated store: one server with the true clock, which does each request in one step.

pub(crate) mod backend;
pub(crate) mod calls;
pub(crate) mod network;
mod wrong;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use lock_core::{
    Attempt, Busy, ClaimRequest, FencingToken, HolderInfo, LockKey, OwnerId, Released, Renewal,
    Seen,
};
use tokio::sync::Notify;

use crate::property::Variant;
use crate::world::{Time, World, nanos};

/// The kinds of store, by what they promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// No queue and no pushes, as an SQL table.
    Polled,
    /// A queue, and pushes that can get lost.
    Hinting,
    /// A queue, and pushes that come late rather than never.
    Pushing,
    /// The same, and a place in the queue is the lease of the lock.
    Leased,
}

/// What the label of a reader begins with that has the gate.
pub(crate) const READS: &str = "~r:";

#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) kind: Kind,
    world: World,
    /// The last one of each lock.
    fences: BTreeMap<LockKey, u64>,
    entries: u64,
    lines: BTreeMap<LockKey, Line>,
}

#[derive(Debug, Default)]
struct Line {
    holder: Option<(Entry, FencingToken)>,
    waiters: VecDeque<Entry>,
}

#[derive(Clone, Debug)]
struct Entry {
    owner: OwnerId,
    label: Option<String>,
    /// How many fences it gets.
    fences: u32,
    ttl: u64,
    until: Time,
    /// Distinguishes the entries that one owner has had.
    id: u64,
    push: Push,
}

/// A holder, and its fences in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) owner: OwnerId,
    pub(crate) first: FencingToken,
    fences: u32,
}

impl Holder {
    pub(crate) fn has(&self, fence: FencingToken) -> bool {
        (self.first.get()..self.first.get() + u64::from(self.fences)).contains(&fence.get())
    }
}

/// Where a claim listens, and whose link the push takes.
#[derive(Clone, Debug)]
pub(crate) struct Push {
    pub(crate) notify: Arc<Notify>,
    pub(crate) process: usize,
}

/// Who asks, and for which lock.
#[derive(Clone, Debug)]
pub(crate) struct Me {
    pub(crate) key: LockKey,
    pub(crate) owner: OwnerId,
    label: Option<String>,
    fences: u32,
    ttl: Duration,
    wait: bool,
    resumed: Option<FencingToken>,
    push: Push,
}

impl Me {
    pub(crate) fn new(request: &ClaimRequest, push: Push) -> Self {
        let resumed = request.resume.as_ref().map(|resume| resume.fence);
        let ClaimRequest { key, owner, label, fences, ttl, wait, .. } = request.clone();
        Self { key, owner, label, fences, ttl, wait, resumed, push }
    }

    fn holds(&self, (holder, fence): &(Entry, FencingToken)) -> bool {
        let claimed = |resumed| resumed == *fence && self.fences == holder.fences;
        holder.owner == self.owner && self.resumed.is_none_or(claimed)
    }
}

/// One step of the store, and the pushes that it sends.
pub(crate) struct Step<'a> {
    pub(crate) store: &'a mut Store,
    pub(crate) pushes: Vec<Push>,
}

impl Store {
    pub(crate) fn new(world: &World, kind: Kind) -> Self {
        let (fences, lines) = (BTreeMap::new(), BTreeMap::new());
        Self { kind, world: world.clone(), fences, entries: 0, lines }
    }

    /// The holder, and until when it holds.
    pub(crate) fn holder(&self, key: &LockKey) -> Option<(Holder, Time)> {
        let (Entry { owner, fences, until, .. }, first) = self.lines.get(key)?.holder.as_ref()?;
        let holder = Holder { owner: *owner, first: *first, fences: *fences };
        (*until > self.world.now()).then_some((holder, *until))
    }

    /// Whether a reader has this gate on its way. Who takes it away lets a writer in beside the reader, which
    /// does not show that it has ever had it.
    pub(crate) fn is_passed_by(&self, key: &LockKey) -> bool {
        let holder = self.lines.get(key).and_then(|line| line.holder.as_ref());
        let label = holder.and_then(|(holder, _)| holder.label.as_deref());
        label.is_some_and(|label| label.starts_with(READS))
    }

    /// The owners of the slots beside this gate that one process has.
    pub(crate) fn slots_of(&self, process: usize, whole: &LockKey) -> Vec<OwnerId> {
        let now = self.world.now();
        let slots = format!("{}~~r", whole.name());
        let lines = self
            .lines
            .iter()
            .filter(|(key, _)| key.prefix() == whole.prefix() && key.name().starts_with(&slots));
        let holders = lines.filter_map(|(_, line)| line.holder.as_ref());
        let ours = holders.filter(|(entry, _)| entry.push.process == process && entry.until > now);
        ours.map(|(entry, _)| entry.owner).collect()
    }

    /// The owners of everything that is there.
    pub(crate) fn owners(&self) -> Vec<OwnerId> {
        let now = self.world.now();
        let lines = self.lines.values();
        let entries = lines
            .flat_map(|line| line.holder.iter().map(|(holder, _)| holder).chain(&line.waiters));
        entries.filter(|entry| entry.until > now).map(|entry| entry.owner).collect()
    }

    pub(crate) fn keys(&self) -> Vec<LockKey> {
        self.lines.keys().cloned().collect()
    }
}

impl Step<'_> {
    /// Also says which entry is meant.
    pub(crate) fn try_acquire(&mut self, me: &Me) -> (Attempt, u64) {
        self.settle(&me.key);
        let (now, ttl) = (self.store.world.now(), nanos(me.ttl));
        let end = self.end_of(me);
        let leased = self.store.kind == Kind::Leased;
        self.store.entries += 1;
        let id = self.store.entries;
        let Me { owner, fences, .. } = *me;
        let (label, push) = (me.label.clone(), me.push.clone());
        let until = if wrong::is_unaware(&self.store.world, label.as_deref()) {
            now + 1
        } else {
            now + ttl
        };
        let entry = Entry { owner, label, fences, ttl, until, id, push };
        let last = self.store.fences.entry(me.key.clone()).or_default();
        let line = self.store.lines.entry(me.key.clone()).or_default();
        match &mut line.holder {
            Some((holder, token)) if holder.owner == me.owner => {
                if !leased {
                    holder.until = end(holder.until);
                }
                let left = Duration::from_nanos(holder.until - now);
                let valid_for = Some(promised(&self.store.world, left));
                (Attempt::Granted { token: *token, valid_for }, holder.id)
            }
            Some((holder, token)) => {
                if self.store.world.is_wrong(Variant::GrantsTwice) && self.store.world.one_in(2) {
                    *last += 1;
                    let token = token_of(*last);
                    return (Attempt::Granted { token, valid_for: Some(me.ttl) }, id);
                }
                let mut info = HolderInfo::new(holder.owner);
                info.owner = Some(holder.owner);
                info.fence = Some(*token);
                let left = Duration::from_nanos(holder.until - now);
                let busy = Busy::default().with_retry_after(left).with_holder(info);
                if !me.wait || self.store.kind == Kind::Polled {
                    return (Attempt::Busy(busy), id);
                }
                let mine = line.waiters.iter().position(|waiter| waiter.owner == me.owner);
                let at = mine.unwrap_or(line.waiters.len());
                match line.waiters.get_mut(at) {
                    Some(place) if !leased => place.until = end(place.until),
                    Some(_) => {}
                    None => line.waiters.push_back(entry),
                }
                let place = &line.waiters[at];
                let lasts = Duration::from_nanos(place.until - now);
                (Attempt::Busy(busy.with_place(lasts)), place.id)
            }
            None => {
                let token = next_fences(last, me.fences, &self.store.world);
                line.holder = Some((entry, token));
                let valid_for = Some(promised(&self.store.world, me.ttl));
                (Attempt::Granted { token, valid_for }, id)
            }
        }
    }

    pub(crate) fn renew(&mut self, me: &Me) -> Renewal {
        let end = self.end_of(me);
        let valid_for = promised(&self.store.world, me.ttl);
        self.with_entry(me, |entry| {
            entry.until = end(entry.until);
            Renewal::Alive { valid_for: Some(valid_for) }
        })
    }

    pub(crate) fn check(&mut self, me: &Me) -> Renewal {
        let (now, world) = (self.store.world.now(), self.store.world.clone());
        self.with_entry(me, |entry| {
            let left = Duration::from_nanos(entry.until - now);
            Renewal::Alive { valid_for: Some(promised(&world, left)) }
        })
    }

    pub(crate) fn release(&mut self, me: &Me) -> Released {
        self.settle(&me.key);
        let (keeps_places, keeps_holds) = (
            self.store.world.is_wrong(Variant::KeepsPlaces),
            self.store.world.is_wrong(Variant::KeepsHolds),
        );
        let Some(line) = self.store.lines.get_mut(&me.key) else { return Released::AlreadyGone };
        let waiting = line.waiters.len();
        let waits = |entry: &Entry| entry.owner == me.owner && me.resumed.is_none();
        let had_place = line.waiters.iter().any(waits);
        line.waiters.retain(|entry| keeps_places || !waits(entry));
        let held = line.holder.as_ref().is_some_and(|holder| me.holds(holder));
        if held && wrong::keeps(&self.store.world, &me.key) {
            let until = self.store.world.now() + nanos(network::LONG_TTL);
            line.holder.iter_mut().for_each(|(holder, _)| holder.until = until);
        } else if held && !(keeps_holds && waiting == 0) {
            line.holder = None;
        }
        self.settle(&me.key);
        if held || had_place { Released::Freed } else { Released::AlreadyGone }
    }

    /// Whether somebody has the lock.
    pub(crate) fn look(&mut self, key: &LockKey) -> Seen {
        self.settle(key);
        wrong::look(&self.store.world, key, self.seen(key))
    }

    fn seen(&self, key: &LockKey) -> Seen {
        match self.store.lines.get(key).and_then(|line| line.holder.as_ref()) {
            Some((holder, first)) => {
                Seen::Held { fence: Some(*first), label: holder.label.clone() }
            }
            None => Seen::Free { floor: self.store.fences.get(key).copied().map(token_of) },
        }
    }

    /// An operator takes the lock away.
    pub(crate) fn take_away(&mut self, key: &LockKey) {
        self.settle(key);
        let holder = self.store.lines.get_mut(key).and_then(|line| line.holder.take());
        self.pushes.extend(holder.map(|(old, _)| old.push));
        self.settle(key);
    }

    /// Ends what is over, and hands a free lock to the head of its queue.
    pub(crate) fn settle(&mut self, key: &LockKey) {
        let now = self.store.world.now();
        let leased = self.store.kind == Kind::Leased;
        let Some(line) = self.store.lines.get_mut(key) else { return };
        if let Some((old, _)) = line.holder.take_if(|(holder, _)| holder.until <= now)
            && !wrong::is_unaware(&self.store.world, old.label.as_deref())
        {
            self.pushes.push(old.push);
        }
        line.waiters.retain(|waiter| waiter.until > now);
        if line.holder.is_none()
            && let Some(mut next) = line.waiters.pop_front()
        {
            if !leased {
                next.until = now + next.ttl;
            }
            self.pushes.push(next.push.clone());
            let last = self.store.fences.entry(key.clone()).or_default();
            let token = next_fences(last, next.fences, &self.store.world);
            line.holder = Some((next, token));
        }
        if line.holder.is_none() {
            self.store.lines.remove(key);
            if self.store.world.is_wrong(Variant::ForgetsFences) {
                self.store.fences.remove(key);
            }
        }
    }

    /// When an entry ends that would have ended at some time, and is asked for now.
    fn end_of(&self, me: &Me) -> impl Fn(Time) -> Time + use<> {
        let anew = self.store.world.now() + nanos(me.ttl);
        let shortens = self.store.world.is_wrong(Variant::ShortensLeases);
        move |before| if shortens { anew } else { anew.max(before) }
    }

    fn with_entry(&mut self, me: &Me, act: impl FnOnce(&mut Entry) -> Renewal) -> Renewal {
        self.settle(&me.key);
        let entry = self.store.lines.get_mut(&me.key).and_then(|line| {
            let Line { holder, waiters } = line;
            let held = holder.as_mut().filter(|holder| me.holds(holder)).map(|(entry, _)| entry);
            let waits = |entry: &&mut Entry| entry.owner == me.owner && me.resumed.is_none();
            held.or_else(|| waiters.iter_mut().find(waits))
        });
        match entry {
            Some(entry) => act(entry),
            None if wrong::is_unaware(&self.store.world, me.label.as_deref()) => {
                Renewal::Alive { valid_for: Some(me.ttl) }
            }
            None => Renewal::Lost,
        }
    }
}

fn promised(world: &World, left: Duration) -> Duration {
    if world.is_wrong(Variant::PromisesTooMuch) { left * 2 } else { left }
}

/// The first of so many fences above the last one.
fn next_fences(last: &mut u64, fences: u32, world: &World) -> FencingToken {
    let first = *last + 1;
    *last = if world.is_wrong(Variant::OverlapsFences) { first } else { *last + u64::from(fences) };
    token_of(first)
}

fn token_of(fence: u64) -> FencingToken {
    FencingToken::new(fence).unwrap_or(FencingToken::MAX)
}
