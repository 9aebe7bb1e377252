//! Opening a connection, making sure that the database contains our table, and which locks are probably free.

use std::collections::HashSet;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use lock_core::{Error, OsRng, Result, Rng, async_trait};
use lock_kit::server::MinimumVersion;
use parking_lot::Mutex;
use sqlx::error::DatabaseError;
use sqlx::postgres::{PgConnectOptions, PgDatabaseError, PgRow, PgSeverity};
use sqlx::{
    AssertSqlSafe, Column as _, ConnectOptions, Executor, PgConnection, Postgres, Row as _,
    TypeInfo,
};
use tokio::task::AbortHandle;

use crate::engine::table::creation::ensure_once;
use crate::engine::table::lock_table::LockTable;
use crate::engine::table::settings::{Settings, schema_name};
use crate::engine::waiters::NotifiedClaims;
use crate::engine::wire::driver::{SqlDriver, shielded};
use crate::engine::wire::errors::StatementFailure;
use crate::engine::wire::pool::PooledServer;
use crate::engine::wire::statement::{
    PlaceStyle, Query, Row, SqlStatement, SqlValue, StatementReply, nullable,
};
use crate::postgres::codes::{self, ENDED, POOLED};
use crate::postgres::config::{Pooler, PostgresTarget};
use crate::postgres::statements::{self, inline};

/// The oldest that was tested. The statements themselves need 9.5 (`ON CONFLICT`, `SKIP LOCKED`).
const POSTGRES: MinimumVersion =
    MinimumVersion::new("PostgreSQL", [13, 0, 0], "older ones have not been maintained since 2024");

/// A database, how connections to it are made, and what one client of it knows.
pub(crate) struct PostgresServer {
    pub(super) table: LockTable,
    /// The channel on which holders learn of a loss.
    pub(super) channel: String,
    pub(super) options: PgConnectOptions,
    /// Whether a pooler gives each transaction to another server connection.
    pooled: AtomicBool,
    /// Identifies us in the list of waiters, and names our channel.
    pub(super) client: String,
    /// Where pushes arrive, and what delivers them, if the server can send them.
    pub(super) pushes: OnceLock<(Arc<NotifiedClaims>, AbortHandle)>,
    pub(super) free: ProbablyFree,
    /// The number of dead row versions in the last warning.
    pub(super) warned: AtomicI64,
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

impl Drop for PostgresServer {
    fn drop(&mut self) {
        self.stop_delivery();
    }
}

impl PostgresServer {
    pub(crate) fn new(target: &PostgresTarget, settings: &Settings) -> Result<Self> {
        let user = target.options.get_username();
        let mut id = [0; 8];
        OsRng.fill(&mut id)?;
        Ok(Self {
            table: statements::table(target.at(), user, settings, &settings.table),
            channel: settings.table.as_str().to_owned(),
            options: target.options.clone(),
            pooled: AtomicBool::new(target.pooler == Pooler::Transaction),
            client: format!("{:016x}", u64::from_be_bytes(id)),
            pushes: OnceLock::new(),
            free: ProbablyFree::default(),
            warned: AtomicI64::new(0),
        })
    }

    pub(super) fn stop_delivery(&self) {
        if let Some((_, delivery)) = self.pushes.get() {
            delivery.abort();
        }
    }

    /// Makes the statements name the schema of the table: whoever shares a pooler's connections with us may
    /// have left another search path on them.
    pub(super) async fn name_schema(
        &mut self,
        connection: &mut PgConnection,
        settings: &Settings,
    ) -> Result<(), StatementFailure> {
        let ask = SqlStatement::new(PlaceStyle::Dollars, 0, statements::SCHEMA);
        let Query { sql, values, .. } = ask.bind(&self.table.values());
        let text = format!("{}{}", statements::DEFAULT_PATH, inline(&sql, &values));
        let rows = shielded(connection.fetch_all(sqlx::raw_sql(AssertSqlSafe(text)))).await;
        let reply = rows.and_then(|rows| StatementReply::of_rows(rows.iter().map(row)));
        let reply = reply.map_err(|error| self.failure(error, false))?;
        let Some(row) = reply.rows.first() else { return Ok(()) };
        one_primary(row.text(0)?)?;
        let schema = match (&settings.schema, row.optional_text(1)?) {
            (Some(schema), _) => schema.clone(),
            (None, Some(found)) => schema_name(found)?,
            (None, None) => {
                let why = "no schema is on the search path of this user";
                return Err(self.table.names.no_table(why).into());
            }
        };
        let (at, user) = (self.table.names.at.clone(), self.options.get_username());
        let table = settings.table.within(&schema);
        self.table = statements::table(at, user, settings, &table);
        Ok(())
    }

    pub(super) fn is_pooled(&self) -> bool {
        self.pooled.load(Ordering::Acquire)
    }

    pub(super) fn set_pooled(&self) {
        if !self.pooled.swap(true, Ordering::AcqRel) {
            tracing::info!(target: "distlock", at = %self.table.names.at, "a pooler gives each transaction to another server connection: statements are sent unprepared, in one piece");
        }
    }

    pub(super) async fn connect(&self) -> Result<PgConnection, StatementFailure> {
        shielded(self.options.connect()).await.map_err(|error| self.failure(error, false))
    }

    /// Applies our settings, and checks the table, creating it if needed.
    pub(super) async fn make_ours(
        &self,
        mut connection: PgConnection,
    ) -> Result<PgConnection, StatementFailure> {
        if !self.is_pooled() {
            let settings = format!("{}; {}", statements::KEEP_ALIVE, statements::SESSION);
            let set = connection.fetch_all(sqlx::raw_sql(AssertSqlSafe(settings))).await;
            set.map_err(|error| self.failure(error, false))?;
        }
        if ensure_once(self, &mut connection).await? {
            self.table.stays_gone.store(true, Ordering::Release);
        }
        Ok(connection)
    }
}

#[async_trait]
impl SqlDriver for PostgresServer {
    type Connection = PgConnection;

    const PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(32));

    fn table(&self) -> &LockTable {
        &self.table
    }

    async fn check_server(&self, connection: &mut PgConnection) -> Result<(), StatementFailure> {
        let at = &self.table.names.at;
        let ask = SqlStatement::new(PlaceStyle::Dollars, 0, statements::SERVER)
            .bind(&self.table.values());
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

    async fn run(
        &self,
        connection: &mut PgConnection,
        query: Query<'_>,
    ) -> sqlx::Result<StatementReply> {
        let Query { sql, values, .. } = query;
        let rows = if self.is_pooled() {
            let text = format!("{}{}", statements::LIMITED, inline(&sql, &values));
            connection.fetch_all(sqlx::raw_sql(AssertSqlSafe(text))).await?
        } else {
            let query = sqlx::query::<Postgres>(AssertSqlSafe(Arc::clone(&sql)));
            let bound = values.into_iter().fold(query, |query, value| match value {
                SqlValue::Null => query.bind(None::<String>),
                SqlValue::Text(text) => query.bind(text),
                SqlValue::Bytes(bytes) => query.bind(bytes),
                SqlValue::Int(number) => query.bind(number),
                SqlValue::Bool(flag) => query.bind(flag),
                SqlValue::List(items) => match items.first() {
                    Some(SqlValue::Int(_)) => query.bind(all(items, |item| match item {
                        SqlValue::Int(number) => number,
                        _ => 0,
                    })),
                    _ => query.bind(all(items, |item| {
                        String::from_utf8_lossy(item.as_bytes()).into_owned()
                    })),
                },
            });
            bound.fetch_all(connection).await?
        };
        StatementReply::of_rows(rows.iter().map(row))
    }

    /// The planner checks columns, types and rights. Sent in one piece, since EXPLAIN takes no
    /// values.
    async fn explain(
        &self,
        connection: &mut PgConnection,
        statement: &SqlStatement,
    ) -> sqlx::Result<()> {
        let Query { sql, values, .. } = statement.bare();
        let text = format!("EXPLAIN {}", inline(&sql, &values));
        connection.execute(sqlx::raw_sql(AssertSqlSafe(text))).await.map(drop)
    }

    /// The SQLSTATE, or what is known better.
    fn code(&self, error: &sqlx::Error) -> Option<String> {
        let code = codes::code(error)?;
        if POOLED.contains(&&*code) {
            self.set_pooled();
        }
        Some(code)
    }

    fn failure(&self, error: sqlx::Error, sent: bool) -> StatementFailure {
        let has_ended = |error: &dyn DatabaseError| {
            let error = error.try_downcast_ref::<PgDatabaseError>();
            error.is_some_and(|error| {
                matches!(error.severity(), PgSeverity::Fatal | PgSeverity::Panic)
            })
        };
        // A login that is refused ends its connection as well, and says why.
        let code = match sent && error.as_database_error().is_some_and(has_ended) {
            true => Some(ENDED.to_owned()),
            false => self.code(&error),
        };
        self.table.names.failure(code.as_deref(), error, sent)
    }
}

/// Refuses what says that it is PostgreSQL and is not: there a lease would be judged by the clock of
/// whichever node its client is connected to.
fn one_primary(version: &str) -> Result<()> {
    for (name, word) in [("YugabyteDB", "-YB-"), ("CockroachDB", "CockroachDB")] {
        if version.contains(word) {
            return Err(Error::unsupported(format!(
                "this server is {name}, whose nodes judge leases by clocks of their own: use PostgreSQL itself"
            )));
        }
    }
    Ok(())
}

fn all<'v, T>(items: Vec<SqlValue<'v>>, value: impl Fn(SqlValue<'v>) -> T) -> Vec<T> {
    items.into_iter().map(value).collect()
}

#[async_trait]
impl PooledServer for PostgresServer {
    // The listening connection notices a dead server sooner.
    const FRESH: Duration = Duration::MAX;
    const FRESH_FOR_TRIES: Duration = Duration::from_secs(1);

    async fn open(&self) -> Result<PgConnection, StatementFailure> {
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
            _ => SqlValue::Null,
        })
    };
    (0..row.len()).map(value).collect::<sqlx::Result<_>>().map(Row)
}

/// The most names of [`ProbablyFree`] locks that are kept in mind.
const MOST: usize = 4096;

/// The names of locks that were free when this client last heard of them: it has released them, or was
/// told. Their rows are there, so the statement that does nothing but take a free lock is worth a try.
#[derive(Debug, Default)]
pub(super) struct ProbablyFree(Mutex<HashSet<String>>);

impl ProbablyFree {
    pub(super) fn note(&self, name: &str) {
        let mut names = self.0.lock();
        if names.len() >= MOST {
            // Each costs one statement more at most.
            names.clear();
        }
        names.insert(name.to_owned());
    }

    /// Whether it is noted. Not any more afterwards, since the caller tries to take it.
    pub(super) fn take(&self, name: &str) -> bool {
        self.0.lock().remove(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_keeps_a_limited_number_of_names() {
        let free = ProbablyFree::default();
        for n in 0..3 * MOST {
            free.note(&n.to_string());
        }
        assert!(free.0.lock().len() <= MOST);
        let last = (3 * MOST - 1).to_string();
        assert!(free.take(&last) && !free.take(&last));
    }
}
