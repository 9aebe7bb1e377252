//! The contender itself.

use super::ballot::{Ballot, TryStep, Trying};
use super::debts::Debts;
use super::rules::{self, AnswerBrief, FenceBlock};
use super::{CallOutcome, ContenderTerms, NodeRequest, Sent, Time};

/// What a claim knows, and what it is waiting for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Contender {
    /// The answers to the call under way, or the last one.
    pub(crate) ballot: Ballot,
    pub(crate) debts: Debts,
    /// The nodes that are to be asked to join the hold, and when.
    pub(crate) joining: Vec<usize>,
    pub(crate) join_at: Option<Time>,
    pub(crate) phase: CallPhase,
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
pub(crate) enum CallPhase {
    Idle,
    Trying(Trying),
    /// A try has led to this outcome, and waits for its votes to be given back.
    GivingBack {
        until: Time,
        outcome: CallOutcome,
    },
    /// Until `close_at` further answers are waited for.
    Renewing {
        started: Time,
        close_at: Option<Time>,
        prolongs: bool,
    },
    Releasing {
        started: Time,
        close_at: Option<Time>,
    },
    Done(CallOutcome),
}

impl Contender {
    /// For this many `nodes`. With `resumed`, it continues another process's hold with this last fence.
    pub(crate) fn new(nodes: usize, resumed: Option<u64>) -> Self {
        Self {
            ballot: Ballot::new(nodes),
            debts: Debts::new(nodes, resumed.is_some()),
            joining: Vec::new(),
            join_at: None,
            phase: CallPhase::Idle,
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

    fn begin_call(&mut self, phase: CallPhase) {
        self.call += 1;
        self.ballot.clear();
        self.phase = phase;
    }

    /// Begins to try: all nodes at once. A grant is valid from `called` on.
    pub(crate) fn begin_try(
        &mut self,
        terms: &ContenderTerms,
        (called, now): (Time, Time),
        proposal: u64,
    ) -> Vec<Sent> {
        if self.closed {
            self.phase = CallPhase::Done(CallOutcome::Closed);
            return Vec::new();
        }
        self.begin_call(CallPhase::Trying(Trying::new(called, now)));
        self.attempt = self.call;
        self.granted = None;
        self.forget_joining();
        let (attempt, fences) = (self.attempt, terms.fences);
        let request = NodeRequest::Acquire { attempt, proposal, fences, joins: false };
        (0..self.nodes()).map(|node| self.owe(terms, now, node, request)).collect()
    }

    /// Begins to ask all nodes about the hold, and to prolong it if `prolongs`. Without a fence (where the
    /// outcome of the tries is unknown), it asks for whatever stands there for the owner.
    pub(crate) fn begin_renewal(&mut self, now: Time, prolongs: bool) -> Vec<Sent> {
        self.begin_call(CallPhase::Renewing { started: now, close_at: None, prolongs });
        let (call, fence) = (self.call, self.fence);
        let request = NodeRequest::Renew { call, fence, adopt: None, prolongs };
        (0..self.nodes()).map(|node| (node, request)).collect()
    }

    /// Begins to give up whatever the claim has. With `leaves`, this client stops waiting.
    pub(crate) fn begin_release(
        &mut self,
        terms: &ContenderTerms,
        now: Time,
        leaves: bool,
    ) -> Vec<Sent> {
        self.close();
        // It takes back what any try has made.
        self.debts.undoings.clear();
        if self.attempt == 0 {
            // Without a try there is only what an earlier claim of this owner has left (clause C12), and at which
            // nodes is not known.
            self.debts.granted.fill(true);
        }
        self.begin_call(CallPhase::Releasing { started: now, close_at: None });
        let (call, fence) = (self.call, self.fence_to_release());
        let release = |node| {
            let undoing = self.debts.begin_to_release(terms, now, (call, node, None));
            (node, undoing.request(fence, leaves))
        };
        (0..self.ballot.0.len()).map(release).collect()
    }

    /// Whether a call has begun and not ended.
    pub(crate) fn is_under_way(&self) -> bool {
        !matches!(self.phase, CallPhase::Idle | CallPhase::Done(_))
    }

    /// Another client has the lock.
    pub(crate) fn end_hold(&mut self) {
        self.fence = None;
    }

    /// Nothing more is acquired for this claim, nor by a call that it was dropped in. What is given back already
    /// still is.
    pub(crate) fn close(&mut self) {
        self.closed = true;
        self.phase = CallPhase::Idle;
        self.forget_joining();
    }

    fn forget_joining(&mut self) {
        self.joining.clear();
        self.join_at = None;
    }

    /// Whether the answer to this request counts for the call under way.
    pub(crate) fn listens_to(&self, request: NodeRequest) -> bool {
        match (self.phase, request) {
            (
                CallPhase::Trying(_),
                NodeRequest::Acquire { attempt, joins: false, .. }
                | NodeRequest::Raise { attempt, .. },
            ) => attempt == self.attempt,
            (CallPhase::Renewing { .. }, NodeRequest::Renew { call, adopt: None, .. })
            | (CallPhase::Releasing { .. }, NodeRequest::Release { call, .. }) => call == self.call,
            _ => false,
        }
    }

    /// A node has answered a request, or will not.
    pub(crate) fn replied(
        &mut self,
        terms: &ContenderTerms,
        now: Time,
        (node, request): Sent,
        reply: AnswerBrief,
    ) -> Vec<Sent> {
        if self.listens_to(request) {
            self.ballot.set(node, reply);
        }
        let has_voted = reply.counter().is_some();
        match request {
            NodeRequest::Acquire { attempt, .. } if reply != AnswerBrief::Unknown => {
                self.debts.settle(node, attempt, has_voted);
            }
            NodeRequest::Release { call, attempt, .. } => {
                let freed = if let AnswerBrief::Freed(freed) = reply { Some(freed) } else { None };
                self.debts.released(terms, now, (call, node, attempt), freed);
            }
            _ => {}
        }
        let is_of_the_hold = match request {
            NodeRequest::Acquire { attempt, joins: false, .. }
            | NodeRequest::Raise { attempt, .. } => self.granted == Some(attempt),
            NodeRequest::Renew { adopt, .. } => adopt.is_some(),
            _ => false,
        };
        if is_of_the_hold && !has_voted {
            self.let_join(terms, now, node);
        }
        self.go_on(terms, now)
    }

    /// It is `now`: whatever waits for the time continues.
    pub(crate) fn time(&mut self, terms: &ContenderTerms, now: Time) -> Vec<Sent> {
        let mut sent = self.go_on(terms, now);
        let fence = self.fence_to_release();
        let due = self.debts.due(now);
        sent.extend(due.iter().map(|undoing| (undoing.node, undoing.request(fence, false))));
        if self.join_at.is_some_and(|at| at <= now) {
            self.join_at = None;
            // Where nothing higher was counted, the node then shows just the fence of the hold.
            let (attempt, fences) = (self.attempt, terms.fences);
            let proposal = self.fence.map_or(0, |last| FenceBlock { last, fences }.first());
            let request = NodeRequest::Acquire { attempt, proposal, fences, joins: true };
            for node in std::mem::take(&mut self.joining) {
                sent.push(self.owe(terms, now, node, request));
            }
        }
        sent
    }

    /// When to call [`time`](Self::time) next, if no answer comes before.
    pub(crate) fn wake_at(&self, terms: &ContenderTerms, now: Time) -> Option<Time> {
        let call = match self.phase {
            CallPhase::Trying(trying) => trying.wake_at(terms, now),
            CallPhase::GivingBack { until, .. } => Some(until),
            CallPhase::Renewing { close_at, .. } | CallPhase::Releasing { close_at, .. } => {
                close_at
            }
            CallPhase::Idle | CallPhase::Done(_) => None,
        };
        [call, self.debts.next_at(), self.join_at].into_iter().flatten().min()
    }

    /// How the call has ended, if it has.
    pub(crate) fn outcome(&self) -> Option<CallOutcome> {
        match self.phase {
            CallPhase::Done(outcome) => Some(outcome),
            _ => None,
        }
    }

    fn go_on(&mut self, terms: &ContenderTerms, now: Time) -> Vec<Sent> {
        let is_over = |ballot: &Ballot, at: Option<Time>| {
            ballot.pending() == 0 || at.is_some_and(|at| now >= at)
        };
        match self.phase {
            CallPhase::Trying(trying) => return self.go_on_trying(terms, now, trying),
            CallPhase::GivingBack { until, outcome } => {
                if now >= until || !self.debts.are_awaited() {
                    self.phase = CallPhase::Done(outcome);
                }
            }
            CallPhase::Renewing { started, mut close_at, prolongs } => {
                let outcome = self.ballot.standing();
                if outcome != CallOutcome::Unknown {
                    // Late answers mostly come with the others, and tell which nodes are missing.
                    close_at.get_or_insert(now + terms.short_wait.max((now - started) * 3));
                }
                self.phase = CallPhase::Renewing { started, close_at, prolongs };
                if is_over(&self.ballot, close_at) {
                    self.phase = CallPhase::Done(outcome);
                    if outcome == CallOutcome::Held {
                        return self.end_renewal(terms, now, started, prolongs);
                    }
                }
            }
            CallPhase::Releasing { started, mut close_at } => {
                let outcome = self.ballot.released();
                if outcome != CallOutcome::Unknown {
                    close_at.get_or_insert(now + terms.short_wait.max(now - started));
                }
                self.phase = CallPhase::Releasing { started, close_at };
                // Where a quorum has freed something, the last nodes change nothing.
                if outcome == CallOutcome::Released(true) || is_over(&self.ballot, close_at) {
                    self.phase = CallPhase::Done(outcome);
                }
            }
            CallPhase::Idle | CallPhase::Done(_) => {}
        }
        Vec::new()
    }

    fn go_on_trying(&mut self, terms: &ContenderTerms, now: Time, mut trying: Trying) -> Vec<Sent> {
        let step = trying.step(terms, now, &self.ballot, self.fence);
        self.phase = CallPhase::Trying(trying);
        match step {
            TryStep::Wait => Vec::new(),
            TryStep::Raise(value) => {
                let request = NodeRequest::Raise { attempt: self.attempt, value };
                let low = self.ballot.raise_to(value);
                low.into_iter().map(|node| (node, request)).collect()
            }
            TryStep::End(CallOutcome::Granted { fence, valid_for }) => {
                self.phase = CallPhase::Done(CallOutcome::Granted { fence, valid_for });
                self.fence = Some(FenceBlock::from_first(fence, terms.fences).last);
                self.granted = Some(self.attempt);
                for node in 0..self.nodes() {
                    let reply = self.ballot.0[node].reply;
                    if reply.is_some_and(|reply| reply.counter().is_none()) {
                        self.let_join(terms, now, node);
                    }
                }
                Vec::new()
            }
            // What the nodes have is the hold of an earlier grant, which nobody has taken away as far as is known.
            TryStep::End(CallOutcome::Failed | CallOutcome::Busy) if self.may_hold() => {
                self.phase = CallPhase::Done(CallOutcome::Failed);
                Vec::new()
            }
            TryStep::End(outcome) => self.give_back(terms, now, outcome),
        }
    }

    /// Whether there was a grant whose hold a quorum may still show.
    fn may_hold(&self) -> bool {
        self.fence.is_some() && self.ballot.standing() != CallOutcome::Lost
    }

    /// Gives the votes of a failed try back at once, on all nodes that may have voted for it: those that
    /// did are waited for, those that have not answered are seen to later.
    fn give_back(&mut self, terms: &ContenderTerms, now: Time, outcome: CallOutcome) -> Vec<Sent> {
        let (mut sent, fence) = (Vec::new(), self.fence_to_release());
        for node in 0..self.nodes() {
            let paper = self.ballot.0[node];
            if rules::gives_back(paper.voted, paper.may_land()) {
                let what = (self.call, node, Some(self.attempt));
                let undoing = self.debts.begin_to_release(terms, now, what);
                undoing.awaited = !paper.may_land();
                sent.push((node, undoing.request(fence, false)));
            }
        }
        self.phase = CallPhase::GivingBack { until: now + terms.slow_after, outcome };
        if !self.debts.are_awaited() {
            self.phase = CallPhase::Done(outcome);
        }
        sent
    }

    /// A quorum shows the hold. The nodes that are not in it are asked to join, and those that have joined are
    /// adopted: the renewal has shown that no other client can have had the lock in between.
    fn end_renewal(
        &mut self,
        terms: &ContenderTerms,
        now: Time,
        started: Time,
        prolongs: bool,
    ) -> Vec<Sent> {
        self.unproven = false;
        let (mut sent, call, fence) = (Vec::new(), self.call, self.fence);
        // If the renewal is over before it is answered, another client may have had the lock since.
        let took = now - started;
        if !prolongs || took + terms.margin >= rules::valid_for(terms.valid, took) {
            return sent;
        }
        for node in 0..self.nodes() {
            match self.ballot.0[node].reply {
                Some(AnswerBrief::Unproven { counter }) => {
                    let adopt = Some(counter);
                    sent.push((node, NodeRequest::Renew { call, fence, adopt, prolongs }));
                }
                Some(AnswerBrief::NotMine) => self.let_join(terms, now, node),
                _ => {}
            }
        }
        sent
    }

    /// The node is asked to join the hold in a moment: a hold that only a bare quorum carries is broken by
    /// the loss of one node. A node that shows the fence itself takes part from then on; any other one
    /// only when the next renewal has adopted it.
    fn let_join(&mut self, terms: &ContenderTerms, now: Time, node: usize) {
        if !self.closed && !self.joining.contains(&node) {
            self.joining.push(node);
            self.join_at.get_or_insert(now + terms.join_after);
        }
    }

    fn owe(
        &mut self,
        terms: &ContenderTerms,
        now: Time,
        node: usize,
        request: NodeRequest,
    ) -> Sent {
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
mod tests {
    use std::time::Duration;

    use super::*;

    const fn ms(ms: u64) -> Time {
        Duration::from_millis(ms)
    }

    fn terms() -> ContenderTerms {
        ContenderTerms {
            fences: 1,
            valid: ms(10_000),
            margin: ms(102),
            lasts: ms(12_000),
            slow_after: ms(500),
            short_wait: ms(1),
            listing: ms(10),
            join_after: ms(250),
            pauses: (ms(50), ms(1000)),
        }
    }

    /// Three nodes, and what is under way to them by a try.
    struct Table {
        contender: Contender,
        now: Time,
        sent: Vec<Sent>,
    }

    impl Table {
        fn trying() -> Self {
            let mut contender = Contender::new(3, None);
            let sent = contender.begin_try(&terms(), (Time::ZERO, Time::ZERO), 7);
            Self { contender, now: Time::ZERO, sent }
        }

        fn begin(
            &mut self,
            begin: impl FnOnce(&mut Contender, &ContenderTerms, Time) -> Vec<Sent>,
        ) {
            self.sent.extend(begin(&mut self.contender, &terms(), self.now));
        }

        /// The oldest request to the node is answered.
        fn reply(&mut self, node: usize, reply: AnswerBrief) {
            let place = self.sent.iter().position(|sent| sent.0 == node).expect("a request");
            let sent = self.sent.remove(place);
            self.begin(|contender, terms, now| contender.replied(terms, now, sent, reply));
        }

        fn pass(&mut self, time: Duration) {
            self.now += time;
            self.begin(Contender::time);
        }
    }

    fn mine(counter: u64) -> AnswerBrief {
        AnswerBrief::Mine { counter }
    }

    #[test]
    fn differing_answers_are_raised_after_a_moment() {
        let mut table = Table::trying();
        table.reply(0, mine(7));
        table.reply(1, mine(9));
        assert_eq!(table.sent.len(), 1, "the third node may decide");
        table.pass(ms(1));
        assert_eq!(table.sent[1], (0, NodeRequest::Raise { attempt: 1, value: 9 }));
        table.reply(2, mine(7));
        assert_eq!(table.sent[1], (2, NodeRequest::Raise { attempt: 1, value: 9 }));
        table.reply(0, mine(9));
        let outcome = table.contender.outcome();
        assert!(matches!(outcome, Some(CallOutcome::Granted { fence: 9, .. })), "{outcome:?}");
    }

    #[test]
    fn a_repeated_try_without_answers_gives_no_hold_back() {
        let mut table = Table::trying();
        (0..3).for_each(|node| table.reply(node, mine(7)));
        table.begin(|contender, terms, now| contender.begin_try(terms, (now, now), 8));
        table.reply(0, mine(7));
        table.reply(1, AnswerBrief::Unknown);
        table.reply(2, AnswerBrief::Unknown);
        table.pass(ms(10));
        assert_eq!((table.sent, table.contender.outcome()), (vec![], Some(CallOutcome::Failed)));
    }

    /// The third node is another client's, and the second one has no answer, or not yet.
    #[test]
    fn a_repeated_try_gives_no_hold_back_that_a_quorum_may_still_show() {
        for is_slow in [false, true] {
            let mut table = Table::trying();
            (0..2).for_each(|node| table.reply(node, mine(7)));
            table.reply(2, AnswerBrief::NotMine);
            table.begin(|contender, terms, now| contender.begin_try(terms, (now, now), 8));
            table.reply(0, mine(7));
            table.reply(2, AnswerBrief::NotMine);
            if is_slow {
                table.pass(ms(500));
                table.sent.retain(|sent| sent.0 == 0);
            } else {
                table.reply(1, AnswerBrief::Unknown);
            }
            let seen = (table.sent, table.contender.outcome());
            assert_eq!(seen, (vec![], Some(CallOutcome::Failed)), "slow: {is_slow}");
        }
    }

    #[test]
    fn a_repeated_try_gives_back_what_is_left_of_a_hold_that_has_ended() {
        let mut table = Table::trying();
        (0..3).for_each(|node| table.reply(node, mine(7)));
        table.begin(|contender, terms, now| contender.begin_try(terms, (now, now), 8));
        table.reply(0, mine(7));
        (1..3).for_each(|node| table.reply(node, AnswerBrief::NotMine));
        let back = NodeRequest::Release { call: 2, attempt: Some(2), fence: None, leaves: false };
        assert_eq!(table.sent, [(0, back)]);
        table.reply(0, AnswerBrief::Freed(true));
        assert_eq!(table.contender.outcome(), Some(CallOutcome::Busy));
    }

    #[test]
    fn a_claim_that_cleans_up_after_another_repeats_what_is_not_answered() {
        let mut contender = Contender::new(3, None);
        let sent = contender.begin_release(&terms(), Time::ZERO, false);
        let mut table = Table { contender, now: Time::ZERO, sent };
        table.reply(0, AnswerBrief::Freed(true));
        table.reply(1, AnswerBrief::Freed(false));
        table.reply(2, AnswerBrief::Unknown);
        assert_eq!(table.contender.outcome(), Some(CallOutcome::Released(true)));
        table.pass(ms(50));
        let again = NodeRequest::Release { call: 1, attempt: None, fence: None, leaves: false };
        assert_eq!(table.sent, [(2, again)]);
        table.reply(2, AnswerBrief::Freed(true));
        assert_eq!(table.contender.wake_at(&terms(), table.now), None);
    }

    #[test]
    fn a_release_waits_for_no_node_that_changes_nothing() {
        for freed in [true, false] {
            let mut table = Table::trying();
            (0..3).for_each(|node| table.reply(node, mine(7)));
            table.begin(|contender, terms, now| contender.begin_release(terms, now, false));
            (0..2).for_each(|node| table.reply(node, AnswerBrief::Freed(freed)));
            let outcome = freed.then_some(CallOutcome::Released(true));
            assert_eq!(table.contender.outcome(), outcome, "the third one may have freed it");
            table.reply(2, AnswerBrief::Unknown);
            assert_eq!(table.contender.outcome(), Some(CallOutcome::Released(freed)));
            table.pass(ms(50));
            assert_eq!(table.sent.len(), 1, "the third one is asked again");
        }
    }

    #[test]
    fn nothing_is_acquired_behind_a_release() {
        let mut table = Table::trying();
        table.reply(0, AnswerBrief::NotMine);
        table.reply(1, mine(7));
        table.reply(2, mine(7));
        table.begin(|contender, terms, now| contender.begin_release(terms, now, false));
        table.sent.clear();
        table.pass(ms(300));
        assert_eq!(table.sent, [], "the first node is not asked to join any more");
        table.begin(|contender, terms, now| contender.begin_try(terms, (now, now), 8));
        assert_eq!(
            (table.sent, table.contender.outcome()),
            (Vec::new(), Some(CallOutcome::Closed))
        );
    }

    #[test]
    fn an_answer_to_an_earlier_renewal_does_not_count() {
        let mut table = Table::trying();
        (0..3).for_each(|node| table.reply(node, mine(7)));
        table.begin(|contender, _, now| contender.begin_renewal(now, true));
        let late = std::mem::take(&mut table.sent);
        table.begin(|contender, _, now| contender.begin_renewal(now, true));
        for sent in late {
            table.contender.replied(&terms(), table.now, sent, mine(7));
        }
        assert_eq!(table.contender.ballot.pending(), 3);
    }
}
