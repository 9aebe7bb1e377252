//! The loss of a whole quorum: how nodes are brought back, by the plan of `lock-redis` itself, and what the
//! clocks make of the fences.
//!
//! Here a grant is one step, and the nodes have clocks. The client that brings nodes back hears from all of
//! them at one moment, or from all but one; what it asks for arrives at any time until it asks again, or never.
//! A node may be restarted, flushed, or lose what it had counted at any moment, alone or with all others.

use std::time::Duration;

use stateright::{Model, Property};

use crate::plan::{self, AdmissionTerms, NodeReport};
use crate::set::id;

const NODES: usize = 3;
/// How all clients are configured.
const QUORUM: &str = "q";
/// A tick of the clocks.
const TICK: Duration = Duration::from_secs(10);
/// How old a quorum is at the start.
const START: u8 = 4;

/// A quorum of three nodes whose clocks do not go back, and what may happen to it.
#[derive(Clone, Copy, Debug)]
pub struct Recovery {
    /// The longest ttl, in ticks.
    pub ttl: u8,
    /// How long a node waits before it votes again, in ticks.
    pub wait: u8,
    /// How far ahead of a node's clock a proposal may be, in fences.
    pub lead: u8,
    /// What the seed of nodes that were restarted adds to the clocks, in fences. The product adds nothing.
    pub ahead: u8,
    /// Whether the nodes of a quorum that knows nothing start from the clocks.
    pub seeds_new: bool,
    /// How far the clock of the second node is ahead of the others, in fences.
    pub skew: u8,
    /// What may happen to a node, or to all.
    pub happens: &'static [Fault],
    /// How often.
    pub faults: u8,
    /// How many grants there are.
    pub grants: u8,
    /// For how many ticks it goes on.
    pub ticks: u8,
}

impl Recovery {
    /// How many fences a clock allows in one tick: more than are given away in a run.
    pub const FENCES: u8 = 4;
}

impl Default for Recovery {
    /// The product's rules, with a lead of half the wait.
    fn default() -> Self {
        let (ttl, wait, lead) = (2, 2, Self::FENCES);
        let (ahead, seeds_new, skew) = (0, true, 2);
        Self {
            ttl,
            wait,
            lead,
            ahead,
            seeds_new,
            skew,
            happens: &[Fault::Keep, Fault::Lose],
            faults: 2,
            grants: 2,
            ticks: 4,
        }
    }
}

/// What happens to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It is restarted with all that it had acknowledged.
    Keep,
    /// It is restarted without its last writes.
    Forget,
    /// It is restarted without its data.
    Lose,
    /// It loses its data, and runs on.
    Flush,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Mark {
    state: &'static str,
    /// Whether the process that it names has ended.
    is_stale: bool,
    nonce: u8,
    boot: u8,
    since: u8,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Node {
    started: u8,
    flushed: bool,
    marker: Option<Mark>,
    counter: u8,
    /// Until when its lock is held.
    locked: u8,
}

impl Node {
    /// Its marker, if that is of the running process.
    fn current(&self) -> Option<Mark> {
        self.marker.filter(|mark| !mark.is_stale)
    }

    fn votes(&self) -> bool {
        self.current().is_some_and(|mark| mark.state == "admitted")
    }
}

/// A request to a node. What is under way to it when it is restarted or flushed has no effect any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Request {
    /// `seen` is the nonce of the marker that the client has seen there.
    Begin {
        state: &'static str,
        boot: u8,
        nonce: u8,
        seen: Option<u8>,
    },
    Admit {
        seed: u8,
        min_age: u8,
        boot: u8,
        nonce: u8,
    },
}

/// The quorum at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Moment {
    time: u8,
    nodes: [Node; NODES],
    /// What is under way to each node.
    sent: [Option<Request>; NODES],
    /// The greatest fence.
    fence: u8,
    /// Until when the last holder believes.
    believed: u8,
    faults: u8,
    grants: u8,
    /// Whether all nodes have lost their data at once, and whether a lock was granted since.
    lost: (bool, bool),
    broken: Option<&'static str>,
}

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Happening(Step);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Tick,
    /// To a node, or to all of them.
    Fault(Option<usize>, Fault),
    /// The nodes grant the lock, to a client whose clock is far ahead or far behind.
    Grant {
        without: Option<usize>,
        is_ahead: bool,
    },
    /// The client asks the nodes, of which one may be silent, and sends what the plan says.
    Ask {
        without: Option<usize>,
    },
    /// A request arrives.
    Arrive(usize),
}

/// The numbers in a state, as the plan has them: in the same order.
fn text(number: u8) -> String {
    char::from(b'0' + number).into()
}

fn number(text: &str) -> u8 {
    text.bytes().next().map_or(u8::MAX, |byte| byte - b'0')
}

impl Recovery {
    fn clock(&self, node: usize, time: u8) -> u8 {
        time * Self::FENCES + if node == 1 { self.skew } else { 0 }
    }

    fn report(&self, n: usize, state: &Moment) -> NodeReport {
        let node = &state.nodes[n];
        let mut report = NodeReport {
            // No two servers have the same.
            run_id: text(id(n)),
            uptime: TICK * u32::from(state.time - node.started),
            flushes: text(node.flushed.into()),
            now: self.clock(n, state.time).into(),
            mark: node.counter.into(),
            ..NodeReport::default()
        };
        if let Some(mark) = node.marker {
            report.marker_run_id =
                if mark.is_stale { "ended".to_owned() } else { report.run_id.clone() };
            (report.state, report.quorum) = (mark.state.to_owned(), QUORUM.to_owned());
            (report.nonce, report.boot) = (text(mark.nonce), text(mark.boot));
            report.age = TICK * u32::from(state.time - mark.since);
        }
        report
    }

    /// Draws up the plan of a round, and sends what it asks for.
    fn ask(&self, state: &mut Moment, without: Option<usize>) {
        let report = |n| (Some(n) != without).then(|| self.report(n, state));
        let reports: Vec<_> = (0..NODES).map(report).collect();
        let fresh = state.fresh();
        let terms = AdmissionTerms {
            fingerprints: vec![QUORUM.to_owned(); NODES],
            wait: TICK * u32::from(self.wait),
            moves: false,
            boot_now: false,
            recovers_with: NODES,
            // A client that has come after the loss.
            used: false,
            boot: text(fresh),
        };
        let plan = plan::plan(&reports, &terms);
        state.sent = [None; NODES];
        for (step, nonce) in plan.steps.into_iter().zip(fresh + 1..) {
            let (plan::AdmissionStep::Begin { node, .. } | plan::AdmissionStep::Admit { node, .. }) =
                step;
            let current = state.nodes[node].current();
            state.sent[node] = Some(match step {
                plan::AdmissionStep::Begin { state, boot, .. } => {
                    let nonce = if state == "boot" { number(&boot) } else { nonce };
                    let (boot, seen) = (number(&boot), current.map(|mark| mark.nonce));
                    Request::Begin { state, boot, nonce, seen }
                }
                plan::AdmissionStep::Admit { seed, min_age, boot, .. } => {
                    let Some(mark) = current else { continue };
                    let is_of_clocks = reports.iter().flatten().any(|report| report.now == seed);
                    let seed = u8::try_from(seed).unwrap_or(u8::MAX);
                    let seed = match mark.state {
                        "boot" => {
                            if self.seeds_new {
                                seed
                            } else {
                                0
                            }
                        }
                        _ if is_of_clocks => seed + self.ahead,
                        _ => seed,
                    };
                    let min_age = u8::try_from(min_age.as_secs() / TICK.as_secs());
                    let (min_age, boot) = (min_age.unwrap_or(u8::MAX), number(&boot));
                    Request::Admit { seed, min_age, boot, nonce: mark.nonce }
                }
            });
        }
    }

    fn count(&self, state: &Moment, n: usize, is_ahead: bool) -> u8 {
        let most = if is_ahead { self.clock(n, state.time) + self.lead } else { 0 };
        (state.nodes[n].counter + 1).max(most)
    }

    fn grant(&self, state: &mut Moment, without: Option<usize>, is_ahead: bool) {
        let nodes: Vec<_> = (0..NODES).filter(|n| Some(*n) != without).collect();
        let counted = nodes.iter().map(|n| self.count(state, *n, is_ahead));
        let fence = counted.max().unwrap_or(0);
        if fence <= state.fence {
            state.broken = Some("F");
        }
        if state.time < state.believed {
            state.broken = Some("E");
        }
        state.grants -= 1;
        (state.fence, state.believed) = (fence, state.time + self.ttl);
        state.lost.1 |= state.lost.0;
        for n in nodes {
            (state.nodes[n].counter, state.nodes[n].locked) = (fence, state.believed);
        }
    }

    /// What can have no effect any more is the same in all states.
    fn forget(&self, state: &mut Moment) {
        let time = state.time;
        for node in &mut state.nodes {
            node.started = node.started.max(time.saturating_sub(self.wait + 2));
            node.locked = if node.locked > time { node.locked } else { 0 };
            if let Some(mark) = &mut node.marker {
                mark.since = mark.since.max(time.saturating_sub(self.wait));
            }
        }
        state.believed = if state.believed > time { state.believed } else { 0 };
        for (node, sent) in state.nodes.iter().zip(&mut state.sent) {
            let nonce = node.current().map(|mark| mark.nonce);
            sent.take_if(|request| match request {
                Request::Begin { seen, .. } => *seen != nonce,
                Request::Admit { nonce: meant, .. } => Some(*meant) != nonce || node.votes(),
            });
        }
        // The first and the third node have the same clock.
        let key = |n: usize| (state.nodes[n], state.sent[n]);
        if key(0) > key(2) {
            state.nodes.swap(0, 2);
            state.sent.swap(0, 2);
        }
    }
}

impl Moment {
    fn ids(&mut self) -> impl Iterator<Item = &mut u8> {
        let marks = self.nodes.iter_mut().filter_map(|node| node.marker.as_mut());
        let marks = marks.flat_map(|mark| [Some(&mut mark.nonce), Some(&mut mark.boot), None]);
        let sent = self.sent.iter_mut().flatten().flat_map(|request| match request {
            Request::Begin { boot, nonce, seen, .. } => [Some(boot), Some(nonce), seen.as_mut()],
            Request::Admit { boot, nonce, .. } => [Some(boot), Some(nonce), None],
        });
        marks.chain(sent).flatten()
    }

    /// An id that is in no use.
    fn fresh(&mut self) -> u8 {
        self.ids().max().map_or(0, |greatest| *greatest + 1)
    }

    /// Numbers the ids anew, in their order.
    fn renumber(&mut self) {
        // One bit each: there are at most three for each node and each request.
        let known = self.ids().fold(0_u64, |known, id| known | 1 << *id);
        for id in self.ids() {
            let before = known & ((1 << *id) - 1);
            *id = u8::try_from(before.count_ones()).unwrap_or(u8::MAX);
        }
    }

    /// What the scripts `begin` and `admit` do.
    fn arrive(&mut self, n: usize) {
        let (time, node) = (self.time, &mut self.nodes[n]);
        let current = node.current();
        match self.sent[n].take() {
            Some(Request::Begin { state, boot, nonce, seen })
                if seen == current.map(|mark| mark.nonce) =>
            {
                node.marker = Some(Mark { state, is_stale: false, nonce, boot, since: time });
            }
            Some(Request::Admit { seed, min_age, boot, nonce }) => {
                let meant = current.filter(|mark| mark.nonce == nonce && mark.state != "admitted");
                if let Some(mark) = meant.filter(|mark| time - mark.since >= min_age) {
                    node.marker = Some(Mark { state: "admitted", boot, ..mark });
                    node.counter = node.counter.max(seed);
                }
            }
            _ => {}
        }
    }

    fn fault(&mut self, of: Option<usize>, fault: Fault) {
        self.faults -= 1;
        self.lost.0 |= of.is_none() && matches!(fault, Fault::Lose | Fault::Flush);
        for n in (0..NODES).filter(|n| of.is_none_or(|of| of == *n)) {
            self.sent[n] = None;
            let node = &mut self.nodes[n];
            match fault {
                Fault::Flush => node.flushed = true,
                _ => (node.started, node.flushed) = (self.time, false),
            }
            match &mut node.marker {
                Some(mark) if matches!(fault, Fault::Keep | Fault::Forget) => mark.is_stale = true,
                marker => *marker = None,
            }
            if fault != Fault::Keep {
                (node.counter, node.locked) = (0, 0);
            }
        }
    }

    fn can_grant(&self, without: Option<usize>) -> bool {
        let is_free = |node: &Node| node.votes() && node.locked <= self.time;
        (0..NODES).filter(|n| Some(*n) != without).all(|n| is_free(&self.nodes[n]))
    }
}

impl Model for Recovery {
    type State = Moment;
    type Action = Happening;

    fn init_states(&self) -> Vec<Moment> {
        let mark = Mark { state: "admitted", is_stale: false, nonce: 0, boot: 0, since: 0 };
        let mut state = Moment {
            time: START,
            nodes: [Node { marker: Some(mark), ..Node::default() }; NODES],
            sent: [None; NODES],
            fence: 0,
            believed: 0,
            faults: self.faults,
            grants: self.grants,
            lost: (false, false),
            broken: None,
        };
        self.forget(&mut state);
        vec![state]
    }

    fn actions(&self, state: &Moment, actions: &mut Vec<Happening>) {
        let mut steps = Vec::new();
        if state.time < START + self.ticks {
            steps.push(Step::Tick);
        }
        let each = || (0..NODES).map(Some).chain([None]);
        if state.faults > 0 {
            steps.extend(self.happens.iter().flat_map(|f| each().map(|of| Step::Fault(of, *f))));
        }
        if state.grants > 0 {
            for without in each().filter(|without| state.can_grant(*without)) {
                steps.extend([true, false].map(|is_ahead| Step::Grant { without, is_ahead }));
            }
        }
        if !state.nodes.iter().all(Node::votes) {
            steps.extend(each().map(|without| Step::Ask { without }));
        }
        steps.extend((0..NODES).filter(|n| state.sent[*n].is_some()).map(Step::Arrive));
        actions.extend(steps.into_iter().map(Happening));
    }

    fn next_state(&self, last: &Moment, Happening(step): Happening) -> Option<Moment> {
        let mut state = last.clone();
        match step {
            Step::Tick => state.time += 1,
            Step::Fault(of, fault) => state.fault(of, fault),
            Step::Grant { without, is_ahead } => self.grant(&mut state, without, is_ahead),
            Step::Ask { without } => self.ask(&mut state, without),
            Step::Arrive(n) => state.arrive(n),
        }
        self.forget(&mut state);
        state.renumber();
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("E: one client believes", |_: &Self, state: &Moment| {
                state.broken != Some("E")
            }),
            Property::always("F2: a later fence is greater", |_: &Self, state: &Moment| {
                state.broken != Some("F")
            }),
            Property::sometimes(
                "a lock can be granted after the loss of everything",
                |_: &Self, state: &Moment| state.lost.1,
            ),
        ]
    }
}
