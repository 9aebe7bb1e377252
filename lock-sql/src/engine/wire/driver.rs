//! One database, and how statements are sent to it.

use std::fmt::Debug;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use lock_core::{Error, ErrorKind, Result, async_trait};
use sqlx::Connection;

use crate::engine::table::lock_table::LockTable;
use crate::engine::wire::errors::StatementFailure;
use crate::engine::wire::statement::{Query, Row, SqlStatement, StatementReply, Values};

/// An `sqlx` driver, with the database that it is used for.
///
/// What is done to rows is one statement in autocommit: whoever gives it up, or vanishes in the middle of it, leaves
/// no transaction open, which would keep the rows locked.
#[async_trait]
pub(crate) trait SqlDriver: Debug + Send + Sync + 'static {
    type Connection: Connection + Debug + Send + 'static;

    /// The first and the longest pause between two tries while another client writes, in addition
    /// to the time for which the database itself waits. The connection is free for others
    /// meanwhile.
    const PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(16));

    fn table(&self) -> &LockTable;
    /// Refuses an unsuitable server.
    async fn check_server(&self, connection: &mut Self::Connection)
    -> Result<(), StatementFailure>;
    /// Executes one statement to its end: its commit is confirmed by what follows the last row.
    async fn run(
        &self,
        connection: &mut Self::Connection,
        query: Query<'_>,
    ) -> sqlx::Result<StatementReply>;
    /// Shows a statement to the database without executing it, which reveals missing columns and
    /// rights.
    async fn explain(
        &self,
        connection: &mut Self::Connection,
        statement: &SqlStatement,
    ) -> sqlx::Result<()>;
    /// The code of an error from the database itself.
    fn code(&self, error: &sqlx::Error) -> Option<String>;

    /// The statement with its values, made when its connection is free: for a database without a
    /// clock, they include the current time.
    fn query<'v>(&'v self, statement: &SqlStatement, values: &Values<'v>) -> Query<'v> {
        statement.bind(values)
    }
    /// The number that a statement returned for the row that it found.
    fn outcome_number(&self, row: &Row) -> Result<i64> {
        row.int(0)
    }
    /// A lease runs on a different clock from ours.
    fn elsewhere(&self, clock: &str) -> Error {
        Error::new(ErrorKind::Store, format!("a lease runs on another clock: {clock}"))
    }
    /// What the failure of a statement means. `sent`: it is one of ours, and not one of those that
    /// make a connection, where nothing was sent that could have been executed.
    fn failure(&self, error: sqlx::Error, sent: bool) -> StatementFailure {
        let code = self.code(&error);
        self.table().names.failure(code.as_deref(), error, sent)
    }
    /// The rows of a statement that is part of making a connection.
    async fn ask(
        &self,
        connection: &mut Self::Connection,
        query: Query<'_>,
    ) -> Result<Vec<Row>, StatementFailure> {
        let reply = shielded(self.run(connection, query)).await;
        Ok(reply.map_err(|error| self.failure(error, false))?.rows)
    }
}

/// Drives `work`. A driver that cannot read a reply may panic instead of saying so, as that of MySQL does on
/// a packet without content: then the connection is of no use any more, but the program is.
pub(crate) async fn shielded<T>(work: impl Future<Output = sqlx::Result<T>>) -> sqlx::Result<T> {
    let mut work = pin!(work);
    poll_fn(|context| {
        // What it leaves behind is dropped: the connection that it has used.
        let polled = catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context)));
        polled.unwrap_or_else(|_| {
            Poll::Ready(Err(sqlx::Error::Protocol("the driver cannot read the reply".to_owned())))
        })
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_is_an_error() {
        let broken = async {
            tokio::task::yield_now().await;
            assert!(std::env::args().count() > 100_000, "a panic of the driver");
            Ok(())
        };
        assert!(matches!(shielded(broken).await, Err(sqlx::Error::Protocol(_))));
        assert_eq!(shielded(async { Ok(7) }).await.unwrap(), 7);
    }
}
