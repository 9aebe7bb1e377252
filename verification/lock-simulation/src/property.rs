//! What must hold in every run, and wrong variants of what surrounds the core, each of which must break
//! some of it.

use std::fmt;

use crate::choices::Scenario;

/// A promise of the core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Property {
    /// Two clients never believe at once that they hold a lock.
    OneHolder,
    /// Permits are of one holder each, nobody writes while another reads or writes, and a release ends what is
    /// released and nothing else.
    Sharing,
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
}

impl Variant {
    /// All of them, what a run must have besides the ordinary to show them, and what each must break.
    pub const ALL: [(Self, Scenario, &[Property]); 25] = {
        use Property::{
            LegalCalls, LossInTime, NoLeftovers, NoStarvation, OneHolder, RisingFences, Sharing,
            ValidNoLonger,
        };
        const ORDINARY: Scenario = Scenario::ORDINARY;
        const KINDS: Scenario = Scenario::KINDS;
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
        ]
    };
}
