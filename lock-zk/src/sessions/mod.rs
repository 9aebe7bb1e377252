//! The sessions of a client: one for each ttl in use, and more when one is full. They are opened
//! when a claim needs them, and reopened after they end.

mod ensemble;
mod fence_base;
mod opening;
mod resume;
mod share;

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use lock_core::kit::backoff::Backoff;
use lock_core::kit::connect_once::ConnectOnce;
use lock_core::{Clock, Result};
use tokio::task::JoinSet;

pub(crate) use self::ensemble::Ensemble;
use self::opening::Limits;
use self::resume::PAUSES;
pub(crate) use self::share::{OpenSession, Share};
use crate::config::SESSION;
use crate::connection::reply::Reply;
use crate::error::{closed, no_answer};

pub(crate) struct Sessions {
    pub(crate) ensemble: Arc<Ensemble>,
    pub(crate) limits: Limits,
    state: Mutex<State>,
    closed: AtomicBool,
}

struct State {
    open: Vec<Arc<OpenSession>>,
    /// The attempts to open a session, by timeout. All callers share them.
    openings: HashMap<Duration, ConnectOnce<Weak<OpenSession>>>,
}

impl fmt::Debug for Sessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sessions")
            .field("endpoint", &self.ensemble.endpoint)
            .field("open", &self.state().open)
            .finish_non_exhaustive()
    }
}

impl Sessions {
    pub(crate) async fn connect(ensemble: Ensemble) -> Result<Self> {
        let ensemble = Arc::new(ensemble);
        let (limits, session) = ensemble.limits().await?;
        let state = State { open: session.into_iter().collect(), openings: HashMap::new() };
        Ok(Self { ensemble, limits, state: Mutex::new(state), closed: AtomicBool::new(false) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn open(&self) -> Vec<Arc<OpenSession>> {
        self.state().open.clone()
    }

    /// A share in any session, for inspection.
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

    /// A share for a claim whose node has a path of `bytes`, in a session that lasts for `timeout`,
    /// or for the servers' minimum. A session is opened if none has room.
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
        let timeout = timeout.max(self.limits.least);
        let end = self.ensemble.clock.now() + limit;
        loop {
            if self.closed.load(Relaxed) {
                return Err(closed());
            }
            if let Some(share) = self.free_share(timeout, bytes) {
                return Ok(share);
            }
            let opening = self.opening(timeout);
            // The last session is over or full.
            opening.forget(|last| last.upgrade().and_then(|last| last.share(bytes)).is_none());
            let sessions = Arc::clone(self);
            let open = move || async move { sessions.open_one(timeout).await };
            opening.get(end.since(self.ensemble.clock.now()), open).await?;
        }
    }

    fn free_share(&self, timeout: Duration, bytes: usize) -> Option<Share> {
        let mut state = self.state();
        state.open.retain(|session| !session.is_leaving());
        let mut fitting = state.open.iter().filter(|session| session.asked == timeout);
        fitting.find_map(|session| session.share(bytes))
    }

    fn opening(&self, timeout: Duration) -> ConnectOnce<Weak<OpenSession>> {
        let opening = || {
            let server = format!("the ZooKeeper ensemble at {}", self.ensemble.endpoint);
            let limit = self.ensemble.config.connect_timeout;
            ConnectOnce::new(server, limit, Backoff::new(PAUSES.0, PAUSES.1))
        };
        self.state().openings.entry(timeout).or_insert_with(opening).clone()
    }

    async fn open_one(&self, timeout: Duration) -> Result<Weak<OpenSession>> {
        let session = self.ensemble.session(timeout).await?;
        let weak = Arc::downgrade(&session);
        let mut state = self.state();
        // A session that arrives too late is dropped, which ends it.
        if !self.closed.load(Relaxed) {
            state.open.push(session);
        }
        Ok(weak)
    }

    /// Bounds a request to the ensemble, so that it is not stuck forever in the driver's queue, and
    /// describes its failure.
    ///
    /// # Errors
    ///
    /// Those of `call`, or `NoAnswer` if there was no answer within `limit`.
    pub(crate) async fn bounded<T>(
        &self,
        limit: Duration,
        call: impl Future<Output = Reply<T>>,
    ) -> Result<T> {
        match tokio::time::timeout(limit, call).await {
            Ok(reply) => reply.map_err(|failure| failure.at(&self.ensemble.endpoint)),
            Err(_) => Err(no_answer(limit, &self.ensemble.endpoint)),
        }
    }

    /// Ends all sessions, and with them all nodes of this client.
    pub(crate) async fn close(&self) {
        self.closed.store(true, Relaxed);
        let open = {
            let mut state = self.state();
            for opening in state.openings.values() {
                opening.close();
            }
            std::mem::take(&mut state.open)
        };
        let mut closing = JoinSet::new();
        for session in open {
            closing.spawn(async move { session.close().await });
        }
        while closing.join_next().await.is_some() {}
    }
}
