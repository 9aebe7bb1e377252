//! Opening a connection, and making sure that it has our table.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lock_core::kit::versions::POSTGRES;
use lock_core::{Error, ErrorKind, Result, async_trait};
use sqlx::postgres::{PgConnectOptions, PgRow};
use sqlx::{
    AssertSqlSafe, Column as _, ConnectOptions, Executor, PgConnection, Postgres, Row as _,
    TypeInfo,
};

use super::codes::{POOLED, RULES};
use super::config::{Pooler, PostgresTarget, endpoint};
use super::inline::inline;
use super::statements;
use crate::config::SqlConfig;
use crate::engine::codes::Names;
use crate::engine::driver::{Failure, Left};
use crate::engine::pool::Server;
use crate::engine::schema::check_columns;
use crate::engine::table::TableName;
use crate::engine::value::{Query, Reply, Row, Value};

/// A database, and how connections to it are made.
pub(crate) struct PostgresServer {
    pub(super) names: Names,
    pub(super) table: TableName,
    pub(super) options: PgConnectOptions,
    create_table: bool,
    /// Whether a pooler gives each transaction to another server connection.
    pooled: AtomicBool,
    /// Whether the table was found and is ours.
    checked: AtomicBool,
}

/// Not derived, since the options have the password.
impl fmt::Debug for PostgresServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresServer")
            .field("names", &self.names)
            .field("create_table", &self.create_table)
            .field("pooled", &self.pooled)
            .field("checked", &self.checked)
            .finish_non_exhaustive()
    }
}

impl PostgresServer {
    pub(super) fn new(target: &PostgresTarget, config: &SqlConfig) -> Self {
        let (at, table) = (endpoint(&target.options), config.table.clone());
        let (quoted, user) = (table.quoted(), target.options.get_username());
        Self {
            names: Names {
                table: format!("the table {quoted} in {at}"),
                grant: format!("GRANT SELECT, INSERT, UPDATE, DELETE ON {quoted} TO {user};"),
                create: statements::create_table(&table),
                rules: RULES,
                at,
            },
            table,
            options: target.options.clone(),
            create_table: config.create_table,
            pooled: AtomicBool::new(target.pooler == Pooler::Transaction),
            checked: AtomicBool::new(false),
        }
    }

    pub(super) fn is_pooled(&self) -> bool {
        self.pooled.load(Ordering::Acquire)
    }

    pub(super) fn set_pooled(&self) {
        if !self.pooled.swap(true, Ordering::AcqRel) {
            tracing::info!(target: "distlock", at = %self.names.at, "there is a pooler that gives each transaction to another server connection: statements are sent in one piece");
        }
    }

    /// The next connection looks for the table again.
    pub(super) fn look_again(&self) {
        self.checked.store(false, Ordering::Release);
    }

    pub(super) async fn connect(&self) -> Result<PgConnection, Failure> {
        self.options.connect().await.map_err(|error| self.not_sent(error))
    }

    /// With our settings, and the table there and checked.
    pub(super) async fn make_ours(
        &self,
        mut connection: PgConnection,
    ) -> Result<PgConnection, Failure> {
        if !self.is_pooled() {
            let settings = format!("{}; {}", statements::KEEP_ALIVE, statements::SESSION);
            let set = connection.fetch_all(sqlx::raw_sql(AssertSqlSafe(settings))).await;
            set.map_err(|error| self.not_sent(error))?;
        }
        if !self.checked.load(Ordering::Acquire) {
            self.prepare(&mut connection).await?;
            self.checked.store(true, Ordering::Release);
        }
        Ok(connection)
    }

    /// While a connection is made nothing was sent that could have been executed.
    pub(super) fn not_sent(&self, error: sqlx::Error) -> Failure {
        self.failure(error, false).0
    }

    fn failure(&self, error: sqlx::Error, sent: bool) -> (Failure, Left) {
        let Some(code) = code(&error) else { return self.without_code(error, sent) };
        if POOLED.contains(&&*code) {
            self.set_pooled();
        }
        self.names.failure(&code, error, sent)
    }

    fn without_code(&self, error: sqlx::Error, sent: bool) -> (Failure, Left) {
        let at = &self.names.at;
        let unavailable = |text: String| Error::new(ErrorKind::Unavailable, text);
        let failure = match &error {
            sqlx::Error::Configuration(_) => {
                let error = Error::config(format!("{at}: a setting of the connection is wrong"))
                    .with_source(error);
                return (Failure::Failed(error), Left::Broken);
            }
            _ if is_tls(&error) => unavailable(format!(
                "{at}: no TLS connection can be made: look at sslmode and the certificates, and whether this program was built with TLS (feature `tls`)"
            )),
            // Of the connection that listens.
            sqlx::Error::PoolTimedOut => {
                Error::new(ErrorKind::NoAnswer, format!("{at} did not answer in time"))
            }
            sqlx::Error::Io(_) if !sent => {
                unavailable(format!("no connection to {at} can be made"))
            }
            sqlx::Error::Io(_) | sqlx::Error::WorkerCrashed => {
                unavailable(format!("the connection to {at} was lost"))
            }
            // A reply that ends in its middle reads as nonsense.
            _ => unavailable(format!("{at} answered something unexpected")),
        };
        let failure = failure.with_source(error);
        let failure = if sent { failure.with_unknown_effect() } else { failure };
        (Failure::Cut(failure), Left::AllBroken)
    }

    /// Any number of processes may do this at the same time: what one finds done by another is fine.
    async fn prepare(&self, connection: &mut PgConnection) -> Result<(), Failure> {
        self.check_server(connection).await?;
        let mut tries = 0;
        while !self.table_is_there(connection).await? {
            if !self.create_table {
                return Err(self.names.no_table("lock_create_table=false").into());
            }
            tries += 1;
            let ddl = self.names.create.clone();
            match connection.execute(sqlx::raw_sql(AssertSqlSafe(ddl))).await {
                Ok(_) => {}
                Err(error) => match code(&error).as_deref() {
                    Some("42501") => {
                        return Err(self
                            .names
                            .no_table("this role may not create it")
                            .with_source(error)
                            .into());
                    }
                    Some("3F000") => {
                        return Err(self
                            .names
                            .no_table("the search_path names no schema that is there")
                            .with_source(error)
                            .into());
                    }
                    // Somebody else was creating it: IF NOT EXISTS does not cover that.
                    Some("42P07" | "23505" | "42710" | "XX000") if tries < 10 => {
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                    _ => return Err(self.not_sent(error)),
                },
            }
        }
        self.check_table(connection).await
    }

    async fn check_server(&self, connection: &mut PgConnection) -> Result<(), Failure> {
        let at = &self.names.at;
        let rows = self.ask(connection, statements::SERVER, &[]).await?;
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
            tracing::warn!(target: "distlock", %at, "synchronous_commit is off: a crash of the server may forget the last locks. Switch it on for this role");
        }
        Ok(())
    }

    async fn table_is_there(&self, connection: &mut PgConnection) -> Result<bool, Failure> {
        let rows = self.ask(connection, statements::TABLE, &[self.table_name()]).await?;
        let Some(row) = rows.first() else { return Ok(false) };
        let (kind, persistence, missing) = (row.text(0)?, row.text(1)?, row.text(2)?);
        match (kind, persistence) {
            // A partitioned table is one, too.
            ("r" | "p", "p") => {}
            ("r" | "p", "u") => {
                tracing::warn!(target: "distlock", at = %self.names.at, "the lock table is UNLOGGED: a crash of the server forgets all locks");
            }
            ("r" | "p", _) => return Err(self.names.other_shape("it is a temporary table").into()),
            _ => return Err(self.names.other_shape("it is no table").into()),
        }
        if !missing.is_empty() {
            return Err(Error::new(
                ErrorKind::Denied,
                format!(
                    "{}: this role lacks rights on the lock table: GRANT {missing} ON {} TO {}",
                    self.names.at,
                    self.table.quoted(),
                    self.options.get_username()
                ),
            )
            .into());
        }
        Ok(true)
    }

    async fn check_table(&self, connection: &mut PgConnection) -> Result<(), Failure> {
        let table = [self.table_name()];
        let rows = self.ask(connection, statements::TABLE_COLUMNS, &table).await?;
        let checked = check_columns(&statements::COLUMNS, &rows, |column, not_null, loose| {
            if not_null && !column.not_null {
                return Err(format!("its column {} differs", column.name));
            }
            if loose > column.more {
                return Err(format!(
                    "its column {} has a collation for which different texts are equal",
                    column.name
                ));
            }
            Ok(())
        })?;
        checked.map_err(|how| self.names.other_shape(&how))?;
        let rows = self.ask(connection, statements::TABLE_KEY, &table).await?;
        if !rows.first().map(|row| row.flag(0)).transpose()?.unwrap_or(false) {
            return Err(self.names.other_shape("its name is not a primary key").into());
        }
        Ok(())
    }

    fn table_name(&self) -> Value {
        Value::from(self.table.quoted())
    }

    async fn ask(
        &self,
        connection: &mut PgConnection,
        sql: &str,
        values: &[Value],
    ) -> Result<Vec<Row>, Failure> {
        let text = sqlx::raw_sql(AssertSqlSafe(inline(sql, values)));
        let rows = connection.fetch_all(text).await;
        let rows = rows.and_then(|rows| rows.iter().map(row).collect::<sqlx::Result<_>>());
        rows.map_err(|error| self.not_sent(error))
    }
}

#[async_trait]
impl Server for PostgresServer {
    type Connection = PgConnection;

    // A server that has gone is noticed sooner by the connection that listens.
    const FRESH: Duration = Duration::MAX;
    const FRESH_FOR_TRIES: Duration = Duration::from_secs(1);

    async fn open(&self) -> Result<PgConnection, Failure> {
        let connection = self.connect().await?;
        self.make_ours(connection).await
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
                Value::Texts(texts) => query.bind(texts),
                Value::Ints(numbers) => query.bind(numbers),
            });
            bound.fetch_all(connection).await?
        };
        let rows: Vec<_> = rows.iter().map(row).collect::<sqlx::Result<_>>()?;
        let affected = u64::try_from(rows.len()).unwrap_or(u64::MAX);
        Ok(Reply { rows, affected, repeated: false })
    }

    fn classify(&self, error: sqlx::Error) -> (Failure, Left) {
        self.failure(error, true)
    }
}

/// What a statement of ours can answer; anything else is as good as nothing.
pub(super) fn row(row: &PgRow) -> sqlx::Result<Row> {
    let value = |column: usize| {
        Ok(match row.column(column).type_info().name() {
            "BOOL" => row.try_get::<Option<bool>, _>(column)?.into(),
            "INT8" => row.try_get::<Option<i64>, _>(column)?.into(),
            "INT4" => row.try_get::<Option<i32>, _>(column)?.map(i64::from).into(),
            "TEXT" => row.try_get::<Option<String>, _>(column)?.into(),
            _ => Value::Null,
        })
    };
    (0..row.len()).map(value).collect::<sqlx::Result<_>>().map(Row)
}

/// A certificate that is refused comes as an error of reading.
fn is_tls(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Tls(_) => true,
        sqlx::Error::Io(error) => error.kind() == std::io::ErrorKind::InvalidData,
        _ => false,
    }
}

/// The SQLSTATE.
fn code(error: &sqlx::Error) -> Option<String> {
    Some(error.as_database_error()?.code()?.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_connection_is_unknown_and_a_refused_one_is_not() {
        let config = SqlConfig::from_url("postgres://h:1/d").unwrap();
        let crate::config::Target::Postgres(target) = &config.target else { panic!("postgres") };
        let server = PostgresServer::new(target, &config);
        let io = || sqlx::Error::Io(std::io::ErrorKind::ConnectionReset.into());
        let Failure::Cut(error) = server.classify(io()).0 else { panic!("cut") };
        assert_eq!(error.effect(), lock_core::Effect::Unknown);
        assert!(error.is_retryable());
        let Failure::Cut(error) = server.not_sent(io()) else { panic!("cut") };
        assert_eq!(error.effect(), lock_core::Effect::None);
    }
}
