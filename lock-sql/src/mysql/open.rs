//! Connecting, and making sure that the database has our table.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lock_core::kit::versions::{MARIADB, MYSQL};
use lock_core::{Error, ErrorKind, Result, SystemClock};
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection, MySqlRow};
use sqlx::{AssertSqlSafe, ConnectOptions, MySqlPool, Row};

use super::error::{Failure, Place, number};
use crate::statements::mysql::{self, Statements};

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
pub(super) struct Site {
    pub(super) place: Place,
    pub(super) statements: Statements,
    pub(super) clock: SystemClock,
    source: Source,
    create_table: bool,
    /// The table was found and checked.
    checked: AtomicBool,
}

impl Site {
    pub(super) fn new(place: Place, source: Source, create_table: bool) -> Self {
        let statements = Statements::new(&place.table);
        let checked = AtomicBool::new(false);
        Self { place, statements, clock: SystemClock::default(), source, create_table, checked }
    }

    /// A connection that is ready for use, with the table there and checked. Any number of processes
    /// may do this at the same time.
    pub(super) async fn open(&self) -> Result<MySqlConnection, Failure> {
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
        let mut connection =
            options.connect().await.map_err(|error| self.place.unreachable(error))?;
        sqlx::raw_sql(mysql::SESSION)
            .execute(&mut connection)
            .await
            .map_err(|error| self.place.unreachable(error))?;
        if !self.checked.load(Ordering::Acquire) {
            self.check_version(&mut connection).await?;
            self.ensure_table(&mut connection).await?;
            self.checked.store(true, Ordering::Release);
        }
        Ok(connection)
    }

    /// The next connection looks for the table again.
    pub(super) fn forget_table(&self) {
        self.checked.store(false, Ordering::Release);
    }

    async fn check_version(&self, connection: &mut MySqlConnection) -> Result<(), Failure> {
        let row = sqlx::query(mysql::VERSION)
            .fetch_one(connection)
            .await
            .map_err(|error| self.place.failure(error).0)?;
        Ok(supported(&self.text(&row, 0)?)?)
    }

    async fn ensure_table(&self, connection: &mut MySqlConnection) -> Result<(), Failure> {
        if !self.table_is_there(connection).await? {
            if !self.create_table {
                return Err(self.no_table("lock_create_table=false").into());
            }
            let ddl = mysql::create_table(&self.place.table);
            if let Err(error) = sqlx::raw_sql(AssertSqlSafe(ddl)).execute(&mut *connection).await {
                return Err(match number(&error) {
                    Some(1044 | 1142 | 1227 | 1370) => {
                        self.no_table("this user may not create it").with_source(error).into()
                    }
                    _ => self.place.failure(error).0,
                });
            }
            // The right to create a table says nothing about the right to look into it.
            if !self.table_is_there(connection).await? {
                return Err(self.may_not().into());
            }
        }
        self.check_table(connection).await?;
        for sql in self.statements.probes.iter().chain([&self.statements.mark]) {
            sqlx::query(AssertSqlSafe(Arc::clone(sql)))
                .execute(&mut *connection)
                .await
                .map_err(|error| self.place.failure(error).0)?;
        }
        Ok(())
    }

    async fn table_is_there(&self, connection: &mut MySqlConnection) -> Result<bool, Failure> {
        let rows = self.describe(connection, mysql::TABLE).await?;
        let Some(row) = rows.first() else { return Ok(false) };
        let (kind, engine) = (self.text(row, 0)?, self.text(row, 1)?);
        if kind != "BASE TABLE" {
            return Err(self.other_shape(&format!("it is a {}", kind.to_lowercase())).into());
        }
        if !engine.eq_ignore_ascii_case("InnoDB") {
            return Err(self
                .other_shape(&format!(
                    "its engine is {engine}, which locks whole tables or forgets what was committed"
                ))
                .into());
        }
        Ok(true)
    }

    /// Checks what the statements rely on. Further columns are fine if they may be left out.
    async fn check_table(&self, connection: &mut MySqlConnection) -> Result<(), Failure> {
        let mut wanted = mysql::COLUMNS.to_vec();
        for row in self.describe(connection, mysql::TABLE_COLUMNS).await? {
            let (name, kind) = (self.text(&row, 0)?, self.text(&row, 1)?);
            let [nullable, optional, length] =
                [self.integer(&row, 2)?, self.integer(&row, 3)?, self.integer(&row, 4)?];
            match wanted.iter().position(|column| column.0 == name) {
                Some(at) => {
                    let column = wanted.swap_remove(at);
                    if (kind.as_str(), nullable != 0) != (column.1, column.2) {
                        return Err(self.other_shape(&format!("its column {name} differs")).into());
                    }
                    let shortest = match column.0 {
                        "name" => mysql::NAME,
                        "owner" => 32,
                        "label" => 255,
                        _ => 0,
                    };
                    if length < shortest {
                        return Err(self
                            .other_shape(&format!(
                                "its column {name} takes {length} bytes, and {shortest} are needed"
                            ))
                            .into());
                    }
                }
                None if optional == 0 => {
                    return Err(self
                        .other_shape(&format!("it has a column {name} that we cannot fill"))
                        .into());
                }
                None => {}
            }
        }
        if let Some(missing) = wanted.first() {
            return Err(self.other_shape(&format!("it has no column {}", missing.0)).into());
        }
        let mut keys = Vec::new();
        for row in self.describe(connection, mysql::TABLE_KEYS).await? {
            keys.push((self.text(&row, 0)?, self.text(&row, 1)?, self.integer(&row, 2)?));
        }
        match &keys[..] {
            [(index, column, 0)] if index == "PRIMARY" && column == "name" => Ok(()),
            _ => Err(self
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
    ) -> Result<Vec<MySqlRow>, Failure> {
        sqlx::query(sql)
            .bind(self.place.table.as_str())
            .fetch_all(connection)
            .await
            .map_err(|error| self.place.failure(error).0)
    }

    /// As bytes, since the two servers give these columns different types.
    fn text(&self, row: &MySqlRow, column: usize) -> Result<String> {
        let bytes: Vec<u8> = row.try_get(column).map_err(|error| self.strange(error))?;
        String::from_utf8(bytes).map_err(|_| self.other_shape("its description is not UTF-8"))
    }

    fn integer(&self, row: &MySqlRow, column: usize) -> Result<i64> {
        row.try_get(column).map_err(|error| self.strange(error))
    }

    fn strange(&self, error: sqlx::Error) -> Error {
        Error::new(
            ErrorKind::Store,
            format!("{} describes its tables in an unknown way", self.place.endpoint),
        )
        .with_source(error)
    }

    fn no_table(&self, why: &str) -> Error {
        Error::config(format!(
            "{} is not there, and {why}: let an administrator execute\n{};\n{};",
            self.place.table(),
            mysql::create_table(&self.place.table),
            self.place.grant()
        ))
    }

    fn may_not(&self) -> Error {
        Error::new(
            ErrorKind::Denied,
            format!("this user has no rights on {}: {}", self.place.table(), self.place.grant()),
        )
    }

    fn other_shape(&self, how: &str) -> Error {
        Error::new(
            ErrorKind::Store,
            format!(
                "{} is not our lock table: {how}. Choose another with lock_table=…, or create it with\n{};",
                self.place.table(),
                mysql::create_table(&self.place.table)
            ),
        )
    }
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
