//! The session of a client: opened once for all who want it at the same time, and opened again after
//! its end.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lock_core::{Clock, Error, ErrorKind, Result};
use tokio::sync::watch;

use crate::config::ZkConfig;
use crate::error::{closed, not_connected, unreachable};
use crate::session::Session;
use crate::timeline::Timeline;
use crate::transport;

pub(crate) struct Sessions {
    /// `None` for a client that somebody else has made: its session cannot be opened again.
    config: Option<ZkConfig>,
    endpoint: String,
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
    closed: AtomicBool,
}

/// An attempt that failed after less was refused.
const SILENT: Duration = Duration::from_millis(40);

#[derive(Default)]
struct State {
    session: Option<Arc<Session>>,
    /// The attempt under way, which all callers share.
    attempt: Option<Attempt>,
}

/// Where the outcome of an attempt to open a session appears.
type Attempt = watch::Receiver<Option<Result<Arc<Session>>>>;

impl fmt::Debug for Sessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sessions")
            .field("endpoint", &self.endpoint)
            .field("session", &self.state().session)
            .finish_non_exhaustive()
    }
}

impl Sessions {
    pub(crate) fn new(config: ZkConfig, clock: Arc<dyn Clock>) -> Self {
        Self {
            endpoint: config.endpoint(),
            config: Some(config),
            clock,
            state: Mutex::default(),
            closed: AtomicBool::new(false),
        }
    }

    /// The one session of a client that somebody else has made.
    pub(crate) fn of(session: Arc<Session>, clock: Arc<dyn Clock>) -> Self {
        Self {
            config: None,
            endpoint: "of the given client".to_owned(),
            clock,
            state: Mutex::new(State { session: Some(session), attempt: None }),
            closed: AtomicBool::new(false),
        }
    }

    /// Hosts and ports: never a credential.
    pub(crate) fn endpoint(&self) -> &str {
        &self.endpoint
    }

    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The session, which is opened if there is none. The attempt is a task of its own, so that a
    /// caller who gives up early does not end it for the others.
    ///
    /// # Errors
    ///
    /// If there is none within `limit`, or the client was closed.
    pub(crate) async fn get(self: &Arc<Self>, limit: Duration) -> Result<Arc<Session>> {
        if self.closed.load(Relaxed) {
            return Err(closed());
        }
        let current = self.state().session.as_ref().map(Arc::clone);
        if let Some(session) = current.filter(|session| !session.has_ended()) {
            return Ok(session);
        }
        let end = self.clock.now() + limit;
        loop {
            let (mut attempt, joined) = self.attempt()?;
            let left = end.since(self.clock.now());
            let waited = tokio::time::timeout(left, attempt.wait_for(Option::is_some)).await;
            return match waited {
                Ok(Ok(outcome)) => match &*outcome {
                    Some(Ok(session)) => Ok(Arc::clone(session)),
                    // It began before this call, and says nothing about the present.
                    Some(Err(_)) if joined => continue,
                    Some(Err(error)) => Err(error.clone()),
                    None => Err(unreachable("the attempt to connect was given up", &self.endpoint)),
                },
                Ok(Err(_)) => {
                    self.state().attempt = None;
                    let why = "the runtime in which it was connected has ended";
                    Err(unreachable(why, &self.endpoint))
                }
                Err(_) => Err(unreachable(&format!("no session within {limit:?}"), &self.endpoint)),
            };
        }
    }

    /// The attempt under way, or a new one; whether it had begun before.
    fn attempt(self: &Arc<Self>) -> Result<(Attempt, bool)> {
        let Some(config) = self.config.clone() else {
            return Err(Error::new(
                ErrorKind::Unavailable,
                "the session of the given ZooKeeper client has ended, and cannot be opened again: connect by a URL, or make a new backend from a new client",
            )
            .with_retryable(false));
        };
        let mut state = self.state();
        if let Some(attempt) = &state.attempt
            && attempt.has_changed().is_ok()
        {
            return Ok((attempt.clone(), true));
        }
        let runtime = tokio::runtime::Handle::try_current().map_err(|_| {
            Error::config("ZooKeeper is connected outside of a Tokio runtime: call from within one")
        })?;
        let (sender, receiver) = watch::channel(None);
        state.attempt = Some(receiver.clone());
        drop(state);
        let sessions = Arc::clone(self);
        runtime.spawn(async move {
            let outcome = sessions.open(&config).await;
            {
                let mut state = sessions.state();
                state.attempt = None;
                if let Ok(session) = &outcome
                    && !sessions.closed.load(Relaxed)
                {
                    state.session = Some(Arc::clone(session));
                }
            }
            let _ = sender.send(Some(outcome));
        });
        Ok((receiver, false))
    }

    async fn open(&self, config: &ZkConfig) -> Result<Arc<Session>> {
        let limit = config.connect_timeout;
        let end = self.clock.now() + limit;
        let (sent, transport, timeout) = loop {
            let sent = self.clock.now();
            let attempt = tokio::time::timeout(end.since(sent), transport::open(config));
            match attempt.await {
                Ok(Ok((transport, timeout))) => break (sent, transport, timeout),
                // A server that was silent, not one that refused, may answer the next time.
                Ok(Err(error)) if self.clock.now().since(sent) < SILENT => {
                    return Err(not_connected(&error, &self.endpoint));
                }
                Ok(Err(error)) if self.clock.now() >= end => {
                    return Err(not_connected(&error, &self.endpoint));
                }
                Ok(Err(_)) => {}
                Err(_) => {
                    let why = format!("no session within {limit:?}");
                    return Err(unreachable(&why, &self.endpoint));
                }
            }
        };
        if let Some(wanted) = config.session_timeout.filter(|wanted| timeout < *wanted) {
            return Err(Error::config(format!(
                "the ZooKeeper ensemble at {} allows a session timeout of {timeout:?} at most, and {wanted:?} was asked for: lower lock_session_timeout, or raise the server's maxSessionTimeout",
                self.endpoint
            )));
        }
        let timeline = Timeline::new(timeout, sent, self.clock.now()).with_tick(config.tick_time);
        let clock = Arc::clone(&self.clock);
        Ok(Session::start(transport, timeout, timeline, clock, &config.root))
    }

    /// Ends the session, and with it all nodes of this client.
    pub(crate) async fn close(&self) {
        self.closed.store(true, Relaxed);
        let session = {
            let mut state = self.state();
            state.attempt = None;
            state.session.take()
        };
        if let Some(session) = session {
            session.close().await;
        }
    }
}
