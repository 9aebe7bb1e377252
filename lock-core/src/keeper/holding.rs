//! Holding the lock: renew it, watch its end, serve the guard.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

use super::call::{self, Ended};
use super::{Command, Keeper, schedule};
use crate::hold::margin;
use crate::{
    ClockInstant, Error, Held, LeaseToken, LockState, LostReason, Operation, Released, Renewal,
    Result,
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

/// The plan for renewals.
struct Plan {
    renew_at: ClockInstant,
    failures: u32,
    /// Until then pushes are not asked for, since they failed.
    no_push_until: Option<ClockInstant>,
}

impl Keeper {
    /// The calls are boxed: a held lock mostly sleeps, and its task should be small then.
    pub(super) async fn hold(mut self, held: Held, commands: mpsc::UnboundedReceiver<Command>) {
        let mut inbox = Inbox { commands, waiting: VecDeque::new(), leave: None };
        let mut plan =
            Plan { renew_at: ClockInstant::FAR_FUTURE, failures: 0, no_push_until: None };
        self.plan_renewal(&mut plan, self.shared.clock.now());
        // A lock without renewals lasts for a ttl from its grant. Where place and lock are one lease,
        // a part of that has passed in the queue.
        let attached = !self.granted;
        if self.terms.renew_every.is_none()
            && !attached
            && held.remaining() < self.terms.ttl * 9 / 10
        {
            plan.renew_at = self.shared.clock.now();
        }
        let _end = EndOfKeeper(held.clone());
        let leave = loop {
            if let Some(leave) = inbox.leave.take() {
                break leave;
            }
            let alive = !matches!(held.state(), LockState::Lost(_));
            let now = self.shared.clock.now();
            if alive && now >= held.signal_at() {
                let reason = held.expire();
                tracing::error!(target: "distlock", key = %self.key, %reason, "lost");
                continue;
            }
            if alive && now >= plan.renew_at {
                // A failure is in the plan and in the guard's state already.
                let _ = Box::pin(self.renew(&held, &mut inbox, &mut plan)).await;
                continue;
            }
            let wake_at =
                if alive { plan.renew_at.min(held.signal_at()) } else { ClockInstant::FAR_FUTURE };
            let push = alive && plan.no_push_until.is_none_or(|until| now >= until);
            let clock = Arc::clone(&self.shared.clock);
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
                        if Box::pin(self.detach(&held, &mut inbox, reply)).await {
                            return;
                        }
                    }
                    Some(Command::KeepAlive) => {
                        self.terms.renew_every.get_or_insert(self.terms.ttl / 3);
                        plan.renew_at = now;
                    }
                },
                pushed = self.claim.changed(), if push => match pushed {
                    // An error of the check is no loss; the next renewal will tell.
                    Ok(()) => drop(Box::pin(self.check(&held, &mut inbox, &mut plan)).await),
                    Err(_) => {
                        plan.no_push_until = Some(now + schedule::after_error(&self.shared, 4));
                    }
                },
                () = self.shared.killed.cancelled(), if alive => {
                    held.lose(LostReason::Closed);
                }
                () = clock.sleep_until(wake_at) => {}
            }
        };
        Box::pin(self.leave(&held, leave)).await;
    }

    fn plan_renewal(&self, plan: &mut Plan, sent: ClockInstant) {
        plan.failures = 0;
        plan.renew_at = match self.terms.renew_every {
            Some(every) => schedule::renew_at(&self.shared, sent, every, self.terms.ttl),
            None => ClockInstant::FAR_FUTURE,
        };
    }

    /// One renewal. Bounded by the end of validity: an answer after that is of no use.
    async fn renew(
        &mut self,
        held: &Held,
        inbox: &mut Inbox,
        plan: &mut Plan,
    ) -> Result<LockState> {
        if let LockState::Lost(reason) = held.state() {
            return Err(self.lost(reason, Operation::Renew));
        }
        let clock = Arc::clone(&self.shared.clock);
        let sent = clock.now();
        let limit = held.signal_at().min(sent + self.terms.call_timeout);
        self.note_sent(sent);
        let error = match call::bounded(&*clock, limit, inbox.leaving(), self.claim.renew()).await {
            Ended::Answer(Ok(Renewal::Alive { valid_for })) => {
                if let Some(valid_for) = valid_for {
                    held.extend((sent + valid_for).minus(margin(self.terms.ttl)));
                }
                tracing::trace!(target: "distlock", key = %self.key, "renewed");
                self.plan_renewal(plan, sent);
                return Ok(held.state());
            }
            Ended::Answer(Ok(Renewal::Lost)) => {
                return Err(self.taken(held, Operation::Renew));
            }
            Ended::Answer(Err(error)) => error,
            Ended::OutOfTime => call::no_answer(limit.since(sent)),
            Ended::Stopped => return Err(self.lost(LostReason::Released, Operation::Renew)),
        };
        // Unknown: neither lost nor prolonged.
        held.set_at_risk();
        plan.failures += 1;
        if self.terms.renew_every.is_some() {
            plan.renew_at =
                schedule::retry_at(&self.shared, clock.now(), plan.failures, self.terms.ttl);
        }
        let left_ms = u64::try_from(held.remaining().as_millis()).unwrap_or(u64::MAX);
        tracing::warn!(target: "distlock", key = %self.key, %error, left_ms, "a renewal failed");
        Err(self.describe(error, Operation::Renew))
    }

    /// Asks the store, and writes nothing.
    async fn check(
        &mut self,
        held: &Held,
        inbox: &mut Inbox,
        plan: &mut Plan,
    ) -> Result<LockState> {
        if let LockState::Lost(reason) = held.state() {
            return Err(self.lost(reason, Operation::Check));
        }
        let clock = Arc::clone(&self.shared.clock);
        let sent = clock.now();
        let limit = held.signal_at().min(sent + self.terms.call_timeout);
        let error = match call::bounded(&*clock, limit, inbox.leaving(), self.claim.check()).await {
            Ended::Answer(Ok(Renewal::Alive { valid_for })) => {
                if let Some(valid_for) = valid_for {
                    held.extend((sent + valid_for).minus(margin(self.terms.ttl)));
                }
                return Ok(held.state());
            }
            Ended::Answer(Ok(Renewal::Lost)) => {
                plan.renew_at = ClockInstant::FAR_FUTURE;
                return Err(self.taken(held, Operation::Check));
            }
            Ended::Answer(Err(error)) => error,
            Ended::OutOfTime => call::no_answer(limit.since(sent)),
            Ended::Stopped => return Err(self.lost(LostReason::Released, Operation::Check)),
        };
        Err(self.describe(error, Operation::Check))
    }

    /// Hands the hold to another process. True if this keeper has nothing left to do.
    async fn detach(
        &mut self,
        held: &Held,
        inbox: &mut Inbox,
        reply: oneshot::Sender<Result<LeaseToken>>,
    ) -> bool {
        if let LockState::Lost(reason) = held.state() {
            let _ = reply.send(Err(self.lost(reason, Operation::Detach)));
            return false;
        }
        let clock = Arc::clone(&self.shared.clock);
        let sent = clock.now();
        let limit = held.signal_at().min(sent + self.terms.call_timeout);
        let error = match call::bounded(&*clock, limit, inbox.leaving(), self.claim.detach()).await
        {
            Ended::Answer(Ok(data)) => {
                let token = LeaseToken::new(
                    self.shared.backend.name(),
                    self.key.clone(),
                    self.owner,
                    held.fence(),
                    self.terms.ttl,
                    data,
                );
                held.lose(LostReason::Detached);
                // If nobody waits for the token any more, nobody could ever use it: release.
                return reply.send(Ok(token)).is_ok();
            }
            Ended::Answer(Err(error)) => error,
            Ended::OutOfTime => call::no_answer(limit.since(sent)),
            Ended::Stopped => self.lost(LostReason::Released, Operation::Detach),
        };
        let _ = reply.send(Err(self.describe(error, Operation::Detach)));
        false
    }

    /// The guard has gone or wants to go: tell the store, answer, and clean up what is in doubt.
    async fn leave(mut self, held: &Held, leave: Leave) {
        held.lose(LostReason::Released);
        let limit = self.shared.clock.now() + self.terms.call_timeout;
        let clock = Arc::clone(&self.shared.clock);
        let outcome =
            call::bounded(&*clock, limit, std::future::pending(), self.claim.release()).await;
        self.shared.gates.released(&self.key);
        let settled = match &outcome {
            Ended::Answer(Ok(released)) => self.is_settled(*released),
            _ => false,
        };
        let answer = match outcome {
            Ended::Answer(Ok(Released::Freed)) => Ok(Released::Freed),
            // The first release found nothing, although the lease had not run out.
            Ended::Answer(Ok(Released::AlreadyGone)) => {
                Err(self.lost(LostReason::Taken, Operation::Release))
            }
            Ended::Answer(Err(error)) => Err(self.describe(error, Operation::Release)),
            Ended::OutOfTime | Ended::Stopped => {
                Err(self.describe(call::no_answer(self.terms.call_timeout), Operation::Release))
            }
        };
        match &answer {
            Ok(_) => tracing::debug!(target: "distlock", key = %self.key, "released"),
            Err(error) => {
                tracing::debug!(target: "distlock", key = %self.key, %error, "not released cleanly")
            }
        }
        if let Some(reply) = leave.reply {
            let _ = reply.send(answer);
        }
        if !settled {
            Box::pin(self.clean_up()).await;
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
