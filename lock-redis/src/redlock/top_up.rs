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
        let ask = Ask {
            attempt: self.attempt,
            ttl: self.ttl,
            proposal: self.token.unwrap_or(0).max(self.quorum.proposal()),
            ticket: None,
            limit: self.limit,
        };
        let slow_after = self.slow_after;
        let lasts = self.ends_by().since(self.now());
        let pause = (self.ttl / 20).min(Duration::from_millis(250));
        self.quorum.spawn(async move {
            let note = |node, counter| {
                if let Some(ledger) = ledger.upgrade() {
                    ledger.set_member(node, Some(counter));
                }
            };
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
                    match answer.counter() {
                        Some(counter) => note(node, counter),
                        None => missing.push(node),
                    }
                }
                while let Some(raises) = raises.as_mut().filter(|raises| !raises.is_empty()) {
                    let (node, answer) = raises.next().await;
                    if let Some(counter) = answer.counter() {
                        note(node, counter);
                    }
                }
                if missing.is_empty() || !again {
                    return;
                }
                again = false;
                quorum.clock().sleep(pause).await;
                let Some(ledger) = ledger.upgrade() else { return };
                for node in missing.drain(..) {
                    // A release that has begun does not see this request, so it is not sent then.
                    let now = quorum.clock().now();
                    let Some(debt) = ledger.owe(node, ask.attempt, now, now + lasts) else {
                        break;
                    };
                    let request = Arc::clone(&quorum).acquire(node, Arc::clone(&target), ask);
                    let ledger = Arc::clone(&ledger);
                    acquires.push(node, async move {
                        let answer = request.await;
                        if !answer.may_land() {
                            ledger.settle(node, debt, answer.counter().is_some());
                        }
                        answer
                    });
                }
            }
        });
    }
}
