//! What can happen.

use super::state::{Drain, Hold, Kind, Reader, SLOTS, State, Writer};
use super::{RwLock, Wrong};
use crate::explore::{Fact, Step};
use crate::store::Lock;

/// A step. Tasks are numbered as they stand in the state before it, in which those of a kind are sorted.
#[derive(Clone, Copy, Debug)]
pub enum What {
    /// Begins to want the lock.
    Starts(Who),
    /// Does not want it any more.
    GivesUp(Who),
    /// Is granted the gate.
    TakesGate(Who),
    /// Is granted a slot.
    TakesSlot(Who, u8),
    /// Shares the slot of its process.
    Joins(Who),
    /// Looks at the gate.
    LooksAtGate(Who),
    /// Looks at a slot.
    LooksAtSlot(Who, u8),
    /// Lets a slot go that it had to own once.
    LetsSlotGo(Who, u8),
    /// Lets the gate go.
    LetsGateGo(Who),
    /// Passes the gate to this writer.
    PassesGate(Who, Who),
    /// Begins to write.
    Writes(Who),
    /// Ends its hold.
    Leaves(Who),
    /// Uses the resource.
    Acts(Who),
    /// Notices that it has lost its hold.
    Notices(Who),
    /// The belief in the gate ends.
    GateLost,
    /// The belief in a slot ends.
    SlotLost(u8),
    /// What was left of the gate ends.
    GateEnds,
    /// What was left of a slot ends.
    SlotEnds(u8),
    /// A request for the gate lands that somebody has given up.
    GateStrays,
    /// A request for a slot lands that somebody has given up.
    SlotStrays(u8),
}

/// A task.
#[derive(Clone, Copy, Debug)]
pub enum Who {
    /// One that writes.
    Writer(usize),
    /// One that reads.
    Reader(usize),
}

type Steps = Vec<Step<RwLock>>;

fn slots() -> impl Iterator<Item = (u8, usize)> {
    (0..).zip(0..SLOTS)
}

impl RwLock {
    pub(super) fn of_writer(&self, from: &State, w: usize, steps: &mut Steps) {
        let who = Who::Writer(w);
        let with = |writer: Writer| {
            let mut state = *from;
            state.writers[w] = writer;
            state
        };
        match from.writers[w] {
            Writer::Absent => {}
            Writer::Idle => {
                steps.push(Step::chance(What::Starts(who), with(Writer::Wants(self.unseen()))));
            }
            Writer::Wants(slots) => {
                let looks_first = self.is(Wrong::LooksBeforeGate);
                let may_take = !looks_first || slots == [Drain::Seen; SLOTS];
                if from.gate == Lock::Free && may_take {
                    let mut state = with(Writer::Drains { slots, has_gate: true });
                    state.take_gate(Kind::Writer);
                    steps.push(Step::due(What::TakesGate(who), state));
                }
                if looks_first {
                    Self::of_slots(from, who, slots, |slots| with(Writer::Wants(slots)), steps);
                }
                steps.push(self.gives_up(from, who));
            }
            Writer::Drains { slots, has_gate } => {
                let drains = |slots| with(Writer::Drains { slots, has_gate });
                Self::of_slots(from, who, slots, drains, steps);
                if slots == [Drain::Seen; SLOTS] {
                    let (hold, facts) = Self::granted(from, Kind::Writer, from.last);
                    let state = with(Writer::Writes { hold, has_gate });
                    let step = Step::due(What::Writes(who), state);
                    steps.push(Step { facts, grants: Some(Self::WRITES), ..step });
                }
                steps.push(self.gives_up(from, who));
            }
            Writer::Writes { has_gate, .. } => {
                let mut state = with(Writer::Idle);
                if has_gate {
                    state.gate = Lock::Ending;
                }
                steps.push(Step::due(What::Leaves(who), state));
            }
            Writer::Late(_) => steps.push(Step::chance(What::Notices(who), with(Writer::Idle))),
        }
    }

    /// What a writer does at the slots. `with`: the state in which it knows this of them.
    fn of_slots(
        from: &State,
        who: Who,
        known: [Drain; SLOTS],
        with: impl Fn([Drain; SLOTS]) -> State,
        steps: &mut Steps,
    ) {
        for (name, slot) in slots() {
            let is_free = from.slots[slot] == Lock::Free;
            let now = |drain| {
                let mut known = known;
                known[slot] = drain;
                with(known)
            };
            match known[slot] {
                Drain::Unseen => {
                    let seen = if is_free { Drain::Seen } else { Drain::Queued };
                    steps.push(Step::due(What::LooksAtSlot(who, name), now(seen)));
                }
                Drain::Queued if is_free => {
                    let mut state = now(Drain::Owned);
                    state.slots[slot] = Lock::Kept;
                    steps.push(Step::due(What::TakesSlot(who, name), state));
                }
                Drain::Owned => {
                    let mut state = now(Drain::Seen);
                    state.slots[slot] = Lock::Ending;
                    steps.push(Step::due(What::LetsSlotGo(who, name), state));
                }
                Drain::Queued | Drain::Seen => {}
            }
        }
    }

    pub(super) fn of_reader(&self, from: &State, r: usize, steps: &mut Steps) {
        let who = Who::Reader(r);
        let with = |reader: Reader| {
            let mut state = *from;
            state.readers[r] = reader;
            state
        };
        match from.readers[r] {
            Reader::Absent => {}
            Reader::Idle => {
                let looks_first = self.is(Wrong::LooksBeforeSlot);
                let first =
                    if looks_first { Reader::Looks { slot: None } } else { Reader::WantsSlot };
                steps.push(Step::chance(What::Starts(who), with(first)));
            }
            Reader::WantsSlot | Reader::HasGate | Reader::HasLooked { .. } => {
                self.of_wanted_slot(from, r, steps);
                if from.readers[r].has_gate() && self.is(Wrong::SlotAfterGate) {
                    let mut state = with(Reader::HasLooked { token: from.last });
                    state.gate = Lock::Ending;
                    steps.push(Step::due(What::LetsGateGo(who), state));
                }
                steps.push(self.gives_up(from, who));
            }
            Reader::Looks { slot } => {
                steps.push(self.looks_at_gate(from, r, slot));
                steps.push(self.gives_up(from, who));
            }
            Reader::WantsGate => {
                if from.gate == Lock::Free {
                    let mut state = with(Reader::HasGate);
                    state.take_gate(Kind::Reader);
                    steps.push(Step::due(What::TakesGate(who), state));
                }
                steps.push(self.gives_up(from, who));
            }
            Reader::Reads { slot, hold, has_gate } => {
                let mut left = with(Reader::Idle);
                left.leaves_slot(slot);
                if has_gate {
                    left.gate = Lock::Ending;
                    let mut state = with(Reader::Reads { slot, hold, has_gate: false });
                    self.passes_gate(state, who, steps);
                    state.gate = Lock::Ending;
                    steps.push(Step::due(What::LetsGateGo(who), state));
                }
                steps.push(Step::due(What::Leaves(who), left));
            }
            Reader::Late(_) => steps.push(Step::chance(What::Notices(who), with(Reader::Idle))),
        }
    }

    /// Of a reader that waits for a slot: a new one, or that of its process.
    fn of_wanted_slot(&self, from: &State, r: usize, steps: &mut Steps) {
        let who = Who::Reader(r);
        let mate = (self.joined && r < 2).then(|| from.readers[1 - r]);
        if let Some(slot) = mate.and_then(|mate| mate.slot()) {
            steps.push(self.has_slot(What::Joins(who), *from, r, slot));
            return;
        }
        let is_lost = matches!(mate, Some(Reader::Late(_))) && from.slots.contains(&Lock::Ending);
        if is_lost && self.is(Wrong::JoinsWhatIsLost) {
            let mut state = *from;
            state.readers[r] = Reader::Looks { slot: None };
            steps.push(Step::due(What::Joins(who), state));
        }
        for (name, slot) in slots().filter(|(_, slot)| from.slots[*slot] == Lock::Free) {
            let mut state = *from;
            state.slots[slot] = Lock::Kept;
            if self.is(Wrong::SlotFence) {
                state.slot_fences[slot] += 1;
            }
            steps.push(self.has_slot(What::TakesSlot(who, name), state, r, name));
        }
    }

    /// A reader has a slot now: its own, or that of its process.
    fn has_slot(&self, what: What, from: State, r: usize, slot: u8) -> Step<Self> {
        let slot = Some(slot);
        let mate = from.readers.iter().find(|reader| reader.reads() && reader.slot() == slot);
        let of_mate = mate.and_then(|mate| mate.hold()).filter(|_| self.is(Wrong::JoinsBlindly));
        let token = match from.readers[r] {
            Reader::HasGate => Some(from.last),
            Reader::HasLooked { token } => Some(token),
            _ => of_mate.map(|hold| hold.token),
        };
        if let Some(token) = token {
            return Self::reads(what, from, r, slot, token);
        }
        let mut state = from;
        state.readers[r] = Reader::Looks { slot };
        Step::due(what, state)
    }

    /// A reader is granted its read.
    fn reads(what: What, from: State, r: usize, slot: Option<u8>, token: u8) -> Step<Self> {
        let has_gate = from.readers[r].has_gate();
        let (hold, mut facts) = Self::granted(&from, Kind::Reader, token);
        if !has_gate && from.readers.iter().any(Reader::has_gate) {
            facts.push(Self::PASSED);
        }
        let mut state = from;
        state.readers[r] = Reader::Reads { slot, hold, has_gate };
        Step { facts, grants: Some(Self::READS), ..Step::due(what, state) }
    }

    fn looks_at_gate(&self, from: &State, r: usize, slot: Option<u8>) -> Step<Self> {
        let what = What::LooksAtGate(Who::Reader(r));
        let is_writers = from.gate != Lock::Free && from.mark == Kind::Writer;
        if !is_writers || self.is(Wrong::PassesWriter) {
            let token = match slot {
                Some(slot) if self.is(Wrong::SlotFence) => from.slot_fences[usize::from(slot)],
                _ if self.is(Wrong::FloorTooSmall) => from.last.saturating_sub(1),
                _ if self.is(Wrong::FloorTooLarge) => from.last + 1,
                _ => from.last,
            };
            if !self.is(Wrong::LooksBeforeSlot) {
                return Self::reads(what, *from, r, slot, token);
            }
            let mut state = *from;
            state.readers[r] = Reader::HasLooked { token };
            return Step::due(what, state);
        }
        let mut state = *from;
        state.readers[r] = Reader::WantsGate;
        if !self.is(Wrong::KeepsSlot) {
            state.leaves_slot(slot);
        }
        Step::due(what, state)
    }

    /// Wrong: the gate goes to each writer that waits, still marked as a reader's. `passed`: the state in which the
    /// reader has it no more.
    fn passes_gate(&self, passed: State, who: Who, steps: &mut Steps) {
        if !self.is(Wrong::PassesGateOn) {
            return;
        }
        for (w, writer) in passed.writers.into_iter().enumerate() {
            if let Writer::Wants(slots) = writer {
                let mut state = passed;
                state.take_gate(Kind::Reader);
                state.writers[w] = Writer::Drains { slots, has_gate: true };
                steps.push(Step::due(What::PassesGate(who, Who::Writer(w)), state));
            }
        }
    }

    /// A new hold, and what can be said of its grant.
    fn granted(from: &State, kind: Kind, token: u8) -> (Hold, Vec<Fact>) {
        let holds = from.holds();
        let born = holds.iter().map(|(_, hold)| hold.born).max().unwrap_or(0) + 1;
        let mut facts = Vec::new();
        let is_ordered = |(earlier, hold): &(Kind, Hold)| match (earlier, kind) {
            (Kind::Reader, Kind::Reader) => true,
            (Kind::Writer, Kind::Reader) => hold.token <= token,
            (_, Kind::Writer) => hold.token < token,
        };
        if !holds.iter().all(is_ordered) {
            facts.push(Self::ORDER);
        }
        if kind == Kind::Reader && from.writers.iter().any(Writer::has_gate) {
            facts.push(Self::PRECEDENCE);
        }
        (Hold { token, born, is_overtaken: false }, facts)
    }

    /// Whoever waits wants the lock no more.
    fn gives_up(&self, from: &State, who: Who) -> Step<Self> {
        let mut state = *from;
        match who {
            Who::Writer(w) => {
                state.abandons(w);
                state.writers[w] = Writer::Idle;
            }
            Who::Reader(r) => {
                let reader = std::mem::replace(&mut state.readers[r], Reader::Idle);
                state.leaves_slot(reader.slot());
                if reader.has_gate() {
                    state.gate = Lock::Ending;
                }
            }
        }
        Step::chance(What::GivesUp(who), state)
    }

    pub(super) fn of_store(&self, from: &State, steps: &mut Steps) {
        let mut state = *from;
        match from.gate {
            Lock::Free => {
                for mark in [Kind::Reader, Kind::Writer] {
                    let mut state = *from;
                    state.take_gate(mark);
                    state.gate = Lock::Ending;
                    steps.push(Step::chance(What::GateStrays, state));
                }
            }
            Lock::Kept => {
                self.loses_gate(&mut state);
                steps.push(Step::chance(What::GateLost, state));
            }
            Lock::Ending => {
                (state.gate, state.mark) = (Lock::Free, Kind::Reader);
                steps.push(Step::due(What::GateEnds, state));
            }
        }
        for (name, slot) in slots() {
            let mut state = *from;
            match from.slots[slot] {
                Lock::Free => {
                    state.slots[slot] = Lock::Ending;
                    steps.push(Step::chance(What::SlotStrays(name), state));
                }
                Lock::Kept => {
                    state.loses_slot(name);
                    steps.push(Step::chance(What::SlotLost(name), state));
                }
                Lock::Ending => {
                    state.slots[slot] = Lock::Free;
                    steps.push(Step::due(What::SlotEnds(name), state));
                }
            }
        }
    }

    /// Whoever has the gate ceases to believe in it.
    fn loses_gate(&self, state: &mut State) {
        state.gate = Lock::Ending;
        for w in 0..state.writers.len() {
            match state.writers[w] {
                Writer::Drains { slots, has_gate: true } if self.is(Wrong::DrainsWithoutGate) => {
                    state.writers[w] = Writer::Drains { slots, has_gate: false };
                }
                Writer::Drains { slots, has_gate: true } => {
                    state.abandons(w);
                    let keeps = self.is(Wrong::KeepsWhatItSaw);
                    let keep = |known| if known == Drain::Owned { Drain::Seen } else { known };
                    let known = if keeps { slots.map(keep) } else { self.unseen() };
                    state.writers[w] = Writer::Wants(known);
                }
                Writer::Writes { hold, has_gate: true } => state.writers[w] = Writer::Late(hold),
                _ => {}
            }
        }
        for reader in &mut state.readers {
            match reader {
                Reader::HasGate if self.is(Wrong::SlotWithoutGate) => {
                    *reader = Reader::HasLooked { token: state.last };
                }
                Reader::HasGate => *reader = Reader::WantsSlot,
                Reader::Reads { has_gate, .. } => *has_gate = false,
                _ => {}
            }
        }
    }
}

impl State {
    /// A reader that has let this slot go was perhaps the last one on it.
    fn leaves_slot(&mut self, slot: Option<u8>) {
        let is_shared = self.readers.iter().any(|reader| reader.slot() == slot);
        if let Some(slot) = slot.filter(|_| !is_shared) {
            self.slots[usize::from(slot)] = Lock::Ending;
        }
    }

    /// A writer gives up what it has.
    fn abandons(&mut self, w: usize) {
        let writer = self.writers[w];
        if writer.has_gate() {
            self.gate = Lock::Ending;
        }
        for (_, slot) in slots().filter(|(_, slot)| writer.owns(*slot)) {
            self.slots[slot] = Lock::Ending;
        }
    }

    /// Whoever has the slot ceases to believe in it.
    fn loses_slot(&mut self, name: u8) {
        let slot = usize::from(name);
        self.slots[slot] = Lock::Ending;
        for writer in &mut self.writers {
            if let Writer::Wants(slots) | Writer::Drains { slots, .. } = writer
                && slots[slot] == Drain::Owned
            {
                slots[slot] = Drain::Seen;
            }
        }
        for reader in self.readers.iter_mut().filter(|reader| reader.slot() == Some(name)) {
            match *reader {
                Reader::Looks { .. } => *reader = Reader::WantsSlot,
                Reader::Reads { hold, has_gate, .. } => {
                    *reader = Reader::Late(hold);
                    if has_gate {
                        self.gate = Lock::Ending;
                    }
                }
                _ => {}
            }
        }
    }
}
