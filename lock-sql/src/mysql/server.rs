//! Connecting, and making sure that the database contains our table.

use std::sync::Arc;
use std::time::Duration;

use lock_core::kit::versions::{MARIADB, MYSQL};
use lock_core::{FencingToken, Result, async_trait};
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection, MySqlDatabaseError, MySqlRow};
use sqlx::{AssertSqlSafe, ConnectOptions, Executor, MySql, MySqlPool, Row as _};

use super::codes::RULES;
use super::statements::{self, OwnStatements};
use crate::config::SqlConfig;
use crate::engine::dialect::Driver;
use crate::engine::error::{Failure, Names};
use crate::engine::pool::Server;
use crate::engine::schema::Schema;
use crate::engine::statement::{Places, Query, Statement, Statements, Values};
use crate::engine::value::{Reply, Row, Value, nullable};

/// The codes for when we may not create the table. There are none for concurrent creation.
const CREATING: [&[&str]; 2] = [&["1044", "1142", "1227", "1370"], &[]];

/// Where the options of a connection come from.
#[derive(Clone)]
pub(super) enum Source {
    Options(Arc<MySqlConnectOptions>),
    /// An application's pool, which may be given new credentials while it is in use.
    Pool(MySqlPool),
}

/// Written by hand: the options contain the password.
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
    pub(super) schema: Schema,
    pub(super) statements: (Statements, OwnStatements),
    source: Source,
}

impl MySqlServer {
    pub(super) fn new(at: String, source: Source, config: &SqlConfig) -> Self {
        let table = &config.table;
        let names = Names {
            table: format!("the table `{}` of {at}", table.as_str()),
            grant: format!("GRANT SELECT, INSERT, UPDATE, DELETE ON `{}` TO …", table.as_str()),
            create: statements::create_table(table),
            rules: RULES,
            hints: [
                "check ssl-mode, ssl-ca and the server's certificate",
                // The driver needs TLS for the password of `caching_sha2_password`.
                "password authentication on a MySQL server needs TLS (the feature `tls`), or a user with mysql_native_password",
            ],
            at,
        };
        let look = (Places::Marks, statements::TABLE);
        let schema = Schema::new(table, config.create_table, look, CREATING);
        Self { names, schema, statements: statements::statements(table), source }
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
}

#[async_trait]
impl Driver for MySqlServer {
    type Connection = MySqlConnection;

    fn names(&self) -> &Names {
        &self.names
    }

    fn statements(&self) -> Vec<&Statement> {
        let (shared, own) = &self.statements;
        let OwnStatements { make, renew, unlocked, present, renew_all } = own;
        let smallest = [unlocked, present, renew_all].map(|sizes| &sizes.0[0]);
        shared.all().chain([make, renew]).chain(smallest).collect()
    }

    async fn check_server(&self, connection: &mut MySqlConnection) -> Result<(), Failure> {
        let ask = Statement::new(Places::Marks, 0, statements::VERSION).bare();
        let rows = self.ask(connection, ask).await?;
        let version = rows.first().map(|row| row.text(0)).transpose()?;
        Ok(supported(version.unwrap_or_default())?)
    }

    /// The number that a statement puts into `LAST_INSERT_ID` is its one row. It has none if no row
    /// was found, and NULL where the number is missing, as behind some proxies.
    ///
    /// Texts are bound as bytes, as they are in the table.
    async fn run(&self, connection: &mut MySqlConnection, query: Query) -> sqlx::Result<Reply> {
        let reads = query.sql.starts_with("SELECT");
        let mut bound = sqlx::query::<MySql>(AssertSqlSafe(query.sql));
        for value in query.values {
            bound = match value {
                Value::Text(text) => bound.bind(text.into_bytes()),
                Value::Bytes(bytes) => bound.bind(bytes),
                Value::Int(number) => bound.bind(number),
                Value::Bool(flag) => bound.bind(i64::from(flag)),
                Value::Null | Value::List(_) => bound.bind(None::<Vec<u8>>),
            };
        }
        if reads {
            let rows = bound.fetch_all(connection).await?;
            return Reply::of_rows(rows.iter().map(row));
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

    async fn prove(
        &self,
        connection: &mut MySqlConnection,
        statement: &Statement,
    ) -> sqlx::Result<()> {
        let text = sqlx::SqlSafeStr::into_sql_str(AssertSqlSafe(statement.bare().sql));
        connection.prepare(text).await.map(drop)
    }

    fn code(&self, error: &sqlx::Error) -> Option<String> {
        let error = error.as_database_error()?.try_downcast_ref::<MySqlDatabaseError>()?;
        Some(error.number().to_string())
    }
}

#[async_trait]
impl Server for MySqlServer {
    const FRESH: Duration = Duration::from_millis(500);
    // A small server has been seen to stop and be back within 80 ms.
    const FRESH_FOR_TRIES: Duration = Duration::from_millis(25);

    async fn open(&self) -> Result<MySqlConnection, Failure> {
        let mut connection = self.connect().await.map_err(|error| self.failure(error, false))?;
        if self.schema.ensure_once(self, &mut connection).await? {
            // Without it, clients that insert rows would lock the gap in its place.
            let fence = Values::default().with("fence", None::<FencingToken>);
            let mark = self.statements.0.sweep_fold.bind(&fence);
            self.ask(&mut connection, mark).await?;
        }
        Ok(connection)
    }
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
            assert_eq!(error.kind(), lock_core::ErrorKind::Unsupported, "{error}");
            assert!(error.to_string().contains(newer), "{error}");
        }
    }
}
