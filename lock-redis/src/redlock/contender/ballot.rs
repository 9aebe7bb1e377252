//! Counting the answers to one call.

use super::message::{Outcome, Reply};
use super::rule::{self, Block, Standing, Verdict, Vote};
use super::rules::Rules;

/// The answers to one call, node by node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Ballot(pub(crate) Vec<Paper>);

/// What one node has answered to the call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Paper {
    /// `None` while the first answer is under way.
    pub(crate) reply: Option<Reply>,
    /// A raise is under way, so the value that the node has shown does not count.
    pub(crate) raising: bool,
    /// The node has voted, whatever it said later.
    pub(crate) voted: bool,
}

/// What the answers to a try say so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Count {
    /// With this fence, or this last one of a block.
    Granted(u64),
    /// A quorum has granted, with different values.
    Differ(u64),
    /// A quorum is out of reach.
    Decided(Outcome),
    Open,
}

impl Ballot {
    pub(crate) fn new(nodes: usize) -> Self {
        Self(vec![Paper::default(); nodes])
    }

    pub(crate) fn clear(&mut self) {
        self.0.fill(Paper::default());
    }

    pub(crate) fn set(&mut self, node: usize, reply: Reply) {
        let paper = &mut self.0[node];
        paper.raising = false;
        paper.voted |= reply.counter().is_some();
        paper.reply = Some(reply);
    }

    fn replies(&self) -> impl Iterator<Item = Reply> {
        self.0.iter().filter_map(|paper| paper.reply)
    }

    pub(crate) fn pending(&self) -> usize {
        self.0.iter().filter(|paper| paper.reply.is_none()).count()
    }

    fn voting(&self) -> usize {
        self.replies().filter(|reply| reply.is_vote()).count()
    }

    /// The nodes that have answered less than `value`, which are to be raised; they count again when
    /// they have answered.
    pub(crate) fn raise_to(&mut self, value: u64) -> Vec<usize> {
        let is_low = |paper: &Paper| {
            let counter = paper.reply.and_then(Reply::counter);
            !paper.raising && counter.is_some_and(|counter| counter < value)
        };
        let low: Vec<_> = (0..self.0.len()).filter(|node| is_low(&self.0[*node])).collect();
        low.iter().for_each(|node| self.0[*node].raising = true);
        low
    }

    /// What the answers to a try say. `kept` has the fences of an earlier grant to the same claim.
    pub(crate) fn count(&self, rules: &Rules, kept: Option<Block>) -> Count {
        let vote = |paper: &Paper| -> Vote {
            paper.reply.filter(|_| !paper.raising).and_then(Reply::counter)
        };
        let votes: Vec<Vote> = self.0.iter().map(vote).collect();
        let (nodes, voting, pending) = (self.0.len(), self.voting(), self.pending());
        let needed = (rules.needed)(nodes, voting, pending);
        match (rules.judge)(needed, &votes, kept, pending) {
            Verdict::Established(last) => return Count::Granted(last),
            Verdict::Raise(highest) => return Count::Differ(highest),
            Verdict::Wait => return Count::Open,
            Verdict::Short => {}
        }
        let granted = self.replies().filter(|reply| reply.counter().is_some()).count();
        if nodes - pending - voting > nodes - needed {
            Count::Decided(Outcome::Failed)
        } else if granted + pending < needed && voting >= needed {
            Count::Decided(Outcome::Busy)
        } else {
            Count::Open
        }
    }

    /// Whether this claim has a vote, and another client has one.
    pub(crate) fn is_contended(&self) -> bool {
        self.replies().any(|reply| reply.counter().is_some())
            && self.replies().any(|reply| reply == Reply::NotMine)
    }

    /// The outcome of a try, if the nodes that have not answered are not waited for.
    pub(crate) fn without_the_slow(&self, rules: &Rules) -> Outcome {
        let voting = self.voting();
        let needed = (rules.needed)(self.0.len(), voting, self.pending());
        if voting >= needed { Outcome::Busy } else { Outcome::Failed }
    }

    /// What the answers to a renewal say.
    pub(crate) fn standing(&self) -> Standing {
        let nodes = self.0.len();
        let held = self.replies().filter(|reply| reply.counter().is_some()).count();
        rule::standing(nodes, rule::quorum_of(nodes), held, self.voting() - held)
    }
}
