//! The way from a client to the store: requests and replies that are delayed, lost, and late.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lock_core::{Error, ErrorKind, LockKey, OwnerId, Result, Seen};
use tokio::sync::oneshot;

use crate::choices::Scenario;
use crate::observer::Observer;
use crate::property::Variant;
use crate::store::calls::Call;
use crate::store::{Kind, Push, Step, Store};
use crate::world::{Time, World};

/// The longest ttl of an ordinary run; a request is never later than that.
pub(crate) const LONGEST_TTL: Duration = Duration::from_secs(6);
/// In a scenario of long leases: longer than any run.
pub(crate) const LONG_TTL: Duration = Duration::from_secs(3600);
/// The longest way of a request or a reply, in ordinary times and in bad ones.
const USUAL: Duration = Duration::from_millis(3);
const SLOW: Duration = Duration::from_secs(2);

/// The store, and the links of all processes to it.
#[derive(Clone, Debug)]
pub(crate) struct Network(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    world: World,
    observer: Observer,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    store: Store,
    /// Until when each process is cut off.
    cut_until: Vec<Time>,
    /// What some process saw too early, in a wrong variant, and the slots that it had then.
    too_early: BTreeMap<(usize, LockKey), (Vec<OwnerId>, Seen)>,
    /// The first leader that was seen in an election.
    first_leader: Option<Seen>,
}

/// What happens to a request.
#[derive(Debug)]
enum Fate {
    Arrives,
    /// The connection fails before it is sent.
    Refused,
    /// The connection fails, and nobody knows whether it has arrived.
    Broken {
        arrives: bool,
    },
    /// Nobody hears of it again.
    Silent {
        arrives: bool,
    },
}

impl Network {
    pub(crate) fn new(world: &World, observer: &Observer, kind: Kind, processes: usize) -> Self {
        let store = Store::new(world, kind);
        let (cut_until, too_early) = (vec![0; processes], BTreeMap::new());
        let state = Mutex::new(State { store, cut_until, too_early, first_leader: None });
        Self(Arc::new(Shared { world: world.clone(), observer: observer.clone(), state }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn world(&self) -> &World {
        &self.0.world
    }

    pub(crate) fn observer(&self) -> &Observer {
        &self.0.observer
    }

    pub(crate) fn kind(&self) -> Kind {
        self.state().store.kind
    }

    pub(crate) fn cut(&self, process: usize, until: Time) {
        self.state().cut_until[process] = until;
    }

    pub(crate) fn is_cut(&self, process: usize) -> bool {
        !self.world().is_healed() && self.world().now() < self.state().cut_until[process]
    }

    /// The owners of everything that is in the store.
    pub(crate) fn owners(&self) -> Vec<OwnerId> {
        self.state().store.owners()
    }

    /// An operator takes some lock away.
    pub(crate) fn take_away_any(&self) {
        let keys = self.state().store.keys();
        let Some(key) = keys.get(self.world().below(keys.len())) else { return };
        let (holder, only_passes) = {
            let store = &self.state().store;
            (store.holder(key), store.is_passed_by(key))
        };
        if let Some((holder, _)) = holder.filter(|_| !only_passes) {
            // The observer hears of it first: for the others it comes as a surprise.
            self.observer().taken(key, holder);
            self.act(key, |step| step.take_away(key));
        }
    }

    /// When the store next ends a hold by itself.
    pub(crate) fn next_end(&self) -> Option<Time> {
        let store = &self.state().store;
        store.keys().iter().filter_map(|key| store.holder(key)).map(|(_, until)| until).min()
    }

    /// The store ends what is over.
    pub(crate) fn settle(&self) {
        let keys = self.state().store.keys();
        for key in keys {
            self.act(&key, |step| step.settle(&key));
        }
    }

    /// One step of the store, and what follows from it.
    fn act<T>(&self, key: &LockKey, act: impl FnOnce(&mut Step<'_>) -> T) -> T {
        let (answer, pushes, holder) = {
            let mut state = self.state();
            let mut step = Step { store: &mut state.store, pushes: Vec::new() };
            let answer = act(&mut step);
            let pushes = step.pushes;
            (answer, pushes, state.store.holder(key))
        };
        self.observer().store_has(key, holder.map(|(holder, _)| holder));
        pushes.into_iter().for_each(|push| self.push(push));
        answer
    }

    fn push(&self, push: Push) {
        let world = self.world();
        let may_be_lost = self.kind() == Kind::Hinting && world.fault(3);
        if may_be_lost || world.is_wrong(Variant::LosesPushes) {
            return;
        }
        let delay = self.delay();
        let network = self.clone();
        world.later(delay, move || network.deliver(push));
    }

    /// A link that is cut keeps its pushes until it is back.
    fn deliver(&self, push: Push) {
        if self.is_cut(push.process) {
            let network = self.clone();
            self.world().later(SLOW, move || network.deliver(push));
        } else {
            push.notify.notify_one();
        }
    }

    fn delay(&self) -> Duration {
        let world = self.world();
        world.duration(if world.fault(8) { SLOW } else { USUAL })
    }

    /// Sends one request, which the store does even if the caller has left by then.
    pub(crate) async fn request<T: fmt::Debug + Send + 'static>(
        &self,
        process: usize,
        (key, call): (&LockKey, Call),
        act: impl FnOnce(&mut Step<'_>) -> T + Send + 'static,
    ) -> Result<T> {
        let key = key.clone();
        if call == Call::TryAcquire {
            self.see_too_early(process, &key);
        }
        let what = format!("{key}: {call:?}");
        self.send(process, &what, move |network| network.act(&key, act)).await
    }

    /// Looks at these names, sometimes at some of them later than at the others.
    pub(crate) async fn look(&self, process: usize, keys: &[LockKey]) -> Result<Vec<Seen>> {
        let first = if self.world().one_in(4) { self.world().below(keys.len()) } else { 0 };
        let (some, others) = keys.split_at(first);
        let mut seen = Vec::with_capacity(keys.len());
        for keys in [some, others].into_iter().filter(|keys| !keys.is_empty()) {
            let (what, keys) = (format!("a look at {} names", keys.len()), keys.to_vec());
            let look = move |network: &Self| {
                let look = |key| {
                    let seen = network.act(key, |step| step.look(key));
                    network.seen_before(process, key, seen)
                };
                keys.iter().map(look).collect::<Vec<_>>()
            };
            seen.extend(self.send(process, &what, look).await?);
        }
        Ok(seen)
    }

    /// Remembers the gate as it is when a slot beside it is asked for, or the slots when the gate is, if that is what
    /// readers or writers look at.
    fn see_too_early(&self, process: usize, key: &LockKey) {
        let Some((whole, part)) = key.name().rsplit_once("~~") else { return };
        let seen = match part.as_bytes() {
            [b'r', ..] if self.world().is_wrong(Variant::LooksTooEarly) => vec!["g".to_owned()],
            b"g" if self.world().is_wrong(Variant::WriterLooksTooEarly)
                && !self.has_gate(process, key) =>
            {
                (0..64).map(|slot| format!("r{slot}")).collect()
            }
            _ => return,
        };
        for part in seen {
            if let Ok(other) = LockKey::new(key.prefix(), format!("{whole}~~{part}")) {
                let seen = self.act(&other, |step| step.look(&other));
                self.state().too_early.insert((process, other), (Vec::new(), seen));
            }
        }
    }

    fn has_gate(&self, process: usize, gate: &LockKey) -> bool {
        let holder = self.state().store.holder(gate).map(|(holder, _)| holder.owner);
        let places = holder.map(|owner| self.observer().places_of(owner));
        places.is_some_and(|places| places.iter().any(|(of, _)| *of == process))
    }

    /// What a process sees in place of what there is.
    fn seen_before(&self, process: usize, key: &LockKey, seen: Seen) -> Seen {
        if self.world().has(Scenario::ELECTIONS) {
            return self.leader_of_long_ago(seen);
        }
        let before = self.state().too_early.get(&(process, key.clone())).cloned();
        if !self.world().is_wrong(Variant::LooksOnce) {
            return before.map_or(seen, |(_, before)| before);
        }
        let Some(whole) = key.name().strip_suffix("~~g") else { return seen };
        let Ok(whole) = LockKey::new(key.prefix(), whole) else { return seen };
        let slots = self.state().store.slots_of(process, &whole);
        match before {
            Some((had, before)) if had == slots => before,
            _ => {
                let now = (slots, seen.clone());
                self.state().too_early.insert((process, key.clone()), now);
                seen
            }
        }
    }

    /// A look may be answered by a store that has lost what it knew of later leaders.
    fn leader_of_long_ago(&self, seen: Seen) -> Seen {
        let mut state = self.state();
        if state.first_leader.is_none() && matches!(seen, Seen::Held { .. }) {
            state.first_leader = Some(seen.clone());
        }
        let first = state.first_leader.clone();
        drop(state);
        first.filter(|_| self.world().fault(16)).unwrap_or(seen)
    }

    async fn send<T: fmt::Debug + Send + 'static>(
        &self,
        process: usize,
        what: &str,
        act: impl FnOnce(&Self) -> T + Send + 'static,
    ) -> Result<T> {
        let world = self.world();
        let (reply, answer) = oneshot::channel();
        let (fate, there) = (self.fate(process), self.delay());
        world.tell(|| format!("process {process} asks for {what}, {fate:?}"));
        let arrives = match fate {
            Fate::Arrives => true,
            Fate::Refused => return Err(Error::new(ErrorKind::Unavailable, "refused")),
            Fate::Broken { arrives } | Fate::Silent { arrives } => arrives,
        };
        let is_late = arrives && !matches!(fate, Fate::Arrives) && world.one_in(4);
        let there = if is_late { world.duration(LONGEST_TTL) } else { there };
        if arrives {
            let network = self.clone();
            let back = self.delay();
            let answers = matches!(fate, Fate::Arrives);
            world.later(there, move || {
                let answer = act(&network);
                network.world().tell(|| format!("  the store did it: {answer:?}"));
                if answers {
                    // A caller that has left needs no answer.
                    network.world().later(back, move || drop(reply.send(answer)));
                }
            });
        }
        match fate {
            Fate::Silent { .. } => std::future::pending().await,
            Fate::Broken { .. } => {
                world.sleep(self.delay()).await;
                Err(broken())
            }
            Fate::Arrives | Fate::Refused => answer.await.map_err(|_| broken()),
        }
    }

    fn fate(&self, process: usize) -> Fate {
        let world = self.world();
        if self.is_cut(process) {
            return if world.one_in(2) { Fate::Refused } else { Fate::Silent { arrives: false } };
        }
        if !world.fault(6) {
            return Fate::Arrives;
        }
        let arrives = world.one_in(2);
        match world.below(3) {
            0 => Fate::Refused,
            1 => Fate::Broken { arrives },
            _ => Fate::Silent { arrives },
        }
    }
}

fn broken() -> Error {
    Error::new(ErrorKind::Unavailable, "the connection broke").with_unknown_effect()
}
