//! Getting the lock: look, wait, look again.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{SemaphorePermit, oneshot};

use super::call::{self, Ended};
use super::client::Client;
use super::gate::{Gate, Last};
use super::search::Search;
use super::{Answer, Keeper, Outcome, Patience, schedule};
use crate::locks::hold::{lead, margin};
use crate::{Attempt, Claim, ClockInstant, Effect, Error, ErrorKind, Renewal, Result};

/// The shortest time between two looks that a push has caused.
const PUSH_SPACING: Duration = Duration::from_micros(100);

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
        caller: &mut oneshot::Sender<Answer>,
    ) -> Outcome {
        let client = Arc::clone(&self.client);
        let mut search = Search::new(patience, client.clock.now());
        // Where the store is not fair, those who come later than another task of this process wait
        // behind it. A try never does: the gate says nothing about the lock.
        let gated = !client.capabilities.fair && !matches!(patience, Patience::Try);
        if !gated {
            return self.look_and_wait(&mut search, caller, None, Step::Look).await;
        }
        let mut first = Step::Look;
        if !client.gates.is_contended(&self.key) {
            match self.look(&mut search, caller).await {
                Step::End(outcome) => return outcome,
                Step::Look | Step::Wait => first = Step::Wait,
            }
        }
        let ticket = client.gates.enter(&self.key);
        let _turn = match self.wait_for_turn(&mut search, caller, &ticket.gate).await {
            Ok(turn) => turn,
            Err(outcome) => return outcome,
        };
        self.look_and_wait(&mut search, caller, Some(&ticket.gate), first).await
    }

    /// Waits behind the other tasks of this process. Whoever polls hears the store for all of them, so
    /// all of them give up a store that does not answer.
    async fn wait_for_turn<'g>(
        &mut self,
        search: &mut Search,
        caller: &mut oneshot::Sender<Answer>,
        gate: &'g Gate,
    ) -> Result<Option<SemaphorePermit<'g>>, Outcome> {
        let client = Arc::clone(&self.client);
        let mut turn = std::pin::pin!(gate.turn.acquire());
        loop {
            let mut failed = std::pin::pin!(gate.failed.notified());
            failed.as_mut().enable();
            search.heard = search.heard.max(gate.heard().unwrap_or(search.heard));
            let mut wake_at = search.deadline;
            if matches!(search.patience, Patience::Forever) {
                let give_up_at = search.heard + self.terms.unavailable_after;
                if client.clock.now() < give_up_at {
                    wake_at = give_up_at;
                } else if let Some(Last::Failure(error)) = gate.last() {
                    let clean_up = search.tries > 0;
                    return Err(Outcome::Refused { error: Some(error), clean_up });
                }
            }
            tokio::select! {
                biased;
                () = stopped(&client, caller) => return Err(abandoned(search)),
                // The semaphore is never closed.
                turn = &mut turn => return Ok(turn.ok()),
                () = failed => {}
                () = client.clock.sleep_until(wake_at) => {
                    if client.clock.now() >= search.deadline {
                        return Err(self.out_of_time_at_the_gate(search, gate));
                    }
                }
            }
        }
    }

    /// Looks and waits in turn, beginning with `step`.
    async fn look_and_wait(
        &mut self,
        search: &mut Search,
        caller: &mut oneshot::Sender<Answer>,
        gate: Option<&Gate>,
        mut step: Step,
    ) -> Outcome {
        loop {
            if let (Some(gate), Step::Wait | Step::End(_)) = (gate, &step) {
                gate.note(search.last(), search.heard);
            }
            step = match step {
                Step::Look => self.look(search, caller).await,
                Step::Wait => self.wait(search, caller, gate).await,
                Step::End(outcome) => return outcome,
            };
        }
    }

    /// Asks the store once, and says what follows.
    async fn look(&mut self, search: &mut Search, caller: &mut oneshot::Sender<Answer>) -> Step {
        if search.place_unsettled
            && let Err(error) = self.renew_place(search, caller).await
        {
            return self.failed(search, error);
        }
        loop {
            // What nobody waits for any more is not even sent: it might take a lock late, for a moment.
            if caller.is_closed() || self.client.closing.is_cancelled() {
                return Step::End(abandoned(search));
            }
            let sent = self.client.clock.now();
            let limit = search.deadline.min(sent + self.terms.call_timeout);
            self.note_sent(sent);
            search.tries += 1;
            let client = Arc::clone(&self.client);
            let mut call = self.claim.try_acquire();
            let mut ended =
                call::bounded(&*client.clock, limit, stopped(&client, caller), &mut call).await;
            let gone = matches!(ended, Ended::Stopped);
            if gone {
                // Nobody waits any more, so there is time to hear the answer: after it, one release
                // proves that nothing is left. After a dropped call it would not.
                let killed = client.killed.cancelled();
                ended = call::bounded(
                    &*client.clock,
                    sent + self.terms.call_timeout,
                    killed,
                    &mut call,
                )
                .await;
            }
            drop(call);
            let error = match ended {
                Ended::Answer(Ok(_)) if gone => {
                    self.written = true;
                    return Step::End(abandoned(search));
                }
                Ended::Answer(Ok(Attempt::Granted { token, valid_for })) => {
                    self.written = true;
                    search.answered(client.clock.now());
                    let ttl = self.terms.ttl;
                    let until =
                        valid_for.map(|d| (sent + d).minus(margin(ttl))).or(search.place_until);
                    match until {
                        Some(until) if until.minus(lead(ttl)) > client.clock.now() => {
                            let of_place = valid_for.is_none();
                            return Step::End(Outcome::Granted { token, until, of_place });
                        }
                        // The same call again finds the same entry, with a new end (clause C2).
                        Some(_) => Error::new(
                            ErrorKind::Timeout,
                            format!(
                                "the store granted the lock, but its answer came when the lease of {ttl:?} was over"
                            ),
                        ),
                        None => call::no_end("a lock without a place in its queue"),
                    }
                }
                Ended::Answer(Ok(Attempt::Busy { valid_for, retry_after })) => {
                    return self.busy(search, sent, valid_for, retry_after);
                }
                Ended::Answer(Err(error)) => {
                    if error.effect() == Effect::Unknown {
                        self.note_unanswered(sent);
                    }
                    error
                }
                Ended::OutOfTime => {
                    self.note_unanswered(sent);
                    call::no_answer(limit.since(sent))
                }
                Ended::Stopped => {
                    self.note_unanswered(sent);
                    return Step::End(abandoned(search));
                }
            };
            if gone {
                return Step::End(abandoned(search));
            }
            match self.failed(search, error) {
                // The repair of a try: the same claim finds what its first call has left.
                Step::Look => continue,
                step => return step,
            }
        }
    }

    fn busy(
        &mut self,
        search: &mut Search,
        sent: ClockInstant,
        place: Option<Duration>,
        retry_after: Option<Duration>,
    ) -> Step {
        let now = self.client.clock.now();
        search.answered(now);
        search.busy += 1;
        search.said_busy = true;
        self.written |= place.is_some();
        if matches!(search.patience, Patience::Try) {
            // Clause C13: nothing is left behind, unless an earlier call may still land.
            let clean_up = self.unanswered > 0;
            return Step::End(Outcome::Refused { error: None, clean_up });
        }
        search.place_until = place.map(|d| (sent + d).minus(margin(self.terms.ttl)));
        search.renew_place_at = match search.place_until {
            Some(_) => schedule::renew_at(&self.client, sent, self.terms.ttl / 3, self.terms.ttl),
            None => ClockInstant::FAR_FUTURE,
        };
        let pause = schedule::after_busy(
            &self.client,
            self.client.capabilities.wake,
            search.busy,
            retry_after,
        );
        search.look_at = now + pause;
        Step::Wait
    }

    fn failed(&mut self, search: &mut Search, error: Error) -> Step {
        let now = self.client.clock.now();
        let final_error = !error.is_retryable();
        tracing::debug!(target: "distlock", key = %self.key, %error, "a try to acquire failed");
        search.failures += 1;
        search.busy = 0;
        search.renew_place_at = ClockInstant::FAR_FUTURE;
        search.said_busy &= matches!(error.kind(), ErrorKind::Timeout) && now >= search.deadline;
        search.error = Some(error);
        if final_error {
            return self.refused(search);
        }
        let silent = now.since(search.heard);
        match search.patience {
            Patience::Try if search.tries < 2 => Step::Look,
            Patience::Try => self.refused(search),
            Patience::Until(deadline) if now >= deadline => self.refused(search),
            Patience::Forever if silent >= self.terms.unavailable_after => self.refused(search),
            Patience::Until(_) | Patience::Forever => {
                search.look_at = now + schedule::after_error(&self.client, search.failures);
                Step::Wait
            }
        }
    }

    /// Waits until another look is worth while: a push, the store's own hint, the slow second look,
    /// a lost place. Renews the place in the meantime.
    async fn wait(
        &mut self,
        search: &mut Search,
        caller: &mut oneshot::Sender<Answer>,
        gate: Option<&Gate>,
    ) -> Step {
        let client = Arc::clone(&self.client);
        loop {
            let now = client.clock.now();
            if now >= search.deadline {
                return self.refused(search);
            }
            if now >= search.look_at {
                return Step::Look;
            }
            if now >= search.renew_place_at {
                match self.renew_place(search, caller).await {
                    Ok(Renewal::Lost) => return Step::Look,
                    Ok(_) => continue,
                    Err(error) => return self.failed(search, error),
                }
            }
            let push = now >= search.no_push_until;
            let mut wake_at = search.look_at.min(search.renew_place_at).min(search.deadline);
            if !push {
                wake_at = wake_at.min(search.no_push_until);
            }
            tokio::select! {
                biased;
                () = stopped(&client, caller) => return Step::End(abandoned(search)),
                pushed = pushed(&mut *self.claim), if push => match pushed {
                    Ok(()) => {
                        // A change is kept until it is asked for, so this misses nothing; it keeps a
                        // store that pushes without end from being asked without end.
                        search.no_push_until = now + PUSH_SPACING;
                        return Step::Look;
                    }
                    Err(error) => {
                        tracing::debug!(target: "distlock", key = %self.key, %error, "no pushes: polling");
                        search.failures += 1;
                        let pause = schedule::after_error(&client, search.failures);
                        search.no_push_until = now + pause;
                        search.look_at = search.look_at.min(now + pause);
                    }
                },
                () = local_release(gate) => return Step::Look,
                () = client.clock.sleep_until(wake_at) => {}
            }
        }
    }

    /// Renews the place in the queue. If it is lost, the next look takes a new one.
    async fn renew_place(
        &mut self,
        search: &mut Search,
        caller: &mut oneshot::Sender<Answer>,
    ) -> Result<Renewal> {
        let client = Arc::clone(&self.client);
        let (sent, ttl) = (client.clock.now(), self.terms.ttl);
        let limit = search.deadline.min(sent + self.terms.call_timeout);
        self.note_sent(sent);
        search.place_unsettled = true;
        let stop = stopped(&client, caller);
        let renewal = match call::bounded(&*client.clock, limit, stop, self.claim.renew()).await {
            Ended::Answer(answer) => answer?,
            // If the caller has gone, the next wait sees it.
            Ended::OutOfTime | Ended::Stopped => return Err(call::no_answer(limit.since(sent))),
        };
        search.heard = client.clock.now();
        search.place_unsettled = false;
        match renewal {
            Renewal::Alive { valid_for } => {
                if let Some(valid_for) = valid_for {
                    search.place_until = Some((sent + valid_for).minus(margin(ttl)));
                }
                search.renew_place_at = schedule::renew_at(&client, sent, ttl / 3, ttl);
            }
            Renewal::Lost => search.place_until = None,
        }
        Ok(renewal)
    }

    /// The end of the search: "not acquired" only if the store's last answer was "busy".
    fn refused(&self, search: &Search) -> Step {
        let error = if search.said_busy {
            not_acquired(search.started, self.client.clock.now())
        } else {
            search.error.clone().unwrap_or_else(|| call::no_answer(self.terms.call_timeout))
        };
        Step::End(Outcome::Refused { error: Some(error), clean_up: true })
    }

    fn out_of_time_at_the_gate(&self, search: &Search, gate: &Gate) -> Outcome {
        let error = match (search.said_busy, gate.last()) {
            (_, Some(Last::Failure(error))) => error,
            (true, _) | (false, Some(Last::Answer)) => {
                not_acquired(search.started, self.client.clock.now())
            }
            (false, None) => search
                .error
                .clone()
                .unwrap_or_else(|| call::no_answer(self.client.clock.now().since(search.started))),
        };
        Outcome::Refused { error: Some(error), clean_up: search.tries > 0 }
    }
}

/// The caller has gone, or the `Locks` was closed. There is nothing to clean up where nothing was sent.
fn abandoned(search: &Search) -> Outcome {
    let error =
        Error::new(ErrorKind::Closed, "the connection to the store was closed while waiting");
    Outcome::Refused { error: Some(error), clean_up: search.tries > 0 }
}

fn not_acquired(started: ClockInstant, now: ClockInstant) -> Error {
    let waited = now.since(started);
    Error::new(
        ErrorKind::NotAcquired,
        format!("somebody else holds it, after {waited:.1?} of waiting"),
    )
}

/// Ready when nobody waits for the answer any more.
async fn stopped(client: &Client, caller: &mut oneshot::Sender<Answer>) {
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
