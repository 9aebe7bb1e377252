//! The task that owns one claim, from the first byte to the release.
//!
//! The caller's future waits on a channel, and meanwhile polls the keeper ([`life`]). Dropping it, or the
//! guard, tells the keeper, which goes on in its task. So `Drop` never blocks, and clean-up has one place.
//! A keeper outlives its caller until the store has confirmed the clean-up, or must have ended the
//! entry on its own.

mod acquire;
mod call;
mod cleanup;
mod client;
mod cohort;
mod gate;
mod holding;
mod inbox;
mod last;
mod life;
mod looks;
mod passing;
mod plan;
mod resume;
mod run;
mod schedule;
mod search;
mod terms;
mod waiting;

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use self::cohort::{Cohort, Pass};
use crate::contract::Block;
use crate::kit::in_doubt::InDoubt;
use crate::{
    Claim, ClaimRequest, ClockInstant, Error, ErrorKind, FencingToken, Held, LeaseToken, LockKey,
    LockState, Operation, OwnerId, Released, Result,
};

pub(crate) use client::{Client, Defaults, GRACE, Home};
pub(crate) use cohort::Rules;
pub(crate) use gate::Gates;
pub(crate) use inbox::Outbox;
pub(crate) use life::{Answer, Life};
pub(crate) use looks::Looks;
pub(crate) use run::{begin, begin_release};
pub(crate) use terms::Terms;

/// How long the caller wants to wait.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Patience {
    /// One attempt, and one more if the outcome of the first is unknown.
    Try,
    /// Until this time.
    Until(ClockInstant),
    /// For as long as the store answers.
    Forever,
}

/// How the keeper gets its lock.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Start {
    Acquire(Patience),
    /// Takes over a hold with this fence, which is one of a block.
    Attach(FencingToken, Block),
    /// Renews such a hold, then leaves it to its lease token.
    Renew(FencingToken, Block),
}

impl Start {
    fn operation(self) -> Operation {
        match self {
            Self::Acquire(_) => Operation::Acquire,
            Self::Attach(..) => Operation::Attach,
            Self::Renew(..) => Operation::Renew,
        }
    }
}

/// What the guard asks of its keeper. A closed channel means that the guard was dropped.
#[derive(Debug)]
pub(crate) enum Command {
    Release(oneshot::Sender<Result<Released>>),
    Renew(oneshot::Sender<Result<LockState>>),
    Check(oneshot::Sender<Result<LockState>>),
    Detach(oneshot::Sender<Result<Detached>>),
    KeepAlive,
}

/// A lease token on its way to the caller, who confirms its arrival: one that is never delivered
/// would block the name for a ttl.
#[derive(Debug)]
pub(crate) struct Detached {
    pub(crate) token: LeaseToken,
    pub(crate) received: oneshot::Sender<()>,
}

/// What a caller gets: the view of the hold, and the channel to its keeper. Dropping it unread
/// tells the keeper that there is no guard.
#[derive(Debug)]
pub(crate) struct Handover {
    pub(crate) held: Held,
    pub(crate) commands: Outbox,
    /// The limit for each call that the keeper makes.
    pub(crate) call_timeout: Duration,
}

/// What a caller is told.
pub(crate) type Acquired = Result<Handover>;

pub(crate) struct Keeper {
    client: Arc<Client>,
    key: LockKey,
    owner: OwnerId,
    claim: Box<dyn Claim>,
    terms: Terms,
    /// Our entries that may be in the store, now or later.
    doubt: InDoubt,
    /// Whether this hold belongs to a lease token: it ends on request or with its lease, never
    /// because a guard was dropped.
    attached: bool,
}

impl Keeper {
    /// A keeper, and the runtime on which it has to run.
    fn new(client: &Arc<Client>, request: ClaimRequest, terms: Terms) -> Result<(Handle, Self)> {
        let runtime = client.runtime()?;
        if client.closing.is_cancelled() {
            return Err(Error::new(ErrorKind::Closed, "this connection to the store was closed"));
        }
        client.capabilities.check_mode(request.mode, client.backend.name())?;
        let (key, owner, attached) = (request.key.clone(), request.owner, request.resume.is_some());
        let claim = client.backend.claim(request)?;
        let keeper = Self {
            client: Arc::clone(client),
            key,
            owner,
            claim,
            terms,
            doubt: InDoubt::default(),
            attached,
        };
        Ok((runtime, keeper))
    }

    fn describe(&self, error: Error, operation: Operation) -> Error {
        self.client.describe(error, operation, &self.key)
    }
}

/// A lock that the store has granted.
struct Granted {
    token: FencingToken,
    /// The fences that it has in the store.
    block: Block,
    until: ClockInstant,
    /// Its ttl has begun with the grant, and not with a place in the queue, or with another holder.
    is_fresh: bool,
    cohort: Option<Cohort>,
}

/// How an acquisition ended.
enum Outcome {
    Granted(Granted),
    /// The hold of another task of this process.
    Passed(Box<Pass>),
    Refused {
        error: Error,
        /// Whether an entry of ours may exist, now or later.
        clean_up: bool,
    },
}
