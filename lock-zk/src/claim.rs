//! One contender for a lock in ZooKeeper.

mod look;
mod own;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use lock_core::{
    Attempt, Bytes, Claim, ClaimRequest, ClockInstant, Error, FencingToken, Mode, Released,
    Renewal, Result, async_trait,
};

use crate::backend::Shared;
use crate::error::{describe, no_answer};
use crate::names;
use crate::renewals::{self, Found};
use crate::seat::Seat;
use crate::session::Session;
use crate::transport::{Checked, Failure};
use crate::wake::Ears;

#[derive(Debug)]
pub(crate) struct ZkClaim {
    shared: Arc<Shared>,
    request: ClaimRequest,
    /// The node of the lock.
    parent: String,
    /// What our nodes begin with.
    prefix: String,
    data: Vec<u8>,
    /// A share in the session that the rest belongs to.
    seat: Option<Seat>,
    own: Option<Own>,
    /// A request to make a node was sent, and its answer not seen: there may be one, or may be later.
    unsure: bool,
    ears: Ears,
}

/// Our node.
#[derive(Clone, Debug)]
struct Own {
    name: String,
    path: String,
    fence: FencingToken,
}

impl ZkClaim {
    pub(crate) fn new(shared: Arc<Shared>, request: ClaimRequest) -> Result<Self> {
        match request.mode {
            Mode::Exclusive => {}
            #[allow(unreachable_patterns, reason = "modes may be added")]
            _ => return Err(Error::unsupported("ZooKeeper has exclusive locks only")),
        }
        if request.resume.is_some() {
            return Err(session_bound());
        }
        shared.refuse_too_long(request.ttl)?;
        Ok(Self {
            parent: shared.parent(&request.key),
            prefix: names::node_prefix(&request.owner),
            data: crate::admin::node_data(request.label.as_deref()),
            seat: None,
            own: None,
            unsure: false,
            ears: Ears::default(),
            shared,
            request,
        })
    }

    fn describe(&self, failure: &Failure) -> Error {
        describe(failure, self.shared.sessions.endpoint())
    }

    fn now(&self) -> ClockInstant {
        self.shared.sessions.clock().now()
    }

    /// Bounds a call, so that the driver's own queue of requests does not keep it for ever.
    async fn bounded<T>(
        limit: Duration,
        endpoint: &str,
        call: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        match tokio::time::timeout(limit, call).await {
            Ok(answer) => answer,
            Err(_) => Err(no_answer(limit, endpoint)),
        }
    }

    /// The session of this claim, or a new one if that is over: what belonged to the old one is
    /// forgotten then, except that it may have left a node behind.
    async fn session(&mut self) -> Result<Arc<Session>> {
        if self.seat.take_if(|seat| seat.has_ended()).is_some() {
            // Also if no new one can be had now: the end is no news any more, see `changed`.
            self.unsure = true;
            self.forget();
        }
        if let Some(seat) = &self.seat {
            return Ok(Arc::clone(seat));
        }
        let bytes = self.parent.len() + 1 + self.prefix.len() + names::DIGITS;
        let timeout = self.shared.class(self.request.ttl);
        let limit = self.request.call_timeout;
        let seat = self.shared.sessions.seat(timeout, bytes, limit).await?;
        Ok(Arc::clone(self.seat.insert(seat)))
    }

    /// Our node has gone.
    fn forget(&mut self) {
        self.own = None;
        self.ears.deafen();
    }

    /// Whether the session of this claim has ended under a call that failed: then the call is worth
    /// making once more, in a new session.
    fn is_cut_short<T>(&self, answer: &Result<T>) -> bool {
        answer.is_err() && self.seat.as_ref().is_some_and(|seat| seat.has_ended())
    }

    async fn try_twice(&mut self, start: ClockInstant) -> Result<Attempt> {
        let answer = self.look(start).await;
        if self.is_cut_short(&answer) { self.look(start).await } else { answer }
    }

    async fn give_up_twice(&mut self) -> Result<Released> {
        let answer = self.give_up().await;
        if self.is_cut_short(&answer) { self.give_up().await } else { answer }
    }

    /// Whether the node is there, asked by `ask`.
    async fn alive<F>(&self, ask: impl FnOnce(Arc<Session>, String) -> F) -> Result<Renewal>
    where
        F: Future<Output = Result<Found, Failure>>,
    {
        let start = self.now();
        let (Some(session), Some(own)) = (&self.seat, &self.own) else {
            return Ok(Renewal::Lost);
        };
        if session.has_ended() {
            return Ok(Renewal::Lost);
        }
        match ask(Arc::clone(session), own.path.clone()).await {
            Ok(Found::There) => Ok(Renewal::Alive { valid_for: Some(session.valid_for(start)) }),
            Ok(Found::Gone) => Ok(Renewal::Lost),
            Err(Failure::SessionEnded) => Ok(Renewal::Lost),
            Err(failure) => Err(self.describe(&failure)),
        }
    }
}

pub(crate) fn session_bound() -> Error {
    Error::unsupported(
        "a lock in ZooKeeper lives and dies with the session of its process: it cannot be handed to another one",
    )
}

#[async_trait]
impl Claim for ZkClaim {
    async fn try_acquire(&mut self) -> Result<Attempt> {
        let start = self.now();
        let limit = self.request.call_timeout;
        let shared = Arc::clone(&self.shared);
        Self::bounded(limit, shared.sessions.endpoint(), self.try_twice(start)).await
    }

    async fn renew(&mut self) -> Result<Renewal> {
        let limit = self.request.call_timeout;
        let ask = self.alive(|session, path| async move { session.confirm(path).await });
        Self::bounded(limit, self.shared.sessions.endpoint(), ask).await
    }

    async fn check(&mut self) -> Result<Renewal> {
        let limit = self.request.call_timeout;
        let shared = Arc::clone(&self.shared);
        // The leader is asked here, too: a server that is behind would show a node that has gone.
        let ask = |session: Arc<Session>, path: String| async move {
            #[cfg(distlock_mutants)]
            if crate::mutants::is("read_based_check") {
                let found = session.get(&path).await?;
                return Ok(if found.is_some() { Found::There } else { Found::Gone });
            }
            Ok(match renewals::check(&session, &[&path]).await? {
                Checked::All => Found::There,
                Checked::Missing(_) => Found::Gone,
            })
        };
        let recall_and_ask = async {
            self.recall().await?;
            self.alive(ask).await
        };
        Self::bounded(limit, shared.sessions.endpoint(), recall_and_ask).await
    }

    async fn release(&mut self) -> Result<Released> {
        let limit = self.request.call_timeout;
        let shared = Arc::clone(&self.shared);
        Self::bounded(limit, shared.sessions.endpoint(), self.give_up_twice()).await
    }

    async fn changed(&mut self) -> Result<()> {
        let (Some(session), Some(own)) = (self.seat.as_deref().cloned(), &self.own) else {
            return std::future::pending().await;
        };
        match self.ears.changed(&session, &own.path).await {
            // That is a change, too.
            Ok(()) | Err(Failure::SessionEnded) => Ok(()),
            Err(failure) => Err(self.describe(&failure)),
        }
    }

    async fn detach(&mut self) -> Result<Bytes> {
        Err(session_bound())
    }
}
