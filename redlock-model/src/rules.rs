//! The rules that a client and a node follow: the real ones, and known wrong ones.

use lock_redis::redlock::rule;

/// When a client takes a value as its fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Established {
    /// When a quorum has answered exactly this value. This is the product's own code.
    EqualOnQuorum,
    /// Wrong: the maximum of the first quorum's answers, at once.
    FirstMaximum,
    /// Wrong: the maximum, as soon as a quorum has confirmed the raise as "still yours", whatever
    /// value it has.
    RaisedMaximum,
}

/// When a node that joined a hold late, with another counter, takes part in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Join {
    /// When a renewal that a quorum has answered without it has adopted it.
    ByRenewal,
    /// Wrong: as soon as it answers, and a second try gives the old fence back for it.
    AtOnce,
}

/// How a node that lost its data comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejoin {
    /// It waits until the attempts that had begun before have ended, and *then* takes the greatest
    /// mark of so many others.
    WaitThenSeed {
        /// Of how many others.
        others: usize,
    },
    /// Wrong: it reads the marks first and waits afterwards.
    SeedThenWait {
        /// Of how many others.
        others: usize,
    },
    /// Wrong: it waits, and starts from zero.
    WaitOnly,
    /// Wrong: it votes at once, from zero.
    AtOnce,
}

/// One set of rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// When a value is a fence.
    pub established: Established,
    /// Whether a node refuses to raise its counter for a client that does not hold it any more.
    pub raise_needs_holder: bool,
    /// How a node that lost its data comes back.
    pub rejoin: Rejoin,
    /// Whether an admission names the quarantine that it ends, so that one that arrives late cannot
    /// admit a node that was flushed again.
    pub admission_names_quarantine: bool,
    /// When a node that joined late takes part in a hold.
    pub join: Join,
    /// Whether a grant is given back that is over when it is judged.
    pub gives_back_late: bool,
    /// How many nodes decide.
    pub quorum: usize,
}

impl Rules {
    /// What the product does with three nodes.
    pub const REAL: Self = Self {
        established: Established::EqualOnQuorum,
        raise_needs_holder: true,
        rejoin: Rejoin::WaitThenSeed { others: rule::seeds_needed(3, rule::quorum_of(3)) },
        admission_names_quarantine: true,
        join: Join::ByRenewal,
        gives_back_late: true,
        quorum: rule::quorum_of(3),
    };
}
