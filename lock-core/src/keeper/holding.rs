//! Holding the lock: renewing it, watching its end, serving the guard.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::call::{self, Ended};
use super::cohort::Cohort;
use super::inbox::{Inbox, Leave};
use super::plan::Plan;
use super::{Command, Detached, Granted, Keeper, schedule};
use crate::contract::Block;
use crate::locks::held::promised_end;
use crate::{
    Claim, ClockInstant, Error, Held, LeaseToken, LockState, LostReason, Operation, Released,
    Renewal, Result,
};

/// Ends the hold when its keeper ends for any reason: it would no longer be renewed, nor its loss
/// signalled.
pub(super) struct EndOfKeeper(pub(super) Held);

impl Drop for EndOfKeeper {
    fn drop(&mut self) {
        self.0.lose(LostReason::Closed);
    }
}

/// A lock that is held.
pub(super) struct Holding {
    pub(super) keeper: Keeper,
    pub(super) held: Held,
    pub(super) inbox: Inbox,
    pub(super) plan: Plan,
    /// The fences that it has in the store.
    pub(super) block: Block,
    /// As long as it may be passed on.
    pub(super) cohort: Option<Cohort>,
    pub(super) was_passed_on: bool,
}

/// What a command led to.
enum Next {
    Hold,
    Leave(Leave),
    /// The hold now belongs to another owner.
    Done,
}

impl Keeper {
    pub(super) fn holding(
        self,
        held: Held,
        inbox: Inbox,
        Granted { block, is_fresh, cohort, .. }: Granted,
    ) -> Holding {
        let plan = self.first_plan(&held, is_fresh);
        let was_passed_on = cohort.as_ref().is_some_and(Cohort::was_passed_on);
        Holding { keeper: self, held, inbox, plan, block, cohort, was_passed_on }
    }

    fn lost(&self, reason: LostReason, operation: Operation) -> Error {
        self.describe(Error::lost(reason), operation)
    }
}

impl Holding {
    /// Keeps the lock until its guard leaves; `None` if it now belongs to another owner. The calls are
    /// boxed, so that the task is small while it sleeps.
    pub(super) async fn run(&mut self) -> Option<Leave> {
        let clock = Arc::clone(&self.keeper.client.clock);
        let mut is_told = false;
        let leave = loop {
            self.tell_loss(&mut is_told);
            if let Some(leave) = self.inbox.leave.take() {
                break leave;
            }
            let state = self.held.state();
            let is_alive = !matches!(state, LockState::Lost(_));
            let now = clock.now();
            self.end_cohort(state, now);
            if is_alive && now >= self.due_at() {
                Box::pin(self.act(now)).await;
                continue;
            }
            let push = is_alive && now >= self.plan.no_push_until;
            let wake_at = if is_alive { self.wake_at(push) } else { ClockInstant::FAR_FUTURE };
            tokio::select! {
                biased;
                command = self.inbox.next() => {
                    match Box::pin(self.obey(command)).await {
                        Next::Hold => {}
                        Next::Leave(leave) => break leave,
                        Next::Done => return None,
                    }
                }
                pushed = self.keeper.claim.changed(), if push => match pushed {
                    Ok(()) => self.plan.check_at = now,
                    Err(_) => {
                        self.plan.no_push_until = now + schedule::without_pushes(&self.keeper.client);
                    }
                },
                // The state already says so; this wakes the tasks that wait for the signal.
                () = self.keeper.client.killed.cancelled(), if is_alive => {
                    self.held.lose(LostReason::Closed);
                }
                () = clock.sleep_until(wake_at) => {}
            }
        };
        self.tell_loss(&mut is_told);
        Some(leave)
    }

    /// Tells the claim, once, that its hold has ended by the clock, since no answer of the store
    /// does.
    fn tell_loss(&mut self, is_told: &mut bool) {
        if let LockState::Lost(reason @ (LostReason::Expired | LostReason::MaxHold)) =
            self.held.state()
            && !std::mem::replace(is_told, true)
        {
            self.keeper.claim.lost(reason);
        }
    }

    fn due_at(&self) -> ClockInstant {
        self.plan.renew_at.min(self.plan.check_at).min(self.held.signal_at())
    }

    fn wake_at(&self, push: bool) -> ClockInstant {
        let due =
            self.cohort.as_ref().map_or(self.due_at(), |cohort| self.due_at().min(cohort.until));
        if push { due } else { due.min(self.plan.no_push_until) }
    }

    /// Does the first thing that is due. A failure is recorded in the plan and in the guard's
    /// state.
    async fn act(&mut self, now: ClockInstant) {
        if now >= self.held.signal_at() {
            self.held.expire();
        } else if now >= self.plan.renew_at {
            let _ = self.renew().await;
        } else {
            let _ = self.check().await;
        }
    }

    /// Does what the guard asks for; no command means that the guard was dropped.
    async fn obey(&mut self, command: Option<Command>) -> Next {
        match command {
            None => return Next::Leave(None),
            Some(Command::Release(reply)) => return Next::Leave(Some(reply)),
            Some(Command::Renew(reply)) => {
                let answer = self.renew().await;
                let _ = reply.send(answer);
            }
            Some(Command::Check(reply)) => {
                let answer = self.check().await;
                let _ = reply.send(answer);
            }
            Some(Command::Detach(reply)) => return self.detach(reply).await,
            Some(Command::KeepAlive) => {
                self.keeper.terms.renew_every = Some(self.keeper.terms.every);
                self.plan.renew_at = self.keeper.client.clock.now();
            }
        }
        Next::Hold
    }

    /// One call for a held lock, bounded by the end of validity: a later answer is of no use. Also
    /// returns when it was sent.
    async fn ask<T: Send>(
        &mut self,
        operation: Operation,
        call: impl for<'a> FnOnce(&'a mut dyn Claim) -> Call<'a, T>,
    ) -> (ClockInstant, Result<T>) {
        let client = Arc::clone(&self.keeper.client);
        let sent = client.clock.now();
        if let LockState::Lost(reason) = self.held.state() {
            return (sent, Err(self.keeper.lost(reason, operation)));
        }
        let limit = self.held.signal_at().min(sent + self.keeper.terms.call_timeout);
        let stop = async {
            tokio::select! {
                biased;
                () = self.inbox.leaving() => {}
                () = client.killed.cancelled() => {}
            }
        };
        let error =
            match call::bounded(&*client.clock, limit, stop, call(&mut *self.keeper.claim)).await {
                Ended::Answer(Ok(answer)) => return (sent, Ok(answer)),
                Ended::Answer(Err(error)) => error,
                Ended::OutOfTime => call::no_answer(limit.since(sent)),
                Ended::Stopped => match self.held.state() {
                    LockState::Lost(reason) => Error::lost(reason),
                    LockState::Secure | LockState::AtRisk => Error::lost(LostReason::Released),
                },
            };
        (sent, Err(self.keeper.describe(error, operation)))
    }

    async fn renew(&mut self) -> Result<LockState> {
        let now = self.keeper.client.clock.now();
        self.keeper.doubt.lasts_until(self.keeper.terms.gone_at(now));
        let planned = self.plan.renew_at != ClockInstant::FAR_FUTURE;
        let answer = match self.settle().await {
            Ok(()) => self.ask(Operation::Renew, |claim| claim.renew()).await,
            Err(error) => (now, Err(error)),
        };
        match answer {
            (sent, Ok(Renewal::Alive { valid_for })) => {
                self.prolong(sent, valid_for);
                self.held.set_at_risk(false);
                self.keeper.plan_renewal(&mut self.plan, sent);
                tracing::trace!(target: "distlock", key = %self.keeper.key, "renewed");
                Ok(self.held.state())
            }
            (_, Ok(Renewal::Lost)) => Err(self.taken(Operation::Renew)),
            // Unknown: neither lost nor prolonged.
            (_, Err(error)) => {
                self.held.set_at_risk(true);
                self.plan.failures += 1;
                if planned {
                    let now = self.keeper.client.clock.now();
                    self.plan.renew_at = schedule::retry_at(
                        &self.keeper.client,
                        now,
                        self.plan.failures,
                        self.keeper.terms.ttl,
                    );
                }
                if error.lost_reason().is_none() {
                    let left_ms =
                        u64::try_from(self.held.remaining().as_millis()).unwrap_or(u64::MAX);
                    tracing::warn!(target: "distlock", key = %self.keeper.key, %error, left_ms, "a renewal failed");
                }
                Err(error)
            }
        }
    }

    /// After a failed detach: asks what is in the store.
    async fn settle(&mut self) -> Result<()> {
        if self.plan.is_unsettled { self.check().await.map(drop) } else { Ok(()) }
    }

    /// Asks the store. Writes nothing.
    async fn check(&mut self) -> Result<LockState> {
        self.plan.check_at = ClockInstant::FAR_FUTURE;
        match self.ask(Operation::Check, |claim| claim.check()).await {
            (sent, Ok(Renewal::Alive { valid_for })) => {
                self.prolong(sent, valid_for);
                self.plan.is_unsettled = false;
                Ok(self.held.state())
            }
            (_, Ok(Renewal::Lost)) => Err(self.taken(Operation::Check)),
            (_, Err(error)) => {
                // The pushed change still has to be read, but not in a tight loop.
                let pause = schedule::a_moment(&self.keeper.client);
                self.plan.check_at = self.keeper.client.clock.now() + pause;
                self.plan.no_push_until = self.plan.check_at;
                Err(error)
            }
        }
    }

    /// Hands the hold to another process. If that fails, the guard keeps it.
    async fn detach(&mut self, reply: oneshot::Sender<Result<Detached>>) -> Next {
        // After a renewal without an answer the same call comes first (clause C8).
        if self.plan.failures > 0
            && let Err(error) = self.renew().await
        {
            let _ = reply.send(Err(error));
            return Next::Hold;
        }
        match self.ask(Operation::Detach, |claim| claim.detach()).await {
            (_, Ok(data)) => {
                let token = LeaseToken::new(
                    self.keeper.client.backend.name(),
                    self.keeper.key.clone(),
                    self.keeper.owner,
                    self.held.fence(),
                    self.block,
                    data,
                );
                self.held.lose(LostReason::Detached);
                let (received, arrived) = oneshot::channel();
                // A token that is never delivered could not be used, so the lock is released. When
                // the backend is closed, the token may still be read; if not, the lease ends the
                // hold.
                let closed = self.keeper.client.killed.cancelled();
                let is_handed_over = reply.send(Ok(Detached { token, received })).is_ok()
                    && tokio::select! {
                        biased;
                        arrived = arrived => arrived.is_ok(),
                        () = closed => true,
                    };
                if is_handed_over { Next::Done } else { Next::Leave(None) }
            }
            (_, Err(error)) => {
                self.plan.is_unsettled = true;
                let _ = reply.send(Err(error));
                Next::Hold
            }
        }
    }

    /// The guard was dropped or wants to leave: pass the hold on, or tell the store, answer, and
    /// clean up what is in doubt. A hold that was taken over is released only on request: it belongs
    /// to its lease token.
    pub(super) async fn leave(self, leave: Leave) {
        self.held.lose(LostReason::Released);
        if self.keeper.attached && leave.is_none() {
            return;
        }
        let key = self.keeper.key.clone();
        match self.pass_on().await {
            Some(holding) => holding.release(leave).await,
            None => {
                tracing::debug!(target: "distlock", %key, "passed on");
                if let Some(reply) = leave {
                    let _ = reply.send(Ok(Released::Freed));
                }
            }
        }
    }

    async fn release(mut self, leave: Leave) {
        let (released, settled) = self.keeper.release_once().await;
        // Whoever waits elsewhere has waited for a whole cohort, and polls.
        if !self.was_passed_on {
            self.keeper.client.gates.released(&self.keeper.key);
        }
        let answer = match released {
            // The first release found nothing, although the lease had not run out.
            Ok(Released::AlreadyGone) if self.keeper.client.clock.now() < self.held.lease_end() => {
                Err(self.keeper.lost(LostReason::Taken, Operation::Release))
            }
            released => released.map_err(|error| self.keeper.describe(error, Operation::Release)),
        };
        match &answer {
            Ok(_) => tracing::debug!(target: "distlock", key = %self.keeper.key, "released"),
            Err(error) => {
                tracing::debug!(target: "distlock", key = %self.keeper.key, %error, "not released cleanly");
            }
        }
        if let Some(reply) = leave {
            let _ = reply.send(answer);
        }
        if !settled {
            Box::pin(self.keeper.clean_up()).await;
        }
    }

    fn prolong(&self, sent: ClockInstant, valid_for: Option<Duration>) {
        if let Some(valid_for) = valid_for {
            self.held.extend(promised_end(sent, valid_for, self.keeper.terms.ttl));
        }
    }

    fn taken(&self, operation: Operation) -> Error {
        let reason = self.held.lose(LostReason::Taken).unwrap_or(LostReason::Taken);
        tracing::error!(target: "distlock", key = %self.keeper.key, %reason, "lost");
        self.keeper.lost(reason, operation)
    }
}

/// The future of a call of a claim.
type Call<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;
