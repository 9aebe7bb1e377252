//! Renewals that are due together travel as one request to each node.

use std::sync::Arc;
use std::time::Duration;

use lock_core::Error;
use lock_core::kit::batch::{Batches, Entry};

use super::reply::NodeReply;
use super::scripts::{NODE_KEY, RENEW_VOTE};
use super::target::Target;
use crate::node::{Node, Reply};

/// The most locks of one request: about a millisecond of the node's time.
const BATCH: usize = 256;

/// One hold to renew on a node, or to ask about.
#[derive(Debug)]
pub(crate) struct Item {
    pub(crate) target: Arc<Target>,
    /// The last fence that the node must show; `None` for any.
    pub(crate) fence: Option<u64>,
    /// The counter at which the node takes part from now on.
    pub(crate) adopt: Option<u64>,
    /// Zero only asks.
    pub(crate) ttl_ms: u64,
    pub(crate) limit: Duration,
}

/// The renewals of one node. Those of another one do not wait for it.
#[derive(Debug)]
pub(crate) struct Renewals {
    batches: Batches<Item, (NodeReply, u64)>,
    sender: Arc<Sender>,
}

/// What sends the batches of one client to one node.
#[derive(Debug)]
pub(crate) struct Sender {
    pub(crate) node: Node,
    pub(crate) fingerprint: String,
    /// The channel to which a forced release publishes.
    pub(crate) channel: String,
    /// What each hold of a batch hears where there is no answer for it.
    pub(crate) failed: fn(Error) -> NodeReply,
}

impl Renewals {
    pub(crate) fn new(sender: Sender) -> Self {
        Self { batches: Batches::of_at_most(BATCH), sender: Arc::new(sender) }
    }

    /// Asks the node about one hold, together with all that it is asked about at this moment. The request
    /// is always sent after this call, so what it promises counts from this call at least.
    pub(crate) async fn ask(&self, item: Item) -> (NodeReply, u64) {
        let sender = Arc::clone(&self.sender);
        let send = move |batch| Arc::clone(&sender).send(batch);
        let answer = self.batches.ask(item, send).await;
        answer.unwrap_or_else(|error| ((self.sender.failed)(error), 0))
    }
}

impl Sender {
    async fn send(self: Arc<Self>, batch: Vec<Entry<Item, (NodeReply, u64)>>) {
        let items = || batch.iter().map(|entry| &entry.request);
        let limit = items().map(|item| item.limit).max().unwrap_or_default();
        let mut call = RENEW_VOTE.call().key(NODE_KEY).arg(&self.fingerprint).arg(&self.channel);
        for item in items() {
            call = call.key(&item.target.lock).key(&item.target.vote).arg(&item.target.owner);
            call = call.maybe(item.fence).number(item.target.fences.into());
            call = call.maybe(item.adopt).number(item.ttl_ms);
        }
        let answer = self.node.run(call, limit).await;
        let answers = answer.as_ref().map_err(Error::clone).and_then(|value| {
            let answers = Reply::new("a renewal", value)?;
            if answers.len() == batch.len() { Ok(answers) } else { Err(answers.wrong()) }
        });
        for (at, entry) in batch.into_iter().enumerate() {
            let answer = answers.as_ref().map_err(Error::clone);
            let read = answer.and_then(|answers| NodeReply::read(&answers.list(at)?));
            entry.answer(read.unwrap_or_else(|error| ((self.failed)(error), 0)));
        }
    }
}
