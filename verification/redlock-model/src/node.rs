//! A node: what the scripts of the product do there.

use crate::contender::NodeRequest;
use crate::rules::{self, AnswerBrief};
use crate::set::Set;

/// How many clients there are at most.
pub(crate) const CLIENTS: usize = 2;
/// And how many nodes.
pub(crate) const NODES: usize = 5;

/// One node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Node {
    /// The client whose owner id stands at the lock, if any, and which of its tries.
    pub(crate) holder: Option<(u8, u8)>,
    /// The counter and the mark, which are one where there is one name: an admission raises both.
    pub(crate) counter: u8,
    /// The fence that stands beside the counter, since a renewal has adopted the node; 0 for none.
    pub(crate) adopted: u8,
    /// The last call of the holder that the node has carried out. What it set lasts longer than the
    /// validity of that call.
    pub(crate) stamp: u8,
    /// Set while the node gives no votes.
    pub(crate) quarantine: Option<Quarantine>,
    /// Admissions that are under way: the number of the quarantine that they mean, and the seed.
    pub(crate) admission: Option<(u8, u8)>,
    /// How many quarantines the node has been in.
    pub(crate) generation: u8,
    /// It takes no part.
    pub(crate) refuses: bool,
}

/// A node that lost its data waits, and reads the marks of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Quarantine {
    /// For each client the last call that had begun before the loss, where one of them still is under way or is
    /// believed in; else 0.
    pub(crate) pending: [u8; CLIENTS],
    /// The nodes whose marks were read, and the greatest.
    pub(crate) read: Set,
    pub(crate) seed: u8,
}

impl Quarantine {
    /// Whether the node has waited long enough.
    pub(crate) fn is_over(&self) -> bool {
        self.pending == [0; CLIENTS]
    }
}

/// How a node that lost its data comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejoin {
    /// It waits until the calls that had begun before have ended, and nobody believes in them any more, and
    /// *then* takes the greatest mark of so many others.
    WaitThenSeed {
        /// Of how many others.
        others: usize,
    },
    /// Wrong: it reads the marks first and waits afterwards.
    SeedThenWait {
        /// Of how many others.
        others: usize,
    },
    /// Wrong: it waits until the calls have ended, but not until what they were granted is over.
    WaitForCalls {
        /// Of how many others it takes the greatest mark.
        others: usize,
    },
    /// Wrong: it waits, and starts from zero.
    WaitOnly,
    /// Wrong: it votes at once, from zero.
    AtOnce,
}

/// The rules that the nodes follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeRules {
    /// Whether a node refuses to raise its counter for a client that does not hold it any more.
    pub raise_needs_holder: bool,
    /// Whether a raise answers the counter as it stands, which may be above the value.
    pub raise_shows_counter: bool,
    /// How a node that lost its data comes back.
    pub rejoin: Rejoin,
    /// Whether an admission names the quarantine that it ends, so that one that arrives late cannot
    /// admit a node that was flushed again.
    pub admission_names_quarantine: bool,
    /// Whether a grant counts all fences of its block, and not only one.
    pub counts_blocks: bool,
    /// Whether giving a try back leaves alone what a newer try has made.
    pub release_names_try: bool,
}

impl NodeRules {
    /// What the scripts do, with three nodes.
    pub const REAL: Self = Self {
        raise_needs_holder: true,
        raise_shows_counter: true,
        rejoin: Rejoin::WaitThenSeed { others: rules::seeds_needed(3, rules::quorum_of(3)) },
        admission_names_quarantine: true,
        counts_blocks: true,
        release_names_try: true,
    };
}

fn small(value: u64) -> u8 {
    u8::try_from(value).unwrap_or(u8::MAX)
}

impl Node {
    /// Carries a request of `client` out. `stamp` is the number of its call.
    pub(crate) fn carry_out(
        &mut self,
        rules: &NodeRules,
        (client, stamp): (u8, u8),
        request: NodeRequest,
    ) -> AnswerBrief {
        let mine = self.holder.is_some_and(|(holder, _)| holder == client);
        if let NodeRequest::Release { attempt, fence, .. } = request {
            let named = attempt.is_none_or(|attempt| {
                !rules.release_names_try || self.holder == Some((client, small(attempt.into())))
            });
            let freed = mine && named && fence.is_none_or(|fence| self.shows(fence));
            if freed {
                self.free();
            }
            return AnswerBrief::Freed(freed);
        }
        if self.quarantine.is_some() {
            return AnswerBrief::NoVote;
        }
        match request {
            NodeRequest::Acquire { attempt, proposal, fences, .. } => {
                let attempt = small(attempt.into());
                match &mut self.holder {
                    Some((holder, tried)) if *holder == client => {
                        *tried = (*tried).max(attempt);
                        self.stamp = self.stamp.max(stamp);
                    }
                    Some(_) => return AnswerBrief::NotMine,
                    None => {
                        self.holder = Some((client, attempt));
                        (self.adopted, self.stamp) = (0, stamp);
                        let more = if rules.counts_blocks { small(fences.into()) - 1 } else { 0 };
                        self.counter = (self.counter + 1).max(small(proposal)) + more;
                    }
                }
                AnswerBrief::Mine { counter: self.counter.into() }
            }
            NodeRequest::Raise { value, .. } => {
                if !mine && rules.raise_needs_holder {
                    return AnswerBrief::NotMine;
                }
                if small(value) > self.counter {
                    (self.counter, self.adopted) = (small(value), 0);
                }
                let shown = if rules.raise_shows_counter { self.counter.into() } else { value };
                AnswerBrief::Mine { counter: shown }
            }
            NodeRequest::Renew { fence, adopt, prolongs, .. } => {
                if !mine {
                    return AnswerBrief::NotMine;
                }
                let adopts = adopt == Some(self.counter.into());
                if !adopts && fence.is_some_and(|fence| !self.shows(fence)) {
                    return AnswerBrief::Unproven { counter: self.counter.into() };
                }
                // Who only asks changes nothing.
                if prolongs {
                    self.stamp = self.stamp.max(stamp);
                    if adopts {
                        self.adopted = fence.map_or(0, small);
                    }
                }
                AnswerBrief::Mine { counter: self.counter.into() }
            }
            NodeRequest::Release { .. } => AnswerBrief::NoVote,
        }
    }

    /// The data is lost. `pending`: see [`Quarantine`].
    pub(crate) fn lose(&mut self, rules: &NodeRules, pending: [u8; CLIENTS]) {
        self.free();
        self.counter = 0;
        self.generation += 1;
        self.quarantine = match rules.rejoin {
            Rejoin::AtOnce => None,
            _ => Some(Quarantine { pending, read: 0, seed: 0 }),
        };
    }

    /// Carries out the admission that is under way, if there is one.
    pub(crate) fn admit(&mut self, rules: &NodeRules) -> Option<()> {
        let (generation, seed) = self.admission.take()?;
        if !rules.admission_names_quarantine || generation == self.generation {
            self.quarantine = None;
            self.counter = self.counter.max(seed);
        }
        Some(())
    }

    fn shows(&self, fence: u64) -> bool {
        u64::from(self.counter) == fence || u64::from(self.adopted) == fence
    }

    pub(crate) fn free(&mut self) {
        self.holder = None;
        (self.adopted, self.stamp) = (0, 0);
    }
}
