//! Holding the lock: renewing it, watching its end, serving the guard.

use std::collections::VecDeque;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use crate::mutex::Mutex;
use tokio::sync::{Notify, oneshot};

use super::call::Call;
use super::line::Cohort;
use super::{Command, DetachAnswer, Keeper, ReleaseAnswer, call, make_way, schedule};
use crate::contract::Fences;
use crate::hold::rules;
use crate::{
    ClockInstant, EndOfHold, Error, Held, LeaseToken, LockState, LostReason, Operation, Renewal,
    Result,
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
pub(super) struct HeldClaim {
    pub(super) keeper: Box<Keeper>,
    pub(super) held: Held,
    pub(super) inbox: Inbox,
    pub(super) plan: RenewalSchedule,
    /// The fences that it has in the store.
    pub(super) fences: Fences,
    /// As long as it may be passed on.
    pub(super) cohort: Option<Cohort>,
    /// Who waits for the answer to the call in progress.
    pub(super) asked: Vec<oneshot::Sender<Result<LockState>>>,
    /// Who waits for a lease token from it.
    pub(super) detaches: Option<oneshot::Sender<Result<DetachAnswer>>>,
}

/// How a hold leaves its keeper.
pub(super) enum Leaving {
    /// Its guard was dropped, or its lease token was not received.
    Dropped,
    /// Its guard is released.
    Asked(ReleaseAnswer),
    /// It belongs to its lease token from now on.
    Detached,
}

impl HeldClaim {
    /// Keeps the lock until it leaves. The calls are boxed, so that the task is small while it sleeps.
    pub(super) async fn run(&mut self) -> Leaving {
        let clock = Arc::clone(&self.keeper.client.clock);
        let mut has_acted = false;
        let leaving = loop {
            let (state, now) = (self.held.state(), clock.now());
            self.tell_loss(state);
            self.end_cohort(state, now);
            let is_alive = !matches!(state, LockState::Lost(_));
            let due_at = if is_alive { self.due_at() } else { ClockInstant::FAR_FUTURE };
            // Where a renewal takes as long as its interval, the next one is due at once: what was asked for
            // meanwhile comes first. The end of the hold is not put off.
            has_acted = now >= due_at && (!has_acted || now >= self.held.signal_at());
            if has_acted {
                Box::pin(self.act(now)).await;
                continue;
            }
            let push = is_alive && now >= self.plan.no_push_until;
            let wake_at = if is_alive { self.wake_at(due_at, push) } else { due_at };
            tokio::select! {
                biased;
                command = self.inbox.next() => {
                    if let Some(leaving) = self.obey(command).await {
                        break leaving;
                    }
                }
                pushed = call::changed(&mut self.keeper.claim), if push => match pushed {
                    Ok(()) => self.plan.check_at = now,
                    Err(_) => {
                        self.plan.no_push_until = now + schedule::without_pushes(&self.keeper.client);
                    }
                },
                () = clock.sleep_until(wake_at) => {}
            }
        };
        self.tell_loss(self.held.state());
        leaving
    }

    /// Ends the cohort when its time is over, or the hold is lost.
    fn end_cohort(&mut self, state: LockState, now: ClockInstant) {
        let is_lost = matches!(state, LockState::Lost(reason) if !rules::is_given_up(reason));
        self.cohort.take_if(|cohort| is_lost || now >= cohort.until);
    }

    fn tell_loss(&mut self, state: LockState) {
        let LockState::Lost(reason) = state else { return };
        if matches!(reason, LostReason::Taken | LostReason::Expired | LostReason::MaxHold) {
            self.keeper.tell_end(EndOfHold::Lost(reason));
        }
    }

    /// Without a claim, only its end is due.
    fn due_at(&self) -> ClockInstant {
        let end = self.held.signal_at();
        match self.keeper.claim {
            Some(_) => end.min(self.plan.renew_at).min(self.plan.check_at),
            None => end,
        }
    }

    fn wake_at(&self, due_at: ClockInstant, push: bool) -> ClockInstant {
        let due = self.cohort.as_ref().map_or(due_at, |cohort| due_at.min(cohort.until));
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

    /// Does what the guard asks for; no command means that the guard was dropped. Says if the hold leaves by that.
    async fn obey(&mut self, command: Option<Command>) -> Option<Leaving> {
        match command {
            None => return Some(Leaving::Dropped),
            Some(Command::Release(reply)) => return Some(Leaving::Asked(reply)),
            // Nobody waits for it any more.
            Some(Command::Renew(reply) | Command::Check(reply)) if reply.is_closed() => {}
            Some(Command::Detach(reply)) if reply.is_closed() => {}
            Some(Command::Detach(reply)) => return Box::pin(self.detach(reply)).await,
            // One call answers all who have asked before it.
            Some(Command::Renew(reply)) => {
                self.asked = self.inbox.all_who(|it| matches!(it, Command::Renew(_)), reply);
                let answer = Box::pin(self.renew()).await;
                tell_all(&mut self.asked, &answer);
            }
            Some(Command::Check(reply)) => {
                self.asked = self.inbox.all_who(|it| matches!(it, Command::Check(_)), reply);
                let answer = Box::pin(self.check()).await;
                tell_all(&mut self.asked, &answer);
            }
            Some(Command::KeepAlive) => {
                self.keeper.terms.renew_every = Some(self.keeper.terms.every);
                self.plan.renew_at = self.keeper.client.clock.now();
            }
        }
        None
    }

    /// One call for a held lock, and when it was sent. Whoever asked for it is answered at its limit, and at the end
    /// of validity at the latest; an answer that comes later is of no use to them.
    async fn ask<T>(&mut self, operation: Operation, call: Call<T>) -> (ClockInstant, Result<T>) {
        let Self { keeper, held, asked, detaches, .. } = self;
        let Keeper { client, request, claim, .. } = &mut **keeper;
        let clock = &*client.clock;
        let sent = clock.now();
        let described = |error| client.describe(error, operation, &request.key);
        if let LockState::Lost(reason) = held.state() {
            return (sent, Err(described(Error::lost(reason))));
        }
        let limit = held.signal_at().min(sent + request.call_timeout);
        let meanwhile = pin!(async {
            clock.sleep_until(limit).await;
            let error = described(call::no_answer(limit.since(sent)));
            tell_all(asked, &Err(error.clone()));
            if let Some(detaches) = detaches.take() {
                let _ = detaches.send(Err(error));
            }
            clock.sleep_until(held.signal_at()).await;
            held.expire();
        });
        let by = (&**client, &*request);
        let answer = call::to_its_end(claim, by, operation, call, meanwhile).await;
        let answer = match held.state() {
            LockState::Lost(reason) => Err(Error::lost(reason)),
            LockState::Secure | LockState::AtRisk => answer,
        };
        (sent, answer.map_err(described))
    }

    async fn renew(&mut self) -> Result<LockState> {
        let now = self.keeper.client.clock.now();
        self.keeper.doubt.lasts_until(self.keeper.gone_at(now));
        let planned = self.plan.renew_at != ClockInstant::FAR_FUTURE;
        match self.ask(Operation::Renew, |claim| claim.renew()).await {
            (sent, Ok(renewal @ Renewal::Alive { valid_for })) => {
                let end = self.keeper.terms.kept_until(self.held.lease_end());
                let left = valid_for.map(|_| end.since(self.keeper.client.clock.now()));
                self.keeper.tell_renewed(renewal, left);
                self.prolong(sent, valid_for);
                self.held.set_at_risk(false);
                self.keeper.plan_renewal(&mut self.plan, sent);
                tracing::trace!(target: "distlock", key = %self.keeper.key(), "renewed");
                Ok(self.held.state())
            }
            (_, Ok(Renewal::Lost)) => {
                self.keeper.tell_renewed(Renewal::Lost, None);
                Err(self.taken(Operation::Renew))
            }
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
                    tracing::warn!(target: "distlock", key = %self.keeper.key(), %error, left_ms, "a renewal failed");
                }
                Err(error)
            }
        }
    }

    /// Asks the store. Writes nothing.
    async fn check(&mut self) -> Result<LockState> {
        self.plan.check_at = ClockInstant::FAR_FUTURE;
        match self.ask(Operation::Check, |claim| claim.check()).await {
            (sent, Ok(Renewal::Alive { valid_for })) => {
                self.prolong(sent, valid_for);
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

    /// Hands the hold to another process. If that fails, or its answer comes too late, the guard keeps it.
    async fn detach(&mut self, reply: oneshot::Sender<Result<DetachAnswer>>) -> Option<Leaving> {
        self.cohort = None;
        self.detaches = Some(reply);
        let (_, answer) = self.ask(Operation::Detach, |claim| claim.detach()).await;
        // Who has been told that there was no answer, or has not waited for it, goes on with the guard.
        let reply = self.detaches.take().filter(|reply| !reply.is_closed())?;
        match answer {
            Ok(data) => {
                let now = self.keeper.client.clock.now();
                let in_doubt =
                    self.keeper.doubt.until().map_or(Duration::ZERO, |until| until.since(now));
                let token = LeaseToken::new(
                    self.keeper.client.backend.name(),
                    self.keeper.key().clone(),
                    self.keeper.request.owner,
                    self.held.fence(),
                    self.fences,
                    data,
                )
                .with_in_doubt(in_doubt);
                self.held.lose(LostReason::Detached);
                let (received, arrived) = oneshot::channel();
                // A token that is never delivered could not be used, so the lock is released. When
                // the backend is closed meanwhile, the token may still be read; if not, the lease ends the
                // hold.
                let is_handed_over = reply.send(Ok(DetachAnswer { token, received })).is_ok()
                    && arrived.await.is_ok();
                Some(if is_handed_over { Leaving::Detached } else { Leaving::Dropped })
            }
            Err(error) => {
                let _ = reply.send(Err(error));
                None
            }
        }
    }

    fn prolong(&self, sent: ClockInstant, valid_for: Option<Duration>) {
        if let Some(valid_for) = valid_for {
            self.held.extend(self.keeper.terms.promised_end(sent, valid_for));
        }
    }

    fn taken(&self, operation: Operation) -> Error {
        let reason = self.held.lose(LostReason::Taken).unwrap_or(LostReason::Taken);
        self.keeper.describe(Error::lost(reason), operation)
    }
}

/// Gives one answer to all who wait for it.
fn tell_all(asked: &mut Vec<oneshot::Sender<Result<LockState>>>, answer: &Result<LockState>) {
    for asks in asked.drain(..) {
        let _ = asks.send(answer.clone());
    }
}

/// The plan for renewals and checks.
pub(super) struct RenewalSchedule {
    pub(super) renew_at: ClockInstant,
    pub(super) failures: u32,
    /// When to ask the store, since a push said that something has changed.
    pub(super) check_at: ClockInstant,
    /// Pushes are not asked for until then, since they failed.
    pub(super) no_push_until: ClockInstant,
}

impl Keeper {
    pub(super) fn first_plan(&self, held: &Held, is_fresh: bool) -> RenewalSchedule {
        let (now, terms) = (self.client.clock.now(), &self.terms);
        // Validity counts from here: when the attempt was sent, or an earlier renewal of the place.
        let lease_end = held.lease_end();
        let counted_from = terms.kept_until(lease_end).minus(terms.kept_for()).min(now);
        let mut plan = RenewalSchedule {
            renew_at: ClockInstant::FAR_FUTURE,
            failures: 0,
            check_at: ClockInstant::FAR_FUTURE,
            no_push_until: now,
        };
        self.plan_renewal(&mut plan, counted_from);
        // A lock without renewals lasts for a ttl from its grant. Where place and lock are one
        // lease, part of that has passed in the queue, and where it was passed on, with its earlier
        // holders. Any other grant itself says how long it lasts.
        let is_whole = lease_end.since(now) >= terms.ttl * 9 / 10;
        if self.terms.renew_every.is_none() && !is_fresh && !is_whole {
            plan.renew_at = now;
        }
        plan
    }

    pub(super) fn plan_renewal(&self, plan: &mut RenewalSchedule, sent: ClockInstant) {
        plan.failures = 0;
        plan.renew_at = match self.terms.renew_every {
            Some(every) => schedule::renew_at(&self.client, sent, every, self.terms.ttl),
            None => ClockInstant::FAR_FUTURE,
        };
    }
}

/// A channel for few commands: an application may hold ten thousand locks, and one of Tokio's keeps
/// room for 32.
#[derive(Debug, Default)]
struct GuardChannel {
    commands: Mutex<CommandQueue>,
    changed: Notify,
}

/// A panic leaves nothing half-done: the queue changes in single steps.
impl UnwindSafe for GuardChannel {}
impl RefUnwindSafe for GuardChannel {}

#[derive(Debug, Default)]
struct CommandQueue {
    sent: VecDeque<Command>,
    is_closed: bool,
}

/// A channel from a guard to its keeper.
pub(super) fn channel() -> (Outbox, Inbox) {
    let channel = Arc::<GuardChannel>::default();
    (Outbox(Arc::clone(&channel)), Inbox { channel })
}

/// The guard's end. Dropping it tells the keeper that the guard was dropped.
#[derive(Debug)]
pub(crate) struct Outbox(Arc<GuardChannel>);

impl Outbox {
    /// Asks the keeper for something. If it has ended, the command is dropped, and so is what it answers
    /// with.
    pub(crate) fn send(&self, command: Command) {
        let mut commands = self.0.commands.lock();
        if !commands.is_closed {
            commands.sent.push_back(command);
            drop(commands);
            self.0.changed.notify_one();
        }
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        if !std::mem::replace(&mut self.0.commands.lock().is_closed, true) {
            self.0.changed.notify_one();
            // Whoever drops a guard need not await anything for long.
            make_way();
        }
    }
}

/// What the guard asks for. While a call to the store is in progress, requests wait here.
pub(super) struct Inbox {
    channel: Arc<GuardChannel>,
}

impl Inbox {
    /// `first`, and all others who ask for the same: their commands are taken.
    fn all_who(
        &mut self,
        ask_the_same: impl Fn(&Command) -> bool,
        first: oneshot::Sender<Result<LockState>>,
    ) -> Vec<oneshot::Sender<Result<LockState>>> {
        let sent = &mut self.channel.commands.lock().sent;
        let (same, rest): (Vec<_>, Vec<_>) =
            sent.drain(..).partition(|command| ask_the_same(command));
        *sent = rest.into();
        let others = same.into_iter().filter_map(|command| match command {
            Command::Renew(reply) | Command::Check(reply) => Some(reply),
            Command::Release(_) | Command::Detach(_) | Command::KeepAlive => None,
        });
        std::iter::once(first).chain(others).collect()
    }

    /// The next command; `None` when the guard was dropped.
    pub(super) async fn next(&mut self) -> Option<Command> {
        loop {
            {
                let mut commands = self.channel.commands.lock();
                let command = commands.sent.pop_front();
                if command.is_some() || commands.is_closed {
                    return command;
                }
            }
            self.channel.changed.notified().await;
        }
    }
}

/// Whoever waits for an answer is told that there will be none.
impl Drop for Inbox {
    fn drop(&mut self) {
        let mut commands = self.channel.commands.lock();
        commands.is_closed = true;
        let unanswered = std::mem::take(&mut commands.sent);
        drop(commands);
        drop(unanswered);
    }
}
