//! What a step does.

use std::time::Duration;

use crate::config::{Hearing, RedlockModel, Step};
use crate::contender::machine::CallPhase;
use crate::contender::{CallOutcome, Contender, ContenderTerms, NodeRequest, Sent, Time};
use crate::rules::{self, AnswerBrief, Variant};
use crate::set::{id, in_a_row};
use crate::state::{Body, Broken, Client, Message, Stage, State};

/// The tick at which the validity of a call is over: every try is late by then.
const LATE: u8 = 10;

fn ticks(ticks: u8) -> Time {
    Duration::from_nanos(ticks.into())
}

impl RedlockModel {
    /// Those of a client that asks for so many fences.
    pub(crate) fn terms(&self, fences: u8) -> ContenderTerms {
        ContenderTerms {
            fences: fences.into(),
            valid: ticks(LATE),
            margin: ticks(0),
            lasts: ticks(100),
            // A client that gives up at any moment stands for what it does about slow nodes.
            slow_after: ticks(100),
            short_wait: ticks(1),
            listing: ticks(1),
            join_after: ticks(1),
            pauses: (ticks(1), ticks(1)),
        }
    }

    /// Whether the contender of a client waits for its clock.
    pub(crate) fn may_tick(&self, client: &Client) -> bool {
        let now = self.now(client);
        let at = client.contender.wake_at(&self.terms(client.block), ticks(now));
        now < LATE && at.is_some_and(|at| at <= ticks(self.ticks))
    }

    fn now(&self, client: &Client) -> u8 {
        if self.holds && client.over >= client.call() { LATE } else { client.now }
    }

    /// Takes what a contender wants to be sent.
    pub(crate) fn post(&self, state: &mut State, c: usize, sent: Vec<Sent>) {
        let stamp = if self.holds { state.clients[c].call() } else { 0 };
        let mut refused = Vec::new();
        for (node, request) in sent {
            match request {
                _ if state.nodes[node].refuses => {
                    refused.push((node, request));
                    continue;
                }
                NodeRequest::Release { .. } if !self.gives_back => continue,
                NodeRequest::Acquire { joins: true, .. } if state.repeats_left == 0 => continue,
                NodeRequest::Acquire { joins: true, .. } => state.repeats_left -= 1,
                _ => {}
            }
            let body = Body::Ask { request, stamp, is_awaited: true };
            state.put(Message { client: id(c), node: id(node), body });
        }
        for sent in refused {
            self.tell(state, c, |contender, terms, now| {
                contender.replied(terms, now, sent, AnswerBrief::NoVote)
            });
        }
    }

    /// Feeds one contender, and draws the conclusions.
    pub(crate) fn tell(
        &self,
        state: &mut State,
        c: usize,
        what: impl FnOnce(&mut Contender, &ContenderTerms, Time) -> Vec<Sent>,
    ) {
        let now = ticks(self.now(&state.clients[c]));
        let terms = self.terms(state.clients[c].block);
        let sent = what(&mut state.clients[c].contender, &terms, now);
        self.post(state, c, sent);
        match state.clients[c].contender.phase {
            CallPhase::Done(outcome) => self.conclude(state, c, outcome),
            CallPhase::GivingBack { outcome, .. } if !self.gives_back => {
                self.conclude(state, c, outcome);
            }
            _ => {}
        }
    }

    fn conclude(&self, state: &mut State, c: usize, outcome: CallOutcome) {
        let client = &mut state.clients[c];
        client.contender.phase = CallPhase::Idle;
        let fence = match outcome {
            CallOutcome::Granted { fence, .. } => Some(fence),
            CallOutcome::Held => {
                let block = |last| rules::FenceBlock { last, fences: client.block.into() };
                client.contender.fence.map(|last| block(last).first())
            }
            _ => None,
        };
        if let Some(first) = fence.and_then(|fence| u8::try_from(fence).ok()) {
            return self.has_returned(state, c, first);
        }
        client.floor = 0;
        match (client.stage, outcome) {
            (Stage::Renewing, CallOutcome::Unknown) => client.stage = Stage::Returned,
            (Stage::Trying, _) => {
                if outcome != CallOutcome::Failed {
                    client.contender.end_hold();
                }
                (client.stage, client.proven) = (Stage::Failed, 0);
            }
            _ => (client.stage, client.proven) = (Stage::Ended, 0),
        }
    }

    /// A call has returned a block with this first fence.
    fn has_returned(&self, state: &mut State, c: usize, first: u8) {
        let taken = state.of_others(c, |client| client.fences);
        let (variant, used) = (self.variant, state.used);
        let client = &mut state.clients[c];
        let call = client.call();
        let fences = in_a_row(first, client.block);
        let is_another = first != client.first;
        let mut broken = None;
        if taken & fences != 0 {
            broken = Some(Broken::NotDistinct);
        } else if first <= client.floor {
            broken = Some(Broken::NotGreater);
        } else if is_another && client.fences & fences != 0 {
            broken = Some(Broken::Overlaps);
        }
        client.fences |= fences;
        (client.stage, client.floor) = (Stage::Returned, 0);
        if is_another {
            (client.first, client.passes) = (first, 0);
        }
        // A grant that is used although it is over is believed in.
        if variant == Variant::LateGrant {
            client.over = client.over.min(call - 1);
        }
        if self.holds {
            client.proven = call;
            if client.believes() {
                client.believed |= fences;
                if is_another {
                    broken = broken.or(state.look.is_reached_by(first));
                    state.look.has_another(c);
                }
                if is_another && self.passes() {
                    broken = broken.or((first <= used).then_some(Broken::NotAbove));
                    state.used = used.max(first);
                }
            }
        }
        state.broken = broken.or(state.broken);
    }

    /// Whether the model follows the holders of a block.
    fn passes(&self) -> bool {
        self.blocks.iter().any(|block| *block > 1)
    }

    /// Begins a try; a grant must be above `floor`.
    pub(crate) fn begin_try(&self, state: &mut State, c: usize, proposal: u8, floor: u8) {
        let client = &mut state.clients[c];
        (client.stage, client.now, client.floor) = (Stage::Trying, 0, floor);
        let start = (Time::ZERO, Time::ZERO);
        let terms = self.terms(client.block);
        let sent = client.contender.begin_try(&terms, start, proposal.into());
        self.post(state, c, sent);
    }

    /// The first client has the votes of a bare quorum.
    pub(crate) fn with_a_hold(&self, mut state: State) -> State {
        if self.late_releases {
            self.begin_try(&mut state, 0, 1, 0);
            state.clients[0].contender.phase = CallPhase::Idle;
            state.flight.clear();
        }
        self.begin_try(&mut state, 0, 1, 0);
        for node in 0..id(rules::quorum_of(state.nodes.len())) {
            let message = state.flight.iter().find(|message| message.node == node).copied();
            if let Some(message) = message {
                let _ = self.arrive(&mut state, message, Hearing::Heard);
            }
            let is_answer = |message: &&Message| matches!(message.body, Body::Answer { .. });
            if let Some(answer) = state.flight.iter().find(is_answer).copied() {
                self.hear(&mut state, answer);
            }
        }
        if self.late_releases {
            let request =
                NodeRequest::Release { call: 1, attempt: Some(1), fence: None, leaves: false };
            let body = Body::Ask { request, stamp: 1, is_awaited: false };
            let to = |node| Message { client: 0, node: id(node), body };
            (0..state.nodes.len()).for_each(|node| state.put(to(node)));
        }
        self.forget(&mut state);
        state
    }

    /// The state after `step`; `None` if it leads beyond the greatest counter.
    pub(crate) fn after(&self, mut state: State, step: Step) -> Option<State> {
        match step {
            Step::Arrive(message, hearing) => self.arrive(&mut state, message, hearing)?,
            Step::Hear(message) => self.hear(&mut state, message),
            Step::Silence(message) => self.silence(&mut state, message),
            Step::Invoke(..) | Step::TryAgain(_) | Step::Renew(_) | Step::Release(_) => {
                self.begin(&mut state, step);
            }
            Step::GiveUp(_) | Step::Tick(_) | Step::Lapse(_) | Step::Pass(_) => {
                self.live(&mut state, step)
            }
            Step::Look | Step::Show(_) | Step::LookOn | Step::Conclude => {
                self.look(&mut state, step)?;
            }
            at_a_node => self.happen(&mut state, at_a_node)?,
        }
        state.follow_belief();
        state.settle(self.nodes.rejoin);
        self.forget(&mut state);
        Some(state)
    }

    /// Whether the client does something about the answer to a request.
    fn cares(&self, client: &Client, request: NodeRequest) -> bool {
        let ends = matches!(client.stage, Stage::Ended) && !self.gives_back;
        !ends && (client.contender.listens_to(request) || self.gives_back)
    }

    /// Whether answers of this kind are heard at once, if they are heard at all.
    fn is_immediate(request: NodeRequest, reply: AnswerBrief) -> bool {
        matches!(request, NodeRequest::Renew { .. } | NodeRequest::Release { .. })
            || reply.counter().is_none()
    }

    fn arrive(&self, state: &mut State, message: Message, hearing: Hearing) -> Option<()> {
        let Body::Ask { request, stamp, is_awaited } = message.body else { return None };
        let (c, n) = (usize::from(message.client), usize::from(message.node));
        if hearing == Hearing::Again {
            state.repeats_left -= 1;
        } else {
            state.flight.retain(|other| *other != message);
        }
        let node = &mut state.nodes[n];
        let reply = node.carry_out(&self.nodes, (message.client, stamp), request);
        if node.counter > self.top {
            return None;
        }
        let cares = is_awaited && self.cares(&state.clients[c], request);
        if cares && hearing != Hearing::Lost {
            if !Self::is_immediate(request, reply) {
                let body = Body::Answer { request, reply };
                state.put(Message { body, ..message });
            } else if self.hears_refusals(request, reply) {
                self.tell(state, c, |contender, terms, now| {
                    contender.replied(terms, now, (n, request), reply)
                });
            }
        }
        Some(())
    }

    fn hears_refusals(&self, request: NodeRequest, reply: AnswerBrief) -> bool {
        let is_refusal = matches!(request, NodeRequest::Acquire { .. } | NodeRequest::Raise { .. })
            && reply.counter().is_none();
        self.gives_back || !is_refusal
    }

    fn hear(&self, state: &mut State, message: Message) {
        let Body::Answer { request, reply } = message.body else { return };
        state.flight.retain(|other| *other != message);
        let sent = (usize::from(message.node), request);
        self.tell(state, usize::from(message.client), |contender, terms, now| {
            contender.replied(terms, now, sent, reply)
        });
    }

    /// This request will not be answered any more, although it may still arrive.
    fn silence(&self, state: &mut State, message: Message) {
        state.silences_left -= 1;
        state.flight.retain(|other| *other != message);
        let request = match message.body {
            Body::Ask { request, stamp, .. } => {
                let body = Body::Ask { request, stamp, is_awaited: false };
                state.put(Message { body, ..message });
                request
            }
            Body::Answer { request, .. } => request,
        };
        let sent = (usize::from(message.node), request);
        self.tell(state, usize::from(message.client), |contender, terms, now| {
            contender.replied(terms, now, sent, AnswerBrief::Unknown)
        });
    }

    fn begin(&self, state: &mut State, step: Step) {
        match step {
            Step::Invoke(c, proposal) => {
                let floor = state.greatest(c, |client| client.fences);
                self.begin_try(state, c, proposal, floor);
            }
            Step::TryAgain(c) => {
                state.calls_left -= 1;
                let others = state.greatest(c, |client| client.fences);
                // Its own block may come back, and must not fall either.
                let floor = others.max(state.clients[c].first.saturating_sub(1));
                self.begin_try(state, c, self.proposals[0], floor);
            }
            Step::Renew(c) => {
                state.calls_left -= 1;
                // A renewed hold was not interrupted by a client that had reason to believe.
                let floor = state.greatest(c, |client| client.believed);
                let client = &mut state.clients[c];
                (client.stage, client.now, client.floor) = (Stage::Renewing, 0, floor);
                let sent = client.contender.begin_renewal(Time::ZERO, true);
                self.post(state, c, sent);
            }
            Step::Release(c) => {
                let client = &mut state.clients[c];
                (client.stage, client.now, client.proven) = (Stage::Releasing, 0, 0);
                let terms = self.terms(client.block);
                let sent = client.contender.begin_release(&terms, Time::ZERO, false);
                self.post(state, c, sent);
            }
            _ => {}
        }
    }

    fn live(&self, state: &mut State, step: Step) {
        match step {
            Step::GiveUp(c) => {
                let client = &mut state.clients[c];
                client.contender.phase = CallPhase::Idle;
                let goes_on = client.stage == Stage::Trying && self.gives_back;
                client.stage = if goes_on { Stage::Dropped } else { Stage::Ended };
                (client.floor, client.proven) = (0, 0);
            }
            Step::Tick(c) => {
                let terms = self.terms(state.clients[c].block);
                let now = ticks(state.clients[c].now);
                let at = state.clients[c].contender.wake_at(&terms, now);
                let at = at.and_then(|at| u8::try_from(at.as_nanos()).ok()).unwrap_or(LATE);
                state.clients[c].now = state.clients[c].now.max(at);
                self.tell(state, c, |contender, terms, now| contender.time(terms, now));
            }
            Step::Lapse(c) => state.clients[c].over = state.clients[c].proven,
            Step::Pass(c) => {
                let client = &mut state.clients[c];
                client.passes += 1;
                let fence = client.first + client.passes;
                if fence <= state.used {
                    state.broken = Some(Broken::NotAbove);
                }
                state.used = state.used.max(fence);
            }
            _ => {}
        }
    }

    fn happen(&self, state: &mut State, step: Step) -> Option<()> {
        match step {
            Step::Expire(n) => {
                let node = &mut state.nodes[n];
                if let Some((holder, _)) = node.holder {
                    // The validity of the call that set it is over by then.
                    let client = &mut state.clients[usize::from(holder)];
                    client.over = client.over.max(node.stamp);
                }
                node.free();
            }
            Step::Lose(n) => {
                state.losses_left -= 1;
                let pending = state.pending();
                state.nodes[n].lose(&self.nodes, pending);
            }
            Step::ReadMark(n, other) => {
                let mark = state.nodes[other].counter;
                let quarantine = state.nodes[n].quarantine.as_mut()?;
                quarantine.read |= 1 << other;
                quarantine.seed = quarantine.seed.max(mark);
            }
            Step::SendAdmission(n) => {
                let seed = state.nodes[n].quarantine?.seed;
                state.nodes[n].admission = Some((state.nodes[n].generation, seed));
            }
            Step::Admit(n) => return state.nodes[n].admit(&self.nodes),
            _ => return None,
        }
        Some(())
    }
}
