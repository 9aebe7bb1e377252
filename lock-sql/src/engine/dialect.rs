//! The steps that only one dialect takes.

use std::fmt::Debug;
use std::time::Duration;

use lock_core::{
    Attempt, Binding, Capabilities, ClockInstant, DataLoss, Fencing, Finding, Result, Wake,
    async_trait,
};

use super::driver::Driver;
use super::entry::{Due, Entry, Outcome};
use super::executor::Executor;
use super::statement::Values;
use super::wake::Waiter;

/// What a dialect does differently, with the statements that it has.
#[async_trait]
pub(crate) trait Dialect: Debug + Send + Sync + Sized + 'static {
    type Driver: Driver;

    const NAME: &'static str;
    /// Whether it is cheaper to read before writing if another client has the lock. Otherwise the
    /// statement does both.
    const LOOKS_FIRST: bool = true;
    /// Whether a sweep may begin after the first grant. It would take the connection that the
    /// program needs next where making one is expensive; clients then also sweep at their end.
    const SWEEPS_AT_ONCE: bool = true;
    /// The pause between raising the mark and deleting.
    const SETTLE: Duration = Duration::ZERO;
    /// What the release of a running lease answers.
    const WAS_RUNNING: i64 = 1;
    /// What makes the database forget commits.
    const LOSES_DATA_ON: &'static [DataLoss] = &[DataLoss::Failover];

    /// The values of an acquire.
    fn wanted(&self, entry: &Entry) -> Values {
        entry.values(None)
    }
    /// How waiters learn of a release.
    fn wake(&self) -> Wake {
        Wake::Poll
    }
    /// For a claim for `name`; `None` where the database cannot push.
    fn listen(&self, _name: &str, _wait: bool) -> Option<Waiter> {
        None
    }
    /// The store is closed.
    fn closing(&self) {}

    /// Whether the statement `acquire` is worth a try. Otherwise [`missing`](Self::missing) is the first to
    /// ask.
    fn tries(&self, _: &Entry) -> bool {
        true
    }
    /// An acquire that began at `start` got no row by `acquire`. `None`: because other clients are writing.
    async fn missing(
        &self,
        _: &Executor<Self::Driver>,
        _: &Entry,
        _: ClockInstant,
    ) -> Result<Option<Attempt>> {
        Ok(None)
    }
    /// See [`Renew::renew`](super::renewals::Renew::renew).
    async fn renew(
        &self,
        executor: &Executor<Self::Driver>,
        dues: &[Due<'_>],
        limit: Duration,
    ) -> Result<Vec<Outcome>>;
    /// After a release, which has `freed` the lock: the claim no longer waits.
    async fn released(&self, _: &Executor<Self::Driver>, _: &Entry, _freed: bool) {}
    /// What an operator should know about the database.
    async fn diagnose(&self, executor: &Executor<Self::Driver>) -> Result<Vec<Finding>>;
    /// After a sweep.
    async fn swept(&self, _: &Executor<Self::Driver>) {}

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::new(Binding::Lease, self.wake());
        // The next fence is made from the stored one; the clock is needed only if the data are
        // lost.
        capabilities.fencing = Fencing::Durable;
        capabilities.fence_block = true;
        capabilities.detachable = true;
        capabilities.inspect = true;
        capabilities.loses_data_on = Self::LOSES_DATA_ON;
        capabilities
    }
}
