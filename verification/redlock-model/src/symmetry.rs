//! States that differ only in the numbering of nodes and clients.

use std::hash::{Hash, Hasher};

use crate::set::Set;
use crate::state::{Client, Message, State};

impl State {
    /// One of all states that differ from this one by the numbering of nodes and clients, nearly always the
    /// same one: clients and nodes are sorted by what does not depend on the numbering.
    pub(crate) fn representative(self) -> Self {
        let mut clients: Vec<_> = (0..self.clients.len()).collect();
        clients.sort_by_cached_key(|client| self.key_of_client(*client));
        let client_places = places(&clients);
        let mut nodes: Vec<_> = (0..self.nodes.len()).collect();
        nodes.sort_by_cached_key(|node| self.key_of_node(*node, &clients, &client_places));
        let is_sorted = |order: &[usize]| order.iter().enumerate().all(|(at, old)| at == *old);
        if is_sorted(&clients) && is_sorted(&nodes) {
            return self;
        }
        self.renumbered(&nodes, &clients, &client_places)
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
        // Sums do not depend on the order of the nodes.
        let of_node = |n: usize| {
            let mut key = Mix::default();
            let node = &self.nodes[n];
            let holds = node.holder.filter(|(holder, _)| usize::from(*holder) == c);
            (contender.ballot.0[n], contender.debts.granted[n], node.counter, node.adopted)
                .hash(&mut key);
            (holds.map(|(_, attempt)| attempt), node.stamp).hash(&mut key);
            for message in self.between(c, n) {
                message.body.hash(&mut key);
            }
            key.finish()
        };
        (0..self.nodes.len()).fold(key.finish(), |sum, n| sum.wrapping_add(of_node(n)))
    }

    fn key_of_node(&self, n: usize, clients: &[usize], client_places: &[u8]) -> u64 {
        let mut key = Mix::default();
        let mut node = self.nodes[n];
        node.holder =
            node.holder.map(|(client, attempt)| (client_places[usize::from(client)], attempt));
        let quarantine = node.quarantine.take();
        (node, quarantine.map(|quarantine| quarantine.seed)).hash(&mut key);
        for c in clients {
            let contender = &self.clients[*c].contender;
            (contender.ballot.0[n], contender.debts.granted[n]).hash(&mut key);
            contender.joining.contains(&n).hash(&mut key);
            for message in self.between(*c, n) {
                message.body.hash(&mut key);
            }
        }
        key.finish()
    }

    fn between(&self, c: usize, n: usize) -> impl Iterator<Item = &Message> {
        let is_between = move |message: &&Message| {
            (usize::from(message.client), usize::from(message.node)) == (c, n)
        };
        self.flight.iter().filter(is_between)
    }

    /// The same state, where place `i` is taken by node `nodes[i]` and client `clients[i]`.
    fn renumbered(&self, nodes: &[usize], clients: &[usize], client_places: &[u8]) -> Self {
        let node_places = places(nodes);
        let mut flight = self.flight.clone();
        for message in &mut flight {
            message.client = client_places[usize::from(message.client)];
            message.node = node_places[usize::from(message.node)];
        }
        flight.sort_unstable();
        let node = |at: usize| {
            let mut node = self.nodes[nodes[at]];
            node.holder =
                node.holder.map(|(client, attempt)| (client_places[usize::from(client)], attempt));
            if let Some(quarantine) = &mut node.quarantine {
                let old = quarantine.pending;
                for (place, call) in client_places.iter().zip(old) {
                    quarantine.pending[usize::from(*place)] = call;
                }
                quarantine.read = moved(quarantine.read, &node_places);
            }
            node
        };
        let clients = clients.iter().map(|c| self.clients[*c].with_nodes(nodes, &node_places));
        let nodes = (0..nodes.len()).map(node).collect();
        Self { nodes, clients: clients.collect(), flight, ..*self }
    }
}

impl Client {
    fn with_nodes(&self, nodes: &[usize], node_places: &[u8]) -> Self {
        let mut client = self.clone();
        let (old, contender) = (&self.contender, &mut client.contender);
        for (at, node) in nodes.iter().enumerate() {
            contender.ballot.0[at] = old.ballot.0[*node];
            contender.debts.granted[at] = old.debts.granted[*node];
        }
        let place = |node: &mut usize| *node = usize::from(node_places[*node]);
        contender.debts.owed.iter_mut().for_each(|debt| place(&mut debt.node));
        contender.debts.owed.sort_unstable();
        contender.debts.undoings.iter_mut().for_each(|undoing| place(&mut undoing.node));
        contender.debts.undoings.sort_unstable();
        contender.joining.iter_mut().for_each(place);
        contender.joining.sort_unstable();
        client
    }
}

/// Where in `order` each of the old numbers stands.
fn places(order: &[usize]) -> Vec<u8> {
    let mut places = vec![0; order.len()];
    for (place, old) in (0..).zip(order) {
        places[*old] = place;
    }
    places
}

fn moved(set: Set, places: &[u8]) -> Set {
    (0_u8..)
        .zip(places)
        .filter(|(old, _)| set & (1 << old) != 0)
        .fold(0, |moved, (_, new)| moved | 1 << new)
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
