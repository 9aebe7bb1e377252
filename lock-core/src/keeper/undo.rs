//! Undoing what may be in the store.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::{Keeper, call, schedule};
use crate::{Binding, EndOfHold, Operation, Released, Result};

impl Keeper {
    /// Repeats the release until the store has confirmed it, or must have ended the entry on its own.
    ///
    /// A release that finds nothing proves nothing while an acquire request is
    /// [in doubt](crate::in_doubt), so it is repeated until one ttl after the last such
    /// request was sent.
    pub(super) async fn clean_up(mut self) {
        let client = Arc::clone(&self.client);
        let mut backoff = schedule::backoff();
        loop {
            let (released, settled) = self.release_once(&mut None).await;
            if settled {
                return;
            }
            let until = match released {
                Ok(_) => self.doubt.until(),
                Err(error) => {
                    tracing::debug!(target: "distlock", key = %self.key(), %error, "clean-up failed; it will be repeated");
                    self.doubt.gone_at()
                }
            };
            let now = client.clock.now();
            let mut next = now + backoff.failed(&*client.rng);
            // An entry bound to a session lives as long as the session.
            if client.capabilities.binding == Binding::Lease {
                match until {
                    Some(until) if now < until => next = next.min(until),
                    _ => return,
                }
            }
            client.clock.sleep_until(next).await;
        }
    }

    /// One release, and whether its answer proves that nothing of ours is in the store, now or later. Whoever has
    /// `asked` for it is answered at its limit, if there is no answer of the store. After a call that did not end, a
    /// new claim of the same owner makes it (clause C12).
    pub(super) async fn release_once(
        &mut self,
        asked: &mut Option<oneshot::Sender<Result<Released>>>,
    ) -> (Result<Released>, bool) {
        let Self { client, request, claim, terms, doubt, .. } = self;
        if claim.is_none() {
            match client.backend.claim((**request).clone()) {
                Ok(anew) => *claim = Some(anew),
                Err(error) => return (Err(error), false),
            }
        }
        let call_timeout = terms.call_timeout;
        let open = doubt.open(client.clock.now());
        let meanwhile = async {
            client.clock.sleep(call_timeout).await;
            if let Some(asked) = asked.take() {
                let error = call::no_answer(call_timeout);
                let _ = asked.send(Err(client.describe(error, Operation::Release, &request.key)));
            }
        };
        let (by, operation) = ((&**client, &**request), Operation::Release);
        let release = call::to_its_end(claim, by, operation, |claim| claim.release(), meanwhile);
        let released = release.await;
        if released.is_ok() {
            self.tell_end(EndOfHold::Released);
        }
        let settled = released.as_ref().is_ok_and(|released| open.is_settled_by(*released));
        (released, settled)
    }
}
