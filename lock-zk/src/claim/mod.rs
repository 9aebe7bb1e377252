//! One contender for a lock in ZooKeeper.

mod in_doubt;
mod queue;

use std::sync::Arc;

use lock_core::{
    Attempt, Bytes, Claim, ClaimRequest, ClockInstant, Error, FencingToken, Released, Renewal,
    Result, async_trait,
};

use crate::connection::reply::{Failure, Reply};
use crate::names;
use crate::sessions::{OpenSession, Sessions, Share};
use crate::wake::Watches;

#[derive(Debug)]
pub(crate) struct ZkClaim {
    sessions: Arc<Sessions>,
    request: ClaimRequest,
    /// The node of the lock.
    parent: String,
    /// The prefix of our node names.
    prefix: String,
    data: Vec<u8>,
    /// A share in the session that the fields below belong to.
    share: Option<Share>,
    entry: Option<Entry>,
    /// A request to create a node was sent, and its reply not seen: the node may exist, or may
    /// later.
    in_doubt: bool,
    watches: Watches,
}

/// Our node in the queue.
#[derive(Clone, Debug)]
struct Entry {
    name: String,
    path: String,
    fence: FencingToken,
}

impl ZkClaim {
    pub(crate) fn new(sessions: Arc<Sessions>, request: ClaimRequest) -> Result<Self> {
        if request.resume.is_some() {
            return Err(session_bound());
        }
        Ok(Self {
            parent: sessions.ensemble.config.path_of(&request.key),
            prefix: names::node_prefix(&request.owner),
            data: names::node_data(request.label.as_deref()),
            share: None,
            entry: None,
            in_doubt: false,
            watches: Watches::default(),
            sessions,
            request,
        })
    }

    fn now(&self) -> ClockInstant {
        self.sessions.ensemble.clock.now()
    }

    /// The path of one of our nodes.
    fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.parent)
    }

    /// The session of this claim, or a new one if that has ended: then the state of the old one is
    /// forgotten, except that it may have left a node behind.
    async fn session(&mut self) -> Reply<Arc<OpenSession>> {
        if self.share.take_if(|share| share.has_ended()).is_some() {
            // Also if no new one can be opened now: the end is no longer news, see `changed`.
            self.in_doubt = true;
            self.forget();
        }
        if let Some(share) = &self.share {
            return Ok(Arc::clone(share));
        }
        let bytes = self.parent.len() + 1 + self.prefix.len() + names::DIGITS;
        let limit = self.request.call_timeout;
        let share = self.sessions.share(self.request.ttl, bytes, limit).await?;
        Ok(Arc::clone(self.share.insert(share)))
    }

    /// Our node is gone.
    fn forget(&mut self) {
        self.entry = None;
        self.watches = Watches::default();
    }

    /// Whether the session of this claim ended during a call that failed: then the call is worth
    /// one retry, in a new session.
    fn is_cut_short<T>(&self, answer: &Reply<T>) -> bool {
        answer.is_err() && self.share.as_ref().is_some_and(|share| share.has_ended())
    }

    /// Our node, and its session if that has not ended.
    fn entry(&self) -> Option<(Arc<OpenSession>, Entry)> {
        let share = self.share.as_ref().filter(|share| !share.has_ended())?;
        Some((Arc::clone(share), self.entry.clone()?))
    }
}

/// What the leader's answer about a node means for its claim, for a request that began at `start`.
fn renewal(session: &OpenSession, start: ClockInstant, exists: Reply<bool>) -> Reply<Renewal> {
    match exists {
        Ok(true) => Ok(Renewal::Alive { valid_for: Some(session.valid_for(start)) }),
        Ok(false) | Err(Failure::SessionEnded) => Ok(Renewal::Lost),
        Err(failure) => Err(failure),
    }
}

fn session_bound() -> Error {
    Error::unsupported(
        "a lock in ZooKeeper lives and dies with the session of its process: it cannot be handed to another process",
    )
}

#[async_trait]
impl Claim for ZkClaim {
    async fn try_acquire(&mut self) -> Result<Attempt> {
        let (start, sessions, limit) =
            (self.now(), Arc::clone(&self.sessions), self.request.call_timeout);
        let look = async {
            let answer = self.look(start).await;
            if self.is_cut_short(&answer) { self.look(start).await } else { answer }
        };
        let answer = sessions.bounded(limit, look).await;
        let may_have_a_node = self.in_doubt || self.entry.is_some();
        answer.map_err(|error| if may_have_a_node { error.with_unknown_effect() } else { error })
    }

    async fn renew(&mut self) -> Result<Renewal> {
        let start = self.now();
        let Some((session, entry)) = self.entry() else { return Ok(Renewal::Lost) };
        let ask = async { renewal(&session, start, session.renewals.confirm(entry.path).await) };
        self.sessions.bounded(self.request.call_timeout, ask).await
    }

    async fn check(&mut self) -> Result<Renewal> {
        let (sessions, limit) = (Arc::clone(&self.sessions), self.request.call_timeout);
        let ask = async {
            self.recall().await?;
            let start = self.now();
            let Some((session, entry)) = self.entry() else { return Ok(Renewal::Lost) };
            renewal(&session, start, session.check(&entry.path).await)
        };
        sessions.bounded(limit, ask).await
    }

    async fn release(&mut self) -> Result<Released> {
        let (sessions, limit) = (Arc::clone(&self.sessions), self.request.call_timeout);
        let give_up = async {
            let answer = self.give_up().await;
            if self.is_cut_short(&answer) { self.give_up().await } else { answer }
        };
        sessions.bounded(limit, give_up).await
    }

    async fn changed(&mut self) -> Result<()> {
        let (Some(share), Some(entry)) = (&self.share, &self.entry) else {
            return std::future::pending().await;
        };
        match self.watches.changed(share, &entry.path).await {
            // That is a change, too.
            Ok(()) | Err(Failure::SessionEnded) => Ok(()),
            Err(failure) => Err(failure.at(&self.sessions.ensemble.endpoint)),
        }
    }

    async fn detach(&mut self) -> Result<Bytes> {
        Err(session_bound())
    }
}
