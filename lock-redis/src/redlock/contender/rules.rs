//! The settings of a contender: times, and the rules of the algorithm.

use std::time::Duration;

use super::debts::Open;
use super::message::Time;
use super::rule::{self, Block, Verdict, Vote};

/// The settings of one contender.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    pub(crate) rules: Rules,
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

impl Terms {
    /// For how long, from `called` on, an answer is believed that has come `now`.
    pub(crate) fn believed(&self, called: Time, now: Time) -> Duration {
        self.valid + ((self.rules.valid_from)(called, now) - called)
    }
}

/// The rules by which a contender decides. There is one right set, [`Rules::REAL`]; the tests replace
/// single lines by known mistakes, and must notice each of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// How many nodes decide, where of all `nodes` so many `voted` and so many are `pending`.
    pub(crate) needed: fn(nodes: usize, voted: usize, pending: usize) -> usize,
    /// When a value is the fence: see [`rule::judge`].
    pub(crate) judge:
        fn(needed: usize, votes: &[Vote], kept: Option<Block>, pending: usize) -> Verdict,
    /// From when on an answer is valid that was called for at `called` and has come `now`.
    pub(crate) valid_from: fn(called: Time, now: Time) -> Time,
    /// Which fence the nodes must show for a renewal of the hold with this fence.
    pub(crate) renews: fn(fence: Option<u64>) -> Option<u64>,
    /// Whether a failed try gives back what a node has `voted` for it, or may yet vote.
    pub(crate) gives_back: fn(voted: bool) -> bool,
    /// Whether a release proves that nothing is left at the node, where so much was open when it was
    /// sent, and it has `freed` something.
    pub(crate) settles: fn(open: Open, freed: bool) -> bool,
}

impl Rules {
    pub(crate) const REAL: Self = Self {
        needed: |nodes, _, _| rule::quorum_of(nodes),
        judge: rule::judge,
        valid_from: |called, _| called,
        renews: |fence| fence,
        gives_back: |_| true,
        settles: Open::is_settled_by,
    };
}
