//! A look at locks, as each node answers it.

use std::result::Result as StdResult;
use std::sync::Arc;
use std::time::Duration;

use lock_core::Result;
use redis::Value;

use super::Quorum;
use super::answers::NodeAnswer;
use super::fan_out::FanOut;
use super::rules::{FenceBlock, VoteView};
use super::scripts::{LOOK, NODE_KEY};
use crate::node::ReplyReader;

/// What one node shows of the locks that it was asked about.
#[derive(Debug)]
pub(crate) struct NodeLook {
    pub(crate) mark: u64,
    /// In the order of the locks.
    pub(crate) votes: Vec<Option<LabelledVote>>,
}

#[derive(Debug)]
pub(crate) struct LabelledVote {
    pub(crate) vote: VoteView<Vec<u8>>,
    pub(crate) label: Option<String>,
}

impl Quorum {
    /// Asks all nodes about these locks, each for an answer within `limit`.
    pub(crate) fn look(
        &self,
        locks: &Arc<Vec<String>>,
        limit: Duration,
    ) -> FanOut<StdResult<NodeLook, NodeAnswer>> {
        let nodes = self.nodes.iter().zip(&self.fingerprints).map(|(node, fingerprint)| {
            let (node, locks) = (Arc::clone(node), Arc::clone(locks));
            let fingerprint = fingerprint.clone();
            async move {
                let call = LOOK.call().key(NODE_KEY).keys(&*locks).arg(&fingerprint).of_process();
                let read = |answer: Value| read(&answer, locks.len());
                let answer = node.ask(call, limit, read).await;
                answer.unwrap_or_else(|error| Err(NodeAnswer::Failed(error)))
            }
        });
        FanOut::new(self.len(), nodes.enumerate())
    }
}

/// Reads what a node shows of so many locks, or why it shows nothing.
pub(super) fn read(answer: &Value, locks: usize) -> Result<StdResult<NodeLook, NodeAnswer>> {
    let reply = ReplyReader::new("a look", answer)?;
    if reply.number(0)? != 1 {
        return Ok(Err(NodeAnswer::read(reply)?.0));
    }
    if reply.len() != locks + 2 {
        return Err(reply.wrong());
    }
    let votes = (0..locks).map(|at| vote(&reply.list(at + 2)?)).collect::<Result<_>>()?;
    Ok(Ok(NodeLook { mark: reply.count(1)?, votes }))
}

fn vote(shown: &ReplyReader<'_>) -> Result<Option<LabelledVote>> {
    if shown.len() == 0 {
        return Ok(None);
    }
    let owner = shown.bytes(0)?.to_vec();
    if shown.len() == 1 {
        return Ok(Some(LabelledVote { vote: VoteView { owner, counted: None }, label: None }));
    }
    let fences = u32::try_from(shown.count(2)?).map_err(|_| shown.wrong())?;
    let adopted = if shown.bytes(3)?.is_empty() { None } else { Some(shown.count(3)?) };
    let counted = Some((FenceBlock { last: shown.count(1)?, fences }, adopted));
    let label = Some(shown.text(4)?).filter(|label| !label.is_empty());
    Ok(Some(LabelledVote { vote: VoteView { owner, counted }, label }))
}
