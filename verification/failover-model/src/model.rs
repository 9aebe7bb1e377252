//! The rules, what can happen under them, and what must hold.

use stateright::{Model, Property};

use crate::state::{Ask, Client, Data, Entry, FENCES, Server, State};

/// A failover, or several, under a set of rules. Times are in ticks.
#[derive(Clone, Copy, Debug)]
pub struct Failover {
    /// For how long a lock is granted.
    pub ttl: u8,
    /// For how long a master accepts writes after its replica has left it.
    pub lag: u8,
    /// For how long a new master does not vote after it was first seen.
    pub wait: u8,
    /// How far the clock of the second server is ahead of that of the first.
    pub skew: i8,
    /// How far a fence may be ahead of a server's clock. If at all, it may be as far behind as the mark, too.
    pub lead: i8,
    /// How many promotions there may be.
    pub failovers: u8,
    /// Whether a client sees each new master before the old one becomes its replica.
    pub sees_first: bool,
    /// How many releases there may be.
    pub releases: u8,
    /// Whether a request may be carried out in a later tick.
    pub delays: bool,
    /// Whether there are fences.
    pub fences: bool,
    /// What the marker of a server names.
    pub marker: Marker,
    /// How long after a new master was first seen it renews locks that it has from the old one, to clients that still
    /// believe in them. The product never does.
    pub renews_after: Option<u8>,
    /// The rule that is not kept.
    pub wrong: Option<Wrong>,
}

/// What the marker names in the data of a server, which votes only if that is itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marker {
    /// The process, and by which promotion it is the master.
    Promotion,
    /// The process.
    Process,
    /// Nothing: that there is one is enough.
    Nothing,
}

/// Known wrong rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// A new master votes at once.
    NoWait,
    /// The wait counts from the last write that the new master has.
    WaitsFromLastWrite,
    /// A master goes on for ever after its replica has left it.
    GoesOn,
    /// A client that finds its own entry on a new master takes that for a grant.
    OwnEntryIsGrant,
    /// A renewal during the wait counts even if the client has ceased to believe before it was carried out.
    Revives,
    /// A fence is the mark and one, whatever the time is.
    NoClock,
}

/// What happens. Clients and servers are numbered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Time goes on.
    Tick,
    /// A client sends a try to a server.
    Try(usize, usize),
    /// A client sends a renewal to a server.
    Renew(usize, usize),
    /// The request of a client is carried out, and answered.
    Answered(usize, Proposal),
    /// The request of a client is carried out, and the answer is lost.
    Unheard(usize, Proposal),
    /// A client releases its lock at a server.
    Release(usize, usize),
    /// A client sees a new master for the first time.
    See(usize),
    /// The replica has all that its master has.
    Replicate,
    /// The replica is cut off from its master.
    Cut,
    /// It is joined to it again.
    Join,
    /// The replica becomes a master.
    Promote,
    /// The old master becomes a replica of the new one.
    Demote,
}

/// Which fence a client proposes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proposal {
    /// One that is as far ahead as a server accepts.
    High,
    /// One that is far behind.
    Low,
}

impl Default for Failover {
    /// The right rules. The wait is the least that is enough.
    fn default() -> Self {
        Self {
            ttl: 2,
            lag: 1,
            wait: 3,
            skew: 0,
            lead: 0,
            failovers: 2,
            sees_first: false,
            releases: 1,
            delays: true,
            fences: false,
            marker: Marker::Promotion,
            renews_after: None,
            wrong: None,
        }
    }
}

impl Failover {
    /// Exclusion.
    pub const EXCLUSION: &'static str = "E: one client believes";
    /// Later grants have greater fences.
    pub const ORDER: &'static str = "F: fences rise in the order of grants";

    fn is(&self, wrong: Wrong) -> bool {
        self.wrong == Some(wrong)
    }

    /// How far ahead the clock of a server is, in fences.
    fn clock(&self, v: usize) -> i8 {
        if v == 1 { self.skew * FENCES } else { 0 }
    }

    /// What is as long ago has no effect any more.
    fn oldest(&self) -> i8 {
        let ticks = self.ttl + self.wait + self.skew.unsigned_abs() + 2;
        -FENCES * i8::try_from(ticks).unwrap_or(i8::MAX / FENCES)
    }

    fn name(&self, server: &Server, v: usize) -> u8 {
        match self.marker {
            Marker::Promotion => server.reign,
            Marker::Process => u8::from(v == 1),
            Marker::Nothing => 0,
        }
    }

    fn accepts(&self, server: &Server) -> bool {
        server.leads && (server.cut.is_none_or(|age| age <= self.lag) || self.is(Wrong::GoesOn))
    }

    fn is_named(&self, server: &Server, v: usize) -> bool {
        server.data.names == self.name(server, v)
    }

    fn votes(&self, state: &State, v: usize) -> bool {
        let server = &state.servers[v];
        let has_waited = self.is_named(server, v) && server.data.wait == 0;
        self.accepts(server) && (has_waited || self.is(Wrong::NoWait))
    }

    /// Whether it renews during its wait.
    fn renews_early(&self, server: &Server, v: usize) -> bool {
        let seen = self.wait.saturating_sub(server.data.wait);
        let is_after = self.renews_after.is_some_and(|after| seen >= after);
        self.accepts(server) && self.is_named(server, v) && is_after
    }

    fn copy(&self, state: &mut State, from: usize, to: usize) {
        let ahead = if to == 1 { self.skew } else { -self.skew };
        state.servers[to].data = state.servers[from].data.seen_by(ahead);
    }

    fn tick(&self, state: &mut State) {
        let older = |fence: i8| {
            if self.fences && !self.is(Wrong::NoClock) {
                (fence - FENCES).max(self.oldest())
            } else {
                fence
            }
        };
        for client in &mut state.clients {
            client.left = client.left.saturating_sub(1);
            // What nobody would believe any more does what a later request does whose answer is lost.
            let last = if self.delays { self.ttl - 1 } else { 0 };
            client.asks = client.asks.filter(|ask| ask.age < last);
            client.asks.iter_mut().for_each(|ask| ask.age += 1);
        }
        for v in 0..2 {
            let is_named = self.is_named(&state.servers[v], v);
            let server = &mut state.servers[v];
            server.cut = server.cut.map(|age| (age + 1).min(self.lag + 1));
            let data = &mut server.data;
            data.entry.iter_mut().for_each(|entry| entry.left -= 1);
            data.entry = data.entry.filter(|entry| entry.left > 0);
            data.entry.iter_mut().for_each(|entry| entry.fence = older(entry.fence));
            data.mark = older(data.mark);
            if self.is(Wrong::WaitsFromLastWrite) {
                data.quiet = (data.quiet + 1).min(self.wait);
            }
            if data.wait == 1 && is_named && self.fences && !self.is(Wrong::NoClock) {
                data.mark = data.mark.max(self.clock(v));
            }
            data.wait = data.wait.saturating_sub(1);
        }
        state.top.0 = older(state.top.0);
    }

    /// The next fence of a server.
    fn next(&self, mark: i8, v: usize, proposal: Proposal) -> i8 {
        let is_by_mark = proposal == Proposal::Low || self.is(Wrong::NoClock);
        let proposed = if is_by_mark { i8::MIN } else { self.clock(v) + self.lead * FENCES };
        if self.fences { proposed.max(mark + 1) } else { 0 }
    }

    /// A request is carried out.
    fn arrive(&self, state: &mut State, c: usize, proposal: Proposal, is_heard: bool) {
        let Some(ask) = state.clients[c].asks.take() else { return };
        let (v, owner) = (ask.server, state.owner(c));
        let server = state.servers[v];
        let (data, votes) = (server.data, self.votes(state, v));
        let answers = if ask.renews {
            votes || self.renews_early(&server, v)
        } else {
            votes || self.accepts(&server) && self.is(Wrong::OwnEntryIsGrant)
        };
        let fence = match data.entry {
            Some(entry) if entry.owner == owner && answers => {
                state.fell |= is_heard && state.top != (entry.fence, owner);
                entry.fence
            }
            None if votes && !ask.renews => {
                let fence = self.next(data.mark, v, proposal);
                state.fell |= fence <= state.top.0;
                state.top = (fence, owner);
                fence
            }
            _ => return,
        };
        let entry = Some(Entry { owner, left: self.ttl, fence });
        state.servers[v].data = Data { entry, mark: data.mark.max(fence), quiet: 0, ..data };
        if is_heard && (votes || !ask.renews || state.believes(c) || self.is(Wrong::Revives)) {
            state.clients[c].left = state.clients[c].left.max(self.ttl - ask.age);
        }
    }

    fn release(&self, state: &mut State, c: usize, v: usize) {
        let (owner, accepts) = (state.owner(c), self.accepts(&state.servers[v]));
        let data = &mut state.servers[v].data;
        if accepts && data.entry.is_some_and(|entry| entry.owner == owner) {
            (data.entry, data.quiet) = (None, 0);
        }
        let released = state.clients[c].released + 1;
        state.clients[c] = Client { left: 0, released, asks: None };
        state.releases -= 1;
    }

    fn see(&self, state: &mut State, v: usize) {
        let server = &mut state.servers[v];
        let counted = if self.is(Wrong::WaitsFromLastWrite) { server.data.quiet } else { 0 };
        let names = self.name(server, v);
        server.data = Data { names, wait: self.wait - counted, quiet: 0, ..server.data };
    }

    fn of_client(&self, state: &State, c: usize, steps: &mut Vec<Step>) {
        if state.clients[c].asks.is_some() {
            let proposals = [Proposal::High, Proposal::Low];
            for proposal in proposals.into_iter().take(if self.lead > 0 { 2 } else { 1 }) {
                steps.extend([Step::Answered(c, proposal), Step::Unheard(c, proposal)]);
            }
        } else {
            let sends = if state.believes(c) { Step::Renew } else { Step::Try };
            steps.extend((0..2).map(|v| sends(c, v)));
        }
        if state.believes(c) && state.releases > 0 {
            steps.extend((0..2).map(|v| Step::Release(c, v)));
        }
    }

    fn of_group(&self, state: &State, steps: &mut Vec<Step>) {
        for (v, server) in state.servers.iter().enumerate() {
            if self.accepts(server) && !self.is_named(server, v) {
                steps.push(Step::See(v));
            }
        }
        match state.roles() {
            Some((master, _)) if state.servers[master].cut.is_none() => {
                steps.extend([Step::Replicate, Step::Cut]);
            }
            Some(_) => {
                steps.push(Step::Join);
                if state.failovers() < self.failovers {
                    steps.push(Step::Promote);
                }
            }
            None => {
                let new = usize::from(state.servers[1].reign > state.servers[0].reign);
                if !self.sees_first || self.is_named(&state.servers[new], new) {
                    steps.push(Step::Demote);
                }
            }
        }
    }
}

impl State {
    /// The master and its replica, if there are not two masters.
    fn roles(&self) -> Option<(usize, usize)> {
        let master = self.servers.iter().position(|server| server.leads)?;
        (!self.servers[1 - master].leads).then_some((master, 1 - master))
    }
}

impl Model for Failover {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let mark = if self.fences { self.oldest() } else { 0 };
        let replica = Server { data: Data { mark, ..Data::default() }, ..Server::default() };
        let master = Server { leads: true, ..replica };
        let clients = [Client::default(); 2];
        let (top, releases) = ((mark, u8::MAX), self.releases);
        vec![State { clients, servers: [master, replica], top, releases, fell: false }]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        steps.push(Step::Tick);
        (0..2).for_each(|c| self.of_client(state, c, steps));
        self.of_group(state, steps);
    }

    fn next_state(&self, last: &State, step: Step) -> Option<State> {
        let mut state = *last;
        let ask = |server, renews| Some(Ask { server, renews, age: 0 });
        match step {
            Step::Tick => self.tick(&mut state),
            Step::Try(c, v) => state.clients[c].asks = ask(v, false),
            Step::Renew(c, v) => state.clients[c].asks = ask(v, true),
            Step::Answered(c, proposal) => self.arrive(&mut state, c, proposal, true),
            Step::Unheard(c, proposal) => self.arrive(&mut state, c, proposal, false),
            Step::Release(c, v) => self.release(&mut state, c, v),
            Step::See(v) => self.see(&mut state, v),
            _ => self.change(&mut state, step),
        }
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(Self::EXCLUSION, |_: &Self, state: &State| {
                !(state.believes(0) && state.believes(1))
            }),
            Property::always(Self::ORDER, |model: &Self, state: &State| {
                !(model.fences && state.fell)
            }),
            Property::sometimes(
                "a client holds after the last failover",
                |model: &Self, state: &State| {
                    let is_held = |v: usize, c| {
                        let entry = state.servers[v].data.entry;
                        entry.is_some_and(|entry| entry.owner == state.owner(c))
                            && state.believes(c)
                    };
                    (0..2).any(|v| {
                        state.servers[v].reign == model.failovers
                            && model.votes(state, v)
                            && (0..2).any(|c| is_held(v, c))
                    })
                },
            ),
        ]
    }
}

impl Failover {
    /// What happens between the servers.
    fn change(&self, state: &mut State, step: Step) {
        let reign = state.failovers() + 1;
        match (step, state.roles()) {
            (Step::Replicate, Some((master, replica))) => self.copy(state, master, replica),
            (Step::Cut, Some((master, _))) => state.servers[master].cut = Some(0),
            (Step::Join, Some((master, _))) => state.servers[master].cut = None,
            (Step::Promote, Some((_, replica))) => {
                let data = state.servers[replica].data;
                state.servers[replica] = Server { leads: true, cut: None, reign, data };
            }
            (Step::Demote, None) => {
                let old = usize::from(state.servers[0].reign > state.servers[1].reign);
                self.copy(state, 1 - old, old);
                (state.servers[old].leads, state.servers[old].cut) = (false, None);
            }
            _ => {}
        }
    }
}
