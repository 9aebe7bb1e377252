//! Getting the nodes that did not grant.

use std::sync::Arc;
use std::time::Duration;

use super::answer::Answer;
use super::claim::RedlockClaim;
use super::fanout::Fanout;
use super::quorum::Ask;

impl RedlockClaim {
    /// Hears the answers that are still to come, and asks the nodes that did not grant once more: a
    /// hold that only a bare quorum carries is broken by the loss of one node.
    pub(super) fn top_up(
        &self,
        mut acquires: Fanout<Answer>,
        mut raises: Option<Fanout<Answer>>,
        mut missing: Vec<usize>,
    ) {
        if acquires.is_empty() && missing.is_empty() && raises.as_ref().is_none_or(Fanout::is_empty)
        {
            return;
        }
        let ledger = Arc::downgrade(&self.ledger);
        let (quorum, target) = (Arc::clone(&self.quorum), Arc::clone(&self.target));
        let undo = self.undo(None);
        let ask = Ask {
            attempt: self.attempt,
            ttl: self.ttl,
            proposal: self.token.unwrap_or(0).max(self.quorum.proposal()),
            ticket: None,
            limit: self.limit,
        };
        let slow_after = self.slow_after;
        let (until, pause) = (self.ends_by(), (self.ttl / 20).min(Duration::from_millis(250)));
        self.quorum.spawn(async move {
            let mut again = true;
            let slow_at = quorum.clock().now() + slow_after;
            loop {
                while !acquires.is_empty() {
                    let (node, answer) = tokio::select! {
                        biased;
                        next = acquires.next() => next,
                        () = quorum.clock().sleep_until(slow_at), if again => {
                            quorum.suspect(&acquires.nodes());
                            acquires.next().await
                        }
                    };
                    if let Some(ledger) = ledger.upgrade()
                        && let Some(counter) = answer.counter().filter(|_| !ledger.is_closed())
                    {
                        ledger.set_member(node, Some(counter));
                    }
                    if answer.counter().is_none() {
                        missing.push(node);
                    }
                }
                while let Some(raises) = raises.as_mut().filter(|raises| !raises.is_empty()) {
                    let (node, answer) = raises.next().await;
                    let counter = answer.counter();
                    if let (Some(counter), Some(ledger)) = (counter, ledger.upgrade())
                        && !ledger.is_closed()
                    {
                        ledger.set_member(node, Some(counter));
                    }
                }
                if missing.is_empty() || !again {
                    return;
                }
                again = false;
                quorum.clock().sleep(pause).await;
                let Some(ledger) = ledger.upgrade().filter(|ledger| !ledger.is_closed()) else {
                    return;
                };
                for node in missing.drain(..) {
                    ledger.owe(node, until + pause);
                    let (quorum, target) = (Arc::clone(&quorum), Arc::clone(&target));
                    let (ledger, undo) = (Arc::clone(&ledger), undo.clone());
                    acquires.push(node, async move {
                        let answer = Arc::clone(&quorum).acquire(node, target, ask).await;
                        if !answer.may_land() {
                            ledger.settle(node, until + pause);
                        }
                        if answer.counter().is_some() && ledger.is_closed() {
                            // The release was faster on its way, or overtook it.
                            quorum.spawn(undo.repeat(vec![node], until + pause, None));
                        }
                        answer
                    });
                }
            }
        });
    }
}
