//! How a claim leaves the store: its hold is released, passed on, or left to a lease token; and whatever is in
//! doubt is undone.

use std::pin::pin;
use std::sync::Arc;

use super::holding::{HeldClaim, Leaving};
use super::polling::Poller;
use super::{Keeper, ReleaseAnswer, call, schedule};
use crate::hold::rules;
use crate::{
    Binding, ClockInstant, EndOfHold, Error, LockState, LostReason, Operation, Released, Renewal,
    Result,
};

impl HeldClaim {
    /// Ends the hold for this keeper: passes it on, or tells the store, answers, and cleans up what is in doubt.
    pub(super) async fn leave(mut self, leaving: Leaving, poller: &Poller) {
        let ended = self.held.lose(LostReason::Released).unwrap_or(LostReason::Released);
        let mut asked = match leaving {
            Leaving::Detached => return,
            // A hold that was taken over belongs to its lease token, so it is released only on request.
            Leaving::Dropped if self.keeper.is_attached() => return,
            Leaving::Dropped => None,
            Leaving::Asked(asked) => Some(asked),
        };
        let is_early = self.keeper.client.clock.now() < self.held.free_at();
        if rules::is_given_up(ended) && is_early {
            // It may take long, so nobody polls it in place of its task.
            poller.end();
            self.cohort = None;
            if let Some(lost) = Box::pin(self.keep()).await
                && let Some(asked) = asked.take()
            {
                let error = self.keeper.describe(Error::lost(lost), Operation::Release);
                let _ = asked.send(Err(error));
            }
        }
        // Passes it on to the next task of this process. If it cannot, that one is let go to the store before the
        // release: then it queues behind those who wait there.
        let (key, promised) = (self.keeper.key().clone(), self.held.lease_end());
        let kept = match self.cohort.take() {
            Some(cohort) if self.may_be_passed_on().await => cohort.pass(self.keeper, promised),
            _ => Some(self.keeper),
        };
        match kept {
            Some(keeper) => keeper.release(asked, Some(promised)).await,
            None => {
                tracing::debug!(target: "distlock", %key, "passed on");
                if let Some(asked) = asked {
                    let _ = asked.send(Ok(Released::Freed));
                }
            }
        }
    }

    /// Keeps the lock from others until a release may take effect, though its holder has given it up. Says why, if
    /// it is lost before.
    async fn keep(&mut self) -> Option<LostReason> {
        let clock = Arc::clone(&self.keeper.client.clock);
        let (free_at, mut kept_until) = (self.held.free_at(), self.held.lease_end());
        // A lock that is not renewed while it is held may have less left than that.
        self.keeper.terms.renew_every = Some(self.keeper.terms.every);
        if self.plan.renew_at == ClockInstant::FAR_FUTURE {
            self.plan.renew_at = clock.now();
        }
        loop {
            let now = clock.now();
            if now >= free_at {
                return None;
            }
            if now >= kept_until {
                return Some(LostReason::Expired);
            }
            let is_enough = kept_until >= free_at;
            if is_enough || now < self.plan.renew_at {
                let renew_at = if is_enough { free_at } else { self.plan.renew_at };
                clock.sleep_until(renew_at.min(free_at).min(kept_until)).await;
                continue;
            }
            match self.keep_on(now).await {
                Ok(Renewal::Alive { valid_for }) => {
                    let until = valid_for.map(|lasts| self.keeper.terms.promised_end(now, lasts));
                    kept_until = until.map_or(kept_until, |until| kept_until.max(until));
                    self.keeper.plan_renewal(&mut self.plan, now);
                }
                Ok(Renewal::Lost) => return Some(LostReason::Taken),
                Err(_) => {
                    self.plan.failures += 1;
                    let (client, ttl) = (&self.keeper.client, self.keeper.terms.ttl);
                    self.plan.renew_at =
                        schedule::retry_at(client, clock.now(), self.plan.failures, ttl);
                }
            }
        }
    }

    /// One renewal, sent `now`, of a lock that nobody counts on.
    async fn keep_on(&mut self, now: ClockInstant) -> Result<Renewal> {
        let gone_at = self.keeper.gone_at(now);
        let Keeper { client, request, claim, doubt, .. } = &mut *self.keeper;
        doubt.lasts_until(gone_at);
        let (by, operation) = ((&**client, &*request), Operation::Renew);
        let meanwhile = pin!(std::future::pending());
        let renewal =
            call::to_its_end(claim, by, operation, |claim| claim.renew(), meanwhile).await?;
        self.keeper.tell_renewed(renewal, None);
        Ok(renewal)
    }

    /// Whether the store is not known, or about to be known, to have ended the hold, and its holder
    /// has given it up.
    async fn may_be_passed_on(&mut self) -> bool {
        let LockState::Lost(reason) = self.held.state() else { return false };
        let (failures, checked) =
            (self.plan.failures, self.plan.check_at == ClockInstant::FAR_FUTURE);
        let is_passable = rules::is_given_up(reason)
            && rules::is_quiet(true, failures, checked)
            && !self.keeper.client.closing.is_cancelled();
        // The last call may have said that the hold is lost: then the claim is asked for nothing but its
        // release.
        if !is_passable {
            return false;
        }
        let no_push = tokio::select! {
            biased;
            _ = call::changed(&mut self.keeper.claim) => false,
            () = std::future::ready(()) => true,
        };
        rules::is_quiet(no_push, failures, checked)
    }
}

impl Keeper {
    /// Releases the hold, answers whoever has `asked` for that, and goes on until nothing of it is in the store.
    /// The store has promised this keeper to keep it until `promised`.
    pub(crate) async fn release(
        mut self: Box<Self>,
        mut asked: Option<ReleaseAnswer>,
        promised: Option<ClockInstant>,
    ) {
        if promised.is_none() {
            self.doubt.lasts_until(self.gone_at(self.client.clock.now()));
        }
        let (released, settled) = self.release_once(&mut asked).await;
        // Whoever waits elsewhere has waited for a whole cohort, and polls.
        if !self.was_passed_on {
            self.client.lines.released(self.key());
        }
        let is_promised = promised.is_some_and(|until| self.client.clock.now() < until);
        let released = match released {
            // The first release found nothing, although the lease had not run out.
            Ok(Released::AlreadyGone) if is_promised => Err(Error::lost(LostReason::Taken)),
            released => released,
        };
        let answer = released.map_err(|error| self.describe(error, Operation::Release));
        match &answer {
            Ok(_) => tracing::debug!(target: "distlock", key = %self.key(), "released"),
            Err(error) => {
                tracing::debug!(target: "distlock", key = %self.key(), %error, "not released cleanly");
            }
        }
        if let Some(asked) = asked {
            let _ = asked.send(answer);
        }
        if !settled {
            Box::pin(self.clean_up()).await;
        }
    }

    /// Repeats the release until the store has confirmed it, or must have ended the entry on its own.
    ///
    /// A release that finds nothing proves nothing while an acquire request is
    /// [in doubt](super::in_doubt), so it is repeated until one ttl after the last such
    /// request was sent.
    pub(super) async fn clean_up(mut self: Box<Self>) {
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
    async fn release_once(
        &mut self,
        asked: &mut Option<ReleaseAnswer>,
    ) -> (Result<Released>, bool) {
        let Self { client, request, claim, terms, doubt, .. } = self;
        if claim.is_none() {
            match client.backend.claim(request.clone()) {
                Ok(anew) => *claim = Some(anew),
                Err(error) => return (Err(error), false),
            }
        }
        let call_timeout = terms.call_timeout;
        let open = doubt.open(client.clock.now());
        let released = {
            let meanwhile = pin!(async {
                client.clock.sleep(call_timeout).await;
                if let Some(asked) = asked.take() {
                    let error = client.describe(
                        call::no_answer(call_timeout),
                        Operation::Release,
                        &request.key,
                    );
                    let _ = asked.send(Err(error));
                }
            });
            let (by, operation) = ((&**client, &*request), Operation::Release);
            call::to_its_end(claim, by, operation, |claim| claim.release(), meanwhile).await
        };
        if released.is_ok() {
            self.tell_end(EndOfHold::Released);
        }
        let settled = released.as_ref().is_ok_and(|released| open.is_settled_by(*released));
        // The hold of the lease token has ended. What arrives later has a fence that the token does not name.
        if !settled && released.is_ok() && self.request.resume.take().is_some() {
            self.claim = None;
        }
        (released, settled)
    }
}
