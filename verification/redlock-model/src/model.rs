//! The model, as the checker sees it: what can happen next, and what must hold.

use stateright::{Model, Property};

use crate::config::{Action, Hearing, RedlockModel, Step};
use crate::contender::NodeRequest;
use crate::look::Look;
use crate::node::{Node, Quarantine, Rejoin};
use crate::rules;
use crate::state::{Body, Broken, Client, Message, Stage, State};

impl RedlockModel {
    fn nodes_at_start(&self, counters: &[u8]) -> Vec<Node> {
        let node = |counter: &u8| Node { counter: *counter, ..Node::default() };
        let mut nodes: Vec<_> = counters.iter().map(node).collect();
        nodes.iter_mut().rev().take(self.refusing).for_each(|node| node.refuses = true);
        if self.stale_admission {
            nodes[0].generation = 1;
            nodes[0].admission = Some((1, counters[0]));
        }
        nodes
    }

    /// Whether so many nodes take part that a try can be granted.
    fn can_grant(&self) -> bool {
        let nodes = self.counters[0].len();
        nodes - self.refusing >= rules::quorum_of(nodes)
    }

    fn others(&self) -> usize {
        match self.nodes.rejoin {
            Rejoin::WaitThenSeed { others }
            | Rejoin::SeedThenWait { others }
            | Rejoin::WaitForCalls { others } => others,
            Rejoin::WaitOnly | Rejoin::AtOnce => 0,
        }
    }

    fn may_read(&self, quarantine: &Quarantine) -> bool {
        match self.nodes.rejoin {
            Rejoin::WaitThenSeed { .. } | Rejoin::WaitForCalls { .. } => quarantine.is_over(),
            Rejoin::SeedThenWait { .. } => true,
            Rejoin::WaitOnly | Rejoin::AtOnce => false,
        }
    }

    fn may_admit(&self, quarantine: &Quarantine) -> bool {
        let read = usize::try_from(quarantine.read.count_ones()).unwrap_or(0);
        quarantine.is_over() && read >= self.others()
    }

    fn of_client(&self, state: &State, c: usize, steps: &mut Vec<Step>) {
        let client = &state.clients[c];
        match client.stage {
            Stage::Idle => {
                steps.extend(self.proposals.iter().map(|value| Step::Invoke(c, *value)));
            }
            Stage::Trying | Stage::Renewing | Stage::Releasing => steps.push(Step::GiveUp(c)),
            Stage::Returned | Stage::Failed | Stage::Dropped => {
                if state.calls_left > 0 && self.may_call(client) {
                    if !self.renewals_only {
                        steps.push(Step::TryAgain(c));
                    }
                    if client.stage == Stage::Returned {
                        steps.push(Step::Renew(c));
                    }
                }
                if self.gives_back {
                    steps.push(Step::Release(c));
                }
            }
            Stage::Ended => {}
        }
        if client.believes() {
            steps.push(Step::Lapse(c));
            if client.stage == Stage::Returned && client.passes + 1 < client.block {
                steps.push(Step::Pass(c));
            }
        }
        if self.may_tick(client) {
            steps.push(Step::Tick(c));
        }
    }

    fn of_message(&self, state: &State, message: Message, steps: &mut Vec<Step>) {
        match message.body {
            Body::Answer { .. } => steps.push(Step::Hear(message)),
            Body::Ask { request, is_awaited, .. } => {
                steps.push(Step::Arrive(message, Hearing::Heard));
                let is_immediate =
                    !matches!(request, NodeRequest::Acquire { .. } | NodeRequest::Raise { .. });
                if is_awaited && is_immediate {
                    steps.push(Step::Arrive(message, Hearing::Lost));
                }
                let repeats = self.calls == 0 && state.repeats_left > 0;
                if repeats && matches!(request, NodeRequest::Acquire { .. }) {
                    steps.push(Step::Arrive(message, Hearing::Again));
                }
                if is_awaited && state.silences_left > 0 {
                    steps.push(Step::Silence(message));
                }
            }
        }
    }

    fn of_node(&self, state: &State, n: usize, steps: &mut Vec<Step>) {
        let node = &state.nodes[n];
        if node.holder.is_some() {
            steps.push(Step::Expire(n));
        }
        if state.losses_left > 0 {
            steps.push(Step::Lose(n));
        }
        if node.admission.is_some() {
            steps.push(Step::Admit(n));
        }
        let Some(quarantine) = &node.quarantine else { return };
        if self.may_read(quarantine) {
            let admitted = |m: &usize| *m != n && state.nodes[*m].quarantine.is_none();
            steps.extend((0..state.nodes.len()).filter(admitted).map(|m| Step::ReadMark(n, m)));
        }
        if self.may_admit(quarantine) {
            steps.push(Step::SendAdmission(n));
        }
    }
}

impl Model for RedlockModel {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        self.variant.follow();
        let states = self.counters.iter().map(|counters| {
            let state = State {
                nodes: self.nodes_at_start(counters),
                clients: self.blocks.iter().map(|b| Client::new(counters.len(), *b)).collect(),
                flight: Vec::new(),
                losses_left: self.losses,
                repeats_left: self.repeats,
                calls_left: self.calls,
                looks_left: self.rounds.min(1),
                look: Look::None,
                silences_left: self.silences,
                used: 0,
                broken: None,
            };
            let state = if self.held { self.with_a_hold(state) } else { state };
            state.representative()
        });
        states.collect()
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let mut steps = Vec::new();
        (0..state.clients.len()).for_each(|c| self.of_client(state, c, &mut steps));
        state.flight.iter().for_each(|message| self.of_message(state, *message, &mut steps));
        (0..state.nodes.len()).for_each(|n| self.of_node(state, n, &mut steps));
        self.of_look(state, &mut steps);
        actions.extend(steps.into_iter().map(Action));
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        self.variant.follow();
        let next = self.after(last.clone(), action.0)?;
        (next != *last).then(|| next.representative())
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always("F1: fences are distinct", |_: &Self, state: &State| {
                state.broken != Some(Broken::NotDistinct)
            }),
            Property::always("F2: a later fence is greater", |_: &Self, state: &State| {
                state.broken != Some(Broken::NotGreater)
            }),
            Property::always(
                "F3: a claim has a block or another one",
                |_: &Self, state: &State| state.broken != Some(Broken::Overlaps),
            ),
        ];
        // Without these a model in which nothing happens would pass.
        if self.can_grant() {
            properties.push(Property::sometimes(
                "every acquisition can return",
                |_: &Self, state: &State| state.clients.iter().all(|client| client.fences != 0),
            ));
        }
        if self.holds {
            properties.push(Property::always(
                "E: one client believes",
                |_: &Self, state: &State| {
                    state.clients.iter().filter(|client| client.believes()).count() <= 1
                },
            ));
        }
        if self.holds && self.blocks.iter().any(|block| *block > 1) {
            properties.push(Property::always(
                "F4: each holder has a greater fence than the one before",
                |_: &Self, state: &State| state.broken != Some(Broken::NotAbove),
            ));
            properties.push(Property::sometimes(
                "a whole block can be passed on",
                |_: &Self, state: &State| {
                    state
                        .clients
                        .iter()
                        .any(|client| client.passes > 0 && client.passes + 1 == client.block)
                },
            ));
        }
        if self.rounds > 0 {
            properties.extend([
                Property::always("E2: a look shows who believes", |_: &Self, state: &State| {
                    state.broken != Some(Broken::Missed)
                }),
                Property::always("F5: a floor parts fences", |_: &Self, state: &State| {
                    !matches!(state.broken, Some(Broken::FloorTooLow | Broken::FloorTooHigh))
                }),
                Property::sometimes("a look can find it held", |_: &Self, state: &State| {
                    state.look == Look::Held
                }),
                Property::sometimes(
                    "a look can find it free after a fence",
                    |_: &Self, state: &State| matches!(state.look, Look::Free(floor) if floor > 0),
                ),
            ]);
        }
        if self.gives_back {
            properties.push(Property::always(
                "R: what is given back leaves nothing behind",
                |_: &Self, state: &State| (0..state.clients.len()).all(|c| state.is_clean(c)),
            ));
            properties.push(Property::sometimes(
                "a release can be settled everywhere",
                |_: &Self, state: &State| {
                    let is_done = |client: &Client| {
                        client.contender.closed && client.contender.debts.undoings.is_empty()
                    };
                    state.clients.iter().any(is_done)
                },
            ));
        }
        if self.calls > 0 && self.can_grant() {
            let proves = "a second call can succeed";
            properties.push(Property::sometimes(proves, |_: &Self, state: &State| {
                state.clients.iter().any(|client| client.proven > 1)
            }));
        }
        if self.losses > 0 {
            properties.push(Property::sometimes(
                "a node that lost its data votes again",
                |_: &Self, state: &State| {
                    let back = |node: &Node| node.generation > 0 && node.holder.is_some();
                    state.nodes.iter().any(back)
                },
            ));
        }
        properties
    }
}
