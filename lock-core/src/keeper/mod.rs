//! The task that owns one claim, from the first byte to the release.
//!
//! The caller's future only waits on a channel. Dropping it, or the guard, tells the keeper, so that
//! `Drop` never spawns and never blocks, and there is one place for clean-up. A keeper outlives its
//! caller until the store has confirmed the clean-up, or until the store must have ended the entry
//! by itself.

mod acquire;
mod call;
mod cleanup;
mod client;
mod gate;
mod holding;
mod resume;
mod schedule;
mod search;
mod terms;

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};

use crate::locks::hold::{Grant, margin};
pub(crate) use client::{Client, Defaults, GRACE};
pub(crate) use gate::Gates;
pub(crate) use terms::Terms;

use crate::{
    Claim, ClaimRequest, ClockInstant, Error, ErrorKind, FencingToken, Held, LeaseToken, LockKey,
    LockState, Operation, OwnerId, Released, Result,
};

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
    /// Takes over a hold with this fence.
    Attach(FencingToken),
    /// Renews a hold with this fence, and leaves it to its lease token.
    Renew(FencingToken),
}

impl Start {
    fn operation(self) -> Operation {
        match self {
            Self::Acquire(_) => Operation::Acquire,
            Self::Attach(_) => Operation::Attach,
            Self::Renew(_) => Operation::Renew,
        }
    }
}

/// What the guard asks of its keeper. A closed channel means: the guard is gone.
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
/// keeper that the guard has gone.
#[derive(Debug)]
pub(crate) struct Handover {
    pub(crate) held: Held,
    pub(crate) commands: mpsc::UnboundedSender<Command>,
    /// The limit for each call that the keeper makes.
    pub(crate) call_timeout: Duration,
}

/// `None` for busy.
pub(crate) type Answer = Result<Option<Handover>>;

/// Spawns the keeper of a new claim and returns the channel on which its caller waits.
///
/// # Errors
///
/// If the backend cannot make the claim, the `Locks` is closed, or there is no runtime.
pub(crate) fn spawn(
    client: &Arc<Client>,
    request: ClaimRequest,
    terms: Terms,
    start: Start,
) -> Result<oneshot::Receiver<Answer>> {
    let (runtime, keeper) = Keeper::new(client, request, terms)?;
    let (answer, receiver) = oneshot::channel();
    client.keepers.spawn_on(keeper.run(start, answer), &runtime);
    Ok(receiver)
}

/// Spawns a keeper that only releases the hold that the request resumes.
///
/// # Errors
///
/// As [`spawn`].
pub(crate) fn spawn_release(
    client: &Arc<Client>,
    request: ClaimRequest,
    terms: Terms,
) -> Result<oneshot::Receiver<Result<Released>>> {
    let (runtime, keeper) = Keeper::new(client, request, terms)?;
    let (answer, receiver) = oneshot::channel();
    client.keepers.spawn_on(keeper.release(answer), &runtime);
    Ok(receiver)
}

pub(crate) struct Keeper {
    client: Arc<Client>,
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
    /// Whether this hold belongs to a lease token: it ends by word or with its lease, never because
    /// a guard was dropped.
    attached: bool,
    /// By when the store must have ended every entry of ours without our doing.
    gone_at: ClockInstant,
}

impl Keeper {
    /// A keeper, and the runtime on which it has to run.
    fn new(client: &Arc<Client>, request: ClaimRequest, terms: Terms) -> Result<(Handle, Self)> {
        let runtime = client.runtime()?;
        if client.closing.is_cancelled() {
            return Err(Error::new(ErrorKind::Closed, "this connection to the store was closed"));
        }
        let (key, owner, attached) = (request.key.clone(), request.owner, request.resume.is_some());
        let claim = client.backend.claim(request)?;
        let now = client.clock.now();
        let keeper = Self {
            client: Arc::clone(client),
            key,
            owner,
            claim,
            terms,
            unanswered: 0,
            unanswered_gone_at: now,
            written: false,
            attached,
            gone_at: now,
        };
        Ok((runtime, keeper))
    }

    async fn run(mut self, start: Start, mut answer: oneshot::Sender<Answer>) {
        let outcome = match start {
            Start::Acquire(patience) => Box::pin(self.acquire(patience, &mut answer)).await,
            Start::Attach(fence) | Start::Renew(fence) => {
                Box::pin(self.resume(fence, &mut answer)).await
            }
        };
        match outcome {
            Outcome::Granted { token, until, of_place } => {
                let (commands, inbox) = mpsc::unbounded_channel();
                let held = Held::new(
                    Arc::clone(&self.client.clock),
                    Grant {
                        key: self.key.clone(),
                        owner: self.owner,
                        token,
                        ttl: self.terms.ttl,
                        until,
                        max_hold: self.terms.max_hold,
                        killed: self.client.killed.clone(),
                    },
                );
                let by = start.operation();
                tracing::debug!(target: "distlock", key = %self.key, fence = token.get(), %by, "held");
                // If the caller has gone, the handover is dropped here, and the closed channel says
                // so to `hold`.
                let call_timeout = self.terms.call_timeout;
                let handover = Handover { held: held.clone(), commands, call_timeout };
                let _ = answer.send(Ok(Some(handover)));
                if !matches!(start, Start::Renew(_)) {
                    self.hold(held, inbox, of_place).await;
                }
            }
            Outcome::Refused { error, clean_up } => {
                let _ = answer.send(match error {
                    None => Ok(None),
                    Some(error) => Err(self.describe(error, start.operation())),
                });
                if clean_up {
                    Box::pin(self.clean_up()).await;
                }
            }
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
        error.in_operation(operation).for_key(&self.key).on_backend(self.client.backend.name())
    }
}

/// How an acquisition ended.
enum Outcome {
    Granted {
        token: FencingToken,
        until: ClockInstant,
        /// The lock is the lease of its place in the queue, a part of which has passed there.
        of_place: bool,
    },
    Refused {
        /// `None` for busy.
        error: Option<Error>,
        /// Whether an entry of ours may exist, now or later.
        clean_up: bool,
    },
}
