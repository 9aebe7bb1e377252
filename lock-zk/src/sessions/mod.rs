//! The sessions of a client: one for each ttl that is in use, and more of them when one is full. They are
//! opened when a claim needs them, and again after their end.

mod fence_base;
mod opening;
mod resume;
mod share;

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lock_core::kit::runtime;
use lock_core::{Clock, Result};
use tokio::sync::watch;
use tokio::task::JoinSet;

use self::opening::Limits;
pub(crate) use self::opening::Opener;
pub(crate) use self::share::{OpenSession, Share};
use crate::config::SESSION;
use crate::error::{closed, unreachable};

pub(crate) struct Sessions {
    opener: Opener,
    endpoint: String,
    limits: Limits,
    state: Mutex<State>,
    closed: AtomicBool,
}

struct State {
    open: Vec<Arc<OpenSession>>,
    /// The attempts under way, by session timeout. All callers share them.
    attempts: HashMap<Duration, Attempt>,
}

/// Where the outcome of an attempt to open a session appears.
type Attempt = watch::Receiver<Option<Result<()>>>;

impl fmt::Debug for Sessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sessions")
            .field("endpoint", &self.endpoint)
            .field("open", &self.state().open)
            .finish_non_exhaustive()
    }
}

impl Sessions {
    pub(crate) async fn connect(opener: Opener) -> Result<Self> {
        let (limits, session) = opener.limits().await?;
        let state = State { open: session.into_iter().collect(), attempts: HashMap::new() };
        Ok(Self {
            endpoint: opener.ensemble.endpoint(),
            limits,
            opener,
            state: Mutex::new(state),
            closed: AtomicBool::new(false),
        })
    }

    /// Hosts and ports: never a credential.
    pub(crate) fn endpoint(&self) -> &str {
        &self.endpoint
    }

    pub(crate) fn limits(&self) -> Limits {
        self.limits
    }

    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        &self.opener.clock
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn open(&self) -> Vec<Arc<OpenSession>> {
        self.state().open.clone()
    }

    /// A share for a mere look: in any session.
    ///
    /// # Errors
    ///
    /// As [`share`](Self::share).
    pub(crate) async fn any_share(self: &Arc<Self>, limit: Duration) -> Result<Share> {
        let share = self.state().open.iter().find_map(|session| session.share(0));
        match share {
            Some(share) => Ok(share),
            None => self.share(SESSION.clamp(self.limits.least, self.limits.most), 0, limit).await,
        }
    }

    /// A share for a claim whose node has a path of `bytes`, in a session that lasts for `timeout`. One is
    /// opened if none has room. The attempt is a task of its own, so that a caller that gives up early does
    /// not end it for the others.
    ///
    /// # Errors
    ///
    /// If there is none within `limit`, or the client was closed.
    pub(crate) async fn share(
        self: &Arc<Self>,
        timeout: Duration,
        bytes: usize,
        limit: Duration,
    ) -> Result<Share> {
        let clock = Arc::clone(self.clock());
        let end = clock.now() + limit;
        loop {
            if self.closed.load(Relaxed) {
                return Err(closed());
            }
            if let Some(share) = self.free_share(timeout, bytes) {
                return Ok(share);
            }
            let (mut attempt, joined) = self.attempt(timeout)?;
            let left = end.since(clock.now());
            match tokio::time::timeout(left, attempt.wait_for(Option::is_some)).await {
                Ok(Ok(outcome)) => match &*outcome {
                    // It began before this call, and says nothing about the present.
                    Some(Err(error)) if !joined => return Err(error.clone()),
                    _ => {}
                },
                Ok(Err(_)) => {
                    self.state().attempts.remove(&timeout);
                    let why = "the runtime in which it was connected has ended";
                    return Err(unreachable(why, &self.endpoint));
                }
                Err(_) => {
                    let why = format!("no session within {limit:?}");
                    return Err(unreachable(&why, &self.endpoint));
                }
            }
        }
    }

    fn free_share(&self, timeout: Duration, bytes: usize) -> Option<Share> {
        let mut state = self.state();
        state.open.retain(|session| !session.is_leaving());
        let mut fitting = state.open.iter().filter(|session| session.asked() == timeout);
        fitting.find_map(|session| session.share(bytes))
    }

    /// The attempt under way, or a new one; whether it had begun before.
    fn attempt(self: &Arc<Self>, timeout: Duration) -> Result<(Attempt, bool)> {
        let mut state = self.state();
        if let Some(attempt) = state.attempts.get(&timeout)
            && attempt.has_changed().is_ok()
        {
            return Ok((attempt.clone(), true));
        }
        let runtime = runtime::current("ZooKeeper")?;
        let (sender, receiver) = watch::channel(None);
        state.attempts.insert(timeout, receiver.clone());
        drop(state);
        let sessions = Arc::clone(self);
        runtime.spawn(async move {
            let opened = sessions.opener.session(timeout).await;
            let outcome = {
                let mut state = sessions.state();
                state.attempts.remove(&timeout);
                opened.map(|session| {
                    // One that comes too late is dropped, and ends by that.
                    if !sessions.closed.load(Relaxed) {
                        state.open.push(session);
                    }
                })
            };
            let _ = sender.send(Some(outcome));
        });
        Ok((receiver, false))
    }

    /// Ends all sessions, and with them all nodes of this client.
    pub(crate) async fn close(&self) {
        self.closed.store(true, Relaxed);
        let open = {
            let mut state = self.state();
            state.attempts.clear();
            std::mem::take(&mut state.open)
        };
        let mut closing = JoinSet::new();
        for session in open {
            closing.spawn(async move { session.channel.close().await });
        }
        while closing.join_next().await.is_some() {}
    }
}
