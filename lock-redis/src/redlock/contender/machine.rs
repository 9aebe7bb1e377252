//! The contender itself.

use super::ballot::Ballot;
use super::debts::Debts;
use super::message::{Outcome, Reply, Request, Time};
use super::rule::{self, Block, Standing};
use super::rules::Terms;
use super::trying::{Step, Trying};
use super::undoing::Undoings;

/// A request, and the number of the node that it is for.
pub(crate) type Sent = (usize, Request);

/// What a claim knows, and what it is waiting for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Contender {
    /// The answers to the call under way, or the last one.
    pub(crate) ballot: Ballot,
    pub(crate) debts: Debts,
    pub(crate) undoings: Undoings,
    /// The nodes that are to be asked to join the hold, and when.
    pub(crate) joining: Vec<usize>,
    pub(crate) join_at: Option<Time>,
    pub(crate) phase: Phase,
    /// The number of the last call.
    pub(crate) call: u32,
    /// The call that was the last try.
    pub(crate) attempt: u32,
    /// The try that was granted, if the last one was.
    pub(crate) granted: Option<u32>,
    /// The fence, from the grant on; of a block the last one, which is what the nodes count.
    pub(crate) fence: Option<u64>,
    /// The hold is another process's, by a token that no node has confirmed yet.
    pub(crate) unproven: bool,
    /// The claim is released: nothing more is acquired for it, since no release would follow.
    pub(crate) closed: bool,
}

/// The call under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Phase {
    Idle,
    Trying(Trying),
    /// A try has led to this outcome, and waits for its votes to be given back.
    GivingBack {
        until: Time,
        outcome: Outcome,
    },
    Surveying {
        started: Time,
        close_at: Option<Time>,
        prolongs: bool,
    },
    Releasing {
        started: Time,
        close_at: Option<Time>,
        answered: usize,
        freed: bool,
    },
    Done(Outcome),
}

impl Contender {
    /// For this many `nodes`. With `resumed`, it continues another process's hold with this last fence.
    pub(crate) fn new(nodes: usize, resumed: Option<u64>) -> Self {
        Self {
            ballot: Ballot::new(nodes),
            debts: Debts::new(nodes, resumed.is_some()),
            undoings: Undoings::default(),
            joining: Vec::new(),
            join_at: None,
            phase: Phase::Idle,
            call: 0,
            attempt: 0,
            granted: None,
            fence: resumed,
            unproven: resumed.is_some(),
            closed: false,
        }
    }

    fn nodes(&self) -> usize {
        self.ballot.0.len()
    }

    fn begin_call(&mut self, phase: Phase) {
        self.call += 1;
        self.ballot.clear();
        self.phase = phase;
    }

    /// Begins to try: all nodes at once. A grant is valid from `called` on.
    pub(crate) fn begin_try(
        &mut self,
        terms: &Terms,
        (called, now): (Time, Time),
        proposal: u64,
    ) -> Vec<Sent> {
        if self.closed {
            self.phase = Phase::Done(Outcome::Closed);
            return Vec::new();
        }
        self.begin_call(Phase::Trying(Trying::new(called, now)));
        self.attempt = self.call;
        self.granted = None;
        self.forget_joining();
        let (attempt, fences) = (self.attempt, terms.fences);
        let request = Request::Acquire { attempt, proposal, fences, joins: false };
        (0..self.nodes()).map(|node| self.owe(terms, now, node, request)).collect()
    }

    /// Begins to ask all nodes about the hold, and to prolong it if `prolongs`. Without a fence (where the
    /// outcome of the tries is unknown), it asks for whatever stands there for the owner.
    pub(crate) fn begin_survey(&mut self, terms: &Terms, now: Time, prolongs: bool) -> Vec<Sent> {
        self.begin_call(Phase::Surveying { started: now, close_at: None, prolongs });
        let fence = (terms.rules.renews)(self.fence);
        let request = Request::Renew { call: self.call, fence, adopt: None, prolongs };
        (0..self.nodes()).map(|node| (node, request)).collect()
    }

    /// Begins to give up whatever the claim has. With `leaves`, this client stops waiting.
    pub(crate) fn begin_release(&mut self, terms: &Terms, now: Time, leaves: bool) -> Vec<Sent> {
        self.close();
        // It takes back what any try has made.
        self.undoings.0.clear();
        let (close_at, answered, freed) = (None, 0, false);
        self.begin_call(Phase::Releasing { started: now, close_at, answered, freed });
        let (call, fence) = (self.call, self.fence_to_release());
        let mut release = |node| {
            let undoing = self.undoings.begin(terms, now, &self.debts, (call, node, None));
            (node, undoing.request(fence, leaves))
        };
        (0..self.ballot.0.len()).map(&mut release).collect()
    }

    /// The caller no longer waits for the call under way. Votes that it has begun to give back are
    /// still given back.
    pub(crate) fn abandon(&mut self) {
        self.phase = Phase::Idle;
    }

    /// Another client has the lock.
    pub(crate) fn end_hold(&mut self) {
        self.fence = None;
    }

    /// Nothing more is acquired for this claim.
    pub(crate) fn close(&mut self) {
        self.closed = true;
        self.forget_joining();
    }

    fn forget_joining(&mut self) {
        self.joining.clear();
        self.join_at = None;
    }

    /// Whether the answer to this request counts for the call under way.
    pub(crate) fn listens_to(&self, request: Request) -> bool {
        match (self.phase, request) {
            (Phase::Trying(_), Request::Acquire { attempt, joins: false, .. }) => {
                attempt == self.attempt
            }
            (Phase::Trying(_), Request::Raise { attempt, .. }) => attempt == self.attempt,
            (Phase::Surveying { .. }, Request::Renew { call, adopt: None, .. })
            | (Phase::Releasing { .. }, Request::Release { call, .. }) => call == self.call,
            _ => false,
        }
    }

    /// A node has answered a request, or will not.
    pub(crate) fn replied(
        &mut self,
        terms: &Terms,
        now: Time,
        (node, request): Sent,
        reply: Reply,
    ) -> Vec<Sent> {
        let listens = self.listens_to(request);
        match request {
            Request::Acquire { attempt, joins, .. } => {
                let has_voted = reply.counter().is_some();
                if reply != Reply::Unknown {
                    self.debts.settle(node, attempt, has_voted);
                    if !has_voted {
                        self.undoings.refused(node, attempt, &self.debts);
                    }
                }
                if !has_voted && !joins && self.granted == Some(attempt) {
                    self.let_join(terms, now, node);
                }
            }
            Request::Release { call, attempt, .. } => {
                let freed = if let Reply::Freed(freed) = reply { Some(freed) } else { None };
                if listens && let Phase::Releasing { answered, freed: any, .. } = &mut self.phase {
                    *answered += usize::from(freed.is_some());
                    *any |= freed == Some(true);
                }
                self.undoings.answered(terms, now, (call, node, attempt), freed);
            }
            Request::Renew { adopt: Some(_), .. } if reply.counter().is_none() => {
                self.let_join(terms, now, node);
            }
            Request::Raise { attempt, .. }
                if reply.counter().is_none() && self.granted == Some(attempt) =>
            {
                self.let_join(terms, now, node);
            }
            Request::Raise { .. } | Request::Renew { .. } => {}
        }
        if listens {
            self.ballot.set(node, reply);
        }
        self.go_on(terms, now)
    }

    /// It is `now`: whatever waits for the time continues.
    pub(crate) fn time(&mut self, terms: &Terms, now: Time) -> Vec<Sent> {
        let mut sent = self.go_on(terms, now);
        let fence = self.fence_to_release();
        let due = self.undoings.due(now, &self.debts);
        sent.extend(due.iter().map(|undoing| (undoing.node, undoing.request(fence, false))));
        if self.join_at.is_some_and(|at| at <= now) {
            self.join_at = None;
            // Where nothing higher was counted, the node then shows just the fence of the hold.
            let (attempt, fences) = (self.attempt, terms.fences);
            let proposal = self.fence.map_or(0, |last| Block { last, fences }.first());
            let request = Request::Acquire { attempt, proposal, fences, joins: true };
            for node in std::mem::take(&mut self.joining) {
                sent.push(self.owe(terms, now, node, request));
            }
        }
        sent
    }

    /// When to call [`time`](Self::time) next, if no answer comes before.
    pub(crate) fn wake_at(&self, terms: &Terms, now: Time) -> Option<Time> {
        let call = match self.phase {
            Phase::Trying(trying) => trying.wake_at(terms, now),
            Phase::GivingBack { until, .. } => Some(until),
            Phase::Surveying { close_at, .. } | Phase::Releasing { close_at, .. } => close_at,
            Phase::Idle | Phase::Done(_) => None,
        };
        [call, self.undoings.next_at(), self.join_at].into_iter().flatten().min()
    }

    /// How the call has ended, if it has.
    pub(crate) fn outcome(&self) -> Option<Outcome> {
        match self.phase {
            Phase::Done(outcome) => Some(outcome),
            _ => None,
        }
    }

    fn go_on(&mut self, terms: &Terms, now: Time) -> Vec<Sent> {
        let mut sent = Vec::new();
        if let Phase::Trying(trying) = self.phase {
            sent = self.go_on_trying(terms, now, trying);
        }
        match self.phase {
            Phase::GivingBack { until, outcome }
                if now >= until || !self.undoings.are_awaited() =>
            {
                self.phase = Phase::Done(outcome);
            }
            Phase::Surveying { started, close_at, prolongs } => {
                let standing = self.ballot.standing();
                // Late answers mostly come with the others, and tell which nodes are missing.
                let close_at = close_at.or_else(|| {
                    let wait = terms.short_wait.max((now - started) * 3);
                    (standing != Standing::Unknown).then_some(now + wait)
                });
                self.phase = Phase::Surveying { started, close_at, prolongs };
                if self.ballot.pending() == 0 || close_at.is_some_and(|at| now >= at) {
                    sent = self.end_survey(terms, now, (standing, started), prolongs);
                }
            }
            Phase::Releasing { started, close_at, answered, freed } => {
                let enough = answered >= rule::quorum_of(self.nodes());
                let close_at = close_at
                    .or_else(|| enough.then_some(now + terms.short_wait.max(now - started)));
                self.phase = Phase::Releasing { started, close_at, answered, freed };
                if self.ballot.pending() == 0 || close_at.is_some_and(|at| now >= at) {
                    let outcome = if enough { Outcome::Released(freed) } else { Outcome::Unknown };
                    self.phase = Phase::Done(outcome);
                }
            }
            _ => {}
        }
        sent
    }

    fn go_on_trying(&mut self, terms: &Terms, now: Time, mut trying: Trying) -> Vec<Sent> {
        let step = trying.step(terms, now, &self.ballot, self.fence);
        self.phase = Phase::Trying(trying);
        match step {
            Step::Wait => Vec::new(),
            Step::Raise(value) => {
                let request = Request::Raise { attempt: self.attempt, value };
                let low = self.ballot.raise_to(value);
                low.into_iter().map(|node| (node, request)).collect()
            }
            Step::End(Outcome::Granted { fence, valid_for }) => {
                self.phase = Phase::Done(Outcome::Granted { fence, valid_for });
                self.fence = Some(Block::from_first(fence, terms.fences).last);
                self.granted = Some(self.attempt);
                for node in 0..self.nodes() {
                    let reply = self.ballot.0[node].reply;
                    if reply.is_some_and(|reply| reply.counter().is_none()) {
                        self.let_join(terms, now, node);
                    }
                }
                Vec::new()
            }
            Step::End(outcome) => self.give_back(terms, now, outcome),
        }
    }

    /// Gives the votes of a failed try back at once, on all nodes that may have voted for it: those that
    /// did are waited for, those that have not answered are seen to later.
    fn give_back(&mut self, terms: &Terms, now: Time, outcome: Outcome) -> Vec<Sent> {
        let (mut sent, fence) = (Vec::new(), self.fence_to_release());
        for node in 0..self.nodes() {
            let paper = self.ballot.0[node];
            let may_land = matches!(paper.reply, None | Some(Reply::Unknown));
            if (paper.voted || may_land) && (terms.rules.gives_back)(!may_land) {
                let what = (self.call, node, Some(self.attempt));
                let undoing = self.undoings.begin(terms, now, &self.debts, what);
                undoing.awaited = !may_land;
                sent.push((node, undoing.request(fence, false)));
            }
        }
        self.phase = Phase::GivingBack { until: now + terms.slow_after, outcome };
        if !self.undoings.are_awaited() {
            self.phase = Phase::Done(outcome);
        }
        sent
    }

    fn end_survey(
        &mut self,
        terms: &Terms,
        now: Time,
        (standing, started): (Standing, Time),
        prolongs: bool,
    ) -> Vec<Sent> {
        let mut sent = Vec::new();
        let outcome = match standing {
            Standing::Held => Outcome::Held,
            Standing::Lost => Outcome::Lost,
            Standing::Unknown => Outcome::Unknown,
        };
        self.phase = Phase::Done(outcome);
        if standing == Standing::Held {
            self.unproven = false;
        }
        // If the renewal is over before it is answered, another client may have had the lock since.
        let is_over = now - started + terms.margin >= terms.believed(started, now);
        if standing == Standing::Held && prolongs && !is_over {
            // The nodes that are not in the hold are asked to join it, and those that have joined are
            // adopted: the renewal has shown that no other client can have had the lock in between.
            let (call, fence) = (self.call, self.fence);
            for node in 0..self.nodes() {
                match self.ballot.0[node].reply {
                    Some(Reply::Unproven { counter }) => {
                        let adopt = Some(counter);
                        sent.push((node, Request::Renew { call, fence, adopt, prolongs }));
                    }
                    Some(Reply::NotMine) => self.let_join(terms, now, node),
                    _ => {}
                }
            }
        }
        sent
    }

    /// The node is asked to join the hold in a moment: a hold that only a bare quorum carries is broken by
    /// the loss of one node. A node that shows the fence itself takes part from then on; any other one
    /// only when the next renewal has adopted it.
    fn let_join(&mut self, terms: &Terms, now: Time, node: usize) {
        if !self.closed && !self.joining.contains(&node) {
            self.joining.push(node);
            self.join_at.get_or_insert(now + terms.join_after);
        }
    }

    fn owe(&mut self, terms: &Terms, now: Time, node: usize, request: Request) -> Sent {
        self.debts.owe(node, self.attempt, now, now + terms.lasts);
        (node, request)
    }

    /// The fence that a hold must have to be released, where nothing has proven yet that the claim is its
    /// holder.
    fn fence_to_release(&self) -> Option<u64> {
        self.fence.filter(|_| self.unproven)
    }
}

#[cfg(test)]
mod tests;
