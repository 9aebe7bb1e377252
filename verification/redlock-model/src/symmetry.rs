//! States that differ only in the numbering of nodes and clients.

use std::hash::{Hash, Hasher};

use crate::look::Look;
use crate::node::{CLIENTS, NODES};
use crate::rules::{NodeView, VoteView};
use crate::set::id;
use crate::state::{Client, State};

impl State {
    /// One of all states that differ from this one by the numbering of nodes and clients, nearly always the
    /// same one: clients and nodes are sorted by what does not depend on the numbering.
    pub(crate) fn representative(self) -> Self {
        let clients = Order::<CLIENTS>::by(self.clients.len(), |c| self.key_of_client(c));
        let nodes = Order::<NODES>::by(self.nodes.len(), |n| self.key_of_node(n, &clients));
        if clients.is_kept() && nodes.is_kept() {
            return self;
        }
        self.renumbered(&nodes, &clients)
    }

    fn key_of_client(&self, c: usize) -> u64 {
        let client = &self.clients[c];
        let contender = &client.contender;
        let mut key = Mix::default();
        (client.stage, client.now, client.floor, client.fences, client.believed).hash(&mut key);
        (client.proven, client.over, contender.phase, contender.fence, contender.call)
            .hash(&mut key);
        (contender.granted, contender.attempt).hash(&mut key);
        (client.block, client.first, client.passes).hash(&mut key);
        let mut of_nodes = [const { Mix(0) }; NODES];
        for (n, (key, node)) in of_nodes.iter_mut().zip(&self.nodes).enumerate() {
            let holds = node.holder.filter(|(holder, _)| usize::from(*holder) == c);
            (contender.ballot.0[n], contender.debts.granted[n], node.counter, node.adopted)
                .hash(key);
            if let Look::UnderWay(look) = &self.look {
                look.views[n].as_ref().map(|view| owned(view, |owner| id(c) == owner)).hash(key);
                (look.believing & (1 << c) != 0).hash(key);
            }
            (holds.map(|(_, attempt)| attempt), node.stamp).hash(key);
        }
        for message in self.flight.iter().filter(|message| usize::from(message.client) == c) {
            message.body.hash(&mut of_nodes[usize::from(message.node)]);
        }
        // Sums do not depend on the order of the nodes.
        of_nodes.iter().fold(key.finish(), |sum, key| sum.wrapping_add(key.finish()))
    }

    fn key_of_node(&self, n: usize, clients: &Order<CLIENTS>) -> u64 {
        let mut key = Mix::default();
        let mut node = self.nodes[n];
        node.holder = node.holder.map(|(client, attempt)| (clients.place(client), attempt));
        let quarantine = node.quarantine.take();
        (node, quarantine.map(|quarantine| quarantine.seed)).hash(&mut key);
        if let Look::UnderWay(look) = &self.look {
            look.views[n]
                .as_ref()
                .map(|view| owned(view, |owner| clients.place(owner)))
                .hash(&mut key);
        }
        let mut of_clients = [const { Mix(0) }; CLIENTS];
        for (key, c) in of_clients.iter_mut().zip(clients.old()) {
            let contender = &self.clients[*c].contender;
            (contender.ballot.0[n], contender.debts.granted[n]).hash(key);
            contender.joining.contains(&n).hash(key);
        }
        for message in self.flight.iter().filter(|message| usize::from(message.node) == n) {
            message.body.hash(&mut of_clients[usize::from(clients.place(message.client))]);
        }
        of_clients.iter().for_each(|of_client| of_client.finish().hash(&mut key));
        key.finish()
    }

    /// The same state with other numbers.
    fn renumbered(mut self, nodes: &Order<NODES>, clients: &Order<CLIENTS>) -> Self {
        for message in &mut self.flight {
            message.client = clients.place(message.client);
            message.node = nodes.place(message.node);
        }
        self.flight.sort_unstable();
        nodes.put(&mut self.nodes);
        for node in &mut self.nodes {
            node.holder = node.holder.map(|(client, attempt)| (clients.place(client), attempt));
            if let Some(quarantine) = &mut node.quarantine {
                clients.put(&mut quarantine.pending[..self.clients.len()]);
                let read = quarantine.read;
                let is_read = |n: &u8| read & (1 << n) != 0;
                let moved = (0..id(self.clients[0].contender.ballot.0.len())).filter(is_read);
                quarantine.read = moved.fold(0, |moved, n| moved | 1 << nodes.place(n));
            }
        }
        if let Look::UnderWay(look) = &mut self.look {
            nodes.put(&mut look.views);
            let votes = look.views.iter_mut().flatten().filter_map(|view| view.vote.as_mut());
            votes.for_each(|vote| vote.owner = clients.place(vote.owner));
            let believing = look.believing;
            let believes = |c: &u8| believing & (1 << c) != 0;
            look.believing = (0..id(self.clients.len()))
                .filter(believes)
                .fold(0, |all, c| all | 1 << clients.place(c));
        }
        clients.put(&mut self.clients);
        self.clients.iter_mut().for_each(|client| client.renumber(nodes));
        self
    }
}

/// What a node has shown to a look, with `whose` in the place of the owner.
fn owned<T>(view: &NodeView<u8>, whose: impl Fn(u8) -> T) -> NodeView<T> {
    let vote = view.vote.as_ref();
    let vote = vote.map(|vote| VoteView { owner: whose(vote.owner), counted: vote.counted });
    NodeView { mark: view.mark, vote }
}

impl Client {
    fn renumber(&mut self, nodes: &Order<NODES>) {
        let contender = &mut self.contender;
        nodes.put(&mut contender.ballot.0);
        nodes.put(&mut contender.debts.granted);
        let place = |node: &mut usize| *node = usize::from(nodes.place(id(*node)));
        contender.debts.owed.iter_mut().for_each(|debt| place(&mut debt.node));
        contender.debts.owed.sort_unstable();
        contender.debts.undoings.iter_mut().for_each(|undoing| place(&mut undoing.node));
        contender.debts.undoings.sort_unstable();
        contender.joining.iter_mut().for_each(place);
        contender.joining.sort_unstable();
    }
}

/// In which order up to `N` nodes or clients are numbered.
struct Order<const N: usize> {
    number: usize,
    /// Which one stands at each place.
    old: [usize; N],
    /// At which place each of them stands.
    places: [u8; N],
}

impl<const N: usize> Order<N> {
    /// That of their keys.
    fn by(number: usize, key: impl Fn(usize) -> u64) -> Self {
        let mut keys = [(0, 0); N];
        keys[..number].iter_mut().enumerate().for_each(|(old, to)| *to = (key(old), old));
        keys[..number].sort_unstable();
        let mut order = Self { number, old: [0; N], places: [0; N] };
        for (place, (_, old)) in keys[..number].iter().enumerate() {
            order.old[place] = *old;
            order.places[*old] = id(place);
        }
        order
    }

    fn is_kept(&self) -> bool {
        self.old().iter().enumerate().all(|(place, old)| place == *old)
    }

    fn old(&self) -> &[usize] {
        &self.old[..self.number]
    }

    fn place(&self, old: u8) -> u8 {
        self.places[usize::from(old)]
    }

    /// Puts items that stand in the old order into this one.
    fn put<T>(&self, items: &mut [T]) {
        let mut at = self.old;
        // Each swap brings one item to its place.
        for place in 0..self.number {
            let from = at[place];
            items.swap(place, from);
            if let Some(moved) = at.iter_mut().skip(place + 1).find(|old| **old == place) {
                *moved = from;
            }
        }
    }
}

/// Mixes what is hashed, quickly: it is only sorted by.
#[derive(Default)]
struct Mix(u64);

impl Mix {
    fn mix(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
    }
}

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.mix((*byte).into()));
    }

    fn write_u16(&mut self, word: u16) {
        self.mix(word.into());
    }

    fn write_u8(&mut self, byte: u8) {
        self.mix(byte.into());
    }

    fn write_u32(&mut self, word: u32) {
        self.mix(word.into());
    }

    fn write_u64(&mut self, word: u64) {
        self.mix(word);
    }

    fn write_usize(&mut self, word: usize) {
        self.mix(word as u64);
    }
}
