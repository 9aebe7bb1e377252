//! Asking a database about itself, for operators.

use std::time::{Duration, SystemTime};

use lock_core::kit::diagnosis;
use lock_core::{Error, ErrorKind, Finding, Result};

use super::driver::Driver;
use super::executor::Executor;
use super::links::Turn;
use super::statement::{Statement, Values};
use super::store::ADMIN_LIMIT;
use super::value::Row;

impl<V: Driver> Executor<V> {
    /// The one row of a statement that only reads.
    pub(crate) async fn ask(&self, statement: &Statement, values: &Values) -> Result<Row> {
        let reply = self.patiently(Turn::Look, ADMIN_LIMIT, statement, values).await?;
        reply.rows.into_iter().next().ok_or_else(|| {
            Error::new(ErrorKind::Store, format!("{} says nothing about itself", self.at()))
        })
    }

    /// Like [`ask`](Self::ask), for a row whose first column is the server's clock, in µs since 1970.
    pub(crate) async fn ask_with_clock(
        &self,
        statement: &Statement,
        values: &Values,
    ) -> Result<(Row, Option<Finding>)> {
        let sent = SystemTime::now();
        let row = self.ask(statement, values).await?;
        let answered = SystemTime::now();
        let since = u64::try_from(row.int(0)?).unwrap_or(0);
        let theirs = SystemTime::UNIX_EPOCH + Duration::from_micros(since);
        let apart = diagnosis::clock(self.at(), theirs, (sent, answered));
        Ok((row, apart))
    }
}
