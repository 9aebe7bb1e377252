//! The state of the quorum, its clients and everything under way between them.

/// The number of nodes. Three is the smallest quorum that survives a loss.
pub(crate) const NODES: usize = 3;
/// The most acquisitions that a run can have. Each has an owner id of its own, so "client" and
/// "acquisition" mean the same here.
pub(crate) const CLIENTS: usize = 3;
/// A set of counter values, clients or nodes, one bit each.
pub(crate) type Set = u8;

/// The whole system at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct State {
    pub(crate) nodes: [Node; NODES],
    pub(crate) clients: [Client; CLIENTS],
    pub(crate) losses_left: u8,
    pub(crate) repeats_left: u8,
    pub(crate) calls_left: u8,
}

/// One node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Node {
    /// The client whose owner id stands at the lock, if any.
    pub(crate) holder: Option<u8>,
    /// The counter and the mark, which are one where there is one name.
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
}

/// What a node that lost its data waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Quarantine {
    /// The clients whose attempt had begun before the loss and has not ended.
    pub(crate) pending: Set,
    /// The nodes whose mark was read.
    pub(crate) read: Set,
    /// The greatest mark that was read.
    pub(crate) seed: u8,
}

/// One acquisition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Client {
    pub(crate) phase: Phase,
    pub(crate) proposal: u8,
    /// The greatest fence that was returned before this acquisition began.
    pub(crate) floor: u8,
    pub(crate) links: [Link; NODES],
    /// Its last fence, and all that it has returned.
    pub(crate) fence: u8,
    pub(crate) fences: Set,
    /// Those of them that it had reason to believe in.
    pub(crate) believed: Set,
    /// The number of its call: the first try, second tries and renewals.
    pub(crate) call: u8,
    /// The last call that was answered well; 0 if it holds nothing.
    pub(crate) proven: u8,
    /// The last call whose validity is over.
    pub(crate) over: u8,
    /// The value that it raises to, for the wrong rule that only counts confirmations; 0 for none.
    pub(crate) target: u8,
    /// The nodes that confirmed that raise.
    pub(crate) confirmed: Set,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Phase {
    Idle,
    Trying,
    /// It renews the fence that it has returned.
    Renewing,
    /// It has returned this fence.
    Returned(u8),
    /// It has given up: whatever still arrives is ignored.
    Ended,
}

/// What is under way between one client and one node, and what the client has heard from it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Link {
    /// Acquire requests that have not arrived yet (they may never do), by the number of the call.
    pub(crate) acquire: Set,
    /// Raise requests that have not arrived yet, by their value.
    pub(crate) raise: Set,
    /// Replies that have not arrived yet, by their value.
    pub(crate) replies: Set,
    /// Replies to a raise that have not arrived yet, by their value.
    pub(crate) raised: Set,
    /// The greatest value that the node answered; 0 for none.
    pub(crate) vote: u8,
    /// A renewal has not arrived yet.
    pub(crate) renew: bool,
    /// What it has answered.
    pub(crate) held: Held,
    /// A request that adopts the node at this counter has not arrived yet; 0 for none.
    pub(crate) adopt: u8,
    /// The counter with which the node takes part, for the wrong rule; 0 for none.
    pub(crate) member: u8,
}

impl Client {
    pub(crate) const NEW: Self = Self {
        phase: Phase::Idle,
        proposal: 0,
        floor: 0,
        links: [Link {
            acquire: 0,
            raise: 0,
            replies: 0,
            raised: 0,
            vote: 0,
            renew: false,
            held: Held::Unheard,
            adopt: 0,
            member: 0,
        }; NODES],
        fence: 0,
        fences: 0,
        believed: 0,
        call: 0,
        proven: 0,
        over: 0,
        target: 0,
        confirmed: 0,
    };

    /// The client is done: requests under way still arrive, and nobody hears the answers.
    pub(crate) fn end(&mut self, phase: Phase) {
        self.phase = phase;
        if phase == Phase::Ended {
            self.proven = 0;
        }
        self.target = 0;
        self.confirmed = 0;
        for link in &mut self.links {
            (link.replies, link.raised, link.vote) = (0, 0, 0);
            (link.renew, link.held) = (false, Held::Unheard);
        }
    }
}

impl State {
    /// Tells every quarantine which attempts have ended.
    pub(crate) fn settle(&mut self) {
        let unfinished = self.unfinished();
        for quarantine in self.nodes.iter_mut().filter_map(|node| node.quarantine.as_mut()) {
            quarantine.pending &= unfinished;
        }
    }

    /// The clients that try, or believe.
    pub(crate) fn unfinished(&self) -> Set {
        let unfinished =
            |c: &usize| self.clients[*c].phase == Phase::Trying || self.clients[*c].believes();
        (0..CLIENTS).filter(unfinished).fold(0, |set, c| set | 1 << c)
    }
}

/// What a node has answered to a renewal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Held {
    #[default]
    Unheard,
    Yes,
    No,
    /// It is the client's, with this counter and not with its fence.
    Unproven(u8),
}

impl Client {
    /// Whether it believes that it holds the lock.
    pub(crate) fn believes(&self) -> bool {
        self.proven > self.over
    }
}

impl State {
    /// The one of all states that differ from this one by the numbering of nodes and clients which
    /// stands for them all: the least of those whose nodes and clients are sorted by what does not
    /// depend on the numbering.
    pub(crate) fn representative(&self, clients: usize) -> Self {
        const ORDERS: [[usize; 3]; 6] =
            [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
        let nodes: [_; NODES] = std::array::from_fn(|node| self.node_key(node));
        // A client that takes no part stays the last one.
        let client = |client| (client >= clients, self.client_key(client));
        let keys: [_; CLIENTS] = std::array::from_fn(client);
        let node_orders = ORDERS.iter().filter(|order| order.is_sorted_by_key(|at| &nodes[*at]));
        let client_orders =
            || ORDERS.iter().filter(|order| order.is_sorted_by_key(|at| &keys[*at]));
        let all = node_orders
            .flat_map(|nodes| client_orders().map(|clients| self.renumbered(nodes, clients)));
        all.min().unwrap_or_else(|| self.clone())
    }

    fn node_key(&self, node: usize) -> impl Ord + use<> {
        let mut links: [_; CLIENTS] =
            std::array::from_fn(|client| self.clients[client].links[node]);
        links.sort_unstable();
        let Node { holder, counter, adopted, stamp, quarantine, admission, generation } =
            self.nodes[node];
        let held_by = holder.map(|client| self.clients[usize::from(client)].links[node]);
        let quarantine = quarantine.map(|quarantine| quarantine.seed);
        (counter, held_by, links, quarantine, admission, generation, adopted, stamp)
    }

    fn client_key(&self, client: usize) -> impl Ord + use<> {
        let Client { phase, proposal, floor, mut links, target, call, proven, over, .. } =
            self.clients[client];
        links.sort_unstable();
        (phase, proposal, floor, links, target, call, proven, over)
    }

    /// The same state, where place `i` is taken by node `nodes[i]` and client `clients[i]`.
    fn renumbered(&self, nodes: &[usize; NODES], clients: &[usize; CLIENTS]) -> Self {
        let mut new_client = [0_u8; CLIENTS];
        for (place, old) in (0_u8..).zip(clients) {
            new_client[*old] = place;
        }
        let mut new_node = [0_u8; NODES];
        for (place, old) in (0_u8..).zip(nodes) {
            new_node[*old] = place;
        }
        let move_clients = |set| moved(set, &new_client);
        let move_nodes = |set| moved(set, &new_node);
        Self {
            nodes: nodes.map(|old| {
                let mut node = self.nodes[old];
                node.holder = node.holder.map(|client| new_client[usize::from(client)]);
                if let Some(quarantine) = &mut node.quarantine {
                    quarantine.pending = move_clients(quarantine.pending);
                    quarantine.read = move_nodes(quarantine.read);
                }
                node
            }),
            clients: clients.map(|old| {
                let client = self.clients[old];
                Client {
                    links: nodes.map(|node| client.links[node]),
                    confirmed: move_nodes(client.confirmed),
                    ..client
                }
            }),
            losses_left: self.losses_left,
            repeats_left: self.repeats_left,
            calls_left: self.calls_left,
        }
    }

    /// The fences that were returned last, each with the greatest that it has to exceed.
    pub(crate) fn fences(&self) -> impl Iterator<Item = (u8, u8)> {
        self.clients.iter().filter_map(|client| match client.phase {
            Phase::Returned(fence) => Some((fence, client.floor)),
            _ => None,
        })
    }

    /// The greatest of the fences that `of` picks for the clients other than `c`.
    pub(crate) fn greatest(&self, c: usize, of: fn(&Client) -> Set) -> u8 {
        let others = self.clients.iter().enumerate().filter(|(other, _)| *other != c);
        let all = others.fold(0, |all, (_, client)| all | of(client));
        u8::try_from(all.checked_ilog2().unwrap_or(0)).unwrap_or(u8::MAX)
    }
}

fn moved(set: Set, places: &[u8]) -> Set {
    (0_u8..)
        .zip(places)
        .filter(|(old, _)| set & (1 << old) != 0)
        .fold(0, |moved, (_, new)| moved | 1 << new)
}
