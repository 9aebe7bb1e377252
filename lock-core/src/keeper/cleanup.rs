//! Undoing what may be in the store.

use std::sync::Arc;

use super::call;
use super::{Keeper, schedule};
use crate::{Binding, Released, Result};

impl Keeper {
    /// Repeats the release until the store has confirmed it, or must have ended the entry on its own.
    ///
    /// A release that finds nothing proves nothing while an acquire request is
    /// [in doubt](crate::kit::in_doubt), so it is repeated until one ttl after the last such
    /// request was sent.
    pub(super) async fn clean_up(mut self) {
        let client = Arc::clone(&self.client);
        let mut backoff = schedule::backoff();
        loop {
            let (released, settled) = tokio::select! {
                biased;
                answer = self.release_once() => answer,
                () = client.killed.cancelled() => return,
            };
            if settled {
                return;
            }
            let until = match released {
                Ok(_) => self.doubt.until(),
                Err(error) => {
                    tracing::debug!(target: "distlock", key = %self.key, %error, "clean-up failed; it will be repeated");
                    self.doubt.gone_at()
                }
            };
            let next = client.clock.now() + backoff.failed(&*client.rng);
            // An entry bound to a session lives as long as the session.
            let is_lease = client.capabilities.binding == Binding::Lease;
            if is_lease && until.is_none_or(|until| next >= until) {
                return;
            }
            tokio::select! {
                biased;
                () = client.killed.cancelled() => return,
                () = client.clock.sleep_until(next) => {}
            }
        }
    }

    /// One release, bounded, and whether its answer proves that nothing of ours is in the store, now or
    /// later.
    pub(super) async fn release_once(&mut self) -> (Result<Released>, bool) {
        let clock = Arc::clone(&self.client.clock);
        let limit = clock.now() + self.terms.call_timeout;
        let never = std::future::pending();
        let ended = call::bounded(&*clock, limit, never, self.claim.release()).await;
        let released = ended.or_timeout(self.terms.call_timeout);
        let open = self.doubt.open(clock.now());
        let settled = released.as_ref().is_ok_and(|released| open.is_settled_by(*released));
        (released, settled)
    }
}
