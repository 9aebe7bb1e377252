//! Two exclusive locks on a quorum of nodes, where each of two parties takes its own and then looks at the other's.
//!
//! This is what a reader and a writer do to each other: the one has a slot and looks at the gate, the other has the gate
//! and looks at the slot. Two quorums have a node in common, and of two parties the one that looks there last has
//! to see the vote of the other.

use crate::explore::{Fact, Model, Step};

/// The most nodes that can be modelled.
const NODES: usize = 5;

/// A quorum of nodes under a set of rules.
#[derive(Clone, Copy, Debug)]
pub struct Quorum {
    /// Three or five.
    pub nodes: usize,
    /// Whether nodes lose their data.
    pub loses: bool,
    /// The rule that is not kept.
    pub wrong: Option<Wrong>,
}

/// Known wrong rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// A party looks before it has its votes.
    LooksFirst,
    /// One vote less than a quorum is enough.
    TooFewVotes,
    /// The answers of one node less than a quorum show that a lock is free.
    TooFewAnswers,
    /// A lock is free if less than a quorum shows a vote, although other nodes have not answered.
    SilenceIsFree,
    /// A node that has lost its data answers a look at once.
    ShowsInQuarantine,
    /// A node that has lost its data votes at once.
    NoQuarantine,
}

/// All of it at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct State {
    parties: [Party; 2],
    nodes: [Node; NODES],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Party {
    /// Asks for votes.
    Votes,
    /// Has had a quorum of votes, and looks at the lock of the other party.
    Looks,
    /// Has seen that the lock of the other party is free.
    Believes,
    /// Does not believe any more; its votes end.
    Ended,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Node {
    /// Takes no part in this quorum.
    is_absent: bool,
    /// Each party's own lock here.
    votes: [Vote; 2],
    /// What each has seen of the other's.
    seen: [Seen; 2],
    /// After a loss of its data, the node neither votes nor shows anything until nobody believes any more in
    /// what it had: these parties may.
    awaits: [bool; 2],
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Vote {
    #[default]
    Nothing,
    Given,
    /// The party has counted a vote that the node has lost.
    Lost,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Seen {
    #[default]
    Nothing,
    Free,
    Held,
}

/// A step. Nodes and parties are numbered as they stand in the state before it, in which they are sorted.
#[derive(Clone, Copy, Debug)]
pub enum What {
    /// A party begins again.
    Begins(usize),
    /// A node votes for a party.
    Votes(usize, usize),
    /// A party has its votes.
    HasQuorum(usize),
    /// A node shows a party the lock of the other.
    Shows(usize, usize),
    /// A party concludes that the lock of the other is free.
    SeesFree(usize),
    /// The belief of a party ends.
    Lapses(usize),
    /// A vote for a party ends.
    VoteEnds(usize, usize),
    /// A node loses its data.
    Loses(usize),
}

impl Node {
    fn is_in_quarantine(&self) -> bool {
        self.awaits != [false; 2]
    }
}

impl State {
    fn with_party(mut self, p: usize, party: Party) -> Self {
        self.parties[p] = party;
        self
    }

    /// One for all states that differ by the order of nodes and parties.
    fn canonical(mut self) -> Self {
        let mut swapped = self;
        swapped.parties.reverse();
        for node in &mut swapped.nodes {
            node.votes.reverse();
            node.seen.reverse();
            node.awaits.reverse();
        }
        self.nodes.sort_unstable();
        swapped.nodes.sort_unstable();
        self.min(swapped)
    }

    fn with_vote(mut self, p: usize, n: usize, vote: Vote) -> Self {
        self.nodes[n].votes[p] = vote;
        self
    }
}

impl Quorum {
    /// Exclusion.
    pub const EXCLUSION: Fact = "E: one of two conflicting parties believes";
    /// What must be possible: a model in which it is not proves nothing.
    pub const POSSIBLE: [Fact; 2] = [Self::BELIEVED, Self::REFUSED];
    const BELIEVED: Fact = "a lock is seen free while a node is in quarantine";
    const REFUSED: Fact = "a party cannot conclude that the other's lock is free";

    fn is(&self, wrong: Wrong) -> bool {
        self.wrong == Some(wrong)
    }

    fn quorum(&self) -> usize {
        self.nodes / 2 + 1
    }

    fn has_votes(&self, state: &State, p: usize) -> bool {
        let counted = state.nodes.iter().filter(|node| node.votes[p] != Vote::Nothing).count();
        counted + usize::from(self.is(Wrong::TooFewVotes)) >= self.quorum()
    }

    /// Whether too few nodes are left for a quorum that has voted for the other party before this one began to look.
    fn sees_free(&self, state: &State, p: usize) -> bool {
        let seen = |what| state.nodes.iter().filter(|node| node.seen[p] == what).count();
        let (held, free) = (seen(Seen::Held), seen(Seen::Free));
        if self.is(Wrong::SilenceIsFree) {
            return held < self.quorum() && held + free >= self.quorum();
        }
        self.nodes - free < self.quorum() + usize::from(self.is(Wrong::TooFewAnswers))
    }

    fn of_party(&self, from: &State, p: usize, steps: &mut Vec<Step<Self>>) {
        let party = from.parties[p];
        match party {
            Party::Votes if self.has_votes(from, p) => {
                steps.push(Step::due(What::HasQuorum(p), from.with_party(p, Party::Looks)));
            }
            Party::Looks if self.sees_free(from, p) => {
                let step = Step::due(What::SeesFree(p), from.with_party(p, Party::Believes));
                let has_lost = from.nodes.iter().any(Node::is_in_quarantine);
                let facts = has_lost.then_some(Self::BELIEVED).into_iter().collect();
                steps.push(Step { facts, ..step });
            }
            Party::Ended => {
                let mut state = from.with_party(p, Party::Votes);
                for node in &mut state.nodes {
                    (node.votes[p], node.seen[p]) = (Vote::Nothing, Seen::Nothing);
                }
                steps.push(Step::chance(What::Begins(p), state));
            }
            Party::Votes | Party::Looks | Party::Believes => {}
        }
        if party != Party::Ended {
            let mut state = from.with_party(p, Party::Ended);
            for node in &mut state.nodes {
                (node.awaits[p], node.seen[p]) = (false, Seen::Nothing);
            }
            steps.push(Step::chance(What::Lapses(p), state));
        }
    }

    fn of_node(&self, from: &State, n: usize, steps: &mut Vec<Step<Self>>) {
        let node = from.nodes[n];
        if node.is_absent {
            return;
        }
        for (p, party) in from.parties.into_iter().enumerate() {
            let is_voting = !node.is_in_quarantine() && party != Party::Ended;
            if is_voting && node.votes[p] == Vote::Nothing {
                steps.push(Step::due(What::Votes(p, n), from.with_vote(p, n, Vote::Given)));
            }
            let looks =
                party == Party::Looks || party == Party::Votes && self.is(Wrong::LooksFirst);
            let shows = !node.is_in_quarantine() || self.is(Wrong::ShowsInQuarantine);
            if looks && shows && node.seen[p] == Seen::Nothing {
                let mut state = *from;
                state.nodes[n].seen[p] = match node.votes[1 - p] {
                    Vote::Given => Seen::Held,
                    Vote::Nothing | Vote::Lost => Seen::Free,
                };
                steps.push(Step::due(What::Shows(p, n), state));
            }
            if party == Party::Ended && node.votes[p] != Vote::Nothing {
                let state = from.with_vote(p, n, Vote::Nothing);
                steps.push(Step::due(What::VoteEnds(p, n), state));
            }
        }
        if self.loses {
            steps.push(self.lose(*from, n));
        }
    }

    fn lose(&self, mut state: State, n: usize) -> Step<Self> {
        for p in 0..state.parties.len() {
            let is_active = state.parties[p] != Party::Ended;
            let lost = &mut state.nodes[n];
            lost.awaits[p] = is_active && !self.is(Wrong::NoQuarantine);
            lost.votes[p] = match lost.votes[p] {
                Vote::Given if is_active => Vote::Lost,
                Vote::Given => Vote::Nothing,
                other => other,
            };
        }
        Step::chance(What::Loses(n), state)
    }
}

impl Model for Quorum {
    type State = State;
    type What = What;

    /// Two parties that see each other both give up.
    const GOALS: &'static [Fact] = &[];

    fn start(&self) -> State {
        let mut nodes = [Node::default(); NODES];
        nodes[self.nodes..].iter_mut().for_each(|node| node.is_absent = true);
        State { parties: [Party::Votes; 2], nodes }
    }

    fn steps(&self, state: &State) -> Vec<Step<Self>> {
        let mut steps = Vec::new();
        (0..state.parties.len()).for_each(|p| self.of_party(state, p, &mut steps));
        (0..state.nodes.len()).for_each(|n| self.of_node(state, n, &mut steps));
        steps.iter_mut().for_each(|step| step.state = step.state.canonical());
        steps
    }

    fn facts(&self, state: &State) -> Vec<Fact> {
        let believes = |p: usize| state.parties[p] == Party::Believes;
        let is_refused = |p: usize| {
            let seen = state.nodes.iter().filter(|node| node.seen[p] != Seen::Nothing).count();
            seen == self.nodes && !self.sees_free(state, p)
        };
        let facts = [
            (Self::EXCLUSION, believes(0) && believes(1)),
            (Self::REFUSED, is_refused(0) || is_refused(1)),
        ];
        facts.into_iter().filter_map(|(fact, is_so)| is_so.then_some(fact)).collect()
    }

    fn wants(&self, _: &State, _: Fact) -> bool {
        false
    }
}
