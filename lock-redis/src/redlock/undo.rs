//! Taking back what arrives late.
//!
//! A request that was given up is usually carried out all the same, sometimes after the release
//! that followed it: over another connection, or because the node did not know the script and was
//! sent it once more. So a release that finds nothing proves nothing, unless every request had been
//! answered when it was sent, or the lock of those that had not must have ended by itself.

use std::sync::Arc;
use std::time::Duration;

use lock_core::ClockInstant;

use super::answer::Answer;
use super::ask::Target;
use super::fanout::Fanout;
use super::ledger::Ledger;
use super::quorum::Quorum;

/// The pauses between two releases at a node that has not answered.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// Whose entries are taken back, and where.
#[derive(Clone, Debug)]
pub(crate) struct Undo {
    pub(crate) quorum: Arc<Quorum>,
    pub(crate) target: Arc<Target>,
    pub(crate) ledger: Arc<Ledger>,
    /// The try whose vote is given back; `None` for every try of the claim.
    pub(crate) attempt: Option<u32>,
    /// The fence that the hold must have, where nothing has proven yet that the claim is its holder.
    pub(crate) fence: Option<u64>,
    pub(crate) limit: Duration,
}

/// What a release has done at a node.
#[derive(Debug)]
pub(crate) struct Taken {
    /// Whether there was anything.
    pub(crate) freed: lock_core::Result<bool>,
    /// Nothing is left there, and nothing can arrive any more.
    pub(crate) settled: bool,
}

impl Undo {
    /// One release at a node. With `leave`, this client waits for the lock no more.
    pub(crate) fn release(
        &self,
        node: usize,
        leave: bool,
    ) -> impl Future<Output = Taken> + Send + use<> {
        let (quorum, target) = (Arc::clone(&self.quorum), Arc::clone(&self.target));
        let (ledger, attempt) = (Arc::clone(&self.ledger), self.attempt);
        let (fence, limit) = (self.fence, self.limit);
        async move {
            let open = ledger.open(node, attempt);
            let freed = quorum.release(node, target, attempt, fence, leave, limit).await;
            let settled = match freed {
                Ok(freed) => open.is_settled_by(freed),
                Err(_) => open.is_nothing(),
            };
            Taken { freed, settled }
        }
    }

    /// Gives back what the requests in `acquires`, which nobody waits for any more, may take. The
    /// releases are sent at once, behind the requests.
    pub(crate) async fn late(
        self,
        mut acquires: Fanout<Answer>,
        nodes: Vec<usize>,
        until: ClockInstant,
    ) {
        let mut open = vec![false; self.quorum.len()];
        let mut releases = Fanout::default();
        for node in nodes {
            open[node] = true;
            releases.push(node, self.release(node, false));
        }
        while !releases.is_empty() {
            tokio::select! {
                biased;
                (node, answer) = acquires.next(), if !acquires.is_empty() => {
                    // It has never got anything there.
                    open[node] &= answer.counter().is_some() || answer.may_land();
                }
                (node, taken) = releases.next() => {
                    open[node] &= !taken.settled;
                }
            }
        }
        let rest = (0..open.len()).filter(|node| open[*node]).collect();
        let repeat = self.repeat(rest, until);
        tokio::pin!(repeat);
        loop {
            // Answers that are heard settle what the releases wait for.
            tokio::select! {
                () = &mut repeat => return,
                _ = acquires.next(), if !acquires.is_empty() => {}
            }
        }
    }

    /// Repeats the release at `nodes` until each is settled, or `until`.
    pub(crate) async fn repeat(self, mut nodes: Vec<usize>, until: ClockInstant) {
        let mut pause = PAUSES.0;
        while !nodes.is_empty() && self.quorum.clock().now() < until {
            self.quorum.clock().sleep(pause).await;
            pause = (pause * 2).min(PAUSES.1);
            let mut releases = Fanout::default();
            for node in nodes.drain(..) {
                releases.push(node, self.release(node, false));
            }
            while !releases.is_empty() {
                let (node, taken) = releases.next().await;
                if !taken.settled {
                    nodes.push(node);
                }
            }
        }
    }
}
