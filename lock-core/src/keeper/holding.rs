//! Holding the lock: renew it, watch its end, serve the guard.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use super::call::{self, Ended};
use super::{Command, Detached, Keeper, schedule};
use crate::locks::hold::margin;
use crate::{
    Claim, ClockInstant, Error, Held, LeaseToken, LockState, LostReason, Operation, Released,
    Renewal, Result,
};

/// The guard's wishes. While a call to the store is under way they wait here, except for the wish to
/// leave, which ends the call.
struct Inbox {
    commands: mpsc::UnboundedReceiver<Command>,
    waiting: VecDeque<Command>,
    leave: Option<Leave>,
}

/// The guard is gone, or wants to go.
struct Leave {
    reply: Option<oneshot::Sender<Result<Released>>>,
}

impl Inbox {
    async fn next(&mut self) -> Option<Command> {
        match self.waiting.pop_front() {
            Some(command) => Some(command),
            None => self.commands.recv().await,
        }
    }

    /// Ready when the guard wants to leave.
    async fn leaving(&mut self) {
        while self.leave.is_none() {
            match self.commands.recv().await {
                Some(Command::Release(reply)) => self.leave = Some(Leave { reply: Some(reply) }),
                Some(command) => self.waiting.push_back(command),
                None => self.leave = Some(Leave { reply: None }),
            }
        }
    }
}

/// Ends the hold when its keeper ends in whatever way: nobody would renew it or signal its loss.
struct EndOfKeeper(Held);

impl Drop for EndOfKeeper {
    fn drop(&mut self) {
        self.0.lose(LostReason::Closed);
    }
}

/// The plan for renewals and looks.
struct Plan {
    renew_at: ClockInstant,
    failures: u32,
    /// When to ask the store, since a push said that something has changed.
    check_at: ClockInstant,
    /// Until then pushes are not asked for, since they failed.
    no_push_until: ClockInstant,
}

impl Keeper {
    /// The calls are boxed: a held lock mostly sleeps, and its task should be small then.
    pub(super) async fn hold(
        mut self,
        held: Held,
        commands: mpsc::UnboundedReceiver<Command>,
        of_place: bool,
    ) {
        let _end = EndOfKeeper(held.clone());
        let mut inbox = Inbox { commands, waiting: VecDeque::new(), leave: None };
        let mut plan = self.first_plan(&held, of_place);
        let mut told = false;
        let leave = loop {
            self.tell_loss(&held, &mut told);
            if let Some(leave) = inbox.leave.take() {
                break leave;
            }
            let alive = !matches!(held.state(), LockState::Lost(_));
            let now = self.client.clock.now();
            if alive && now >= held.signal_at() {
                held.expire();
                continue;
            }
            // A failure is in the plan, and in the guard's state.
            if alive && now >= plan.renew_at {
                let _ = Box::pin(self.renew(&held, &mut inbox, &mut plan)).await;
                continue;
            }
            if alive && now >= plan.check_at {
                let _ = Box::pin(self.check(&held, &mut inbox, &mut plan)).await;
                continue;
            }
            let push = alive && now >= plan.no_push_until;
            let mut wake_at = ClockInstant::FAR_FUTURE;
            if alive {
                wake_at = plan.renew_at.min(plan.check_at).min(held.signal_at());
                if !push {
                    wake_at = wake_at.min(plan.no_push_until);
                }
            }
            let clock = Arc::clone(&self.client.clock);
            tokio::select! {
                biased;
                command = inbox.next() => match command {
                    None => break Leave { reply: None },
                    Some(Command::Release(reply)) => break Leave { reply: Some(reply) },
                    Some(Command::Renew(reply)) => {
                        let answer = Box::pin(self.renew(&held, &mut inbox, &mut plan)).await;
                        let _ = reply.send(answer);
                    }
                    Some(Command::Check(reply)) => {
                        let answer = Box::pin(self.check(&held, &mut inbox, &mut plan)).await;
                        let _ = reply.send(answer);
                    }
                    Some(Command::Detach(reply)) => {
                        if Box::pin(self.detach(&held, &mut inbox, &mut plan, reply)).await {
                            return;
                        }
                        break inbox.leave.take().unwrap_or(Leave { reply: None });
                    }
                    Some(Command::KeepAlive) => {
                        self.terms.renew_every = Some(self.terms.every);
                        plan.renew_at = now;
                    }
                },
                pushed = self.claim.changed(), if push => match pushed {
                    Ok(()) => plan.check_at = now,
                    Err(_) => plan.no_push_until = now + schedule::after_error(&self.client, 4),
                },
                // The state says so already; this wakes those who wait for the signal.
                () = self.client.killed.cancelled(), if alive => {
                    held.lose(LostReason::Closed);
                }
                () = clock.sleep_until(wake_at) => {}
            }
        };
        self.tell_loss(&held, &mut told);
        Box::pin(self.leave(&held, leave)).await;
    }

    /// Tells the claim, once, that its hold has ended by the clock: no answer of the store says so.
    fn tell_loss(&mut self, held: &Held, told: &mut bool) {
        if let LockState::Lost(reason @ (LostReason::Expired | LostReason::MaxHold)) = held.state()
            && !std::mem::replace(told, true)
        {
            self.claim.lost(reason);
        }
    }

    fn first_plan(&self, held: &Held, of_place: bool) -> Plan {
        let (now, ttl) = (self.client.clock.now(), self.terms.ttl);
        // Where validity counts from: the sending of the try, or an earlier renewal of the place.
        let counted_from = (held.lease_end() + margin(ttl)).minus(ttl).min(now);
        let mut plan = Plan {
            renew_at: ClockInstant::FAR_FUTURE,
            failures: 0,
            check_at: ClockInstant::FAR_FUTURE,
            no_push_until: now,
        };
        self.plan_renewal(&mut plan, counted_from);
        // A lock without renewals lasts for a ttl from its grant. Where place and lock are one lease,
        // a part of that has passed in the queue. Any other grant says itself how long it lasts.
        let fresh = held.lease_end().since(now) >= ttl * 9 / 10;
        if self.terms.renew_every.is_none() && of_place && !fresh {
            plan.renew_at = now;
        }
        plan
    }

    fn plan_renewal(&self, plan: &mut Plan, sent: ClockInstant) {
        plan.failures = 0;
        plan.renew_at = match self.terms.renew_every {
            Some(every) => schedule::renew_at(&self.client, sent, every, self.terms.ttl),
            None => ClockInstant::FAR_FUTURE,
        };
    }

    /// One call for a lock that is held, bounded by the end of validity: an answer after that is of
    /// no use. Returns when it was sent, too.
    async fn ask<T: Send>(
        &mut self,
        held: &Held,
        inbox: &mut Inbox,
        operation: Operation,
        call: impl for<'a> FnOnce(&'a mut dyn Claim) -> Call<'a, T>,
    ) -> (ClockInstant, Result<T>) {
        let client = Arc::clone(&self.client);
        let sent = client.clock.now();
        if let LockState::Lost(reason) = held.state() {
            return (sent, Err(self.lost(reason, operation)));
        }
        let limit = held.signal_at().min(sent + self.terms.call_timeout);
        let stop = async {
            tokio::select! {
                () = inbox.leaving() => {}
                () = client.killed.cancelled() => {}
            }
        };
        let error = match call::bounded(&*client.clock, limit, stop, call(&mut *self.claim)).await {
            Ended::Answer(Ok(answer)) => return (sent, Ok(answer)),
            Ended::Answer(Err(error)) => error,
            Ended::OutOfTime => call::no_answer(limit.since(sent)),
            Ended::Stopped => match held.state() {
                LockState::Lost(reason) => Error::lost(reason),
                LockState::Held | LockState::AtRisk => Error::lost(LostReason::Released),
            },
        };
        (sent, Err(self.describe(error, operation)))
    }

    async fn renew(
        &mut self,
        held: &Held,
        inbox: &mut Inbox,
        plan: &mut Plan,
    ) -> Result<LockState> {
        self.note_sent(self.client.clock.now());
        let planned = plan.renew_at != ClockInstant::FAR_FUTURE;
        match self.ask(held, inbox, Operation::Renew, |claim| claim.renew()).await {
            (sent, Ok(Renewal::Alive { valid_for })) => {
                self.prolong(held, sent, valid_for);
                held.set_at_risk(false);
                self.plan_renewal(plan, sent);
                tracing::trace!(target: "distlock", key = %self.key, "renewed");
                Ok(held.state())
            }
            (_, Ok(Renewal::Lost)) => Err(self.taken(held, Operation::Renew)),
            // Unknown: neither lost nor prolonged.
            (_, Err(error)) => {
                held.set_at_risk(true);
                plan.failures += 1;
                if planned {
                    let now = self.client.clock.now();
                    plan.renew_at =
                        schedule::retry_at(&self.client, now, plan.failures, self.terms.ttl);
                }
                if error.lost_reason().is_none() {
                    let left_ms = u64::try_from(held.remaining().as_millis()).unwrap_or(u64::MAX);
                    tracing::warn!(target: "distlock", key = %self.key, %error, left_ms, "a renewal failed");
                }
                Err(error)
            }
        }
    }

    /// Asks the store, and writes nothing.
    async fn check(
        &mut self,
        held: &Held,
        inbox: &mut Inbox,
        plan: &mut Plan,
    ) -> Result<LockState> {
        plan.check_at = ClockInstant::FAR_FUTURE;
        match self.ask(held, inbox, Operation::Check, |claim| claim.check()).await {
            (sent, Ok(Renewal::Alive { valid_for })) => {
                self.prolong(held, sent, valid_for);
                Ok(held.state())
            }
            (_, Ok(Renewal::Lost)) => Err(self.taken(held, Operation::Check)),
            (_, Err(error)) => {
                // What a push has announced is still to be seen, but not in a tight loop.
                let pause = schedule::after_error(&self.client, 1);
                plan.check_at = self.client.clock.now() + pause;
                plan.no_push_until = plan.check_at;
                Err(error)
            }
        }
    }

    /// Hands the hold to another process. True if this keeper has nothing left to do.
    async fn detach(
        &mut self,
        held: &Held,
        inbox: &mut Inbox,
        plan: &mut Plan,
        reply: oneshot::Sender<Result<Detached>>,
    ) -> bool {
        // After a renewal without an answer the same call comes first (clause C8).
        if plan.failures > 0
            && let Err(error) = self.renew(held, inbox, plan).await
        {
            let _ = reply.send(Err(error));
            return false;
        }
        match self.ask(held, inbox, Operation::Detach, |claim| claim.detach()).await {
            (_, Ok(data)) => {
                let token = LeaseToken::new(
                    self.client.backend.name(),
                    self.key.clone(),
                    self.owner,
                    held.fence(),
                    data,
                );
                held.lose(LostReason::Detached);
                let (received, arrived) = oneshot::channel();
                // A token that nobody gets could never be used: then the lock is released. When the
                // backend is closed, the token may still be read, and the lease ends it if not.
                let closed = self.client.killed.cancelled();
                reply.send(Ok(Detached { token, received })).is_ok()
                    && tokio::select! {
                        biased;
                        arrived = arrived => arrived.is_ok(),
                        () = closed => true,
                    }
            }
            (_, Err(error)) => {
                let _ = reply.send(Err(error));
                false
            }
        }
    }

    /// The guard has gone or wants to go: tell the store, answer, and clean up what is in doubt. A
    /// hold that was taken over is released by word only: it belongs to its lease token.
    async fn leave(mut self, held: &Held, leave: Leave) {
        held.lose(LostReason::Released);
        if self.attached && leave.reply.is_none() {
            return;
        }
        let (released, settled) = self.release_once().await;
        let answer = match released {
            // The first release found nothing, although the lease had not run out.
            Ok(Released::AlreadyGone) if self.client.clock.now() < held.lease_end() => {
                Err(self.lost(LostReason::Taken, Operation::Release))
            }
            released => released.map_err(|error| self.describe(error, Operation::Release)),
        };
        match &answer {
            Ok(_) => tracing::debug!(target: "distlock", key = %self.key, "released"),
            Err(error) => {
                tracing::debug!(target: "distlock", key = %self.key, %error, "not released cleanly");
            }
        }
        if let Some(reply) = leave.reply {
            let _ = reply.send(answer);
        }
        if !settled {
            Box::pin(self.clean_up()).await;
        }
    }

    fn prolong(&self, held: &Held, sent: ClockInstant, valid_for: Option<Duration>) {
        if let Some(valid_for) = valid_for {
            held.extend((sent + valid_for).minus(margin(self.terms.ttl)));
        }
    }

    fn taken(&self, held: &Held, operation: Operation) -> Error {
        let reason = held.lose(LostReason::Taken).unwrap_or(LostReason::Taken);
        tracing::error!(target: "distlock", key = %self.key, %reason, "lost");
        self.lost(reason, operation)
    }

    fn lost(&self, reason: LostReason, operation: Operation) -> Error {
        self.describe(Error::lost(reason), operation)
    }
}

/// The future of a call of a claim.
type Call<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;
