//! Getting the lock: look, wait, look again.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{SemaphorePermit, oneshot};

use super::call::{self, Ended};
use super::client::Client;
use super::gate::{Gate, Last};
use super::search::Search;
use super::{Acquired, Keeper, Outcome, Patience};
use crate::locks::held::{lead, margin};
use crate::{
    Attempt, Claim, ClockInstant, Effect, Error, ErrorKind, FencingToken, Renewal, Result,
};

/// What one look, or one wait, led to.
enum Step {
    Look,
    Wait,
    End(Outcome),
}

impl Keeper {
    pub(super) async fn acquire(
        &mut self,
        patience: Patience,
        caller: &mut oneshot::Sender<Acquired>,
    ) -> Outcome {
        let client = Arc::clone(&self.client);
        let search = Search::new(patience, client.clock.now());
        Acquisition { keeper: self, client, caller, search }.run().await
    }
}

struct Acquisition<'a> {
    keeper: &'a mut Keeper,
    client: Arc<Client>,
    /// Closed when nobody waits for the lock any more.
    caller: &'a mut oneshot::Sender<Acquired>,
    search: Search,
}

impl Acquisition<'_> {
    async fn run(mut self) -> Outcome {
        let client = Arc::clone(&self.client);
        // Where the store is not fair, those who come later than another task of this process wait
        // behind it. A try never does: the gate says nothing about the lock.
        let gated = !client.capabilities.fair && !matches!(self.search.patience, Patience::Try);
        if !gated {
            return self.look_and_wait(None, Step::Look).await;
        }
        let mut first = Step::Look;
        if !client.gates.is_contended(&self.keeper.key) {
            match self.look().await {
                Step::End(outcome) => return outcome,
                Step::Look | Step::Wait => first = Step::Wait,
            }
        }
        let ticket = client.gates.enter(&self.keeper.key);
        let _turn = match self.wait_for_turn(&ticket.gate).await {
            Ok(turn) => turn,
            Err(outcome) => return outcome,
        };
        self.look_and_wait(Some(&ticket.gate), first).await
    }

    /// Waits behind the other tasks of this process. The one that polls asks the store for all of them,
    /// so all of them give up a store that does not answer.
    async fn wait_for_turn<'g>(
        &mut self,
        gate: &'g Gate,
    ) -> Result<Option<SemaphorePermit<'g>>, Outcome> {
        let clock = Arc::clone(&self.client.clock);
        let deadline = self.search.deadline();
        let mut turn = std::pin::pin!(gate.turn.acquire());
        loop {
            let mut failed = std::pin::pin!(gate.failed.notified());
            failed.as_mut().enable();
            let answered_at = self.search.answered_at;
            self.search.answered_at = answered_at.max(gate.answered_at().unwrap_or(answered_at));
            let mut wake_at = deadline;
            if matches!(self.search.patience, Patience::Forever) {
                let give_up_at = self.search.answered_at + self.keeper.terms.unavailable_after;
                if clock.now() < give_up_at {
                    wake_at = give_up_at;
                } else if let Some(Last::Failure(error)) = gate.last() {
                    return Err(self.ended(error));
                }
            }
            tokio::select! {
                biased;
                () = stopped(&self.client, self.caller) => return Err(self.abandoned()),
                // The semaphore is never closed.
                turn = &mut turn => return Ok(turn.ok()),
                () = failed => {}
                () = clock.sleep_until(wake_at) => {
                    if clock.now() >= deadline {
                        return Err(self.out_of_time_at_the_gate(gate));
                    }
                }
            }
        }
    }

    /// Looks and waits in turn, beginning with `step`.
    async fn look_and_wait(mut self, gate: Option<&Gate>, mut step: Step) -> Outcome {
        loop {
            if let (Some(gate), Step::Wait | Step::End(_)) = (gate, &step)
                && let Some(last) = &self.search.last
            {
                gate.note(last.clone(), self.search.answered_at);
            }
            step = match step {
                Step::Look => self.look().await,
                Step::Wait => self.wait(gate).await,
                Step::End(outcome) => return outcome,
            };
        }
    }

    /// Asks the store once, and says what follows.
    async fn look(&mut self) -> Step {
        if self.search.place.is_unsettled
            && let Err(error) = self.renew_place().await
        {
            return self.failed(error);
        }
        loop {
            // What nobody waits for any more is not even sent: it might take a lock late, for a moment.
            if self.caller.is_closed() || self.client.closing.is_cancelled() {
                return Step::End(self.abandoned());
            }
            let Some((sent, answer)) = self.ask().await else {
                return Step::End(self.abandoned());
            };
            let answer = match answer {
                Ok(Attempt::Granted { token, valid_for }) => self.granted(sent, token, valid_for),
                Ok(Attempt::Busy { valid_for, retry_after }) => {
                    return self.busy(sent, valid_for, retry_after);
                }
                Err(error) => Err(error),
            };
            match answer.map_err(|error| self.failed(error)) {
                Ok(outcome) => return Step::End(outcome),
                // The repair of a try: the same claim finds what its first call has left.
                Err(Step::Look) => {}
                Err(step) => return step,
            }
        }
    }

    /// One try, and when it was sent; `None` if nobody waits for it any more.
    async fn ask(&mut self) -> Option<(ClockInstant, Result<Attempt>)> {
        let Self { keeper, client, caller, search } = self;
        let (clock, call_timeout) = (&*client.clock, keeper.terms.call_timeout);
        let sent = clock.now();
        let limit = search.deadline().min(sent + call_timeout);
        let request = keeper.doubt.sent(sent, keeper.terms.gone_at(sent));
        search.tries += 1;
        let mut call = keeper.claim.try_acquire();
        let mut ended = call::bounded(clock, limit, stopped(client, caller), &mut call).await;
        let is_abandoned = matches!(ended, Ended::Stopped);
        if is_abandoned {
            // Nobody waits any more, so there is time to hear the answer: after it, one release
            // proves that nothing is left. After a dropped call it would not.
            let killed = client.killed.cancelled();
            ended = call::bounded(clock, sent + call_timeout, killed, &mut call).await;
        }
        drop(call);
        match &ended {
            Ended::Answer(Ok(attempt)) => keeper.doubt.answered(request, attempt.has_entry()),
            Ended::Answer(Err(error)) if error.effect() == Effect::None => {
                keeper.doubt.answered(request, false);
            }
            // It stays in doubt.
            Ended::Answer(Err(_)) | Ended::OutOfTime | Ended::Stopped => {}
        }
        (!is_abandoned).then(|| (sent, ended.or_timeout(limit.since(sent))))
    }

    /// The store has granted the lock: if there is time left to use it, the search has ended.
    fn granted(
        &mut self,
        sent: ClockInstant,
        token: FencingToken,
        valid_for: Option<Duration>,
    ) -> Result<Outcome> {
        let now = self.client.clock.now();
        self.search.answered_at = now;
        self.search.pace.answered();
        let ttl = self.keeper.terms.ttl;
        let of_place = valid_for.is_none();
        let until = valid_for.map(|d| (sent + d).minus(margin(ttl))).or(self.search.place.until);
        match until {
            Some(until) if until.minus(lead(ttl)) > now => {
                self.search.last = Some(Last::Answer);
                Ok(Outcome::Granted { token, until, of_place })
            }
            // The same call again finds the same entry, with a new end (clause C2).
            Some(_) => Err(Error::new(
                ErrorKind::NoAnswer,
                format!(
                    "the store granted the lock, but its answer came when the lease of {ttl:?} was over"
                ),
            )),
            None => Err(call::no_end("a lock without a place in its queue")),
        }
    }

    fn busy(
        &mut self,
        sent: ClockInstant,
        place: Option<Duration>,
        retry_after: Option<Duration>,
    ) -> Step {
        let (now, ttl) = (self.client.clock.now(), self.keeper.terms.ttl);
        let search = &mut self.search;
        search.answered_at = now;
        search.last = Some(Last::Answer);
        if matches!(search.patience, Patience::Try) {
            // Clause C13: nothing is left behind, unless an earlier call may still land.
            let clean_up = !self.keeper.doubt.open(now).is_clear();
            return Step::End(Outcome::Refused { error: None, clean_up });
        }
        search.pace.answered();
        search.pace.busy(&self.client, now, retry_after);
        match place {
            Some(lasts) => {
                let until = (sent + lasts).minus(margin(ttl));
                search.place.lasts(&self.client, sent, Some(until), ttl);
            }
            None => search.place.is_gone(),
        }
        Step::Wait
    }

    fn failed(&mut self, error: Error) -> Step {
        let now = self.client.clock.now();
        tracing::debug!(target: "distlock", key = %self.keeper.key, %error, "a try to acquire failed");
        let search = &mut self.search;
        search.place.renew_at = ClockInstant::FAR_FUTURE;
        search.pace.failed(&self.client, now);
        let is_final = !error.is_retryable();
        let was_cut_short = error.kind() == ErrorKind::NoAnswer && now >= search.deadline();
        if !(was_cut_short && matches!(search.last, Some(Last::Answer))) {
            search.last = Some(Last::Failure(error));
        }
        let is_over = is_final
            || match search.patience {
                Patience::Try if search.tries < 2 => return Step::Look,
                Patience::Try => true,
                Patience::Until(deadline) => now >= deadline,
                Patience::Forever => {
                    now.since(search.answered_at) >= self.keeper.terms.unavailable_after
                }
            };
        if is_over { self.refused() } else { Step::Wait }
    }

    /// Waits until another look is worth while: a push, the store's own hint, the slow second look,
    /// a lost place. Renews the place in the meantime.
    async fn wait(&mut self, gate: Option<&Gate>) -> Step {
        let clock = Arc::clone(&self.client.clock);
        loop {
            let now = clock.now();
            if now >= self.search.deadline() {
                return self.refused();
            }
            if now >= self.search.pace.look_at {
                return Step::Look;
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
                pushed = pushed(&mut *self.keeper.claim), if push => match pushed {
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

    /// Renews the place in the queue. If it is lost, the next look takes a new one.
    async fn renew_place(&mut self) -> Result<Renewal> {
        let Self { keeper, client, caller, search } = self;
        let (sent, ttl) = (client.clock.now(), keeper.terms.ttl);
        let limit = search.deadline().min(sent + keeper.terms.call_timeout);
        keeper.doubt.lasts_until(keeper.terms.gone_at(sent));
        search.place.is_unsettled = true;
        let stop = stopped(client, caller);
        // If the caller has gone, the next wait sees it.
        let ended = call::bounded(&*client.clock, limit, stop, keeper.claim.renew()).await;
        let renewal = ended.or_timeout(limit.since(sent))?;
        search.answered_at = client.clock.now();
        search.place.is_unsettled = false;
        match renewal {
            Renewal::Alive { valid_for } => {
                let until = valid_for.map(|lasts| (sent + lasts).minus(margin(ttl)));
                search.place.lasts(client, sent, until, ttl);
            }
            Renewal::Lost => search.place.until = None,
        }
        Ok(renewal)
    }

    /// The end of the search: "not acquired" only if the store's last answer was "busy".
    fn refused(&self) -> Step {
        let error = match &self.search.last {
            Some(Last::Answer) => self.not_acquired(),
            Some(Last::Failure(error)) => error.clone(),
            None => call::no_answer(self.keeper.terms.call_timeout),
        };
        Step::End(self.ended(error))
    }

    fn out_of_time_at_the_gate(&self, gate: &Gate) -> Outcome {
        let last = match (&self.search.last, gate.last()) {
            (_, Some(failure @ Last::Failure(_))) => Some(failure),
            (Some(Last::Answer), _) | (_, Some(Last::Answer)) => Some(Last::Answer),
            (last, None) => last.clone(),
        };
        self.ended(match last {
            Some(Last::Answer) => self.not_acquired(),
            Some(Last::Failure(error)) => error,
            None => call::no_answer(self.client.clock.now().since(self.search.started)),
        })
    }

    /// The caller has gone, or the `Locks` was closed.
    fn abandoned(&self) -> Outcome {
        self.ended(Error::new(
            ErrorKind::Closed,
            "the connection to the store was closed while waiting",
        ))
    }

    /// There is nothing to clean up where nothing was sent.
    fn ended(&self, error: Error) -> Outcome {
        Outcome::Refused { error: Some(error), clean_up: self.search.tries > 0 }
    }

    fn not_acquired(&self) -> Error {
        let waited = self.client.clock.now().since(self.search.started);
        Error::new(
            ErrorKind::NotAcquired,
            format!("somebody else holds it, after {waited:.1?} of waiting"),
        )
    }
}

/// Ready when nobody waits for the answer any more.
async fn stopped(client: &Client, caller: &mut oneshot::Sender<Acquired>) {
    tokio::select! {
        () = caller.closed() => {}
        () = client.closing.cancelled() => {}
    }
}

async fn pushed(claim: &mut dyn Claim) -> Result<()> {
    claim.changed().await
}

async fn local_release(gate: Option<&Gate>) {
    match gate {
        Some(gate) => gate.released.notified().await,
        None => std::future::pending().await,
    }
}
