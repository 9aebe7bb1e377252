//! Waiting until another attempt is worthwhile.

use std::sync::Arc;

use super::acquire::{Acquisition, Step, stopped};
use super::cohort::Pass;
use super::gate::{Gate, Spot, Turn};
use super::last::Last;
use super::{Outcome, Patience, call};
use crate::locks::held::promised_end;
use crate::{ClockInstant, Renewal, Result, Wake};

impl Acquisition<'_> {
    /// Waits behind the other tasks of this process, until it is this task's turn to ask the store, or
    /// a hold is passed to it. The first in line asks for all of them, so all of them give up on a
    /// store that does not answer.
    pub(super) async fn wait_for_turn(
        &mut self,
        spot: &Spot,
    ) -> Result<Option<Box<Pass>>, Outcome> {
        self.turn.end().await;
        let clock = Arc::clone(&self.client.clock);
        let (gate, deadline) = (spot.gate(), self.search.deadline());
        loop {
            let mut failed = std::pin::pin!(gate.failed.notified());
            failed.as_mut().enable();
            let now = clock.now();
            if let Some((last, answered_at)) = gate.last(now) {
                self.search.last = Some(last);
                self.search.answered_at = self.search.answered_at.max(answered_at);
            }
            let turn_at = match spot.turn(&*clock) {
                Turn::Now => return Ok(None),
                Turn::Passed(pass) => return Ok(Some(pass)),
                Turn::At(at) => at,
                Turn::Later => ClockInstant::FAR_FUTURE,
            };
            if now >= deadline {
                return Err(self.refused());
            }
            let mut wake_at = deadline.min(turn_at);
            if matches!(self.search.patience, Patience::Forever) {
                let give_up_at = self.search.answered_at + self.keeper.terms.unavailable_after;
                if now < give_up_at {
                    wake_at = wake_at.min(give_up_at);
                } else if matches!(self.search.last, Some(Last::Failure(_))) {
                    return Err(self.refused());
                }
            }
            tokio::select! {
                biased;
                () = stopped(&self.client, self.caller) => return Err(self.abandoned()),
                () = spot.turned() => {}
                () = failed => {}
                () = clock.sleep_until(wake_at) => {}
            }
        }
    }

    /// Waits until another attempt is worthwhile: a push, the store's own hint, the slow poll, a
    /// lost place. Renews the place while waiting.
    pub(super) async fn wait(&mut self, gate: Option<&Gate>) -> Step {
        self.turn.end().await;
        let clock = Arc::clone(&self.client.clock);
        // A store that is fair says itself when it is a waiter's turn.
        let gate = gate.filter(|_| !self.client.capabilities.fair);
        loop {
            let now = clock.now();
            if now >= self.search.deadline() {
                return Step::End(self.refused());
            }
            if now >= self.search.pace.look_at {
                if self.client.capabilities.wake == Wake::Poll || self.client.looks.may_begin(now) {
                    return Step::Look;
                }
                self.search.pace.put_off(&self.client, now);
            }
            if now >= self.search.place.renew_at {
                match self.renew_place().await {
                    Ok(Renewal::Lost) => return Step::Look,
                    Ok(_) => continue,
                    Err(error) => return self.failed(error),
                }
            }
            let push = now >= self.search.pace.push_from;
            tokio::select! {
                biased;
                () = stopped(&self.client, self.caller) => return Step::End(self.abandoned()),
                pushed = self.keeper.claim.changed(), if push => match pushed {
                    Ok(()) => {
                        self.search.pace.pushed(now);
                        return Step::Look;
                    }
                    Err(error) => {
                        tracing::debug!(target: "distlock", key = %self.keeper.key, %error, "no pushes: polling");
                        self.search.pace.no_pushes(&self.client, now);
                    }
                },
                () = local_release(gate) => return Step::Look,
                () = clock.sleep_until(self.search.wake_at(now)) => {}
            }
        }
    }

    /// Renews the place in the queue. If it is lost, the next attempt takes a new one.
    pub(super) async fn renew_place(&mut self) -> Result<Renewal> {
        let Self { keeper, client, caller, search, .. } = self;
        let (sent, ttl) = (client.clock.now(), keeper.terms.ttl);
        let limit = search.deadline().min(sent + keeper.terms.call_timeout);
        keeper.doubt.lasts_until(keeper.terms.gone_at(sent));
        search.place.is_unsettled = true;
        let stop = stopped(client, caller);
        // If the caller has left, the next wait sees it.
        let ended = call::bounded(&*client.clock, limit, stop, keeper.claim.renew()).await;
        let renewal = ended.or_timeout(limit.since(sent))?;
        search.answered(client, client.clock.now());
        search.place.is_unsettled = false;
        match renewal {
            Renewal::Alive { valid_for } => {
                let until = valid_for.map(|lasts| promised_end(sent, lasts, ttl));
                search.place.renewed(client, sent, until, ttl);
            }
            Renewal::Lost => search.place.is_gone(),
        }
        Ok(renewal)
    }
}

async fn local_release(gate: Option<&Gate>) {
    match gate {
        Some(gate) => gate.released.notified().await,
        None => std::future::pending().await,
    }
}
