//! What must hold in every run, and wrong variants of what surrounds the core, each of which must break
//! some of it.

use std::fmt;

#[cfg(distlock_mutants)]
use lock_core::mutants::KindMistake;

use crate::choices::Scenario;

/// A promise of the core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Property {
    /// Two clients never believe at once that they hold a lock.
    OneHolder,
    /// Permits are of one holder each, nobody writes while another reads or writes, and a release ends what is
    /// released and nothing else.
    Sharing,
    /// A task that waits for a permit is not passed by a later one of its process, and a writer that has the gate not by
    /// a later reader, who waits for nobody else. A first waiter that dies stops the others for a moment, and one
    /// that has lost its turn gives up its places.
    Order,
    /// Whoever watches an election sees no term after a greater one, each value with the term of its leader, and that
    /// nobody leads only if that is so; and hears of a store that does not answer only if there is one.
    Terms,
    /// A fence is greater than each that was given before its acquisition began.
    RisingFences,
    /// A hold counts as lost before the store may end it, however late its tasks run.
    ValidNoLonger,
    /// The signal of a loss comes before the store may end the hold, if the task that waits runs.
    LossInTime,
    /// The work under a lock is not continued after its loss.
    StoppedWork,
    /// A lock that nobody uses goes to somebody who waits for it.
    NoStarvation,
    /// What was dropped, released or given up leaves nothing in the store.
    NoLeftovers,
    /// A call that waits, and the lock that it gets, need nobody who polls it.
    WaitsAlone,
    /// The calls of a claim follow the table of the contract: nothing but a release after a release.
    LegalCalls,
    /// A call with a limit ends at it.
    LimitKept,
    /// The run ends.
    Progress,
}

/// A broken promise.
#[derive(Clone, Debug)]
pub struct Violation {
    /// What was broken.
    pub property: Property,
    /// How.
    pub what: String,
}

impl Violation {
    pub(crate) fn new(property: Property, what: impl Into<String>) -> Self {
        Self { property, what: what.into() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.property, self.what)
    }
}

/// One mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// The store grants a lock that another client holds.
    GrantsTwice,
    /// The store forgets its fences when a lock is free.
    ForgetsFences,
    /// The store grants fences in a row of which a later holder gets some, too.
    OverlapsFences,
    /// The store promises twice as long as it keeps the lock.
    PromisesTooMuch,
    /// A client's clock is a tenth too slow.
    SlowClock,
    /// Timers fire late: a loss is signalled too late.
    LateTimers,
    /// Pushes that cannot get lost get lost.
    LosesPushes,
    /// The store confirms the release of a place and keeps it.
    KeepsPlaces,
    /// The store confirms a release that it has not made.
    KeepsHolds,
    /// The store sets the end of a lease anew with each request: one with a shorter ttl, such as an older
    /// one that arrives late, makes it shorter.
    ShortensLeases,
    /// The client renews once more after a release.
    RenewsAfterRelease,
    /// A look shows no gate that a writer has: a reader does not look.
    SeesNoWriter,
    /// A look shows no slot that a reader has: a writer does not look.
    SeesNoReader,
    /// A look leaves out some of the slots.
    SeesSomeReaders,
    /// A look shows slots that were given back.
    SeesGoneReaders,
    /// A look at the gate shows what was true before the slot was taken: a reader looks first.
    LooksTooEarly,
    /// A look shows a writer at the gate as a reader on its way.
    MistakesWriters,
    /// A look shows a floor that is below the last writer's fence.
    FloorTooLow,
    /// A look shows a floor that is the next writer's fence.
    FloorTooHigh,
    /// The store confirms the release of a turnstile and keeps it for an hour: a task that has its permit is still
    /// the first waiter, and its turn lasts as long as a lock.
    KeepsTurns,
    /// A reader goes on without the gate that it has lost.
    EndsReadersTurns,
    /// The store confirms the release of a gate and keeps it for an hour: a reader on its way, or a writer, keeps it.
    KeepsGates,
    /// The same of a slot: a reader that gives way to a writer stays in the writer's way.
    KeepsSlots,
    /// A look shows the slots as they were before the gate was taken: a writer looks first.
    WriterLooksTooEarly,
    /// A look shows a process what it has seen when it took its slot: who joins does not look.
    LooksOnce,
    /// A look shows a reader on its way with the next writer's fence.
    PassingFenceTooHigh,
    /// A look shows no permit that is free.
    SeesGonePermits,
    /// All claims of a process have the same owner, so that a slot is granted to it twice.
    RepeatsOwners,
    /// A look shows no leader.
    SeesNoLeader,
    /// A look shows a leader with the term of the one before.
    SeesTermBefore,
    /// A mistake in the core.
    #[cfg(distlock_mutants)]
    Mistake(KindMistake),
}

impl Variant {
    /// All of them, what a run must have besides the ordinary to show them, and what each must break.
    pub const ALL: [(Self, Scenario, &[Property]); 34] = {
        use Property::{
            LegalCalls, LossInTime, NoLeftovers, NoStarvation, OneHolder, Order, RisingFences,
            Sharing, Terms, ValidNoLonger,
        };
        const ORDINARY: Scenario = Scenario::ORDINARY;
        const KINDS: Scenario = Scenario::KINDS;
        const ELECTIONS: Scenario = Scenario::ELECTIONS_OF_LEADERS;
        [
            (Self::GrantsTwice, ORDINARY, &[OneHolder]),
            (Self::ForgetsFences, ORDINARY, &[RisingFences]),
            (Self::OverlapsFences, Scenario::COHORTS, &[RisingFences]),
            (Self::PromisesTooMuch, ORDINARY, &[ValidNoLonger]),
            (Self::SlowClock, ORDINARY, &[ValidNoLonger]),
            (Self::LateTimers, ORDINARY, &[LossInTime]),
            (Self::LosesPushes, ORDINARY, &[NoStarvation]),
            (Self::KeepsPlaces, ORDINARY, &[NoLeftovers, NoStarvation]),
            (Self::KeepsHolds, ORDINARY, &[NoLeftovers, NoStarvation]),
            (Self::ShortensLeases, ORDINARY, &[ValidNoLonger]),
            (Self::RenewsAfterRelease, ORDINARY, &[LegalCalls]),
            (Self::GrantsTwice, KINDS, &[Sharing]),
            (Self::ForgetsFences, KINDS, &[RisingFences]),
            (Self::PromisesTooMuch, KINDS, &[ValidNoLonger]),
            (Self::KeepsPlaces, KINDS, &[NoLeftovers, NoStarvation]),
            (Self::KeepsTurns, KINDS, &[NoLeftovers, NoStarvation]),
            (Self::SeesNoWriter, KINDS, &[Sharing]),
            (Self::SeesNoReader, KINDS, &[Sharing]),
            (Self::SeesSomeReaders, KINDS, &[Sharing]),
            (Self::SeesGoneReaders, KINDS, &[NoStarvation]),
            (Self::LooksTooEarly, KINDS, &[Sharing]),
            (Self::MistakesWriters, KINDS, &[Sharing]),
            (Self::FloorTooLow, KINDS, &[RisingFences]),
            (Self::FloorTooHigh, KINDS, &[RisingFences]),
            (Self::EndsReadersTurns, KINDS, &[Sharing]),
            (Self::KeepsGates, KINDS, &[NoLeftovers, NoStarvation]),
            (Self::KeepsSlots, KINDS, &[NoLeftovers, NoStarvation]),
            (Self::WriterLooksTooEarly, KINDS, &[Sharing]),
            (Self::LooksOnce, KINDS, &[Order]),
            (Self::PassingFenceTooHigh, KINDS, &[RisingFences]),
            (Self::SeesGonePermits, KINDS, &[NoStarvation]),
            (Self::RepeatsOwners, KINDS, &[Sharing]),
            (Self::SeesNoLeader, ELECTIONS, &[Terms]),
            (Self::SeesTermBefore, ELECTIONS, &[Terms]),
        ]
    };

    /// The same of the mistakes in the core, which a build with `--cfg distlock_mutants` can make.
    #[cfg(distlock_mutants)]
    pub const MISTAKES: [(Self, Scenario, &[Property]); 17] = {
        use KindMistake::{
            CountsDoubles, IgnoresLostTurns, KeepsTerms, LeadsOn, LeavesOneOut, LongTurns,
            MarksWritersAsReaders, OneLossIsNone, OneTooMany, OrderOfCaller, PassesItsOwn,
            PassesPartsOn, ReadsWithoutGate, ShowsPastTerms, TermIsNoFence, TokenOfSlot,
            WaitsForReaders,
        };
        use Property::{
            NoLeftovers, NoStarvation, OneHolder, Order, RisingFences, Sharing, StoppedWork, Terms,
            ValidNoLonger,
        };
        const KINDS: Scenario = Scenario::KINDS;
        const SETS: Scenario = Scenario::SETS_OF_LOCKS;
        const ELECTIONS: Scenario = Scenario::ELECTIONS_OF_LEADERS;
        [
            (Self::Mistake(PassesPartsOn), KINDS, &[Sharing]),
            (Self::Mistake(LongTurns), KINDS, &[Order]),
            (Self::Mistake(OneTooMany), KINDS, &[Sharing]),
            (Self::Mistake(PassesItsOwn), KINDS, &[Order]),
            (Self::Mistake(IgnoresLostTurns), KINDS, &[Order]),
            (Self::Mistake(LeavesOneOut), KINDS, &[Sharing]),
            (Self::Mistake(MarksWritersAsReaders), KINDS, &[Sharing]),
            (Self::Mistake(WaitsForReaders), KINDS, &[Order]),
            (Self::Mistake(ReadsWithoutGate), KINDS, &[RisingFences, Sharing]),
            (Self::Mistake(TokenOfSlot), KINDS, &[RisingFences]),
            (Self::Mistake(OrderOfCaller), SETS, &[NoStarvation]),
            (Self::Mistake(CountsDoubles), SETS, &[NoStarvation]),
            (Self::Mistake(OneLossIsNone), SETS, &[ValidNoLonger]),
            (Self::Mistake(TermIsNoFence), ELECTIONS, &[Terms]),
            (Self::Mistake(LeadsOn), ELECTIONS, &[StoppedWork]),
            (Self::Mistake(KeepsTerms), ELECTIONS, &[NoLeftovers, NoStarvation, OneHolder]),
            (Self::Mistake(ShowsPastTerms), ELECTIONS, &[Terms]),
        ]
    };
}
