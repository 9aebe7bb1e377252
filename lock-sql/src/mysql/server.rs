//! Connecting, and making sure that the database has our table.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lock_core::kit::versions::{MARIADB, MYSQL};
use lock_core::{Error, ErrorKind, Result, async_trait};
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection, MySqlDatabaseError, MySqlRow};
use sqlx::{AssertSqlSafe, ConnectOptions, MySql, MySqlPool, Row as _};

use super::codes::RULES;
use super::statements::{self, Statements};
use crate::engine::codes::Names;
use crate::engine::driver::{Failure, Left};
use crate::engine::error::unanswered;
use crate::engine::pool::Server;
use crate::engine::schema::check_columns;
use crate::engine::table::TableName;
use crate::engine::value::{Query, Reply, Row, Value};

/// Where the options of a connection come from.
#[derive(Clone)]
pub(super) enum Source {
    Options(Arc<MySqlConnectOptions>),
    /// An application's pool, which may be given new credentials while it is in use.
    Pool(MySqlPool),
}

/// Written by hand: the options have the password.
impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Options(_) => "Options",
            Self::Pool(_) => "Pool",
        })
    }
}

/// A database, and how connections to it are made.
#[derive(Debug)]
pub(crate) struct MySqlServer {
    pub(super) names: Names,
    pub(super) statements: Statements,
    table: TableName,
    source: Source,
    create_table: bool,
    /// The table was found and checked.
    checked: AtomicBool,
}

impl MySqlServer {
    pub(super) fn new(at: String, table: TableName, source: Source, create_table: bool) -> Self {
        let names = Names {
            table: format!("the table `{}` of {at}", table.as_str()),
            grant: format!("GRANT SELECT, INSERT, UPDATE, DELETE ON `{}` TO …", table.as_str()),
            create: statements::create_table(&table),
            rules: RULES,
            at,
        };
        let (statements, checked) = (Statements::new(&table), AtomicBool::new(false));
        Self { names, statements, table, source, create_table, checked }
    }

    /// The next connection looks for the table again.
    pub(super) fn look_again(&self) {
        self.checked.store(false, Ordering::Release);
    }

    async fn connect(&self) -> Result<MySqlConnection, sqlx::Error> {
        let options = match &self.source {
            Source::Options(options) => MySqlConnectOptions::clone(options),
            Source::Pool(pool) => MySqlConnectOptions::clone(&pool.connect_options()),
        };
        let options = options
            // All of this is in the statement below, which is one round trip.
            .set_names(false)
            .pipes_as_concat(false)
            .no_engine_substitution(false)
            .timezone(None)
            .disable_statement_logging();
        let mut connection = options.connect().await?;
        sqlx::raw_sql(statements::SESSION).execute(&mut connection).await?;
        Ok(connection)
    }

    async fn ensure_table(&self, connection: &mut MySqlConnection) -> Result<(), Failure> {
        if !self.table_is_there(connection).await? {
            if !self.create_table {
                return Err(self.names.no_table("lock_create_table=false").into());
            }
            let ddl = sqlx::raw_sql(AssertSqlSafe(self.names.create.clone()));
            if let Err(error) = ddl.execute(&mut *connection).await {
                return Err(match number(&error) {
                    Some(1044 | 1142 | 1227 | 1370) => {
                        let refused = self.names.no_table("this user may not create it");
                        refused.with_source(error).into()
                    }
                    _ => self.classify(error).0,
                });
            }
            // The right to create a table says nothing about the right to look into it.
            if !self.table_is_there(connection).await? {
                let Names { table, grant, .. } = &self.names;
                let text = format!("this user has no rights on {table}: {grant}");
                return Err(Error::new(ErrorKind::Denied, text).into());
            }
        }
        self.check_table(connection).await?;
        for sql in self.statements.probes.iter().chain([&self.statements.mark]) {
            let done = self.run(connection, Query::new(sql)).await;
            done.map_err(|error| self.classify(error).0)?;
        }
        Ok(())
    }

    async fn table_is_there(&self, connection: &mut MySqlConnection) -> Result<bool, Failure> {
        let rows = self.describe(connection, statements::TABLE).await?;
        let Some(row) = rows.first() else { return Ok(false) };
        let (kind, engine) = (row.text(0)?, row.text(1)?);
        if kind != "BASE TABLE" {
            return Err(self.names.other_shape(&format!("it is a {}", kind.to_lowercase())).into());
        }
        if !engine.eq_ignore_ascii_case("InnoDB") {
            let how = format!(
                "its engine is {engine}, which locks whole tables or forgets what was committed"
            );
            return Err(self.names.other_shape(&how).into());
        }
        Ok(true)
    }

    async fn check_table(&self, connection: &mut MySqlConnection) -> Result<(), Failure> {
        let rows = self.describe(connection, statements::TABLE_COLUMNS).await?;
        let checked = check_columns(&statements::COLUMNS, &rows, |column, not_null, length| {
            if not_null != column.not_null {
                return Err(format!("its column {} differs", column.name));
            }
            if length < column.more {
                return Err(format!(
                    "its column {} takes {length} bytes, and {} are needed",
                    column.name, column.more
                ));
            }
            Ok(())
        })?;
        checked.map_err(|how| self.names.other_shape(&how))?;
        let rows = self.describe(connection, statements::TABLE_KEYS).await?;
        let whole_name = |row: &Row| {
            Ok::<_, Error>(row.text(0)? == "PRIMARY" && row.text(1)? == "name" && row.int(2)? == 0)
        };
        match &rows[..] {
            [row] if whole_name(row)? => Ok(()),
            _ => Err(self
                .names
                .other_shape(
                    "the whole of the column name must be its primary key and its only unique key",
                )
                .into()),
        }
    }

    async fn describe(
        &self,
        connection: &mut MySqlConnection,
        sql: &'static str,
    ) -> Result<Vec<Row>, Failure> {
        let query = Query::new(&sql.into()).bind(self.table.as_str());
        let reply = self.run(connection, query).await;
        Ok(reply.map_err(|error| self.classify(error).0)?.rows)
    }

    /// Why no connection could be made. No statement of ours was sent.
    fn unreachable(&self, error: sqlx::Error) -> Error {
        let at = &self.names.at;
        if let Some(number) = number(&error) {
            return self.names.describe(&number.to_string(), error, false);
        }
        // A certificate that is refused comes as invalid data.
        let refused = |error: &std::io::Error| error.kind() == std::io::ErrorKind::InvalidData;
        let tls = match &error {
            sqlx::Error::Tls(_) => true,
            sqlx::Error::Io(error) => refused(error),
            _ => false,
        };
        match error {
            _ if tls => Error::new(
                ErrorKind::Unavailable,
                format!("no TLS connection to {at}: check ssl-mode, ssl-ca and the server's certificate"),
            ),
            // The driver needs TLS for the password of `caching_sha2_password`.
            sqlx::Error::Configuration(_) => Error::config(format!(
                "{at} cannot be used with these settings: a MySQL server that asks for the password needs TLS (the feature `tls`), or a user with mysql_native_password"
            )),
            _ => Error::new(ErrorKind::Unavailable, format!("no connection to {at} can be made")),
        }
        .with_source(error)
    }
}

#[async_trait]
impl Server for MySqlServer {
    type Connection = MySqlConnection;

    const FRESH: Duration = Duration::from_millis(500);
    // A small server has been seen to end and to be back within 80 ms.
    const FRESH_FOR_TRIES: Duration = Duration::from_millis(25);

    /// Any number of processes may do this at the same time.
    async fn open(&self) -> Result<MySqlConnection, Failure> {
        let mut connection = self.connect().await.map_err(|error| self.unreachable(error))?;
        if !self.checked.load(Ordering::Acquire) {
            let version = self.describe_server(&mut connection).await?;
            supported(&version)?;
            self.ensure_table(&mut connection).await?;
            self.checked.store(true, Ordering::Release);
        }
        Ok(connection)
    }

    /// The number that a statement puts into `LAST_INSERT_ID` is its one row. It has none if no row was
    /// found, and NULL where the number is missing, which some proxies bring about.
    async fn run(&self, connection: &mut MySqlConnection, query: Query) -> sqlx::Result<Reply> {
        let reads = query.sql.starts_with("SELECT");
        let mut bound = sqlx::query::<MySql>(AssertSqlSafe(query.sql));
        for value in query.values {
            bound = match value {
                Value::Text(text) => bound.bind(text),
                Value::Bytes(bytes) => bound.bind(bytes),
                Value::Int(number) => bound.bind(number),
                Value::Bool(flag) => bound.bind(i64::from(flag)),
                Value::Null | Value::Texts(_) | Value::Ints(_) => bound.bind(None::<Vec<u8>>),
            };
        }
        if reads {
            let rows = bound.fetch_all(connection).await?;
            let rows = rows.iter().map(row).collect::<sqlx::Result<_>>()?;
            return Ok(Reply { rows, ..Reply::default() });
        }
        let done = bound.execute(connection).await?;
        let affected = done.rows_affected();
        let rows = match done.last_insert_id().cast_signed() {
            0 if affected == 0 => Vec::new(),
            0 => vec![Row(vec![Value::Null])],
            number => vec![Row(vec![Value::Int(number)])],
        };
        Ok(Reply { rows, affected, repeated: false })
    }

    fn classify(&self, error: sqlx::Error) -> (Failure, Left) {
        if let Some(number) = number(&error) {
            return self.names.failure(&number.to_string(), error, true);
        }
        // No answer from the server: the connection has ended, perhaps with our statement done.
        let at = &self.names.at;
        let described = match &error {
            sqlx::Error::Io(_) | sqlx::Error::WorkerCrashed => {
                return (Failure::Cut(unanswered(at).with_source(error)), Left::Broken);
            }
            sqlx::Error::Protocol(_) => Error::new(
                ErrorKind::Unavailable,
                format!("{at} answered something that is not MySQL's protocol"),
            ),
            _ => Error::new(ErrorKind::Store, format!("{at} answered something unexpected")),
        };
        let failed = described.with_unknown_effect().with_source(error);
        (Failure::Failed(failed), Left::Broken)
    }
}

impl MySqlServer {
    async fn describe_server(&self, connection: &mut MySqlConnection) -> Result<String, Failure> {
        let reply = self.run(connection, Query::new(&statements::VERSION.into())).await;
        let reply = reply.map_err(|error| self.classify(error).0)?;
        let version = reply.rows.first().map(|row| row.text(0)).transpose()?;
        Ok(version.unwrap_or_default().to_owned())
    }
}

/// As numbers and bytes, since the two servers give the columns of their descriptions different types.
fn row(row: &MySqlRow) -> sqlx::Result<Row> {
    let value = |column: usize| match row.try_get::<Option<i64>, _>(column) {
        Ok(number) => Ok(number.into()),
        Err(_) => row.try_get::<Option<Vec<u8>>, _>(column).map(Value::from),
    };
    (0..row.len()).map(value).collect::<sqlx::Result<_>>().map(Row)
}

fn number(error: &sqlx::Error) -> Option<u16> {
    Some(error.as_database_error()?.try_downcast_ref::<MySqlDatabaseError>()?.number())
}

/// Checks what `VERSION()` says. Some versions of MariaDB say first that they are MySQL 5.5.5, for old
/// replicas.
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
