//! One contender for a lock in ZooKeeper.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use lock_core::{
    Attempt, Bytes, Claim, ClaimRequest, ClockInstant, Effect, Error, ErrorKind, FencingToken,
    Mode, Released, Renewal, Result, async_trait,
};

use crate::backend::Shared;
use crate::error::{describe, no_answer};
use crate::names::{self, Place};
use crate::renewals::{self, Found};
use crate::session::Session;
use crate::transport::{Checked, Failure};
use crate::wake::Ears;

/// How often a try begins again because the node of the lock, or our own, was removed meanwhile.
const ROUNDS: usize = 16;

#[derive(Debug)]
pub(crate) struct ZkClaim {
    shared: Arc<Shared>,
    request: ClaimRequest,
    /// The node of the lock.
    parent: String,
    /// What our nodes begin with.
    prefix: String,
    data: Vec<u8>,
    /// The session that the rest belongs to.
    session: Option<Arc<Session>>,
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
        Ok(Self {
            parent: shared.parent(&request.key),
            prefix: names::node_prefix(&request.owner),
            data: crate::admin::node_data(request.label.as_deref()),
            session: None,
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
        if let Some(session) = self.session.as_ref().filter(|session| !session.has_ended()) {
            return Ok(Arc::clone(session));
        }
        let session = self.shared.sessions.get(self.request.call_timeout).await?;
        self.unsure |= self.session.is_some();
        self.own = None;
        self.ears.deafen();
        self.session = Some(Arc::clone(&session));
        Ok(session)
    }

    /// Whether the session of this claim has ended under a call that failed: then the call is worth
    /// making once more, in a new session.
    fn is_cut_short<T>(&self, answer: &Result<T>) -> bool {
        answer.is_err() && self.session.as_ref().is_some_and(|session| session.has_ended())
    }

    async fn try_twice(&mut self, start: ClockInstant) -> Result<Attempt> {
        let answer = self.look(start).await;
        if self.is_cut_short(&answer) { self.look(start).await } else { answer }
    }

    async fn give_up_twice(&mut self) -> Result<Released> {
        let answer = self.give_up().await;
        if self.is_cut_short(&answer) { self.give_up().await } else { answer }
    }

    async fn look(&mut self, start: ClockInstant) -> Result<Attempt> {
        let session = self.session().await?;
        for _ in 0..ROUNDS {
            if self.unsure {
                self.find_own(&session).await?;
            }
            let children = match self.children(&session).await? {
                Some(children) => children,
                None => continue,
            };
            let Some(own) = self.own.clone() else {
                // Busy, without a place.
                return Ok(Attempt::Busy { valid_for: None, retry_after: None });
            };
            let valid_for = Some(session.valid_for(start));
            match names::place(&children, &own.name) {
                Place::First => {
                    self.ears.expect(None);
                    return Ok(Attempt::Granted { token: own.fence, valid_for });
                }
                // An operator has removed our node: a new place is taken.
                Place::Missing => {
                    self.own = None;
                    self.ears.deafen();
                }
                Place::After(ahead) => {
                    if !self.request.wait {
                        self.leave(&session).await?;
                        return Ok(Attempt::Busy { valid_for: None, retry_after: None });
                    }
                    self.ears.expect(Some(format!("{}/{ahead}", self.parent)));
                    return Ok(Attempt::Busy { valid_for, retry_after: None });
                }
            }
        }
        Err(Error::new(
            ErrorKind::Unavailable,
            format!("{} is removed again and again while it is used", self.parent),
        )
        .with_unknown_effect())
    }

    /// The children of the lock's node in one listing, taken after our own node was made if we want
    /// one. `None`: begin again.
    async fn children(&mut self, session: &Session) -> Result<Option<Vec<String>>> {
        if self.own.is_some() || !self.request.wait {
            match self.listed(session).await {
                Ok(children) => {
                    if self.own.is_some() || has_contenders(&children) {
                        return Ok(Some(children));
                    }
                }
                Err(Failure::NoNode) => {
                    self.own = None;
                    self.ears.deafen();
                }
                Err(failure) => return Err(self.describe(&failure)),
            }
        }
        self.enter(session).await
    }

    /// The children as a try sees them. A server may be behind and show somebody who has left, so
    /// "busy" is said only by one that has caught up.
    async fn listed(&self, session: &Session) -> Result<Vec<String>, Failure> {
        let children = session.list(&self.parent).await?;
        if self.own.is_some() || !has_contenders(&children) {
            return Ok(children);
        }
        session.sync(&self.parent).await?;
        session.list(&self.parent).await
    }

    /// Makes our node.
    async fn enter(&mut self, session: &Session) -> Result<Option<Vec<String>>> {
        self.unsure = true;
        let (entered, children) = session.enter(&self.parent, &self.prefix, &self.data).await;
        let entered = match entered {
            Ok(entered) => entered,
            Err(Failure::NoNode) => {
                self.unsure = false;
                let parents = session.create_parents(&self.parent).await;
                return parents.map(|()| None).map_err(|failure| self.describe(&failure));
            }
            Err(failure) => {
                let error = self.describe(&failure);
                self.unsure = error.effect() == Effect::Unknown;
                return Err(error);
            }
        };
        let fence = match entered.czxid {
            Some(czxid) => czxid,
            None => {
                // An old server does not say; the node is there unless somebody has removed it.
                let path = format!("{}/{}", self.parent, entered.name);
                match session.get(&path).await.map_err(|failure| self.describe(&failure))? {
                    Some(node) => node.czxid,
                    None => return Ok(None),
                }
            }
        };
        self.take(entered.name, fence)?;
        self.refuse_near_the_end(session).await?;
        children.map(Some).map_err(|failure| self.describe(&failure))
    }

    fn take(&mut self, name: String, czxid: i64) -> Result<()> {
        #[cfg(feature = "mutants")]
        let czxid = crate::mutants::fence(czxid, &name);
        let path = format!("{}/{name}", self.parent);
        self.own = Some(Own { name, path, fence: FencingToken::try_from(czxid)? });
        self.unsure = false;
        Ok(())
    }

    /// Curator and kazoo order the numbers as text, so a queue must not come near their end. Its node
    /// is removed when nobody is in it, and the numbers begin again.
    async fn refuse_near_the_end(&mut self, session: &Session) -> Result<()> {
        let Some(own) = &self.own else { return Ok(()) };
        let number = names::sequence(&own.name).unwrap_or(i32::MIN);
        if number >= 0 && number < self.shared.sequence_limit {
            return Ok(());
        }
        self.leave(session).await?;
        // Fails as long as there are others.
        let removed = session.delete(&self.parent).await;
        if removed.is_ok() {
            tracing::info!(target: "distlock", node = %self.parent, "the sequence numbers of a lock begin again");
        }
        Err(Error::new(
            ErrorKind::Store,
            format!(
                "the queue at {} has used up its sequence numbers (this one is {number}): nobody may enter until those who are in it have left, and the node is removed",
                self.parent
            ),
        )
        .with_retryable(true))
    }

    /// Looks for a node of ours after an unknown outcome. What is found is ours only if it belongs to
    /// this very session: one of an earlier session may vanish at any moment, so it is removed.
    async fn find_own(&mut self, session: &Session) -> Result<()> {
        #[cfg(feature = "mutants")]
        if crate::mutants::is("create_again") {
            self.unsure = false;
            return Ok(());
        }
        let mut found: Option<(String, i64)> = None;
        for name in self.own_nodes(session).await? {
            let path = format!("{}/{name}", self.parent);
            match session.get(&path).await {
                Ok(None) => {}
                Ok(Some(node)) if found.is_none() && is_of(session, node.owner) => {
                    found = Some((name, node.czxid));
                }
                Ok(Some(_)) => self.remove(session, &path).await.map(drop)?,
                Err(failure) => return Err(self.describe(&failure)),
            }
        }
        match found {
            Some((name, czxid)) => self.take(name, czxid),
            None => {
                self.unsure = false;
                Ok(())
            }
        }
    }

    /// All nodes with our owner id. The request that may have made one is executed before, if it ever
    /// is: on the same connection in order, and a server that has taken over the session refuses what
    /// comes over an older connection; `sync` brings this server up to date.
    async fn own_nodes(&self, session: &Session) -> Result<Vec<String>> {
        let listing = async {
            session.sync(&self.parent).await?;
            session.list(&self.parent).await
        };
        match listing.await {
            Ok(mut children) => {
                children.retain(|child| {
                    child.starts_with(&self.prefix) && names::sequence(child).is_some()
                });
                children.sort_unstable();
                Ok(children)
            }
            Err(Failure::NoNode) => Ok(Vec::new()),
            Err(failure) => Err(self.describe(&failure)),
        }
    }

    async fn remove(&self, session: &Session, path: &str) -> Result<Released> {
        match session.delete(path).await {
            Ok(()) => Ok(Released::Freed),
            Err(Failure::NoNode) => Ok(Released::AlreadyGone),
            Err(failure) => Err(self.describe(&failure).with_unknown_effect()),
        }
    }

    /// Gives up our node of this session.
    async fn leave(&mut self, session: &Session) -> Result<Released> {
        let Some(own) = self.own.clone() else { return Ok(Released::AlreadyGone) };
        let released = self.remove(session, &own.path).await?;
        self.own = None;
        self.ears.deafen();
        Ok(released)
    }

    async fn give_up(&mut self) -> Result<Released> {
        if self.session.is_none() {
            return Ok(Released::AlreadyGone);
        }
        let session = self.session().await?;
        if !self.unsure {
            return self.leave(&session).await;
        }
        let mut released = Released::AlreadyGone;
        for name in self.own_nodes(&session).await? {
            if self.remove(&session, &format!("{}/{name}", self.parent)).await? == Released::Freed {
                released = Released::Freed;
            }
        }
        self.own = None;
        self.unsure = false;
        self.ears.deafen();
        Ok(released)
    }

    /// Whether the node is there, asked by `ask`.
    async fn alive<F>(&self, ask: impl FnOnce(Arc<Session>, String) -> F) -> Result<Renewal>
    where
        F: Future<Output = Result<Found, Failure>>,
    {
        let start = self.now();
        let (Some(session), Some(own)) = (&self.session, &self.own) else {
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

fn has_contenders(children: &[String]) -> bool {
    children.iter().any(|child| names::sequence(child).is_some())
}

fn is_of(session: &Session, owner: i64) -> bool {
    #[cfg(feature = "mutants")]
    if crate::mutants::is("trust_any_session") {
        return true;
    }
    owner == session.id()
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
        // The leader is asked here, too: a server that is behind would show a node that has gone.
        let ask = self.alive(|session, path| async move {
            #[cfg(feature = "mutants")]
            if crate::mutants::is("read_based_check") {
                let found = session.get(&path).await?;
                return Ok(if found.is_some() { Found::There } else { Found::Gone });
            }
            Ok(match renewals::check(&session, &[&path]).await? {
                Checked::All => Found::There,
                Checked::Missing(_) => Found::Gone,
            })
        });
        Self::bounded(limit, self.shared.sessions.endpoint(), ask).await
    }

    async fn release(&mut self) -> Result<Released> {
        let limit = self.request.call_timeout;
        let shared = Arc::clone(&self.shared);
        Self::bounded(limit, shared.sessions.endpoint(), self.give_up_twice()).await
    }

    async fn changed(&mut self) -> Result<()> {
        let (Some(session), Some(own)) = (self.session.clone(), &self.own) else {
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
