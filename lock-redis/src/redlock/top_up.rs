//! Getting the nodes that did not grant.

use std::sync::Arc;
use std::time::Duration;

use super::answer::Answer;
use super::ask::Ask;
use super::claim::RedlockClaim;
use super::fanout::Fanout;

impl RedlockClaim {
    /// Hears the answers that are still to come, and asks the nodes that did not grant once more: a
    /// hold that only a bare quorum carries is broken by the loss of one node.
    ///
    /// A node that shows the fence itself takes part in the hold from then on; any other one only when
    /// the next renewal has shown that nobody else can have had the lock in between.
    pub(super) fn top_up(&self, mut answers: Fanout<Answer>, mut missing: Vec<usize>) {
        if answers.is_empty() && missing.is_empty() {
            return;
        }
        let ledger = Arc::downgrade(&self.ledger);
        let (quorum, target) = (Arc::clone(&self.quorum), Arc::clone(&self.target));
        let ask = Ask {
            attempt: self.attempt,
            ttl: self.ttl,
            proposal: self.token.unwrap_or(0),
            waited: None,
            limit: self.limit,
        };
        let slow_after = self.slow_after;
        let lasts = self.ends_by().since(self.now());
        let pause = (self.ttl / 20).min(Duration::from_millis(250));
        self.quorum.spawn(async move {
            let mut again = true;
            let slow_at = quorum.clock().now() + slow_after;
            loop {
                while !answers.is_empty() {
                    let (node, answer) = tokio::select! {
                        biased;
                        next = answers.next() => next,
                        () = quorum.clock().sleep_until(slow_at), if again => {
                            quorum.suspect(&answers.nodes());
                            answers.next().await
                        }
                    };
                    if answer.counter().is_none() {
                        missing.push(node);
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
                    answers.push(node, async move {
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
