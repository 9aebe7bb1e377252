//! The state of the quorum, its clients and everything under way between them.

use crate::contender::{Contender, NodeRequest};
use crate::look::Look;
use crate::node::{CLIENTS, Node, Rejoin};
use crate::rules::AnswerBrief;
use crate::set::{Fences, greatest};

/// The whole system at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct State {
    pub(crate) nodes: Vec<Node>,
    pub(crate) clients: Vec<Client>,
    /// What is under way, in order.
    pub(crate) flight: Vec<Message>,
    pub(crate) losses_left: u8,
    pub(crate) repeats_left: u8,
    pub(crate) calls_left: u8,
    pub(crate) silences_left: u8,
    pub(crate) looks_left: u8,
    pub(crate) look: Look,
    /// The greatest fence that a holder has had; only where the model knows who believes.
    pub(crate) used: u8,
    /// A property of fences that was violated on the way here.
    pub(crate) broken: Option<Broken>,
}

/// What is wrong with a fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Broken {
    NotDistinct,
    NotGreater,
    /// A claim has another block than before, with a fence of the earlier one.
    Overlaps,
    /// A holder has a fence that is not above that of the holder before.
    NotAbove,
    /// A look has not found who believes, or found another fence.
    Missed,
    /// A floor is below a fence that was returned before.
    FloorTooLow,
    /// A floor is not below a later fence.
    FloorTooHigh,
}

/// A message between a client and a node. One that is lost never arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Message {
    pub(crate) client: u8,
    pub(crate) node: u8,
    pub(crate) body: Body,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Body {
    /// To a node. The client may have ceased to wait for the answer.
    Ask { request: NodeRequest, stamp: u8, is_awaited: bool },
    /// To a client.
    Answer { request: NodeRequest, reply: AnswerBrief },
}

/// One client. Each has an owner id of its own, so "client" and "claim" mean the same here.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Client {
    pub(crate) contender: Contender,
    pub(crate) stage: Stage,
    /// The ticks of its clock since the call began.
    pub(crate) now: u8,
    /// The greatest fence that was returned before this acquisition began.
    pub(crate) floor: u8,
    /// How many fences it asks for.
    pub(crate) block: u8,
    /// The first fence of the last block that it has returned; 0 for none.
    pub(crate) first: u8,
    /// How often its holder has passed the lock on.
    pub(crate) passes: u8,
    /// All that it has returned.
    pub(crate) fences: Fences,
    /// Those of them that it had reason to believe in.
    pub(crate) believed: Fences,
    /// The last call that was answered well; 0 if it holds nothing.
    pub(crate) proven: u8,
    /// The last call whose validity is over.
    pub(crate) over: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Stage {
    Idle,
    Trying,
    Renewing,
    Releasing,
    /// It has returned a fence.
    Returned,
    /// A try has failed, and its votes are given back.
    Failed,
    /// A try was given up half-way.
    Dropped,
    /// It is done.
    Ended,
}

impl Client {
    /// Of a quorum of so many nodes.
    pub(crate) fn new(nodes: usize, block: u8) -> Self {
        Self {
            contender: Contender::new(nodes, None),
            stage: Stage::Idle,
            now: 0,
            floor: 0,
            block,
            first: 0,
            passes: 0,
            fences: 0,
            believed: 0,
            proven: 0,
            over: 0,
        }
    }

    pub(crate) fn call(&self) -> u8 {
        u8::try_from(self.contender.call).unwrap_or(u8::MAX)
    }

    /// Whether this call or one before it still is under way, or is believed in.
    fn minds(&self, call: u8, rejoin: Rejoin) -> bool {
        let is_under_way = matches!(self.stage, Stage::Trying | Stage::Renewing);
        let is_believed = self.believes() && self.proven <= call;
        let counts_belief = !matches!(rejoin, Rejoin::WaitForCalls { .. });
        (is_under_way && self.call() <= call) || (is_believed && counts_belief)
    }

    /// Whether it believes that it holds the lock.
    pub(crate) fn believes(&self) -> bool {
        self.proven > self.over
    }
}

impl State {
    /// Tells every quarantine which calls are over.
    pub(crate) fn settle(&mut self, rejoin: Rejoin) {
        for quarantine in self.nodes.iter_mut().filter_map(|node| node.quarantine.as_mut()) {
            for (call, client) in quarantine.pending.iter_mut().zip(&self.clients) {
                if !client.minds(*call, rejoin) {
                    *call = 0;
                }
            }
        }
    }

    /// What a node that loses its data now has to wait for.
    pub(crate) fn pending(&self) -> [u8; CLIENTS] {
        let mut pending = [0; CLIENTS];
        for (call, client) in pending.iter_mut().zip(&self.clients) {
            *call = client.call().max(client.proven);
        }
        pending
    }

    /// The greatest of the fences that `of` picks for the clients other than `c`.
    pub(crate) fn greatest(&self, c: usize, of: fn(&Client) -> Fences) -> u8 {
        greatest(self.of_others(c, of))
    }

    /// What `of` picks for the clients other than `c`.
    pub(crate) fn of_others(&self, c: usize, of: fn(&Client) -> Fences) -> Fences {
        let others = self.clients.iter().enumerate().filter(|(other, _)| *other != c);
        others.fold(0, |all, (_, client)| all | of(client))
    }

    /// Whether nothing is left of what the client has given back, where its contender is content: neither
    /// at a node nor on the way there.
    pub(crate) fn is_clean(&self, c: usize) -> bool {
        let client = &self.clients[c];
        let contender = &client.contender;
        let tried = u8::try_from(contender.attempt).unwrap_or(u8::MAX);
        let given_back = match client.stage {
            _ if contender.closed => None,
            // A repeated try that fails leaves the hold.
            Stage::Failed if contender.fence.is_none() => Some(contender.attempt),
            _ => return true,
        };
        let is_meant = |attempt: u8| given_back.is_none() || attempt == tried;
        let is_under_way = |n: usize| {
            self.flight.iter().any(|message| match message.body {
                Body::Ask { request: NodeRequest::Acquire { attempt, .. }, .. } => {
                    (usize::from(message.client), usize::from(message.node)) == (c, n)
                        && is_meant(u8::try_from(attempt).unwrap_or(u8::MAX))
                }
                _ => false,
            })
        };
        let has = |n: usize| {
            let holder = self.nodes[n].holder;
            holder.is_some_and(|(holder, attempt)| usize::from(holder) == c && is_meant(attempt))
        };
        let is_content =
            |n: &usize| !contender.debts.undoings.iter().any(|undoing| undoing.node == *n);
        (0..self.nodes.len()).filter(is_content).all(|n| !is_under_way(n) && !has(n))
    }

    pub(crate) fn put(&mut self, message: Message) {
        let place = self.flight.partition_point(|other| *other < message);
        // What is the same twice is repeated, which the budget for that allows or not.
        if self.flight.get(place) != Some(&message) {
            self.flight.insert(place, message);
        }
    }
}
