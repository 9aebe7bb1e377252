//! Counting the answers to one call.

use super::message::{Outcome, Reply};
use super::rule::{self, Standing, Verdict, Vote};
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
    /// The node has given its vote, whatever it said later.
    pub(crate) voted: bool,
}

/// What the answers to a try say so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Count {
    Granted(u64),
    /// A quorum has granted, with different values.
    Differ(u64),
    /// A quorum cannot be had.
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

    /// What the answers to a try say. `kept` is the fence of an earlier grant to the same claim.
    pub(crate) fn count(&self, rules: &Rules, kept: Option<u64>) -> Count {
        let vote = |paper: &Paper| -> Vote {
            paper.reply.filter(|_| !paper.raising).and_then(Reply::counter)
        };
        let votes: Vec<Vote> = self.0.iter().map(vote).collect();
        let (nodes, voting, pending) = (self.0.len(), self.voting(), self.pending());
        let needed = (rules.needed)(nodes, voting, pending);
        match (rules.judge)(needed, &votes, kept, pending) {
            Verdict::Established(fence) => return Count::Granted(fence),
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

    /// Whether this claim has a vote, and somebody else has one.
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

#[cfg(test)]
mod tests {
    use super::*;

    const TAKEN: Option<Reply> = Some(Reply::NotMine);
    const DOWN: Option<Reply> = Some(Reply::NoVote);

    fn mine(counter: u64) -> Option<Reply> {
        Some(Reply::Mine { counter })
    }

    fn ballot<const N: usize>(replies: [Option<Reply>; N]) -> Ballot {
        Ballot(replies.map(|reply| Paper { reply, ..Paper::default() }).to_vec())
    }

    fn count<const N: usize>(replies: [Option<Reply>; N]) -> Count {
        ballot(replies).count(&Rules::REAL, None)
    }

    #[test]
    fn a_quorum_is_one_of_all_nodes_and_not_of_the_reachable() {
        assert_eq!(count([mine(3), mine(3), None]), Count::Granted(3));
        assert_eq!(count([mine(3), DOWN, None]), Count::Open);
        assert_eq!(count([mine(3), DOWN, DOWN]), Count::Decided(Outcome::Failed));
        assert_eq!(count([None, DOWN, DOWN]), Count::Decided(Outcome::Failed));
    }

    #[test]
    fn busy_needs_a_quorum_that_works() {
        assert_eq!(count([TAKEN, TAKEN, None]), Count::Decided(Outcome::Busy));
        assert_eq!(count([TAKEN, mine(1), DOWN]), Count::Decided(Outcome::Busy));
        assert_eq!(count([TAKEN, DOWN, None]), Count::Open);
        assert_eq!(count([TAKEN, DOWN, DOWN]), Count::Decided(Outcome::Failed));
    }

    #[test]
    fn a_raise_under_way_takes_the_vote_back() {
        let mut ballot = ballot([mine(3), mine(5), None]);
        let count = |ballot: &Ballot| ballot.count(&Rules::REAL, None);
        assert_eq!(count(&ballot), Count::Differ(5));
        assert_eq!(ballot.raise_to(5), [0]);
        assert_eq!(count(&ballot), Count::Open);
        ballot.set(2, Reply::Mine { counter: 3 });
        assert_eq!(
            count(&ballot),
            Count::Differ(5),
            "3 was answered by a node that is being raised"
        );
        assert_eq!(ballot.raise_to(5), [2]);
        ballot.set(0, Reply::Mine { counter: 5 });
        assert_eq!(count(&ballot), Count::Granted(5));
    }

    #[test]
    fn a_repeated_try_finds_the_same_fence() {
        let count = |ballot: &Ballot| ballot.count(&Rules::REAL, Some(3));
        let mut repeated = ballot([mine(3), None, mine(8)]);
        assert_eq!(count(&repeated), Count::Open, "the second node decides");
        repeated.set(1, Reply::Mine { counter: 3 });
        assert_eq!(count(&repeated), Count::Granted(3));
        repeated.set(1, Reply::Mine { counter: 9 });
        assert_eq!(count(&repeated), Count::Differ(9), "the first hold has been broken");
        // A node that joined after somebody else has held the lock does not bring the old fence back.
        assert_eq!(count(&ballot([mine(8), mine(3), DOWN])), Count::Differ(8));
    }

    #[test]
    fn a_vote_is_remembered_when_the_raise_fails() {
        let mut ballot = ballot([None, None, TAKEN]);
        ballot.set(0, Reply::Mine { counter: 3 });
        ballot.set(1, Reply::Mine { counter: 5 });
        assert_eq!(ballot.raise_to(5), [0]);
        ballot.set(0, Reply::Unknown);
        assert_eq!([0, 1, 2].map(|node| ballot.0[node].voted), [true, true, false]);
    }
}
