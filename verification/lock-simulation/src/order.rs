//! Who may pass whom among those who share a name, as far as that is promised.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use lock_core::{ClaimRequest, LockKey, OwnerId};

use crate::property::{Property, Violation};
use crate::store::network::LONGEST_TTL;
use crate::world::{Time, nanos};

/// The longest lease of a turnstile.
const LONGEST_TURN: Duration = Duration::from_secs(3);

/// Within what time a waiter whose turn has ended has given up its places when there are no faults; if an operator has
/// taken the turn away, it may believe in that for as long as it lasts.
const GIVES_UP: Duration = Duration::from_millis(500);

/// In what order something has happened.
type Moment = u64;

#[derive(Debug, Default)]
pub(crate) struct Order {
    moment: Moment,
    /// The call of each task that waits for its share.
    calls: BTreeMap<usize, SharerCall>,
    /// Who claims slots of permits, and with which turn.
    places: HashMap<OwnerId, Option<OwnerId>>,
    /// When a turn has ended.
    ended_turns: HashMap<OwnerId, Time>,
    gates: BTreeMap<LockKey, GateHistory>,
    writers: HashSet<OwnerId>,
    healed_at: Option<Time>,
}

/// A call for a share of a name.
#[derive(Debug)]
struct SharerCall {
    whole: LockKey,
    begun: Moment,
    process: Option<usize>,
    /// Since when it queues at the turnstile, and its turn.
    queues: Option<(Moment, OwnerId)>,
}

#[derive(Debug, Default)]
struct GateHistory {
    /// Who has it, since when.
    holder: Option<(OwnerId, Moment)>,
    first_used: Option<Moment>,
    /// When a writer last let it go.
    written: Option<Moment>,
}

fn part_of(key: &LockKey) -> Option<(LockKey, &str)> {
    let (whole, part) = key.name().rsplit_once("~~")?;
    Some((LockKey::new(key.prefix(), whole).ok()?, part))
}

fn violation(what: impl Into<String>) -> Result<(), Violation> {
    Err(Violation::new(Property::Order, what))
}

impl Order {
    /// A task begins to wait for its share of a name.
    pub(crate) fn begins(&mut self, task: usize, whole: &LockKey) {
        self.moment += 1;
        let (whole, begun) = (whole.clone(), self.moment);
        self.calls.insert(task, SharerCall { whole, begun, process: None, queues: None });
    }

    /// It no longer waits.
    pub(crate) fn ends(&mut self, task: usize) {
        self.calls.remove(&task);
    }

    /// A task claims a part.
    pub(crate) fn claims(
        &mut self,
        task: usize,
        process: usize,
        request: &ClaimRequest,
        now: Time,
    ) -> Result<(), Violation> {
        let Some((whole, part)) = part_of(&request.key) else { return Ok(()) };
        self.moment += 1;
        let (moment, owner) = (self.moment, request.owner);
        let Some(call) = self.calls.get_mut(&task).filter(|call| call.whole == whole) else {
            return Ok(());
        };
        call.process = Some(process);
        let (begun, queues) = (call.begun, call.queues);
        match part.as_bytes() {
            b"pt" => {
                call.queues = Some((queues.map_or(moment, |(since, _)| since), owner));
                if request.ttl > LONGEST_TURN {
                    return violation(format!("a turn lasts for {:?}", request.ttl));
                }
            }
            [b'p', ..] if request.wait => {
                self.places.insert(owner, queues.map(|(_, turn)| turn));
            }
            [b'p', ..] if queues.is_none() => {
                let mut others = self
                    .calls
                    .values()
                    .filter(|call| call.process == Some(process) && call.whole == whole);
                if others.any(|call| call.queues.is_some_and(|(since, _)| since < begun)) {
                    return violation("a task passes another one of its process, which waits");
                }
            }
            b"g" if request.label.as_deref().is_some_and(|label| label.starts_with("~w:")) => {
                self.writers.insert(owner);
            }
            b"g" => {
                let gate = self.gates.entry(whole).or_default();
                let was_used = gate.first_used.is_some_and(|first| first < begun);
                let writes = gate.holder.is_some_and(|(holder, _)| self.writers.contains(&holder));
                let was_written = writes || gate.written.is_some_and(|written| written > begun);
                // By then no reader needs the gate because a fault has cost it its slot.
                let is_calm = self.healed_at.is_some_and(|at| now > at + nanos(LONGEST_TTL));
                if is_calm && was_used && !was_written {
                    return violation("a reader waits, and nobody writes");
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// A claim that the store has not granted asks for its lock again.
    pub(crate) fn asks(&mut self, owner: OwnerId, now: Time) -> Result<(), Violation> {
        let Some(turn) = self.places.get(&owner) else { return Ok(()) };
        let ended = turn.and_then(|turn| self.ended_turns.get(&turn));
        let calm = ended.zip(self.healed_at).map(|(ended, healed)| healed.max(*ended));
        if calm.is_some_and(|since| now > since + nanos(GIVES_UP)) {
            return violation("a waiter whose turn has ended still waits for a slot");
        }
        Ok(())
    }

    /// An operator takes a part away.
    pub(crate) fn taken(&mut self, key: &LockKey, owner: OwnerId, now: Time) {
        if key.name().ends_with("~~pt") {
            self.ended_turns.insert(owner, now + nanos(LONGEST_TURN));
        }
    }

    /// There are no more faults.
    pub(crate) fn healed(&mut self, now: Time) {
        self.healed_at.get_or_insert(now);
    }

    /// The store has another holder of a part than before, or none.
    pub(crate) fn stored(
        &mut self,
        key: &LockKey,
        before: Option<OwnerId>,
        holder: Option<OwnerId>,
        now: Time,
    ) {
        let Some((whole, part)) = part_of(key) else { return };
        self.moment += 1;
        match part {
            "pt" => {
                if let Some(turn) = before {
                    self.ended_turns.entry(turn).or_insert(now);
                }
                // One that ends before its claim hears of it can be granted anew.
                if let Some(turn) = holder {
                    self.ended_turns.remove(&turn);
                }
            }
            "g" => {
                let gate = self.gates.entry(whole).or_default();
                gate.first_used.get_or_insert(self.moment);
                gate.holder = holder.map(|holder| (holder, self.moment));
                if before.is_some_and(|before| self.writers.contains(&before)) {
                    gate.written = Some(self.moment);
                }
            }
            _ => {}
        }
    }

    /// A task reads.
    pub(crate) fn reads(&self, task: usize) -> Result<(), Violation> {
        let Some(call) = self.calls.get(&task) else { return Ok(()) };
        let holder = self.gates.get(&call.whole).and_then(|gate| gate.holder);
        match holder {
            Some((holder, since)) if since < call.begun && self.writers.contains(&holder) => {
                violation("a reader passes a writer that has come first")
            }
            _ => Ok(()),
        }
    }
}
