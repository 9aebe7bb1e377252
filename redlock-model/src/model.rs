//! What can happen next.

use lock_redis::redlock::rule::{self, Verdict};
use stateright::{Model, Property};

use crate::rules::{Established, Join, Rejoin, Rules};
use crate::state::{CLIENTS, Client, NODES, Node, Phase, Quarantine, Set, State};

/// A quorum of three nodes under a set of rules.
#[derive(Clone, Debug)]
pub struct RedlockModel {
    /// The rules.
    pub rules: Rules,
    /// How many acquisitions a run has, at most three.
    pub clients: usize,
    /// How often a node may lose all its data.
    pub losses: u8,
    /// The counters at the start, one list per initial state. Unequal ones are what partial
    /// acquisitions leave behind.
    pub counters: Vec<[u8; NODES]>,
    /// The values that clients may propose.
    pub proposals: Vec<u8>,
    /// How many acquire requests, of whichever client and to whichever node, arrive a second time,
    /// as those of a claim that tries again do.
    pub repeats: u8,
    /// Whether the model knows for how long a grant is believed, and checks that two clients never
    /// believe at once. That needs the assumption about clocks: a node keeps what a call has set for
    /// longer than the client believes in that call.
    pub holds: bool,
    /// How many second tries and renewals there are; only with `holds`.
    pub calls: u8,
    /// Whether the run begins with a client that has returned the fence 1, which two nodes show while the
    /// request to the third one is still under way; only with `holds`.
    pub held: bool,
    /// Whether the run begins with a node that lost its data and was admitted again, while a second
    /// copy of that admission is still under way.
    pub stale_admission: bool,
    /// The greatest counter that is explored, at most seven.
    pub top: u8,
}

/// One step of the system. A message that is lost is one that never arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A client begins, with this proposal.
    Invoke(usize, u8),
    /// An acquire request arrives: client, node, number of its call, and whether it will arrive again.
    Acquire(usize, usize, u8, bool),
    /// A request arrives that asks a node to join a hold: client, node.
    TopUp(usize, usize),
    /// A client that has returned a fence tries again, as after an answer that was lost.
    TryAgain(usize),
    /// A client begins to renew.
    Renew(usize),
    /// A renewal arrives: client, node, and whether the answer does.
    RenewAt(usize, usize, bool),
    /// A client judges the answers to its renewal.
    JudgeRenewal(usize),
    /// A request that adopts a node arrives: client, node.
    Adopt(usize, usize),
    /// A client ceases to believe.
    Lapse(usize),
    /// A raise request arrives: client, node, value.
    Raise(usize, usize, u8),
    /// The answer to an acquire arrives: client, node, value.
    Reply(usize, usize, u8),
    /// The answer to a raise arrives, under the rule that only counts confirmations.
    Confirm(usize, usize, u8),
    /// A client judges what it has heard so far.
    Judge(usize),
    /// A client gives up.
    GiveUp(usize),
    /// The lock ends at a node.
    Expire(usize),
    /// A node loses its data.
    Lose(usize),
    /// Somebody reads the mark of the second node, to admit the first one again.
    ReadMark(usize, usize),
    /// Somebody who has read enough marks sends an admission.
    SendAdmission(usize),
    /// The admission arrives.
    Admit(usize),
}

impl Default for RedlockModel {
    fn default() -> Self {
        Self {
            rules: Rules::REAL,
            clients: 2,
            losses: 0,
            counters: vec![[0; NODES]],
            proposals: vec![1, 2],
            repeats: 0,
            holds: false,
            calls: 0,
            held: false,
            stale_admission: false,
            top: 7,
        }
    }
}

impl RedlockModel {
    fn nodes_at_start(&self, counters: &[u8; NODES]) -> [Node; NODES] {
        let mut nodes = counters.map(|counter| Node {
            holder: None,
            counter,
            adopted: 0,
            stamp: 0,
            quarantine: None,
            admission: None,
            generation: 0,
        });
        if self.stale_admission {
            nodes[0].generation = 1;
            nodes[0].admission = Some((1, counters[0]));
        }
        nodes
    }

    fn others(&self) -> usize {
        match self.rules.rejoin {
            Rejoin::WaitThenSeed { others } | Rejoin::SeedThenWait { others } => others,
            Rejoin::WaitOnly | Rejoin::AtOnce => 0,
        }
    }

    fn may_read(&self, quarantine: &Quarantine) -> bool {
        match self.rules.rejoin {
            Rejoin::WaitThenSeed { .. } => quarantine.pending == 0,
            Rejoin::SeedThenWait { .. } => true,
            Rejoin::WaitOnly | Rejoin::AtOnce => false,
        }
    }

    fn may_admit(&self, quarantine: &Quarantine) -> bool {
        quarantine.pending == 0 && values(quarantine.read).count() >= self.others()
    }

    /// What an acquire request does at a node, and the value that it answers.
    pub(crate) fn acquire(
        &self,
        node: &mut Node,
        client: u8,
        proposal: u8,
        call: u8,
    ) -> Option<u8> {
        let stamp = if self.holds { call } else { 0 };
        match node.holder {
            _ if node.quarantine.is_some() => None,
            Some(holder) => (holder == client).then(|| {
                node.stamp = node.stamp.max(stamp);
                node.counter
            }),
            None => {
                node.holder = Some(client);
                node.stamp = stamp;
                node.counter = (node.counter + 1).max(proposal);
                Some(node.counter)
            }
        }
    }

    /// What a raise request does at a node, and the value that it answers.
    fn raise(&self, node: &mut Node, client: u8, value: u8) -> Option<u8> {
        let allowed = node.holder == Some(client) || !self.rules.raise_needs_holder;
        (allowed && node.quarantine.is_none()).then(|| {
            if value > node.counter {
                (node.counter, node.adopted) = (value, 0);
            }
            node.counter
        })
    }

    fn judge(&self, client: &mut Client) {
        let votes = client.links.map(|link| (link.vote != 0).then_some(u64::from(link.vote)));
        if self.rules.join == Join::AtOnce && client.fence != 0 {
            let same =
                client.links.iter().filter(|link| link.vote != 0 && link.vote == link.member);
            if same.count() >= self.rules.quorum {
                let fence = client.fence;
                return self.grant(client, fence);
            }
        }
        let verdict = rule::judge(self.rules.quorum, &votes);
        let pending = votes.iter().filter(|vote| vote.is_none()).count();
        let kept = u64::from(client.fence);
        if !matches!(verdict, Verdict::Established(_))
            && kept != 0
            && rule::may_return(self.rules.quorum, kept, &votes, pending)
        {
            return;
        }
        match (self.rules.established, verdict) {
            (_, Verdict::Established(fence)) => self.grant(client, value_of(fence)),
            (Established::EqualOnQuorum, Verdict::Raise(highest)) => {
                for link in client.links.iter_mut().filter(|link| link.vote != 0) {
                    if u64::from(link.vote) < highest {
                        link.raise |= 1 << highest;
                    }
                }
            }
            (Established::FirstMaximum, Verdict::Raise(highest)) => {
                self.grant(client, value_of(highest));
            }
            (Established::RaisedMaximum, Verdict::Raise(highest)) if client.target == 0 => {
                client.target = value_of(highest);
                for link in &mut client.links {
                    link.raise |= 1 << highest;
                }
            }
            (Established::RaisedMaximum, Verdict::Raise(_)) | (_, Verdict::Short) => {}
        }
        let confirmations = values(client.confirmed).count();
        if client.phase == Phase::Trying && confirmations >= self.rules.quorum {
            let fence = client.target;
            self.grant(client, fence);
        }
    }

    /// The state after `action`; `None` if it changes nothing or leads beyond the greatest counter.
    fn after(&self, mut state: State, action: Action) -> Option<State> {
        match action {
            Action::Invoke(c, proposal) => {
                let floor = state.greatest(c, |client| client.fences);
                let client = &mut state.clients[c];
                client.phase = Phase::Trying;
                client.proposal = proposal;
                client.floor = floor;
                client.begin_try();
            }
            Action::Acquire(c, n, call, again) => {
                state.repeats_left -= u8::from(again);
                let client = &mut state.clients[c];
                let link = &mut client.links[n];
                if !again {
                    link.acquire &= !(1 << call);
                }
                let listens = client.call == call && self.listens(client.phase);
                let value = self.acquire(&mut state.nodes[n], id(c), client.proposal, call);
                if let Some(value) = value {
                    if value > self.top {
                        return None;
                    }
                    if listens {
                        link.replies |= 1 << value;
                    }
                }
            }
            Action::Raise(c, n, value) => {
                let client = &mut state.clients[c];
                let link = &mut client.links[n];
                link.raise &= !(1 << value);
                let listens = client.phase == Phase::Trying;
                if let Some(answer) = self.raise(&mut state.nodes[n], id(c), value)
                    && listens
                {
                    match self.rules.established {
                        Established::RaisedMaximum => link.raised |= 1 << answer,
                        _ => link.replies |= 1 << answer,
                    }
                }
            }
            Action::Reply(c, n, value) => {
                let link = &mut state.clients[c].links[n];
                link.replies &= !(1 << value);
                if state.clients[c].phase == Phase::Trying {
                    state.clients[c].links[n].vote = state.clients[c].links[n].vote.max(value);
                } else {
                    state.clients[c].links[n].member = value;
                }
            }
            Action::Confirm(c, n, value) => {
                let client = &mut state.clients[c];
                client.links[n].raised &= !(1 << value);
                client.confirmed |= 1 << n;
            }
            Action::Judge(c) => self.judge(&mut state.clients[c]),
            Action::GiveUp(c) => state.clients[c].end(Phase::Ended),
            Action::Expire(n) => self.expire(&mut state, n),
            Action::Lose(n) => {
                state.losses_left -= 1;
                let pending = state.unfinished();
                let node = &mut state.nodes[n];
                (node.holder, node.adopted, node.stamp) = (None, 0, 0);
                node.counter = 0;
                node.generation += 1;
                node.quarantine = match self.rules.rejoin {
                    Rejoin::AtOnce => None,
                    _ => Some(Quarantine { pending, read: 0, seed: 0 }),
                };
            }
            Action::ReadMark(n, other) => {
                let mark = state.nodes[other].counter;
                let quarantine = state.nodes[n].quarantine.as_mut()?;
                quarantine.read |= 1 << other;
                quarantine.seed = quarantine.seed.max(mark);
            }
            Action::SendAdmission(n) => {
                let seed = state.nodes[n].quarantine?.seed;
                state.nodes[n].admission = Some((state.nodes[n].generation, seed));
            }
            Action::Admit(n) => {
                let node = &mut state.nodes[n];
                let (generation, seed) = node.admission.take()?;
                if !self.rules.admission_names_quarantine || generation == node.generation {
                    node.quarantine = None;
                    node.counter = node.counter.max(seed);
                }
            }
            follow_up => self.follow_up(&mut state, follow_up)?,
        }
        state.settle();
        Some(state)
    }
}

impl Model for RedlockModel {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let states = self.counters.iter().map(|counters| {
            let state = State {
                nodes: self.nodes_at_start(counters),
                clients: [Client::NEW; CLIENTS],
                losses_left: self.losses,
                repeats_left: self.repeats,
                calls_left: self.calls,
            };
            let state = if self.held { self.with_a_hold(state) } else { state };
            state.representative(self.clients)
        });
        states.collect()
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (c, client) in state.clients.iter().enumerate().take(self.clients) {
            match client.phase {
                Phase::Idle => {
                    actions.extend(self.proposals.iter().map(|value| Action::Invoke(c, *value)));
                }
                Phase::Trying => actions.extend([Action::Judge(c), Action::GiveUp(c)]),
                Phase::Renewing | Phase::Returned(_) | Phase::Ended => {}
            }
            for (n, link) in client.links.iter().enumerate() {
                for call in values(link.acquire) {
                    actions.push(Action::Acquire(c, n, call, false));
                    if state.repeats_left > 0 && self.calls == 0 {
                        actions.push(Action::Acquire(c, n, call, true));
                    }
                }
                actions.extend(values(link.raise).map(|value| Action::Raise(c, n, value)));
                actions.extend(values(link.replies).map(|value| Action::Reply(c, n, value)));
                actions.extend(values(link.raised).map(|value| Action::Confirm(c, n, value)));
            }
        }
        self.follow_ups(state, actions);
        for (n, node) in state.nodes.iter().enumerate() {
            if node.holder.is_some() {
                actions.push(Action::Expire(n));
            }
            if state.losses_left > 0 {
                actions.push(Action::Lose(n));
            }
            if node.admission.is_some() {
                actions.push(Action::Admit(n));
            }
            let Some(quarantine) = &node.quarantine else { continue };
            if self.may_read(quarantine) {
                let admitted = |m: &usize| *m != n && state.nodes[*m].quarantine.is_none();
                actions.extend((0..NODES).filter(admitted).map(|m| Action::ReadMark(n, m)));
            }
            if self.may_admit(quarantine) {
                actions.push(Action::SendAdmission(n));
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let next = self.after(last.clone(), action)?;
        (next != *last).then(|| next.representative(self.clients))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always("F1: fences are distinct", |_: &Self, state: &State| {
                let fences: Vec<_> = state.clients.iter().map(|client| client.fences).collect();
                (1..fences.len()).all(|i| fences[..i].iter().all(|other| other & fences[i] == 0))
            }),
            Property::always("F2: a later fence is greater", |_: &Self, state: &State| {
                state.fences().all(|(fence, floor)| fence > floor)
            }),
            // Without these a model in which nothing happens would pass.
            Property::sometimes("every acquisition can return", |model: &Self, state: &State| {
                state.fences().count() == model.clients
            }),
        ];
        if self.holds {
            properties.push(Property::always(
                "E: one client believes",
                |_: &Self, state: &State| {
                    state.clients.iter().filter(|client| client.believes()).count() <= 1
                },
            ));
        }
        if self.calls > 0 {
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

/// The values of a set.
pub(crate) fn values(set: Set) -> impl Iterator<Item = u8> {
    (0..8).filter(move |value| set & (1 << value) != 0)
}

pub(crate) fn id(client: usize) -> u8 {
    u8::try_from(client).unwrap_or(u8::MAX)
}

/// Counters never exceed [`RedlockModel::top`], so every value fits.
fn value_of(fence: u64) -> u8 {
    u8::try_from(fence).unwrap_or(u8::MAX)
}
