//! A semaphore.

use crate::explore::{Fact, Model, Step};
use crate::store::Lock;

/// How many may have a permit at once.
const SLOTS: usize = 2;

/// How many want one.
const CONTENDERS: usize = 3;

/// The semaphore under a set of rules.
#[derive(Clone, Copy, Debug, Default)]
pub struct Semaphore {
    /// The rule that is not kept.
    pub wrong: Option<Wrong>,
}

/// Known wrong rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// The turnstile is let go with the permit, and not before.
    KeepsTurn,
    /// What is granted besides the permit is not declined.
    KeepsSecond,
    /// Who has lost the turnstile goes on waiting for slots.
    SearchesWithoutTurn,
    /// Two contenders are one owner to the store, which grants a slot to its owner again.
    GrantsTwice,
    /// Who has lost the slot goes on believing in the permit.
    BelievesOn,
}

/// All of it at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct State {
    turnstile: Lock,
    slots: [Lock; SLOTS],
    contenders: [Contender; CONTENDERS],
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Contender {
    #[default]
    Idle,
    /// Waits for the turnstile.
    WantsTurn,
    /// Waits for all slots at once.
    Searches { places: [Place; SLOTS], has_turn: bool },
    /// Has a permit: that of this slot. What it has of the others is given up, then the turnstile.
    Holds { permit: u8, places: [Place; SLOTS], has_turn: bool },
}

/// What a contender has of a slot that is not its permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Place {
    Nothing,
    Queued,
    Granted,
}

/// A step. Contenders are numbered as they stand in the state before it, in which they are sorted.
#[derive(Clone, Copy, Debug)]
pub enum What {
    /// Begins to want a permit.
    Starts(usize),
    /// Does not want one any more.
    GivesUp(usize),
    /// Is granted the turnstile.
    TakesTurn(usize),
    /// Is granted a slot.
    IsGranted(usize, u8),
    /// Makes a granted slot its permit.
    TakesPermit(usize, u8),
    /// Gives up its place in the queue of a slot.
    LeavesQueue(usize, u8),
    /// Lets a slot go that it was granted besides its permit.
    Declines(usize, u8),
    /// Lets the turnstile go.
    LetsTurnGo(usize),
    /// Ends its permit.
    Leaves(usize),
    /// The belief in the turnstile ends.
    TurnLost,
    /// The belief in a slot ends.
    SlotLost(u8),
    /// What was left of the turnstile ends.
    TurnEnds,
    /// What was left of a slot ends.
    SlotEnds(u8),
    /// A request for the turnstile lands that somebody has given up.
    TurnStrays,
    /// A request for a slot lands that somebody has given up.
    SlotStrays(u8),
}

impl Contender {
    fn has_turn(&self) -> bool {
        matches!(self, Self::Searches { has_turn: true, .. } | Self::Holds { has_turn: true, .. })
    }

    fn places(&self) -> [Place; SLOTS] {
        match self {
            Self::Searches { places, .. } | Self::Holds { places, .. } => *places,
            Self::Idle | Self::WantsTurn => [Place::Nothing; SLOTS],
        }
    }

    fn permit(&self) -> Option<usize> {
        match self {
            Self::Holds { permit, .. } => Some(usize::from(*permit)),
            _ => None,
        }
    }

    fn has(&self, slot: usize) -> bool {
        self.permit() == Some(slot) || self.places()[slot] == Place::Granted
    }

    fn with_place(mut self, slot: usize, place: Place) -> Self {
        if let Self::Searches { places, .. } | Self::Holds { places, .. } = &mut self {
            places[slot] = place;
        }
        self
    }
}

impl State {
    fn with(mut self, c: usize, contender: Contender) -> Self {
        self.contenders[c] = contender;
        self
    }

    fn permits(&self) -> impl Iterator<Item = usize> {
        self.contenders.iter().filter_map(Contender::permit)
    }

    /// A contender gives up all that it has.
    fn abandons(&mut self, c: usize) {
        let contender = std::mem::take(&mut self.contenders[c]);
        if contender.has_turn() {
            self.turnstile = Lock::Ending;
        }
        for slot in (0..SLOTS).filter(|slot| contender.has(*slot)) {
            self.slots[slot] = Lock::Ending;
        }
    }
}

fn slots() -> impl Iterator<Item = (u8, usize)> {
    (0..).zip(0..SLOTS)
}

impl Semaphore {
    /// No more permits than slots.
    pub const LIMIT: Fact = "E: there are no more permits than slots";
    /// No slot stands for two permits.
    pub const DISTINCT: Fact = "P: no two permits are of one slot";
    /// Who comes first searches first.
    pub const ORDER: Fact = "O: one at a time waits for slots";
    /// No lock is forgotten: nothing is held where nobody wants anything.
    pub const OWNED: Fact = "L: what is kept is somebody's";
    /// A free permit is granted to somebody who waits, whatever the holders of other permits do.
    pub const GRANTS: Fact = "D: a free permit can be granted";
    /// All that must hold.
    pub const PROPERTIES: [Fact; 5] =
        [Self::LIMIT, Self::DISTINCT, Self::ORDER, Self::OWNED, Self::GRANTS];

    /// Each slot stands for a permit.
    pub const FULL: Fact = "all permits are granted";
    /// Two slots are granted to one contender at once.
    pub const SECOND: Fact = "a second slot is granted";
    /// What must be possible: a model in which it is not proves nothing.
    pub const POSSIBLE: [Fact; 2] = [Self::FULL, Self::SECOND];

    fn is(&self, wrong: Wrong) -> bool {
        self.wrong == Some(wrong)
    }

    fn of_contender(&self, from: &State, c: usize, steps: &mut Vec<Step<Self>>) {
        let contender = from.contenders[c];
        let mut given_up = *from;
        given_up.abandons(c);
        match contender {
            Contender::Idle => {
                steps.push(Step::chance(What::Starts(c), from.with(c, Contender::WantsTurn)));
            }
            Contender::WantsTurn => {
                if from.turnstile == Lock::Free {
                    let places = [Place::Queued; SLOTS];
                    let searches = Contender::Searches { places, has_turn: true };
                    let state = State { turnstile: Lock::Kept, ..from.with(c, searches) };
                    steps.push(Step::due(What::TakesTurn(c), state));
                }
                steps.push(Step::chance(What::GivesUp(c), given_up));
            }
            Contender::Searches { places, has_turn } => {
                self.of_places(from, c, steps);
                for (permit, slot) in slots().filter(|(_, slot)| places[*slot] == Place::Granted) {
                    let holds = Contender::Holds { permit, places, has_turn };
                    let state = from.with(c, holds.with_place(slot, Place::Nothing));
                    let step = Step::due(What::TakesPermit(c, permit), state);
                    steps.push(Step { grants: Some(Self::GRANTS), ..step });
                }
                steps.push(Step::chance(What::GivesUp(c), given_up));
            }
            Contender::Holds { permit, places, has_turn } => {
                self.of_places(from, c, steps);
                let is_clear = places == [Place::Nothing; SLOTS];
                if has_turn && is_clear && !self.is(Wrong::KeepsTurn) {
                    let holds = Contender::Holds { permit, places, has_turn: false };
                    let state = State { turnstile: Lock::Ending, ..from.with(c, holds) };
                    steps.push(Step::due(What::LetsTurnGo(c), state));
                }
                // Nobody may have to wait for it while another permit is free.
                steps.push(Step::chance(What::Leaves(c), given_up));
            }
        }
    }

    /// What happens in the queues in which a contender waits.
    fn of_places(&self, from: &State, c: usize, steps: &mut Vec<Step<Self>>) {
        let contender = from.contenders[c];
        let holds = contender.permit().is_some();
        for (name, slot) in slots() {
            let now = |place| from.with(c, contender.with_place(slot, place));
            let is_permit = from.permits().any(|permit| permit == slot);
            let is_again = self.is(Wrong::GrantsTwice) && is_permit;
            match contender.places()[slot] {
                Place::Queued => {
                    if from.slots[slot] == Lock::Free || is_again {
                        let mut state = now(Place::Granted);
                        state.slots[slot] = Lock::Kept;
                        steps.push(Step::due(What::IsGranted(c, name), state));
                    }
                    if holds {
                        let state = now(Place::Nothing);
                        steps.push(Step::due(What::LeavesQueue(c, name), state));
                    }
                }
                Place::Granted if holds => {
                    let mut state = now(Place::Nothing);
                    if !self.is(Wrong::KeepsSecond) {
                        state.slots[slot] = Lock::Ending;
                    }
                    steps.push(Step::due(What::Declines(c, name), state));
                }
                Place::Granted | Place::Nothing => {}
            }
        }
    }

    fn of_store(&self, from: &State, steps: &mut Vec<Step<Self>>) {
        let turnstile = |turnstile| State { turnstile, ..*from };
        steps.push(match from.turnstile {
            Lock::Free => Step::chance(What::TurnStrays, turnstile(Lock::Ending)),
            Lock::Kept => {
                Step::chance(What::TurnLost, self.after_loss_of_turn(turnstile(Lock::Ending)))
            }
            Lock::Ending => Step::due(What::TurnEnds, turnstile(Lock::Free)),
        });
        for (name, slot) in slots() {
            let with = |lock| {
                let mut state = *from;
                state.slots[slot] = lock;
                state
            };
            steps.push(match from.slots[slot] {
                Lock::Free => Step::chance(What::SlotStrays(name), with(Lock::Ending)),
                Lock::Kept => {
                    let state = self.after_loss_of_slot(with(Lock::Ending), slot);
                    Step::chance(What::SlotLost(name), state)
                }
                Lock::Ending => Step::due(What::SlotEnds(name), with(Lock::Free)),
            });
        }
    }

    /// A search begins anew; a permit stands.
    fn after_loss_of_turn(&self, mut state: State) -> State {
        for c in 0..CONTENDERS {
            let searches_on = self.is(Wrong::SearchesWithoutTurn);
            match &mut state.contenders[c] {
                Contender::Searches { has_turn: true, .. } if !searches_on => {
                    state.abandons(c);
                    state.contenders[c] = Contender::WantsTurn;
                }
                Contender::Searches { has_turn, .. } | Contender::Holds { has_turn, .. } => {
                    *has_turn = false;
                }
                Contender::Idle | Contender::WantsTurn => {}
            }
        }
        state
    }

    /// A permit ends; a grant that was no permit yet is waited for again.
    fn after_loss_of_slot(&self, mut state: State, slot: usize) -> State {
        for c in 0..CONTENDERS {
            let contender = state.contenders[c];
            match contender {
                _ if !contender.has(slot) || self.is(Wrong::BelievesOn) => {}
                Contender::Searches { .. } => {
                    state.contenders[c] = contender.with_place(slot, Place::Queued);
                }
                Contender::Holds { .. } if contender.permit() == Some(slot) => state.abandons(c),
                _ => state.contenders[c] = contender.with_place(slot, Place::Nothing),
            }
        }
        state
    }
}

impl Model for Semaphore {
    type State = State;
    type What = What;

    const GOALS: &'static [Fact] = &[Self::GRANTS];

    fn start(&self) -> State {
        State::default()
    }

    fn steps(&self, state: &State) -> Vec<Step<Self>> {
        let mut steps = Vec::new();
        (0..CONTENDERS).for_each(|c| self.of_contender(state, c, &mut steps));
        self.of_store(state, &mut steps);
        // Their order does not matter.
        steps.iter_mut().for_each(|step| step.state.contenders.sort_unstable());
        steps
    }

    fn facts(&self, state: &State) -> Vec<Fact> {
        let permits: Vec<_> = state.permits().collect();
        let contenders = &state.contenders;
        let searching = contenders.iter().filter(|it| matches!(it, Contender::Searches { .. }));
        let is_owned = |slot: usize| contenders.iter().any(|contender| contender.has(slot));
        let has_turn = contenders.iter().any(Contender::has_turn);
        let is_forgotten = |slot: usize| state.slots[slot] == Lock::Kept && !is_owned(slot);
        let has_two = |it: &Contender| (0..SLOTS).filter(|slot| it.has(*slot)).count() > 1;
        let facts = [
            (Self::LIMIT, permits.len() > SLOTS),
            (
                Self::DISTINCT,
                (0..SLOTS).any(|slot| permits.iter().filter(|it| **it == slot).count() > 1),
            ),
            (Self::ORDER, searching.count() > 1),
            (
                Self::OWNED,
                (0..SLOTS).any(is_forgotten) || state.turnstile == Lock::Kept && !has_turn,
            ),
            (Self::FULL, permits.len() == SLOTS),
            (Self::SECOND, contenders.iter().any(has_two)),
        ];
        facts.into_iter().filter_map(|(fact, is_so)| is_so.then_some(fact)).collect()
    }

    fn wants(&self, state: &State, _: Fact) -> bool {
        let waits =
            |it: &Contender| matches!(it, Contender::WantsTurn | Contender::Searches { .. });
        state.permits().count() < SLOTS && state.contenders.iter().any(waits)
    }
}
