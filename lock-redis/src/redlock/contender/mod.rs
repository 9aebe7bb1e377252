//! One contender for a lock on a quorum, as a state machine: told of calls, answers and the time, it says
//! what to ask of which node. It does no I/O and reads no clock.
//!
//! The crate `redlock-model` compiles these files too, and runs this machine for all interleavings of a
//! small quorum. So they use only the standard library.

mod ballot;
mod debts;
pub(crate) mod machine;

use std::time::Duration;

pub(crate) use self::machine::Contender;
use super::rules;

/// A point in time, from an origin that stays the same for one contender.
pub(crate) type Time = Duration;

/// The settings of one contender.
#[derive(Clone, Debug)]
pub(crate) struct ContenderTerms {
    /// With how many fences in a row a grant comes.
    pub(crate) fences: u32,
    /// For how long, from the call on, a grant is believed.
    pub(crate) valid: Duration,
    /// A grant that is valid for less is of no use.
    pub(crate) margin: Duration,
    /// How long a lock may last that is taken by a request sent now.
    pub(crate) lasts: Duration,
    /// A node that has not answered for this long counts as slow.
    pub(crate) slow_after: Duration,
    /// How long a differing or missing answer is waited for, at least, when a quorum has answered.
    pub(crate) short_wait: Duration,
    /// How long the last answers are waited for, at least, when a try has failed already.
    pub(crate) listing: Duration,
    /// How long after a grant the nodes that did not grant are asked again.
    pub(crate) join_after: Duration,
    /// The shortest and the longest pause before a release is repeated.
    pub(crate) pauses: (Duration, Duration),
}

/// What is asked of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum NodeRequest {
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

/// A request, and the number of the node that it is for.
pub(crate) type Sent = (usize, NodeRequest);

/// How a call has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum CallOutcome {
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
