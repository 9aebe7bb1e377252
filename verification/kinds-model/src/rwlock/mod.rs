//! Readers and writers of one name.

mod canonical;
mod resource;
mod state;
mod steps;

use crate::explore::{Fact, Model, Step};

pub use self::state::State;
use self::state::{Drain, Reader, SLOTS, Writer};
pub use self::steps::What;

/// The readers–writer lock under a set of rules.
#[derive(Clone, Copy, Debug)]
pub struct RwLock {
    /// How many want to write, at most two.
    pub writers: usize,
    /// How many want to read, at most three.
    pub readers: usize,
    /// Whether the first two readers are tasks of one process, which share a slot.
    pub joined: bool,
    /// Whether holders use a resource that checks their tokens.
    pub acts: bool,
    /// The rule that is not kept.
    pub wrong: Option<Wrong>,
}

/// Known wrong rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// A reader looks at the gate before it has a slot.
    LooksBeforeSlot,
    /// A writer looks at the slots before it has the gate.
    LooksBeforeGate,
    /// A writer does not look at the last slot.
    LeavesSlotOut,
    /// A writer goes on looking when it has lost the gate.
    DrainsWithoutGate,
    /// A writer that takes the gate again does not look again at what it had seen free.
    KeepsWhatItSaw,
    /// A reader passes a gate that a writer has.
    PassesWriter,
    /// A reader with the gate passes it to a writer of its process, and the mark of a reader stays.
    PassesGateOn,
    /// The fence of its slot is a reader's token.
    SlotFence,
    /// The floor of a look is one too small.
    FloorTooSmall,
    /// The floor of a look is one too large.
    FloorTooLarge,
    /// A reader with the gate lets it go before it has a slot.
    SlotAfterGate,
    /// A reader with the gate that has a slot does not ask whether the gate still is its own.
    SlotWithoutGate,
    /// A reader that has to wait for the gate does not give its slot back.
    KeepsSlot,
    /// A task that joins its process's slot does not look at the gate.
    JoinsBlindly,
    /// A task joins a slot that its process has lost.
    JoinsWhatIsLost,
    /// The resource has one mark for readers and writers.
    OneMark,
    /// The resource admits a writer whose token a reader has had.
    AdmitsEqual,
}

impl RwLock {
    /// A writer is never beside another or a reader, as far as each can know.
    pub const EXCLUSION: Fact = "E: who writes is alone";
    /// The tokens of conflicting holds are in the order of their grants.
    pub const ORDER: Fact = "T: a later hold has no smaller token";
    /// No reader gets in the way of a writer that has the gate.
    pub const PRECEDENCE: Fact = "N: nobody begins to read while a writer has the gate";
    /// Whoever believes in a hold may use the resource.
    pub const ADMISSION: Fact = "F1: who holds is admitted";
    /// Nobody uses the resource after a later holder that conflicts.
    pub const REFUSAL: Fact = "F2: who acts after a later holder is refused";
    /// No lock is forgotten.
    pub const OWNED: Fact = "L: what is kept is somebody's";
    /// A writer gets its turn, if the others go on.
    pub const WRITES: Fact = "D1: who waits to write can be granted";
    /// A reader gets its turn, if the others go on.
    pub const READS: Fact = "D2: who waits to read can be granted";
    /// All that must hold.
    pub const PROPERTIES: [Fact; 8] = [
        Self::EXCLUSION,
        Self::ORDER,
        Self::PRECEDENCE,
        Self::ADMISSION,
        Self::REFUSAL,
        Self::OWNED,
        Self::WRITES,
        Self::READS,
    ];

    /// Two readers read at once.
    pub const TOGETHER: Fact = "two read at once";
    /// Two readers read on one slot.
    pub const SHARED: Fact = "two read on one slot";
    /// A reader passes a gate that a reader has.
    pub const PASSED: Fact = "one reader passes the gate of another";
    /// An old holder is refused.
    pub const REFUSED: Fact = "who acts late is refused";
    /// What must be possible: a model in which it is not proves nothing.
    pub const POSSIBLE: [Fact; 3] = [Self::TOGETHER, Self::PASSED, Self::REFUSED];

    fn is(&self, wrong: Wrong) -> bool {
        self.wrong == Some(wrong)
    }

    /// The slots that a writer has to see free.
    fn unseen(&self) -> [Drain; SLOTS] {
        let mut unseen = [Drain::Unseen; SLOTS];
        if self.is(Wrong::LeavesSlotOut) {
            unseen[SLOTS - 1] = Drain::Seen;
        }
        unseen
    }
}

impl Default for RwLock {
    fn default() -> Self {
        Self { writers: 2, readers: 2, joined: false, acts: true, wrong: None }
    }
}

impl Model for RwLock {
    type State = State;
    type What = What;

    const GOALS: &'static [Fact] = &[Self::WRITES, Self::READS];

    fn start(&self) -> State {
        let mut state = State::default();
        state.writers[..self.writers].fill(Writer::Idle);
        state.readers[..self.readers].fill(Reader::Idle);
        self.canonical(state)
    }

    fn steps(&self, state: &State) -> Vec<Step<Self>> {
        let mut steps = Vec::new();
        (0..state.writers.len()).for_each(|w| self.of_writer(state, w, &mut steps));
        (0..state.readers.len()).for_each(|r| self.of_reader(state, r, &mut steps));
        self.of_store(state, &mut steps);
        if self.acts {
            self.of_resource(state, &mut steps);
        }
        for step in &mut steps {
            step.state = self.canonical(step.state);
        }
        steps
    }

    fn facts(&self, state: &State) -> Vec<Fact> {
        let mut facts = Vec::new();
        let writing = state.writers.iter().filter(|writer| writer.writes()).count();
        let reading = state.readers.iter().filter(|reader| reader.reads()).count();
        if writing > 1 || writing == 1 && reading > 0 {
            facts.push(Self::EXCLUSION);
        }
        if !state.is_owned() {
            facts.push(Self::OWNED);
        }
        if reading > 1 {
            facts.push(Self::TOGETHER);
        }
        if (0..SLOTS).any(|slot| state.reading_on(slot) > 1) {
            facts.push(Self::SHARED);
        }
        facts
    }

    fn wants(&self, state: &State, goal: Fact) -> bool {
        match goal {
            Self::WRITES => state.writers.iter().any(Writer::waits),
            _ => state.readers.iter().any(Reader::waits),
        }
    }
}
