//! The uses of a lease token: a hold that another process has detached is taken over, renewed once,
//! or released.

use tokio::sync::oneshot;

use super::call::{self, Ended};
use super::{Granted, Keeper, Outcome};
use crate::contract::Block;
use crate::locks::held::promised_end;
use crate::{Error, ErrorKind, FencingToken, LostReason, Operation, Released, Renewal, Result};

impl Keeper {
    /// One renewal proves that the hold is still there, with this fence. If it fails, nothing is
    /// released: the hold belongs to the token, and the token may be forged.
    pub(super) async fn resume<T>(
        &mut self,
        (token, block): (FencingToken, Block),
        answer: &mut oneshot::Sender<T>,
    ) -> Outcome {
        let refused = |error| Outcome::Refused { error, clean_up: false };
        let sent = self.client.clock.now();
        let limit = sent + self.terms.call_timeout;
        self.doubt.lasts_until(self.terms.gone_at(sent));
        match call::bounded(&*self.client.clock, limit, answer.closed(), self.claim.renew()).await {
            Ended::Answer(Ok(Renewal::Alive { valid_for: None })) => {
                refused(call::no_end("a renewal of a lock that is taken over"))
            }
            Ended::Answer(Ok(Renewal::Alive { valid_for: Some(valid_for) })) => {
                let until = promised_end(sent, valid_for, self.terms.ttl);
                if until > self.client.clock.now() {
                    let (is_fresh, cohort) = (true, None);
                    return Outcome::Granted(Granted { token, block, until, is_fresh, cohort });
                }
                refused(Error::new(
                    ErrorKind::NoAnswer,
                    "the store's answer to the renewal came after the lease had ended",
                ))
            }
            Ended::Answer(Ok(Renewal::Lost)) => refused(Error::lost(LostReason::Taken)),
            Ended::Answer(Err(error)) => refused(error),
            Ended::OutOfTime => refused(call::no_answer(self.terms.call_timeout)),
            Ended::Stopped => refused(Error::new(ErrorKind::Closed, "the caller no longer waits")),
        }
    }

    /// Releases the hold, and keeps trying in the background if the store did not answer.
    pub(super) async fn release(mut self, answer: oneshot::Sender<Result<Released>>) {
        // Its last renewal was before now, so the store ends it within a ttl.
        self.doubt.lasts_until(self.terms.gone_at(self.client.clock.now()));
        let (released, settled) = self.release_once().await;
        self.client.gates.released(&self.key);
        let _ = answer.send(released.map_err(|error| self.describe(error, Operation::Release)));
        if !settled {
            Box::pin(self.clean_up()).await;
        }
    }
}
