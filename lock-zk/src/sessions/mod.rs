//! The sessions of a client: one for each ttl in use, and more when one is full. They are opened
//! when a claim needs them, kept alive while claims use them, and reopened after they end.

mod ensemble;
mod resume;
mod seats;

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Duration;

use lock_core::backoff::Backoff;
use lock_core::{Clock, Result};
use lock_kit::connect_once::ConnectOnce;
use parking_lot::Mutex;
use tokio::task::JoinSet;

use self::ensemble::NewSession;
pub(crate) use self::ensemble::{Ensemble, SessionLimits};
use self::resume::{PAUSES, Resumption};
pub(crate) use self::seats::{LeftEntries, SessionSeat, SharedSession};
use crate::error::{Reply, closed, no_answer};
use crate::queue::watches::ZkNeighbours;
use crate::settings::SESSION;
use crate::wire::{Session, Timeline};

pub(crate) struct Sessions {
    pub(crate) ensemble: Arc<Ensemble>,
    pub(crate) limits: SessionLimits,
    pub(crate) neighbours: Arc<ZkNeighbours>,
    table: Mutex<SessionTable>,
    closed: AtomicBool,
}

struct SessionTable {
    open: Vec<Arc<SharedSession>>,
    /// The attempts to open a session, by timeout. All callers share them.
    openings: HashMap<Duration, ConnectOnce<Weak<SharedSession>>>,
}

impl fmt::Debug for Sessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sessions")
            .field("endpoint", &self.ensemble.endpoint)
            .field("open", &self.table.lock().open)
            .finish_non_exhaustive()
    }
}

impl Sessions {
    pub(crate) async fn connect(ensemble: Ensemble) -> Result<Self> {
        let ensemble = Arc::new(ensemble);
        let (limits, opened) = ensemble.limits().await?;
        let open = opened.map(|opened| keep(&ensemble, limits.most, opened)).into_iter().collect();
        let table = SessionTable { open, openings: HashMap::new() };
        let (table, neighbours, closed) = (Mutex::new(table), Arc::default(), false.into());
        Ok(Self { ensemble, limits, neighbours, table, closed })
    }

    pub(crate) fn open(&self) -> Vec<Arc<SharedSession>> {
        self.table.lock().open.clone()
    }

    /// A seat in any session, for inspection.
    ///
    /// # Errors
    ///
    /// As [`seat`](Self::seat).
    pub(crate) async fn any_seat(self: &Arc<Self>, limit: Duration) -> Result<SessionSeat> {
        let seat = self.table.lock().open.iter().find_map(|session| session.seat(0));
        match seat {
            Some(seat) => Ok(seat),
            None => self.seat(SESSION.clamp(self.limits.least, self.limits.most), 0, limit).await,
        }
    }

    /// A seat for a claim whose node has a path of `bytes`, in a session that lasts for `timeout`,
    /// or for the servers' minimum. A session is opened if none has room.
    ///
    /// # Errors
    ///
    /// If there is none within `limit`, or the client was closed.
    pub(crate) async fn seat(
        self: &Arc<Self>,
        timeout: Duration,
        bytes: usize,
        limit: Duration,
    ) -> Result<SessionSeat> {
        let timeout = timeout.max(self.limits.least);
        let end = self.ensemble.clock.now() + limit;
        loop {
            if self.closed.load(Relaxed) {
                return Err(closed());
            }
            if let Some(seat) = self.free_seat(timeout, bytes) {
                return Ok(seat);
            }
            let opening = self.opening(timeout);
            // The last session is over or full.
            opening.forget(|last| last.upgrade().and_then(|last| last.seat(bytes)).is_none());
            let sessions = Arc::clone(self);
            let open = move || async move { sessions.open_one(timeout).await };
            opening.get(end.since(self.ensemble.clock.now()), open).await?;
        }
    }

    fn free_seat(&self, timeout: Duration, bytes: usize) -> Option<SessionSeat> {
        let mut table = self.table.lock();
        table.open.retain(|session| !session.is_leaving());
        let mut fitting = table.open.iter().filter(|session| session.asked == timeout);
        fitting.find_map(|session| session.seat(bytes))
    }

    fn opening(&self, timeout: Duration) -> ConnectOnce<Weak<SharedSession>> {
        let opening = || {
            let server = format!("the ZooKeeper ensemble at {}", self.ensemble.endpoint);
            let limit = self.ensemble.config.connect_timeout;
            ConnectOnce::new(server, limit, Backoff::new(PAUSES.0, PAUSES.1))
        };
        self.table.lock().openings.entry(timeout).or_insert_with(opening).clone()
    }

    async fn open_one(&self, timeout: Duration) -> Result<Weak<SharedSession>> {
        let opened = self.ensemble.session(timeout).await?;
        let session = keep(&self.ensemble, timeout, opened);
        let weak = Arc::downgrade(&session);
        let mut table = self.table.lock();
        // A session that arrives too late is dropped, which ends it.
        if !self.closed.load(Relaxed) {
            table.open.push(session);
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
            let mut table = self.table.lock();
            for opening in table.openings.values() {
                opening.close();
            }
            std::mem::take(&mut table.open)
        };
        let mut closing = JoinSet::new();
        for session in open {
            closing.spawn(async move { session.close().await });
        }
        while closing.join_next().await.is_some() {}
    }
}

/// Keeps a new session, for which this timeout was `asked`, connected and alive for as long as it is used. Must be called
/// within a runtime.
fn keep(ensemble: &Arc<Ensemble>, asked: Duration, opened: NewSession) -> Arc<SharedSession> {
    let NewSession { sent, host, connection } = opened;
    let resumption = Resumption::of(&connection, host, Arc::clone(ensemble));
    let timeline = Timeline::new(connection.granted, sent, ensemble.clock.now());
    let timeline = timeline.with_tick(ensemble.config.tick_time);
    let session = Session::new(connection, timeline, ensemble.acl, Arc::clone(&ensemble.clock));
    resumption.start(&session);
    let session = SharedSession::new(session, asked, Arc::clone(&ensemble.config));
    tokio::spawn(tend(Arc::downgrade(&session)));
    session
}

/// Asks the leader at a steady pace, so that there are always requests of the right age: see
/// [`Timeline`]. `sync` needs no right to any node. These requests replace the driver's own pings. A session unused
/// for a while is closed.
///
/// An entry that a claim has left behind would live as long as the session, which may be for ever. So it ends here as a
/// lease would: a session timeout later.
async fn tend(open: Weak<SharedSession>) {
    loop {
        let beat = {
            let Some(open) = open.upgrade() else { return };
            if open.has_ended() {
                return;
            }
            if open.retire_if_idle() {
                open.close().await;
                return;
            }
            let work = async {
                // A failure shows when an entry is renewed.
                let _ = open.sync(&open.config.root).await;
                let mut lists = HashMap::new();
                for left in open.overdue() {
                    let removed = remove(&open, &left, &mut lists).await;
                    if let Some(refused) = open.tried_to_remove(&left, removed) {
                        let error = refused.at(&open.config.endpoint());
                        tracing::warn!(target: "distlock", node = %left.parent, %error, "the entry of a claim that was dropped cannot be removed, and keeps this lock from all others for as long as the session lasts; it will be retried");
                    }
                }
            };
            // A lost connection is handled elsewhere; a silent one ends this wait.
            let _ = tokio::time::timeout(open.timeout / 2, work).await;
            Timeline::beat(open.timeout)
        };
        tokio::time::sleep(beat).await;
    }
}

/// Removes what one claim has left. Its queue is listed unless it is among these `lists`, from which other claims were
/// served: all of them were dropped long before.
async fn remove(
    open: &SharedSession,
    left: &LeftEntries,
    lists: &mut HashMap<String, Reply<BTreeSet<String>>>,
) -> Reply<()> {
    let LeftEntries { parent, prefix, .. } = left;
    let list = match lists.entry(parent.clone()) {
        Entry::Occupied(listed) => listed.into_mut(),
        Entry::Vacant(unlisted) => {
            let list = open.sync_and_list(parent).await;
            unlisted.insert(list.map(BTreeSet::from_iter))
        }
    };
    let names = list.as_ref().map_err(|failure| failure.clone())?;
    for name in names.range(prefix.clone()..).take_while(|name| name.starts_with(prefix)) {
        open.delete(&format!("{parent}/{name}")).await?;
    }
    Ok(())
}
