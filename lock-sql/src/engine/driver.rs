//! One database, and how statements are sent to it.

use std::fmt::Debug;
use std::time::Duration;

use lock_core::{Error, ErrorKind, Result, async_trait};
use sqlx::Connection;

use super::error::Failure;
use super::lock_table::LockTable;
use super::shield::shielded;
use super::statement::{Query, Statement, Values};
use super::value::{Reply, Row};

/// An `sqlx` driver, with the database that it is used for.
///
/// What is done to a row is one statement in autocommit, so that dropping it leaves no transaction
/// open.
#[async_trait]
pub(crate) trait Driver: Debug + Send + Sync + 'static {
    type Connection: Connection + Debug + Send + 'static;
    /// The statements that only this database has.
    type Own: Debug + Send + Sync;

    /// The first and the longest pause between two tries while another client writes, in addition
    /// to the time for which the database itself waits. The connection is free for others
    /// meanwhile.
    const PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(16));

    fn table(&self) -> &LockTable<Self::Own>;
    /// Those of [`table`](Self::table) that are only of this database, and must be accepted by it.
    fn own_statements(&self) -> Vec<&Statement>;
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

    /// The statement with its values, made when its connection is free: for a database without a
    /// clock, they include the current time.
    fn query(&self, statement: &Statement, values: &Values) -> Query {
        statement.bind(values)
    }
    /// The number that a statement returned for the row that it found.
    fn told(&self, row: &Row) -> Result<i64> {
        row.int(0)
    }
    /// A lease runs on a different clock from ours.
    fn elsewhere(&self, clock: &str) -> Error {
        Error::new(ErrorKind::Store, format!("a lease runs on another clock: {clock}"))
    }
    /// What the failure of a statement means. `sent`: it is one of ours, and not one of those that
    /// make a connection, where nothing was sent that could have been executed.
    fn failure(&self, error: sqlx::Error, sent: bool) -> Failure {
        let code = self.code(&error);
        self.table().names.failure(code.as_deref(), error, sent)
    }
    /// The rows of a statement that is part of making a connection.
    async fn ask(
        &self,
        connection: &mut Self::Connection,
        query: Query,
    ) -> Result<Vec<Row>, Failure> {
        let reply = shielded(self.run(connection, query)).await;
        Ok(reply.map_err(|error| self.failure(error, false))?.rows)
    }
}
