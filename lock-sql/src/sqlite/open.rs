//! Opening the file, and making sure that it has our table.

use std::path::Path;

use lock_core::kit::versions::SQLITE;
use lock_core::{Error, ErrorKind, Result};
use sqlx::sqlite::{SqliteConnectOptions, SqliteRow, SqliteSynchronous};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Row, SqliteConnection};

use super::error::{Failure, Place};
use super::storage;
use crate::statements::TableName;
use crate::statements::sqlite;

/// How long SQLite itself waits for the write lock before a statement gives up. Short, because the
/// connection's thread is blocked for that long, because a try whose lock is held by somebody should
/// say so soon, and because each new try reads the clock anew. How long an operation goes on is up
/// to its caller.
const BUSY_TIMEOUT: std::time::Duration = std::time::Duration::from_millis(5);

/// A database file, and how connections to it are made.
pub(super) struct Site {
    pub(super) place: Place,
    pub(super) table: TableName,
    pub(super) create_table: bool,
    /// Switch to write-ahead logging. Not done to the database of an application's pool.
    pub(super) use_wal: bool,
    pub(super) options: SqliteConnectOptions,
}

/// Written by hand: the options of a pool may have the key of an encrypted database.
impl std::fmt::Debug for Site {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Site")
            .field("place", &self.place)
            .field("table", &self.table)
            .finish_non_exhaustive()
    }
}

/// Which file a path leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileId(u64, u64);

/// A connection with its table.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) connection: SqliteConnection,
    file: Option<FileId>,
}

impl Site {
    pub(super) fn new(
        place: Place,
        table: TableName,
        create_table: bool,
        use_wal: bool,
        options: SqliteConnectOptions,
    ) -> Self {
        let options = options
            .filename(&place.path)
            .create_if_missing(place.may_create)
            .busy_timeout(BUSY_TIMEOUT)
            // NORMAL may lose the last grants at a power failure, and with them their fences.
            .synchronous(SqliteSynchronous::Full)
            .thread_name(|n| format!("distlock-sql-{n}"))
            .disable_statement_logging();
        Self { place, table, create_table, use_wal, options }
    }

    /// A connection to the file, with the table there and checked. Any number of processes may do
    /// this at the same time: what one finds done by another is fine.
    ///
    /// A connection that writes also sets the mode of the file. One that reads must not wait for
    /// the write lock.
    pub(super) async fn open(&self, writes: bool) -> Result<Open, Failure> {
        storage::check(&self.place.path, writes)?;
        if self.place.may_create {
            storage::create_private(&self.place.path);
        }
        let failed = |error| self.place.failure(error);
        let mut connection = SqliteConnection::connect_with(&self.options).await.map_err(failed)?;
        let file = file_id(&self.place.path);
        self.check_version(&mut connection).await?;
        if writes {
            self.set_journal(&mut connection).await?;
        }
        if !self.table_is_there(&mut connection).await? {
            if !self.create_table {
                return Err(self.no_table().into());
            }
            let ddl = sqlite::create_table(&self.table);
            sqlx::query(AssertSqlSafe(ddl)).fetch_all(&mut connection).await.map_err(failed)?;
        }
        self.check_table(&mut connection).await?;
        Ok(Open { connection, file })
    }

    /// Whether the path still leads to the file that `open` has open. A file that was deleted or
    /// replaced would be locked by nobody else any more.
    pub(super) fn is_current(&self, open: &Open) -> bool {
        open.file.is_some() && open.file == file_id(&self.place.path)
    }

    /// An application may have linked another SQLite than the one that comes with this crate.
    async fn check_version(&self, connection: &mut SqliteConnection) -> Result<(), Failure> {
        Ok(SQLITE.check(&self.text(connection, "SELECT sqlite_version()").await?)?)
    }

    /// Write-ahead logging: readers, which is what waiters mostly are, never block the writer.
    /// Switching needs the file for itself for a moment; SQLite does not wait for that, we do.
    async fn set_journal(&self, connection: &mut SqliteConnection) -> Result<(), Failure> {
        let mode = self.text(connection, "PRAGMA journal_mode").await?;
        match mode.as_str() {
            "wal" => Ok(()),
            "memory" | "off" if !self.use_wal => Err(Error::config(format!(
                "the pool's journal mode is {mode}, which does not survive a crash (an in-memory database has no other): use a file with WAL or DELETE"
            ))
            .into()),
            _ if !self.use_wal => Ok(()),
            _ => {
                let mode = self.text(connection, "PRAGMA journal_mode = WAL").await?;
                if mode != "wal" {
                    tracing::warn!(target: "distlock", path = %self.place.endpoint(), mode, "no write-ahead log on this file system: waiters slow the holders down");
                }
                Ok(())
            }
        }
    }

    /// The one value that `sql` gives.
    async fn text(
        &self,
        connection: &mut SqliteConnection,
        sql: &'static str,
    ) -> Result<String, Failure> {
        let rows = sqlx::query(sql)
            .fetch_all(connection)
            .await
            .map_err(|error| self.place.failure(error))?;
        let text = rows.first().map(|row| row.try_get::<String, _>(0)).transpose();
        Ok(text.map_err(|error| self.place.failure(error))?.unwrap_or_default())
    }

    async fn table_is_there(&self, connection: &mut SqliteConnection) -> Result<bool, Failure> {
        let rows = self.describe(connection, sqlite::TABLE_TYPE).await?;
        let Some(row) = rows.first() else { return Ok(false) };
        let kind: String = row.try_get(0).map_err(|error| self.place.failure(error))?;
        if kind != "table" {
            return Err(self.other_shape(&format!("it is a {kind}")).into());
        }
        Ok(true)
    }

    /// Checks what the statements rely on. Further columns are fine if they may be left out.
    async fn check_table(&self, connection: &mut SqliteConnection) -> Result<(), Failure> {
        let failed = |error| self.place.failure(error);
        let mut wanted = sqlite::COLUMNS.to_vec();
        for row in self.describe(connection, sqlite::TABLE_COLUMNS).await? {
            let name: String = row.try_get(0).map_err(failed)?;
            let kind: String = row.try_get(1).map_err(failed)?;
            let not_null: bool = row.try_get(2).map_err(failed)?;
            let key: i64 = row.try_get(3).map_err(failed)?;
            let no_default: bool = row.try_get(4).map_err(failed)?;
            match wanted.iter().position(|column| column.0 == name) {
                Some(at) => {
                    let column = wanted.swap_remove(at);
                    if (kind.as_str(), not_null, key) != (column.1, column.2, column.3) {
                        return Err(self.other_shape(&format!("its column {name} differs")).into());
                    }
                }
                None if key != 0 || (not_null && no_default) => {
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
        for row in self.describe(connection, sqlite::KEY_COLLATIONS).await? {
            let collation: String = row.try_get(0).map_err(failed)?;
            if !collation.eq_ignore_ascii_case("BINARY") {
                return Err(self
                    .other_shape(&format!(
                        "its names are compared by {collation}, so that different locks would be one"
                    ))
                    .into());
            }
        }
        Ok(())
    }

    async fn describe(
        &self,
        connection: &mut SqliteConnection,
        sql: &'static str,
    ) -> Result<Vec<SqliteRow>, Failure> {
        let query = sqlx::query(sql).bind(self.table.as_str());
        query.fetch_all(connection).await.map_err(|error| self.place.failure(error))
    }

    fn no_table(&self) -> Error {
        Error::config(format!(
            "{} has no table {:?}, and lock_create_table=false: create it with\n{};",
            self.place.endpoint(),
            self.table.as_str(),
            sqlite::create_table(&self.table)
        ))
    }

    fn other_shape(&self, how: &str) -> Error {
        Error::new(
            ErrorKind::Store,
            format!(
                "the table {:?} in {} is not our lock table: {how}. Choose another with lock_table=…, or create it with\n{};",
                self.table.as_str(),
                self.place.endpoint(),
                sqlite::create_table(&self.table)
            ),
        )
    }
}

fn file_id(path: &Path) -> Option<FileId> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        std::fs::metadata(path).ok().map(|file| FileId(file.dev(), file.ino()))
    }
    #[cfg(not(unix))]
    {
        std::fs::metadata(path).ok().map(|_| FileId(0, 0))
    }
}
