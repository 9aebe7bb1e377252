//! The connections of one client, and within which limits a statement goes over one of them.

use std::fmt::Debug;
use std::time::Duration;

use lock_core::{ClockInstant, Result, async_trait};

use crate::engine::wire::errors::StatementFailure;
use crate::engine::wire::statement::{SqlStatement, StatementReply, Values};

/// The connections of one client.
#[async_trait]
pub(crate) trait Connections: Debug + Send + Sync + 'static {
    /// Executes one statement to its end. Its values are bound when a connection is free, so that they are
    /// fresh. The connection of a statement that does not come to its end is not used again, unless it
    /// executes in order.
    async fn execute(
        &self,
        limits: StatementLimits,
        statement: &SqlStatement,
        values: &Values<'_>,
    ) -> Result<StatementReply, StatementFailure>;
    /// Stops using the present connections: their server has ended, or is now a different one.
    fn forget(&self) {}
    /// No reply has come since then, and none in time: connections that have not answered since then, either,
    /// are probably just as silent.
    fn gave_up(&self, _since: ClockInstant) {}
    async fn close(&self) -> Result<()>;
}

/// How a statement is executed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StatementLimits {
    pub(crate) class: StatementClass,
    /// Whether the statement may take a lock. If its connection is lost, it is not retried: the first
    /// copy may run after the retry and after a release, so the core must know of it.
    pub(crate) takes: bool,
    pub(crate) whole: Duration,
    pub(crate) end: ClockInstant,
    /// Until when it is retried while another client writes.
    pub(crate) patience: ClockInstant,
}

impl StatementLimits {
    /// Retries for three quarters of the time, which leaves some time to report a failure.
    pub(crate) fn patient(class: StatementClass, start: ClockInstant, whole: Duration) -> Self {
        Self { class, takes: false, whole, end: start + whole, patience: start + whole * 3 / 4 }
    }

    /// Does not retry.
    pub(crate) fn once(self) -> Self {
        Self { patience: ClockInstant::from_nanos(0), ..self }
    }

    /// May take a lock.
    pub(crate) fn taking(self) -> Self {
        Self { takes: true, ..self }
    }

    /// For another statement of the same call.
    pub(crate) fn then(self, class: StatementClass) -> Self {
        Self { class, takes: false, ..self }
    }
}

/// The queue of a statement. Each kind has its own limit on concurrent statements: however many
/// tasks want a lock, or wait to release one whose row another client has locked, renewals do not
/// wait for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StatementClass {
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
