//! The connections of one client, and how a statement is sent over one of them.

use std::fmt::Debug;
use std::time::Duration;

use lock_core::{ClockInstant, Result, async_trait};

use super::entry::Entry;
use super::error::Failure;
use super::statement::Query;
use super::value::Reply;

/// The connections of one client.
#[async_trait]
pub(crate) trait Links: Debug + Send + Sync + 'static {
    /// Executes one statement to its end. `make` is called when a connection is free, so that the
    /// bound values are fresh. A dropped statement goes on to its end, and [`Entry::settled`] waits
    /// for it.
    async fn execute(
        &self,
        want: Want<'_>,
        make: &(dyn Fn() -> Query + Send + Sync),
    ) -> Result<Reply, Failure>;
    /// Stops using the present connections.
    fn forget(&self) {}
    /// No reply has come since then, and none in time: connections that have not answered since then, either,
    /// are probably just as silent.
    fn gave_up(&self, _since: ClockInstant) {}
    async fn close(&self) -> Result<()>;
}

/// How a statement is executed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Want<'a> {
    pub(crate) turn: Turn,
    /// Whose lock the statement may take. If its connection is lost, it is not retried: the first
    /// copy may run after the retry and after a release, so the core must know of it.
    pub(crate) taker: Option<&'a Entry>,
    pub(crate) whole: Duration,
    pub(crate) end: ClockInstant,
    /// Until when it is retried while another client writes.
    pub(crate) patience: ClockInstant,
}

impl<'a> Want<'a> {
    /// Retries for three quarters of the time, which leaves some time to report a failure.
    pub(crate) fn patient(turn: Turn, start: ClockInstant, whole: Duration) -> Self {
        Self { turn, taker: None, whole, end: start + whole, patience: start + whole * 3 / 4 }
    }

    /// Does not retry.
    pub(crate) fn once(self) -> Self {
        Self { patience: ClockInstant::from_nanos(0), ..self }
    }

    /// Takes the lock of `entry`.
    pub(crate) fn by(self, entry: &'a Entry) -> Self {
        Self { taker: Some(entry), ..self }
    }
}

/// The queue of a statement. Each kind has its own limit on concurrent statements: however many
/// tasks want a lock, or wait to release one whose row another client has locked, renewals do not
/// wait for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Renewing locks.
    Keep,
    /// Reading whether one is still held.
    Check,
    /// Releasing locks, and notifying the next waiter.
    Release,
    /// Acquiring locks, and cleaning up.
    Try,
    /// Reading on behalf of non-holders.
    Look,
}
