//! How many claims one session carries.
//!
//! The end of a session is one transaction with the paths of all its nodes. A server that has
//! written one of more than a megabyte cannot read it back, and never restarts (ZOOKEEPER-4306). So
//! a session takes claims up to a fraction of that, and further claims get another session.

use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use lock_core::ClockInstant;
use tokio::sync::OnceCell;

use crate::config::ZkConfig;
use crate::renewals::Renewals;
use crate::timeline::Timeline;
use crate::wire::Session;

/// A session that claims have shares in, and their common state.
#[derive(Debug)]
pub(crate) struct OpenSession {
    session: Arc<Session>,
    pub(super) config: Arc<ZkConfig>,
    /// The requested timeout. The server may have set a longer one.
    pub(super) asked: Duration,
    pub(crate) renewals: Renewals,
    /// The base of the fences, once known.
    pub(super) base: OnceCell<u64>,
    usage: Mutex<Usage>,
}

/// The usage of one session by claims.
#[derive(Debug)]
struct Usage {
    shares: usize,
    bytes: usize,
    idle_since: ClockInstant,
    /// No more shares are given out.
    retired: bool,
}

impl Deref for OpenSession {
    type Target = Session;

    fn deref(&self) -> &Session {
        &self.session
    }
}

impl OpenSession {
    /// Starts tending `session`. Must be called within a runtime.
    pub(super) fn start(
        session: Arc<Session>,
        asked: Duration,
        config: Arc<ZkConfig>,
    ) -> Arc<Self> {
        let usage = Usage { shares: 0, bytes: 0, idle_since: session.now(), retired: false };
        let open = Arc::new(Self {
            renewals: Renewals::new(Arc::clone(&session)),
            base: OnceCell::new(),
            usage: Mutex::new(usage),
            config,
            asked,
            session,
        });
        tokio::spawn(tend(Arc::downgrade(&open)));
        open
    }

    /// A share for a claim whose node has a path of `bytes`, without the chroot; `None` if there is
    /// no room.
    pub(super) fn share(self: &Arc<Self>, bytes: usize) -> Option<Share> {
        let bytes = if bytes == 0 { 0 } else { self.path_len(bytes) };
        let mut usage = self.usage();
        let is_full = usage.shares > 0 && usage.bytes + bytes > self.config.path_limit;
        if is_full || usage.retired || self.has_ended() {
            return None;
        }
        usage.shares += 1;
        usage.bytes += bytes;
        Some(Share { open: Arc::clone(self), bytes })
    }

    /// Whether this session is over or about to end.
    pub(super) fn is_leaving(&self) -> bool {
        self.usage().retired || self.has_ended()
    }

    /// Retires the session if it has had no share for a while; then no more are given out.
    fn retire_if_idle(&self) -> bool {
        let mut usage = self.usage();
        let idle = self.now().since(usage.idle_since);
        usage.retired |= usage.shares == 0 && idle >= self.config.idle_limit;
        usage.retired
    }

    fn usage(&self) -> MutexGuard<'_, Usage> {
        self.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A share in a session, held until dropped.
#[derive(Debug)]
pub(crate) struct Share {
    open: Arc<OpenSession>,
    bytes: usize,
}

impl Deref for Share {
    type Target = Arc<OpenSession>;

    fn deref(&self) -> &Arc<OpenSession> {
        &self.open
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut usage = self.open.usage();
        usage.shares -= 1;
        usage.bytes -= self.bytes;
        usage.idle_since = self.open.now();
    }
}

/// Asks the leader at a steady pace, so that there are always requests of the right age: see
/// [`Timeline`](crate::timeline::Timeline). `sync` needs no right to any node. These requests
/// replace the driver's own pings. A session unused for a while is closed.
async fn tend(open: Weak<OpenSession>) {
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
            // A lost connection is handled elsewhere; a silent one ends this wait.
            let _ = tokio::time::timeout(open.timeout / 2, open.sync(&open.config.root)).await;
            Timeline::beat(open.timeout)
        };
        tokio::time::sleep(beat).await;
    }
}
