//! Opening a connection, and making sure that the database contains our table.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lock_core::kit::versions::POSTGRES;
use lock_core::{Error, Result, async_trait};
use sqlx::postgres::{PgConnectOptions, PgRow};
use sqlx::{
    AssertSqlSafe, Column as _, ConnectOptions, Executor, PgConnection, Postgres, Row as _,
    TypeInfo,
};

use super::codes::POOLED;
use super::config::{Pooler, PostgresTarget};
use super::inline::inline;
use super::statements::{self, OwnStatements};
use crate::engine::driver::Driver;
use crate::engine::error::Failure;
use crate::engine::lock_table::LockTable;
use crate::engine::pool::Server;
use crate::engine::schema::ensure_once;
use crate::engine::settings::Settings;
use crate::engine::shield::shielded;
use crate::engine::statement::{Places, Query, Statement};
use crate::engine::value::{Reply, Row, Value, nullable};

/// A database, and how connections to it are made.
pub(crate) struct PostgresServer {
    pub(super) table: LockTable<OwnStatements>,
    /// The channel on which holders learn of a loss.
    pub(super) channel: String,
    pub(super) options: PgConnectOptions,
    /// Whether a pooler gives each transaction to another server connection.
    pooled: AtomicBool,
}

/// Not derived, since the options contain the password.
impl fmt::Debug for PostgresServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresServer")
            .field("table", &self.table)
            .field("pooled", &self.pooled)
            .finish_non_exhaustive()
    }
}

impl PostgresServer {
    pub(super) fn new(target: &PostgresTarget, settings: &Settings) -> Self {
        let user = target.options.get_username();
        Self {
            table: statements::table(target.at(), user, settings),
            channel: settings.table.as_str().to_owned(),
            options: target.options.clone(),
            pooled: AtomicBool::new(target.pooler == Pooler::Transaction),
        }
    }

    pub(super) fn is_pooled(&self) -> bool {
        self.pooled.load(Ordering::Acquire)
    }

    pub(super) fn set_pooled(&self) {
        if !self.pooled.swap(true, Ordering::AcqRel) {
            tracing::info!(target: "distlock", at = %self.table.names.at, "a pooler gives each transaction to another server connection: statements are sent unprepared, in one piece");
        }
    }

    pub(super) async fn connect(&self) -> Result<PgConnection, Failure> {
        shielded(self.options.connect()).await.map_err(|error| self.failure(error, false))
    }

    /// Applies our settings, and checks the table, creating it if needed.
    pub(super) async fn make_ours(
        &self,
        mut connection: PgConnection,
    ) -> Result<PgConnection, Failure> {
        if !self.is_pooled() {
            let settings = format!("{}; {}", statements::KEEP_ALIVE, statements::SESSION);
            let set = connection.fetch_all(sqlx::raw_sql(AssertSqlSafe(settings))).await;
            set.map_err(|error| self.failure(error, false))?;
        }
        ensure_once(self, &mut connection).await?;
        Ok(connection)
    }
}

#[async_trait]
impl Driver for PostgresServer {
    type Connection = PgConnection;
    type Own = OwnStatements;

    const PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(32));

    fn table(&self) -> &LockTable<OwnStatements> {
        &self.table
    }

    fn own_statements(&self) -> Vec<&Statement> {
        let OwnStatements { enter, renew, renew_waiting, pass, leave, dead_rows: _ } =
            &self.table.own;
        vec![enter, renew, renew_waiting, pass, leave]
    }

    async fn check_server(&self, connection: &mut PgConnection) -> Result<(), Failure> {
        let at = &self.table.names.at;
        let ask = Statement::new(Places::Dollars, 0, statements::SERVER).bind(&self.table.values());
        let rows = self.ask(connection, ask).await?;
        let Some(row) = rows.first() else { return Ok(()) };
        let (version, encoding, commit) = (row.text(0)?, row.text(1)?, row.text(2)?);
        POSTGRES.check(version)?;
        if encoding != "UTF8" {
            return Err(Error::config(format!(
                "the encoding of {at} is {encoding}, which cannot store every lock name: use a database with ENCODING 'UTF8'"
            ))
            .into());
        }
        if commit == "off" {
            tracing::warn!(target: "distlock", %at, "synchronous_commit is off: a server crash may lose the last locks. Switch it on for this role");
        }
        if row.optional_text(3)? == Some("u") {
            tracing::warn!(target: "distlock", %at, "the lock table is UNLOGGED: a server crash loses all locks");
        }
        Ok(())
    }

    async fn run(&self, connection: &mut PgConnection, query: Query) -> sqlx::Result<Reply> {
        let Query { sql, values } = query;
        let rows = if self.is_pooled() {
            let text = format!("{}{}", statements::LIMITED, inline(&sql, &values));
            connection.fetch_all(sqlx::raw_sql(AssertSqlSafe(text))).await?
        } else {
            let query = sqlx::query::<Postgres>(AssertSqlSafe(Arc::clone(&sql)));
            let bound = values.into_iter().fold(query, |query, value| match value {
                Value::Null => query.bind(None::<String>),
                Value::Text(text) => query.bind(text),
                Value::Bytes(bytes) => query.bind(bytes),
                Value::Int(number) => query.bind(number),
                Value::Bool(flag) => query.bind(flag),
                Value::List(items) => match items.first() {
                    Some(Value::Int(_)) => query.bind(all(items, |item| match item {
                        Value::Int(number) => number,
                        _ => 0,
                    })),
                    _ => query.bind(all(items, |item| {
                        String::from_utf8_lossy(item.as_bytes()).into_owned()
                    })),
                },
            });
            bound.fetch_all(connection).await?
        };
        Reply::of_rows(rows.iter().map(row))
    }

    /// The planner checks columns, types and rights. Sent in one piece, since EXPLAIN takes no
    /// values.
    async fn prove(
        &self,
        connection: &mut PgConnection,
        statement: &Statement,
    ) -> sqlx::Result<()> {
        let Query { sql, values } = statement.bare();
        let text = format!("EXPLAIN {}", inline(&sql, &values));
        connection.execute(sqlx::raw_sql(AssertSqlSafe(text))).await.map(drop)
    }

    /// The SQLSTATE.
    fn code(&self, error: &sqlx::Error) -> Option<String> {
        let code = error.as_database_error()?.code()?.into_owned();
        if POOLED.contains(&&*code) {
            self.set_pooled();
        }
        Some(code)
    }
}

fn all<T>(items: Vec<Value>, value: impl Fn(Value) -> T) -> Vec<T> {
    items.into_iter().map(value).collect()
}

#[async_trait]
impl Server for PostgresServer {
    // The listening connection notices a dead server sooner.
    const FRESH: Duration = Duration::MAX;
    const FRESH_FOR_TRIES: Duration = Duration::from_secs(1);

    async fn open(&self) -> Result<PgConnection, Failure> {
        let connection = self.connect().await?;
        self.make_ours(connection).await
    }
}

/// The types that our statements can return; any other counts as NULL.
pub(super) fn row(row: &PgRow) -> sqlx::Result<Row> {
    let value = |column: usize| {
        Ok(match row.column(column).type_info().name() {
            "BOOL" => nullable(row.try_get::<Option<bool>, _>(column)?),
            "INT8" => nullable(row.try_get::<Option<i64>, _>(column)?),
            "INT4" => nullable(row.try_get::<Option<i32>, _>(column)?.map(i64::from)),
            "TEXT" => nullable(row.try_get::<Option<String>, _>(column)?),
            _ => Value::Null,
        })
    };
    (0..row.len()).map(value).collect::<sqlx::Result<_>>().map(Row)
}
