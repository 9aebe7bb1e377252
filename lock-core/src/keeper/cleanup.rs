//! Undoing what may be in the store.

use std::sync::Arc;

use super::call::{self, Ended};
use super::{Keeper, schedule};
use crate::{Hold, Released, Result};

impl Keeper {
    /// Repeats the release until the store has confirmed it, or must have ended the entry by itself.
    ///
    /// A release that finds nothing proves nothing while a try to acquire is unanswered: its bytes
    /// may arrive later, over another connection, and take the lock for a whole ttl. So it is
    /// repeated until one ttl after the last such try was sent. A request that spends longer than that
    /// in a network is beyond this; its lock ends with its lease, and its fence is never used.
    pub(super) async fn clean_up(mut self) {
        let client = Arc::clone(&self.client);
        let mut round = 0;
        loop {
            let now = client.clock.now();
            let limit = now + self.terms.call_timeout;
            let stop = client.killed.cancelled();
            let answer: Result<Released> =
                match call::bounded(&*client.clock, limit, stop, self.claim.release()).await {
                    Ended::Answer(answer) => answer,
                    Ended::OutOfTime => Err(call::no_answer(self.terms.call_timeout)),
                    Ended::Stopped => return,
                };
            let until = match answer {
                Ok(released) if self.is_settled(released) => return,
                Ok(_) => self.unanswered_gone_at,
                Err(error) => {
                    tracing::debug!(target: "distlock", key = %self.key, %error, "clean-up failed; it is repeated");
                    self.gone_at
                }
            };
            round += 1;
            let next = client.clock.now() + schedule::after_error(&client, round);
            // What is bound to a session lives as long as that does.
            if next >= until && client.capabilities.hold == Hold::Lease {
                return;
            }
            tokio::select! {
                () = client.clock.sleep_until(next) => {}
                () = client.killed.cancelled() => return,
            }
        }
    }

    /// Whether this answer to a release proves that nothing of ours is in the store, now or later.
    pub(super) fn is_settled(&self, released: Released) -> bool {
        if self.client.clock.now() >= self.unanswered_gone_at {
            return true;
        }
        match released {
            // What was freed is the one try that had no answer: nothing else is in the store.
            Released::Freed => self.unanswered == 0 || (self.unanswered == 1 && !self.written),
            Released::AlreadyGone => self.unanswered == 0,
        }
    }
}
