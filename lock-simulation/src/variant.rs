//! Wrong variants of what surrounds the core, each of which must break a property.

use crate::property::Property;

/// One mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// The store grants a lock that another client holds.
    GrantsTwice,
    /// The store forgets its fences when a lock is free.
    ForgetsFences,
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
}

impl Variant {
    /// All of them, and what each must break.
    pub const ALL: [(Self, &'static [Property]); 10] = [
        (Self::GrantsTwice, &[Property::OneHolder]),
        (Self::ForgetsFences, &[Property::RisingFences]),
        (Self::PromisesTooMuch, &[Property::ValidNoLonger]),
        (Self::SlowClock, &[Property::ValidNoLonger]),
        (Self::LateTimers, &[Property::LossInTime]),
        (Self::LosesPushes, &[Property::NoStarvation]),
        (Self::KeepsPlaces, &[Property::NoLeftovers, Property::NoStarvation]),
        (Self::KeepsHolds, &[Property::NoLeftovers, Property::NoStarvation]),
        (Self::ShortensLeases, &[Property::ValidNoLonger]),
        (Self::RenewsAfterRelease, &[Property::LegalCalls]),
    ];
}
