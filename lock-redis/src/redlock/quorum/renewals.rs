//! Renewals that are due together travel as one request to each node.

use std::sync::Arc;
use std::time::Duration;

use lock_core::Result;
use lock_kit::batch::{Batches, Entry};
use redis::Value;

use super::LockKeys;
use super::answers::NodeAnswer;
use super::scripts::{NODE_KEY, RENEW_VOTE};
use crate::node::{Node, ReplyReader};

/// The most locks of one request: about a millisecond of the node's time.
const BATCH: usize = 256;

/// One hold to renew on a node, or to ask about.
#[derive(Debug)]
pub(crate) struct NodeRenewal {
    pub(crate) keys: Arc<LockKeys>,
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
pub(crate) struct VoteRenewals {
    batches: Batches<NodeRenewal, Result<(NodeAnswer, u64)>>,
    node: Arc<Node>,
    fingerprint: Arc<str>,
    /// The channel to which a forced release publishes.
    channel: Arc<str>,
}

impl VoteRenewals {
    pub(crate) fn new(node: Arc<Node>, fingerprint: &str, channel: &str) -> Self {
        let (fingerprint, channel) = (fingerprint.into(), channel.into());
        Self { batches: Batches::of_at_most(BATCH), node, fingerprint, channel }
    }

    /// Asks the node about one hold, together with all that it is asked about at this moment. The request
    /// is always sent after this call, so what it promises counts from this call at least.
    pub(crate) async fn ask(&self, item: NodeRenewal) -> Result<(NodeAnswer, u64)> {
        let (fingerprint, channel) = (Arc::clone(&self.fingerprint), Arc::clone(&self.channel));
        let (node, limit) = (Arc::clone(&self.node), item.limit);
        let send = move |batch| {
            send(Arc::clone(&node), Arc::clone(&fingerprint), Arc::clone(&channel), batch)
        };
        self.node.within(limit, self.batches.ask(item, send)).await?
    }
}

async fn send(
    node: Arc<Node>,
    fingerprint: Arc<str>,
    channel: Arc<str>,
    batch: Vec<Entry<NodeRenewal, Result<(NodeAnswer, u64)>>>,
) {
    let items = || batch.iter().map(|entry| &entry.request);
    let limit = items().map(|item| item.limit).max().unwrap_or_default();
    let mut call = RENEW_VOTE.call().key(NODE_KEY).arg(&*fingerprint).arg(&*channel);
    for item in items() {
        call = call.key(&item.keys.lock).arg(&item.keys.owner);
        call = call.maybe(item.fence).number(item.keys.fences.into());
        call = call.maybe(item.adopt).number(item.ttl_ms);
    }
    let read = |all: Value| ReplyReader::lists("a renewal", &all, batch.len(), NodeAnswer::read);
    let answers = node.ask(call.of_process(), limit, read).await;
    for (at, entry) in batch.into_iter().enumerate() {
        entry.answer(match &answers {
            Ok(answers) => Ok(answers[at].clone()),
            Err(error) => Err(error.clone()),
        });
    }
}
