//! The requests of a contender to the nodes, and their answers.

use std::time::Duration;

/// A point in time, from an origin that stays the same for one contender.
pub(crate) type Time = Duration;

/// What is asked of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Request {
    /// To take the lock, or to show what is there for this owner. `attempt` is the number of the try; it
    /// stands behind the owner id, so that what takes an older try back and arrives late cannot touch a
    /// newer one. A grant comes with so many `fences` in a row, the first of them at least `proposal`. With
    /// `joins`, the lock is granted already, and the node is to join the hold.
    Acquire { attempt: u32, proposal: u64, fences: u32, joins: bool },
    /// To raise the counter, if the lock is this owner's.
    Raise { attempt: u32, value: u64 },
    /// To show a hold whose last fence is this (`None`: any), and to prolong it if `prolongs`. With `adopt`, a node
    /// that stands at this counter takes part in the hold from now on.
    Renew { call: u32, fence: Option<u64>, adopt: Option<u64>, prolongs: bool },
    /// To give up what the try `attempt` has taken, or with `None` what any has; with `fence`, only a hold
    /// whose last fence that is. With `leaves`, this client stops waiting for the lock.
    Release { call: u32, attempt: Option<u32>, fence: Option<u64>, leaves: bool },
}

/// What one node has answered, as far as it matters for what is done next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Reply {
    /// The lock is this owner's there, with this counter: the last fence that the node has given it.
    Mine { counter: u64 },
    /// It is this owner's there, but not with the fence of the claim: it joined later.
    Unproven { counter: u64 },
    /// It is not this owner's.
    NotMine,
    /// The node gives no vote, and the request has no effect.
    NoVote,
    /// There is no answer, and the request may have an effect, now or later.
    Unknown,
    /// The release is carried out, and there was something to release.
    Freed(bool),
}

impl Reply {
    pub(crate) fn counter(self) -> Option<u64> {
        match self {
            Self::Mine { counter } => Some(counter),
            _ => None,
        }
    }

    /// Whether the node takes part: it has voted, for this claim or for another client.
    pub(crate) fn is_vote(self) -> bool {
        matches!(self, Self::Mine { .. } | Self::Unproven { .. } | Self::NotMine)
    }
}

/// How a call has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Outcome {
    /// A quorum has granted: the first fence, and for how long, from the call on, it can be believed.
    Granted { fence: u64, valid_for: Duration },
    /// A quorum has granted, but so late that the lock is over before it can be used.
    TooLate,
    /// Another client has so many that a quorum is out of reach.
    Busy,
    /// So many nodes give no vote that no client can have a quorum.
    Failed,
    /// A quorum shows the hold.
    Held,
    /// So many nodes do not show it that no quorum is left.
    Lost,
    /// Too few have answered to tell.
    Unknown,
    /// A quorum has carried the release out: whether there was something to release.
    Released(bool),
    /// The claim was released before it tried to acquire.
    Closed,
}
