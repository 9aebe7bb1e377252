//! Acquiring the lock: try, wait, try again.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::call::{self, Ended};
use super::client::Client;
use super::cohort::Cohort;
use super::gate::Gate;
use super::last::{Last, SeenHolder};
use super::life::Turn;
use super::search::Search;
use super::{Acquired, Granted, Keeper, Outcome, Patience};
use crate::contract::Block;
use crate::locks::held::{lead, promised_end};
use crate::{Attempt, Busy, ClockInstant, Effect, Error, ErrorKind, FencingToken, Result};

/// What one attempt, or one wait, led to.
pub(super) enum Step {
    Look,
    Wait,
    End(Outcome),
}

impl Keeper {
    pub(super) async fn acquire(
        &mut self,
        patience: Patience,
        caller: &mut oneshot::Sender<Acquired>,
        turn: &Turn,
    ) -> Outcome {
        let client = Arc::clone(&self.client);
        let search = Search::new(patience, client.clock.now());
        Acquisition { keeper: self, client, caller, turn, search }.run().await
    }
}

pub(super) struct Acquisition<'a> {
    pub(super) keeper: &'a mut Keeper,
    pub(super) client: Arc<Client>,
    /// Closed when the caller no longer waits for the lock.
    pub(super) caller: &'a mut oneshot::Sender<Acquired>,
    pub(super) turn: &'a Turn,
    pub(super) search: Search,
}

impl Acquisition<'_> {
    async fn run(mut self) -> Outcome {
        let client = Arc::clone(&self.client);
        let cohort = self.keeper.terms.cohort;
        let mut step = Step::Look;
        // Where the store is not fair, or a hold can be passed on, later tasks of this process wait
        // behind the first. A `try` never does: the line says nothing about the lock.
        let in_line = !client.capabilities.fair || cohort > 1;
        if !in_line || matches!(self.search.patience, Patience::Try) {
            return self.look_and_wait(None, step).await;
        }
        if cohort == 1 && !client.gates.is_contended(&self.keeper.key) {
            step = match self.look().await {
                Step::End(outcome) => return outcome,
                Step::Look | Step::Wait => Step::Wait,
            };
        }
        let spot = client.gates.enter(&self.keeper.key, self.keeper.terms.clone());
        match self.wait_for_turn(&spot).await {
            Ok(Some(pass)) => Outcome::Passed(pass),
            Ok(None) => self.look_and_wait(Some(spot.gate()), step).await,
            // A hold may have been passed to it at this very moment.
            Err(outcome) => spot.leave().map_or(outcome, Outcome::Passed),
        }
    }

    /// Tries and waits in turn, starting with `step`.
    async fn look_and_wait(&mut self, gate: Option<&Gate>, mut step: Step) -> Outcome {
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

    /// Asks the store once, and returns the next step.
    async fn look(&mut self) -> Step {
        if self.search.place.is_unsettled
            && let Err(error) = self.renew_place().await
        {
            return self.failed(error);
        }
        loop {
            // If the caller no longer waits, nothing is sent: it might take a lock late, for a
            // moment.
            if self.caller.is_closed() || self.client.closing.is_cancelled() {
                return Step::End(self.abandoned());
            }
            let Some((sent, answer)) = self.ask().await else {
                return Step::End(self.abandoned());
            };
            let answer = match answer {
                Ok(Attempt::Granted { token, valid_for }) => self.granted(sent, token, valid_for),
                Ok(Attempt::Busy(busy)) => return self.busy(sent, busy),
                Err(error) => Err(error),
            };
            match answer.map_err(|error| self.failed(error)) {
                Ok(outcome) => return Step::End(outcome),
                // The second call of a `try`: the same claim finds what the first one left.
                Err(Step::Look) => {}
                Err(step) => return step,
            }
        }
    }

    /// One attempt, and when it was sent; `None` if the caller no longer waits.
    async fn ask(&mut self) -> Option<(ClockInstant, Result<Attempt>)> {
        let Self { keeper, client, caller, search, .. } = self;
        let (clock, call_timeout) = (&*client.clock, keeper.terms.call_timeout);
        let sent = clock.now();
        let limit = search.deadline().min(sent + call_timeout);
        let request = keeper.doubt.sent(sent, keeper.terms.gone_at(sent));
        search.tries += 1;
        let mut call = keeper.claim.try_acquire();
        let mut ended = call::bounded(clock, limit, stopped(client, caller), &mut call).await;
        let is_abandoned = matches!(ended, Ended::Stopped);
        if is_abandoned {
            // The caller has left, so there is time to wait for the answer: after it, one release
            // proves that nothing is left. After a dropped call it would not.
            let killed = client.killed.cancelled();
            ended = call::bounded(clock, sent + call_timeout, killed, &mut call).await;
        }
        drop(call);
        match &ended {
            Ended::Answer(Ok(attempt)) => keeper.doubt.answered(request, attempt.has_entry()),
            Ended::Answer(Err(error)) if error.effect() == Effect::None => {
                keeper.doubt.answered(request, false);
                search.without_effect += 1;
            }
            // The request stays in doubt.
            Ended::Answer(Err(_)) | Ended::OutOfTime | Ended::Stopped => {}
        }
        (!is_abandoned).then(|| (sent, ended.or_timeout(limit.since(sent))))
    }

    /// The store has granted the lock: if there is time left to use it, the search is over.
    fn granted(
        &mut self,
        sent: ClockInstant,
        token: FencingToken,
        valid_for: Option<Duration>,
    ) -> Result<Outcome> {
        let (now, ttl) = (self.client.clock.now(), self.keeper.terms.ttl);
        self.search.heard(&self.client, now);
        let is_fresh = valid_for.is_some();
        let until = valid_for.map(|d| promised_end(sent, d, ttl)).or(self.search.place.until);
        match until {
            Some(until) if until.minus(lead(ttl)) > now => {
                self.search.last = Some(Last::Answer(None));
                let cohort = self.keeper.terms.cohort;
                let block = Block { first: token, fences: cohort };
                let open = || Cohort::open(&self.client.gates, &self.keeper.key, block, now);
                let cohort = (cohort > 1).then(open);
                Ok(Outcome::Granted(Granted { token, block, until, is_fresh, cohort }))
            }
            // The same call again finds the same entry, with a new end (clause C2).
            Some(_) => Err(Error::new(
                ErrorKind::NoAnswer,
                format!(
                    "the store granted the lock, but its answer came after the lease of {ttl:?} had ended"
                ),
            )),
            None => Err(call::no_end("a lock without a place in its queue")),
        }
    }

    fn busy(&mut self, sent: ClockInstant, busy: Busy) -> Step {
        let (now, ttl) = (self.client.clock.now(), self.keeper.terms.ttl);
        let search = &mut self.search;
        search.heard(&self.client, now);
        let has_moved =
            search.last.as_ref().is_some_and(|last| last.is_before(busy.holder.as_deref()));
        let seen = busy.holder.map(|holder| Arc::new(SeenHolder { holder: *holder, at: now }));
        search.last = Some(Last::Answer(seen));
        if matches!(search.patience, Patience::Try) {
            // Clause C13: nothing is left behind, unless an earlier call may still take effect.
            let clean_up = !self.keeper.doubt.open(now).is_clear();
            return Step::End(Outcome::Refused { error: self.refusal(), clean_up });
        }
        search.pace.busy(&self.client, now, busy.retry_after, has_moved);
        match busy.valid_for {
            Some(lasts) => {
                let until = promised_end(sent, lasts, ttl);
                search.place.found(&self.client, sent, until, ttl);
            }
            None => search.place.is_gone(),
        }
        Step::Wait
    }

    pub(super) fn failed(&mut self, error: Error) -> Step {
        let now = self.client.clock.now();
        tracing::debug!(target: "distlock", key = %self.keeper.key, %error, "an attempt to acquire failed");
        let search = &mut self.search;
        search.place.renew_at = ClockInstant::FAR_FUTURE;
        search.pace.failed(&self.client, now);
        let is_final = !error.is_retryable();
        let was_cut_short = error.kind() == ErrorKind::NoAnswer && now >= search.deadline();
        if !(was_cut_short && matches!(search.last, Some(Last::Answer(_)))) {
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
        if is_over { Step::End(self.refused()) } else { Step::Wait }
    }

    /// The end of the search: "not acquired" only if the store's last answer was "busy".
    fn refusal(&self) -> Error {
        match &self.search.last {
            Some(Last::Answer(seen)) => self.not_acquired(seen.as_deref()),
            Some(Last::Failure(error)) => error.clone(),
            None => call::no_answer(self.waited()),
        }
    }

    pub(super) fn refused(&self) -> Outcome {
        self.ended(self.refusal())
    }

    /// The caller has left, or the `Locks` was closed.
    pub(super) fn abandoned(&self) -> Outcome {
        self.ended(Error::new(
            ErrorKind::Closed,
            "the connection to the store was closed while waiting",
        ))
    }

    /// There is nothing to clean up if nothing was sent, or nothing that was sent had an effect.
    fn ended(&self, error: Error) -> Outcome {
        Outcome::Refused { error, clean_up: self.search.tries > self.search.without_effect }
    }

    fn not_acquired(&self, seen: Option<&SeenHolder>) -> Error {
        let mut text = "another client holds it".to_owned();
        if !matches!(self.search.patience, Patience::Try) {
            text += &format!(", after {:.1?} of waiting", self.waited());
        }
        let error = Error::new(ErrorKind::NotAcquired, text);
        match seen {
            Some(SeenHolder { holder, at }) => {
                error.held_by(holder.clone().after(self.client.clock.now().since(*at)))
            }
            None => error,
        }
    }

    fn waited(&self) -> Duration {
        self.client.clock.now().since(self.search.started)
    }
}

/// Ready when the answer is no longer awaited.
pub(super) async fn stopped(client: &Client, caller: &mut oneshot::Sender<Acquired>) {
    tokio::select! {
        biased;
        () = caller.closed() => {}
        () = client.closing.cancelled() => {}
    }
}
