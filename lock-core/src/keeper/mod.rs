//! The task that owns one claim, from the first byte to the release.
//!
//! The caller's future only waits on a channel. Dropping it, or the guard, tells the keeper, so that
//! `Drop` never spawns and never blocks, and there is one place for clean-up. A keeper outlives its
//! caller until the store has confirmed the clean-up, or until the store must have ended the entry
//! by itself.

mod acquire;
mod call;
mod cleanup;
mod holding;
mod schedule;
mod search;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use crate::hold::{Grant, margin};
use crate::shared::Shared;
use crate::{
    Claim, ClaimRequest, ClockInstant, Error, ErrorKind, FencingToken, Held, LeaseToken, LockKey,
    LockState, LostReason, Operation, OwnerId, Released, Result,
};

/// What was asked for, checked and rounded.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    pub(crate) ttl: Duration,
    /// How often the lock is renewed; `None` for never.
    pub(crate) renew_every: Option<Duration>,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) call_timeout: Duration,
    pub(crate) unavailable_after: Duration,
}

/// How long the caller wants to wait.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Patience {
    /// One try, and one more if the first one has an unknown outcome.
    Try,
    /// Until then.
    Until(ClockInstant),
    /// For as long as the store answers.
    Forever,
}

/// How the keeper comes by its lock.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Start {
    Acquire(Patience),
    /// Takes over a hold with this token.
    Attach(FencingToken),
}

/// What the guard asks of its keeper. A closed channel means: the guard is gone, release.
#[derive(Debug)]
pub(crate) enum Command {
    Release(oneshot::Sender<Result<Released>>),
    Renew(oneshot::Sender<Result<LockState>>),
    Check(oneshot::Sender<Result<LockState>>),
    Detach(oneshot::Sender<Result<Detached>>),
    KeepAlive,
}

/// A lease token on its way to the caller, who says that it has arrived: one that nobody gets would
/// block the name for a ttl.
#[derive(Debug)]
pub(crate) struct Detached {
    pub(crate) token: LeaseToken,
    pub(crate) received: oneshot::Sender<()>,
}

/// What a caller gets: the view of the hold, and the way to its keeper. Dropped unread, it tells the
/// keeper to release.
#[derive(Debug)]
pub(crate) struct Handover {
    pub(crate) held: Held,
    pub(crate) commands: mpsc::UnboundedSender<Command>,
}

/// `None` for busy.
pub(crate) type Answer = Result<Option<Handover>>;

/// Spawns the keeper of a new claim and returns the channel on which its caller waits.
///
/// # Errors
///
/// If the backend cannot make the claim, the `Locks` is closed, or there is no runtime.
pub(crate) fn spawn(
    shared: &Arc<Shared>,
    request: ClaimRequest,
    terms: Terms,
    start: Start,
) -> Result<oneshot::Receiver<Answer>> {
    let runtime = shared.runtime()?;
    if shared.closing.is_cancelled() {
        return Err(Error::new(ErrorKind::Closed, "this connection to the store was closed"));
    }
    let (key, owner) = (request.key.clone(), request.owner);
    let claim = shared.backend.claim(request)?;
    let (answer, receiver) = oneshot::channel();
    let now = shared.clock.now();
    let keeper = Keeper {
        shared: Arc::clone(shared),
        key,
        owner,
        claim,
        terms,
        unanswered: 0,
        unanswered_gone_at: now,
        written: false,
        attached: matches!(start, Start::Attach(_)),
        gone_at: now,
    };
    shared.keepers.spawn_on(keeper.run(start, answer), &runtime);
    Ok(receiver)
}

pub(crate) struct Keeper {
    shared: Arc<Shared>,
    key: LockKey,
    owner: OwnerId,
    claim: Box<dyn Claim>,
    terms: Terms,
    /// How many tries to acquire have had no answer: any of them may still land, also after a
    /// release that found nothing.
    unanswered: u32,
    /// By when the store must have ended what such a try may have made.
    unanswered_gone_at: ClockInstant,
    /// Whether any answer said that something of ours is in the store: a place or the lock.
    written: bool,
    /// Whether this hold was taken over from another process.
    attached: bool,
    /// By when the store must have ended every entry of ours without our doing.
    gone_at: ClockInstant,
}

impl Keeper {
    async fn run(mut self, start: Start, mut answer: oneshot::Sender<Answer>) {
        let outcome = match start {
            Start::Acquire(patience) => Box::pin(self.acquire(patience, &mut answer)).await,
            Start::Attach(token) => Box::pin(self.attach(token, &mut answer)).await,
        };
        match outcome {
            Outcome::Granted { token, until } => {
                let (commands, inbox) = mpsc::unbounded_channel();
                let held = Held::new(
                    Arc::clone(&self.shared.clock),
                    Grant {
                        key: self.key.clone(),
                        owner: self.owner,
                        token,
                        ttl: self.terms.ttl,
                        until,
                        max_hold: self.terms.max_hold,
                        killed: self.shared.killed.clone(),
                    },
                );
                tracing::debug!(target: "distlock", key = %self.key, fence = token.get(), "acquired");
                // If the caller has gone, the handover is dropped here, and the closed channel says
                // so to `hold`.
                let _ = answer.send(Ok(Some(Handover { held: held.clone(), commands })));
                self.hold(held, inbox).await;
            }
            Outcome::Refused { error, clean_up } => {
                let _ = answer.send(match error {
                    None => Ok(None),
                    Some(error) => Err(self.describe(error, Operation::Acquire)),
                });
                if clean_up {
                    Box::pin(self.clean_up()).await;
                }
            }
        }
    }

    /// Takes over a hold: one renewal proves that it is still there. Nothing is released if it
    /// fails, since the hold belongs to the token and not to this process yet.
    async fn attach(
        &mut self,
        token: FencingToken,
        answer: &mut oneshot::Sender<Answer>,
    ) -> Outcome {
        let refused = |error| Outcome::Refused { error: Some(error), clean_up: false };
        let sent = self.shared.clock.now();
        let limit = sent + self.terms.call_timeout;
        self.note_sent(sent);
        match call::bounded(&*self.shared.clock, limit, answer.closed(), self.claim.renew()).await {
            call::Ended::Answer(Ok(crate::Renewal::Alive { valid_for: None })) => {
                refused(call::no_end("a renewal of a lock that is taken over"))
            }
            call::Ended::Answer(Ok(crate::Renewal::Alive { valid_for: Some(valid_for) })) => {
                let until = (sent + valid_for).minus(margin(self.terms.ttl));
                if until > self.shared.clock.now() {
                    return Outcome::Granted { token, until };
                }
                refused(Error::new(
                    ErrorKind::Timeout,
                    "the store's answer to the renewal came when the lease was over",
                ))
            }
            call::Ended::Answer(Ok(crate::Renewal::Lost)) => {
                refused(Error::lost(LostReason::Taken))
            }
            call::Ended::Answer(Err(error)) => refused(error),
            call::Ended::OutOfTime => refused(call::no_answer(self.terms.call_timeout)),
            call::Ended::Stopped => refused(Error::new(ErrorKind::Closed, "the caller has gone")),
        }
    }

    /// Notes that a request which makes or prolongs our entry is about to be sent.
    fn note_sent(&mut self, sent: ClockInstant) {
        self.gone_at = self.gone_at.max(sent + self.terms.ttl + margin(self.terms.ttl));
    }

    /// Notes that a try to acquire, sent at `sent`, had no answer.
    fn note_unanswered(&mut self, sent: ClockInstant) {
        self.unanswered += 1;
        self.unanswered_gone_at = sent + self.terms.ttl + margin(self.terms.ttl);
    }

    fn describe(&self, error: Error, operation: Operation) -> Error {
        error.in_operation(operation).for_key(&self.key).on_backend(self.shared.backend.name())
    }
}

/// How an acquisition ended.
enum Outcome {
    Granted {
        token: FencingToken,
        until: ClockInstant,
    },
    Refused {
        /// `None` for busy.
        error: Option<Error>,
        /// Whether an entry of ours may exist, now or later.
        clean_up: bool,
    },
}
