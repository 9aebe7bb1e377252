//! The session of a client: opened once for all who want it at the same time, and opened again after
//! its end.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lock_core::{Clock, ClockInstant, Error, ErrorKind, Result};
use tokio::sync::watch;
use tokio::task::JoinSet;
use zookeeper_client as zk;

use crate::config::ZkConfig;
use crate::error::{closed, not_connected, unreachable};
use crate::session::Session;
use crate::timeline::Timeline;
use crate::transport::{self, ClientTransport};

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
/// How many attempts there is time for, of which each begins with another host by chance: the client
/// waits long for one that is silent.
const ATTEMPTS: u32 = 10;

/// A new session.
struct Opened {
    /// When the attempt began.
    sent: ClockInstant,
    transport: ClientTransport,
    timeout: Duration,
}

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
            endpoint: "the address of the given client".to_owned(),
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

    /// Whether the session of a client that somebody else has made is over.
    pub(crate) fn has_ended_for_good(&self) -> bool {
        self.config.is_none()
            && self.state().session.as_ref().is_none_or(|session| session.has_ended())
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
        let end = self.clock.now() + config.connect_timeout;
        let wanted = config.wanted_session();
        let mut opened = self.connect(config, wanted, end).await?;
        if opened.timeout < wanted && config.session_timeout.is_some() {
            return Err(Error::config(format!(
                "the ZooKeeper ensemble at {} allows a session timeout of {:?} at most, and {wanted:?} was asked for: lower lock_session_timeout, or raise the server's maxSessionTimeout",
                self.endpoint, opened.timeout
            )));
        }
        if opened.timeout != wanted {
            // The client measures its patience with a silent server by what it has asked for.
            opened = self.connect(config, opened.timeout, end).await?;
        }
        let Opened { sent, transport, timeout } = opened;
        let timeline = Timeline::new(timeout, sent, self.clock.now()).with_tick(config.tick_time);
        let clock = Arc::clone(&self.clock);
        Ok(Session::start(transport, timeout, timeline, clock, &config.root))
    }

    /// Opens a session before `end`. Where there are several hosts, an attempt that takes long is joined
    /// by others, since it may be stuck with a host that is silent. The first that succeeds wins.
    async fn connect(
        &self,
        config: &ZkConfig,
        wanted: Duration,
        end: ClockInstant,
    ) -> Result<Opened> {
        let limit = config.connect_timeout;
        let pause = if config.hosts.len() > 1 { limit / ATTEMPTS } else { limit };
        let mut attempts = JoinSet::new();
        loop {
            let (config, clock) = (config.clone(), Arc::clone(&self.clock));
            let sent = clock.now();
            attempts.spawn(async move {
                let opened = transport::open(&config, wanted).await;
                let took = clock.now().since(sent);
                (took, opened.map(|(transport, timeout)| Opened { sent, transport, timeout }))
            });
            let next = end.min(sent + pause).since(self.clock.now());
            match tokio::time::timeout(next, attempts.join_next()).await {
                Ok(Some(Ok((_, Ok(opened))))) => return Ok(opened),
                Ok(Some(Ok((took, Err(error))))) => {
                    // A server that was silent, not one that refused, may answer the next time.
                    let refused = took < SILENT || matches!(error, zk::Error::AuthFailed);
                    if refused || self.clock.now() >= end {
                        return Err(not_connected(&error, &self.endpoint));
                    }
                }
                Ok(Some(Err(error))) => {
                    return Err(unreachable(
                        &format!("connecting failed: {error}"),
                        &self.endpoint,
                    ));
                }
                Ok(None) | Err(_) if self.clock.now() >= end => {
                    let why = format!("no session within {limit:?}");
                    return Err(unreachable(&why, &self.endpoint));
                }
                Ok(None) | Err(_) => {}
            }
        }
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
