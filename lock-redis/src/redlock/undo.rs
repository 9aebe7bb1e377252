//! Taking back what arrives late.
//!
//! A request that was given up is usually carried out all the same, sometimes after the release
//! that followed it over another connection. So a release that finds nothing proves nothing until
//! the request has been answered or its lock must have ended by itself.

use std::sync::Arc;
use std::time::Duration;

use lock_core::ClockInstant;

use super::answer::Answer;
use super::fanout::Fanout;
use super::ledger::Ledger;
use super::quorum::{Quorum, Target};

/// The pauses between two releases at a node that has not answered.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// Whose entries are taken back, and where.
#[derive(Clone, Debug)]
pub(crate) struct Undo {
    pub(crate) quorum: Arc<Quorum>,
    pub(crate) target: Arc<Target>,
    /// The try whose vote is given back; `None` for every try of the claim.
    pub(crate) attempt: Option<u32>,
    pub(crate) limit: Duration,
}

impl Undo {
    fn release(&self, node: usize) -> impl Future<Output = lock_core::Result<bool>> + Send + use<> {
        let (quorum, target) = (Arc::clone(&self.quorum), Arc::clone(&self.target));
        quorum.release(node, target, self.attempt, false, self.limit)
    }

    /// Gives back what the requests in `acquires`, which nobody waits for any more, may take. The
    /// releases are sent at once, behind the requests.
    pub(crate) async fn late(
        self,
        mut acquires: Fanout<Answer>,
        nodes: Vec<usize>,
        until: ClockInstant,
    ) {
        let count = self.quorum.len();
        let (mut answered, mut open) = (vec![false; count], vec![false; count]);
        let mut releases = Fanout::default();
        for node in nodes {
            open[node] = true;
            releases.push(node, self.release(node));
        }
        while !releases.is_empty() {
            tokio::select! {
                biased;
                (node, answer) = acquires.next(), if !acquires.is_empty() => {
                    answered[node] = !answer.may_land();
                    // It has never got anything there.
                    open[node] &= answer.counter().is_some() || !answered[node];
                }
                (node, freed) = releases.next() => match freed {
                    Ok(true) => open[node] = false,
                    Ok(false) if answered[node] => open[node] = false,
                    _ => {}
                },
            }
        }
        drop(acquires);
        let rest = (0..count).filter(|node| open[*node]).collect();
        self.repeat(rest, until, None).await;
    }

    /// Repeats the release at `nodes` until each has freed something, nothing can arrive there any
    /// more by the word of `ledger`, or `until`.
    pub(crate) async fn repeat(
        self,
        mut nodes: Vec<usize>,
        until: ClockInstant,
        ledger: Option<Arc<Ledger>>,
    ) {
        let mut pause = PAUSES.0;
        while !nodes.is_empty() && self.quorum.clock().now() < until {
            self.quorum.clock().sleep(pause).await;
            pause = (pause * 2).min(PAUSES.1);
            let mut releases = Fanout::default();
            for node in nodes.drain(..) {
                let clear = ledger.as_ref().is_some_and(|ledger| ledger.is_clear(node));
                let (release, ledger) = (self.release(node), ledger.clone());
                releases.push(node, async move {
                    match release.await {
                        Ok(true) => ledger.is_none_or(|ledger| ledger.freed(node)),
                        Ok(false) => clear,
                        Err(_) => false,
                    }
                });
            }
            while !releases.is_empty() {
                let (node, done) = releases.next().await;
                if !done {
                    nodes.push(node);
                }
            }
        }
    }
}
