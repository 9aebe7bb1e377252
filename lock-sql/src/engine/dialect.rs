//! What a dialect tells the engine.

use std::fmt::Debug;
use std::time::Duration;

use lock_core::{
    Attempt, Binding, Capabilities, ClockInstant, DataLoss, Error, ErrorKind, Fencing, Result,
    Wake, async_trait,
};
use sqlx::Connection;

use super::entry::{Due, Entry, Outcome};
use super::error::{Failure, Names};
use super::statement::{Query, Statement, Statements, Values};
use super::store::{Store, Want};
use super::value::{Reply, Row};
use super::wake::{WHILE_CONTENDED, Waiter, busy};

/// One database: the text of its statements, and the steps specific to it.
///
/// What is done to a row is one statement in autocommit, so that dropping it leaves no transaction
/// open.
#[async_trait]
pub(crate) trait Dialect: Debug + Send + Sync + Sized + 'static {
    type Links: Links;

    const NAME: &'static str;
    /// The first and the longest pause between two tries while another client writes, in addition
    /// to the time for which the database itself waits. The connection is free for others
    /// meanwhile.
    const PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(16));
    /// Whether it is cheaper to read before writing if another client has the lock. Otherwise the
    /// statement does both.
    const LOOKS_FIRST: bool = true;
    /// Whether a sweep may begin after the first grant. It would take the connection that the
    /// program needs next where making one is expensive; short-lived clients then sweep at their
    /// end.
    const SWEEPS_AT_ONCE: bool = true;
    /// The pause between raising the mark and deleting.
    const SETTLE: Duration = Duration::ZERO;
    /// What the release of a running lease answers.
    const WAS_RUNNING: i64 = 1;
    /// What makes the database forget commits.
    const LOSES_DATA_ON: &'static [DataLoss] = &[DataLoss::Failover];

    fn names(&self) -> &Names;
    fn statements(&self) -> &Statements;

    /// The statement with its values, made when its connection is free: for a database without a
    /// clock, they include the current time.
    fn query(&self, statement: &Statement, values: &Values) -> Query {
        statement.bind(values)
    }
    /// The values of an acquire.
    fn wanted(&self, entry: &Entry) -> Values {
        entry.values(None)
    }
    /// The number that a statement returned for the row that it found.
    fn told(&self, row: &Row) -> Result<i64> {
        row.int(0)
    }
    /// A lease runs on a different clock from ours.
    fn elsewhere(&self, clock: &str) -> Error {
        Error::new(ErrorKind::Store, format!("a lease runs on another clock: {clock}"))
    }
    /// How waiters learn of a release.
    fn wake(&self) -> Wake {
        Wake::Poll
    }
    /// For a claim for `name`; `None` where the database cannot push.
    fn listen(&self, _name: &str, _wait: bool) -> Option<Waiter> {
        None
    }
    /// The table no longer exists: the next connection looks for it again.
    fn look_again(&self) {}
    /// The store is closed.
    fn closing(&self) {}

    /// An acquire that began at `start` returned no row.
    async fn missing(_: &Store<Self>, _: &Entry, _start: ClockInstant) -> Result<Attempt> {
        Ok(busy(Some(WHILE_CONTENDED)))
    }
    /// See [`Renew::renew`](super::renewals::Renew::renew).
    async fn renew(store: &Store<Self>, dues: &[Due<'_>], limit: Duration) -> Result<Vec<Outcome>>;
    /// After a release: the claim no longer waits.
    async fn released(_: &Store<Self>, _: &Entry) {}
    /// After a sweep.
    async fn swept(_: &Store<Self>) {}

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::new(Binding::Lease, self.wake());
        // The next fence is made from the stored one; the clock is needed only if the data are
        // lost.
        capabilities.fencing = Fencing::Durable;
        capabilities.detachable = true;
        capabilities.inspect = true;
        capabilities.loses_data_on = Self::LOSES_DATA_ON;
        capabilities
    }
}

/// An `sqlx` driver, with the database that it is used for.
#[async_trait]
pub(crate) trait Driver: Debug + Send + Sync + 'static {
    type Connection: Connection + Debug + Send + 'static;

    fn names(&self) -> &Names;
    /// All statements that are ever sent, which the database must accept.
    fn statements(&self) -> Vec<&Statement>;
    /// Refuses an unsuitable server.
    async fn check_server(&self, connection: &mut Self::Connection) -> Result<(), Failure>;
    /// Executes one statement to its end: its commit is confirmed by what follows the last row.
    async fn run(&self, connection: &mut Self::Connection, query: Query) -> sqlx::Result<Reply>;
    /// Shows a statement to the database without executing it, which reveals missing columns and
    /// rights.
    async fn prove(
        &self,
        connection: &mut Self::Connection,
        statement: &Statement,
    ) -> sqlx::Result<()>;
    /// The code of an error from the database itself.
    fn code(&self, error: &sqlx::Error) -> Option<String>;

    /// What the failure of a statement means. `sent`: it is one of ours, and not one of those that
    /// make a connection, where nothing was sent that could have been executed.
    fn failure(&self, error: sqlx::Error, sent: bool) -> Failure {
        let code = self.code(&error);
        self.names().failure(code.as_deref(), error, sent)
    }
    /// The rows of a statement that is part of making a connection.
    async fn ask(
        &self,
        connection: &mut Self::Connection,
        query: Query,
    ) -> Result<Vec<Row>, Failure> {
        let reply = self.run(connection, query).await;
        Ok(reply.map_err(|error| self.failure(error, false))?.rows)
    }
}

/// The connections of one client.
#[async_trait]
pub(crate) trait Links: Debug + Send + Sync + 'static {
    /// Executes one statement to its end. `make` is called when a connection is free, so that the
    /// bound values are fresh. A dropped try goes on to its end, and [`settled`](Self::settled)
    /// waits for it.
    async fn execute(
        &self,
        want: Want<'_>,
        make: &(dyn Fn() -> Query + Send + Sync),
    ) -> Result<Reply, Failure>;
    /// Stops using the present connections.
    fn forget(&self) {}
    /// Waits until no dropped try of this owner is under way.
    async fn settled(&self, _owner: &str) {}
    async fn close(&self) -> Result<()>;
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
