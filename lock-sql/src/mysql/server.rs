//! Connecting, and making sure that the database contains our table.

use std::fmt;
use std::time::Duration;

use lock_core::{Error, ErrorKind, FencingToken, Result, async_trait};
use lock_kit::server::MinimumVersion;
use sqlx::mysql::{MySqlArguments, MySqlConnection, MySqlRow};
use sqlx::{AssertSqlSafe, ConnectOptions, Executor, MySql, Row as _};

use crate::engine::table::creation::ensure_once;
use crate::engine::table::lock_table::{LockTable, StatementName};
use crate::engine::table::settings::Settings;
use crate::engine::wire::driver::{SqlDriver, shielded};
use crate::engine::wire::errors::StatementFailure;
use crate::engine::wire::pool::PooledServer;
use crate::engine::wire::statement::{
    PlaceStyle, Query, Row, SqlStatement, SqlValue, StatementReply, Values, nullable,
};
use crate::mysql::codes;
use crate::mysql::config::MySqlTarget;
use crate::mysql::statements;

/// `SKIP LOCKED` came with 8.0.
const MYSQL: MinimumVersion = MinimumVersion::new(
    "MySQL",
    [8, 0, 0],
    "older ones do not know SKIP LOCKED, which renewals need",
);
/// `SKIP LOCKED` came with 10.6 (MDEV-13115).
const MARIADB: MinimumVersion = MinimumVersion::new(
    "MariaDB",
    [10, 6, 0],
    "older ones do not know SKIP LOCKED, which renewals need",
);

/// A database, and how connections to it are made.
pub(crate) struct MySqlServer {
    pub(super) table: LockTable,
    target: MySqlTarget,
}

/// Written by hand: the options contain the password.
impl fmt::Debug for MySqlServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MySqlServer").field("table", &self.table).finish_non_exhaustive()
    }
}

impl MySqlServer {
    pub(super) fn new(target: &MySqlTarget, settings: &Settings) -> Self {
        Self { table: statements::table(target.endpoint.clone(), settings), target: target.clone() }
    }

    async fn connect(&self) -> Result<MySqlConnection, sqlx::Error> {
        let options = self
            .target
            .options()
            // All of this is in the statements below.
            .set_names(false)
            .pipes_as_concat(false)
            .no_engine_substitution(false)
            .timezone(None)
            .disable_statement_logging();
        let mut connection = options.connect().await?;
        for set in [statements::SESSION, statements::ISOLATION] {
            sqlx::raw_sql(set).execute(&mut connection).await?;
        }
        Ok(connection)
    }
}

#[async_trait]
impl SqlDriver for MySqlServer {
    type Connection = MySqlConnection;

    fn table(&self) -> &LockTable {
        &self.table
    }

    /// The row was written; if the number is missing, the outcome is unknown.
    fn outcome_number(&self, row: &Row) -> Result<i64> {
        row.int(0).map_err(|_| {
            let text = format!(
                "the reply of {} to an UPDATE lacks the number that the statement passed to LAST_INSERT_ID: use a proxy that passes it on, or none",
                self.table.names.at
            );
            Error::new(ErrorKind::Store, text).with_unknown_effect()
        })
    }

    async fn check_server(&self, connection: &mut MySqlConnection) -> Result<(), StatementFailure> {
        let ask = SqlStatement::new(PlaceStyle::Marks, 0, statements::VERSION).bare();
        let rows = self.ask(connection, ask).await?;
        let version = rows.first().map(|row| row.text(0)).transpose()?;
        Ok(supported(version.unwrap_or_default())?)
    }

    /// The number that a statement puts into `LAST_INSERT_ID` is its one row. It has none if no row
    /// was found, and NULL where the number is missing, as behind some proxies.
    async fn run(
        &self,
        connection: &mut MySqlConnection,
        query: Query<'_>,
    ) -> sqlx::Result<StatementReply> {
        let reads = query.sql.trim_start_matches('(').starts_with("SELECT");
        let bound = bound(query);
        if reads {
            let rows = bound.fetch_all(connection).await?;
            return StatementReply::of_rows(rows.iter().map(row));
        }
        let done = bound.execute(connection).await?;
        let affected = done.rows_affected();
        let rows = match done.last_insert_id().cast_signed() {
            0 if affected == 0 => Vec::new(),
            0 => vec![Row(vec![SqlValue::Null])],
            number => vec![Row(vec![SqlValue::Int(number)])],
        };
        Ok(StatementReply { rows, affected, repeated: false })
    }

    async fn explain(
        &self,
        connection: &mut MySqlConnection,
        statement: &SqlStatement,
    ) -> sqlx::Result<()> {
        let text = sqlx::SqlSafeStr::into_sql_str(AssertSqlSafe(statement.bare().sql));
        connection.prepare(text).await.map(drop)
    }

    fn code(&self, error: &sqlx::Error) -> Option<String> {
        codes::code(error)
    }
}

#[async_trait]
impl PooledServer for MySqlServer {
    const FRESH: Duration = Duration::from_secs(1);
    // A small server has been seen to stop and be back within 80 ms.
    const FRESH_FOR_TRIES: Duration = Duration::from_millis(25);

    async fn open(&self) -> Result<MySqlConnection, StatementFailure> {
        let connecting = shielded(self.connect()).await;
        let mut connection = connecting.map_err(|error| self.failure(error, false))?;
        if ensure_once(self, &mut connection).await? {
            // Without it, clients that insert rows would lock the gap in its place.
            let fence = Values::default().with("fence", None::<FencingToken>);
            let mark = self.table.statement(StatementName::SweepFold).bind(&fence);
            self.ask(&mut connection, mark).await?;
        }
        Ok(connection)
    }
}

/// Texts are bound as bytes, as they are in the table.
fn bound(query: Query<'_>) -> sqlx::query::Query<'static, MySql, MySqlArguments> {
    let mut bound = sqlx::query::<MySql>(AssertSqlSafe(query.sql));
    for value in query.values {
        bound = match value {
            SqlValue::Text(text) => bound.bind(text.as_bytes()),
            SqlValue::Bytes(bytes) => bound.bind(bytes),
            SqlValue::Int(number) => bound.bind(number),
            SqlValue::Bool(flag) => bound.bind(i64::from(flag)),
            SqlValue::Null | SqlValue::List(_) => bound.bind(None::<Vec<u8>>),
        };
    }
    bound
}

/// As numbers and bytes, since the two servers give the columns of their descriptions different
/// types.
fn row(row: &MySqlRow) -> sqlx::Result<Row> {
    let value = |column: usize| match row.try_get::<Option<i64>, _>(column) {
        Ok(number) => Ok(nullable(number)),
        Err(_) => row.try_get::<Option<Vec<u8>>, _>(column).map(nullable),
    };
    (0..row.len()).map(value).collect::<sqlx::Result<_>>().map(Row)
}

/// Checks what `VERSION()` says. Some versions of MariaDB say first that they are MySQL 5.5.5, for
/// old replicas.
fn supported(version: &str) -> Result<()> {
    match version.contains("MariaDB") {
        true => MARIADB.check(version.strip_prefix("5.5.5-").unwrap_or(version)),
        false => MYSQL.check(version),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_without_skip_locked_are_refused() {
        for good in ["10.6.0-MariaDB", "5.5.5-10.11.6-MariaDB-0+deb12u1", "8.0.36", "9.1.0-log"] {
            supported(good).unwrap();
        }
        for (old, newer) in [
            ("10.5.23-MariaDB-0+deb11u1", "MariaDB 10.6"),
            ("5.5.5-10.5.29-MariaDB-log", "MariaDB 10.6"),
            ("5.7.44-log", "MySQL 8.0"),
        ] {
            let error = supported(old).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            assert!(error.to_string().contains(newer), "{error}");
        }
    }
}
