//! The file, and making sure that it contains our table.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use lock_core::{Error, ErrorKind, Result, async_trait};
use lock_kit::server::MinimumVersion;
use rustix::fs::{Access, access};
use sqlx::sqlite::{SqliteRow, SqliteSynchronous};
use sqlx::{
    AssertSqlSafe, ConnectOptions, Connection as _, Executor, Row as _, Sqlite, SqliteConnection,
    TypeInfo, ValueRef,
};
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::engine::table::creation::ensure;
use crate::engine::table::lock_table::LockTable;
use crate::engine::table::settings::Settings;
use crate::engine::wire::driver::SqlDriver;
use crate::engine::wire::errors::{Damage, FailureRemedy, StatementFailure};
use crate::engine::wire::statement::{Query, Row, SqlStatement, SqlValue, StatementReply, Values};
use crate::sqlite::clocks::MachineClocks;
use crate::sqlite::config::SqliteTarget;
use crate::sqlite::filesystem::{OpenFiles, beside};
use crate::sqlite::statements::{CANTOPEN, CONSTRAINT_DATATYPE, READONLY};
use crate::sqlite::{filesystem, statements};

/// `RETURNING` came with 3.35, STRICT tables with 3.37, `->>` with 3.38.
const SQLITE: MinimumVersion =
    MinimumVersion::new("SQLite", [3, 38, 0], "older ones do not know `->>`");

/// How long SQLite itself waits for the write lock before a statement gives up. Short, because it
/// blocks the connection's thread, because a try for a held lock should report that soon, and
/// because each new try reads the clock again. The caller decides how long an operation lasts.
const BUSY_TIMEOUT: Duration = Duration::from_millis(5);

/// How long another user may take to create a file next to the database: two calls of the system.
const CREATION_LIMIT: Duration = Duration::from_secs(2);

/// A database file, and how connections to it are made.
pub(crate) struct SqliteFile {
    pub(super) table: LockTable,
    pub(super) target: SqliteTarget,
    /// The clock on which leases run.
    time: Arc<dyn MachineClocks>,
}

/// Written by hand: the options may contain a key.
impl fmt::Debug for SqliteFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteFile")
            .field("table", &self.table)
            .field("time", &self.time)
            .finish_non_exhaustive()
    }
}

/// A connection with its table.
#[derive(Debug)]
pub(super) struct OpenFile {
    pub(super) connection: SqliteConnection,
    /// No other client sees what is done to files that are no longer in their places.
    pub(super) files: OpenFiles,
}

/// Connections of this process to one file are opened one after the other. That the process has open what is in its place
/// says nothing about a connection if another one may have opened it since: the own log can have been removed meanwhile,
/// and each would write to another log under the same index.
pub(super) type Openings = Mutex<()>;

impl SqliteFile {
    pub(super) fn new(
        target: &SqliteTarget,
        settings: &Settings,
        time: Arc<dyn MachineClocks>,
    ) -> Self {
        let mut target = target.clone();
        target.options = target
            .options
            .filename(&target.path)
            .create_if_missing(target.may_create)
            .busy_timeout(BUSY_TIMEOUT)
            // NORMAL may lose the last grants in a power failure, and with them their fences.
            .synchronous(SqliteSynchronous::Full)
            .thread_name(|n| format!("distlock-sql-{n}"))
            .disable_statement_logging();
        let at = target.path.display().to_string();
        Self { table: statements::table(at, settings), target, time }
    }

    /// A connection to the file, with the table in place and checked. Any number of processes may
    /// do this at the same time.
    ///
    /// A connection that writes also sets the mode of the file. One that reads must not wait for
    /// the write lock.
    pub(super) async fn open(
        &self,
        writes: bool,
        openings: &Openings,
    ) -> Result<OpenFile, StatementFailure> {
        let until = Instant::now() + CREATION_LIMIT;
        loop {
            let turn = openings.lock().await;
            let opened = self.open_once(writes).await;
            drop(turn);
            match opened {
                Err(failure)
                    if failure.error.kind() == ErrorKind::Denied
                        && Instant::now() < until
                        && self.is_being_created() =>
                {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                opened => return opened,
            }
        }
    }

    async fn open_once(&self, writes: bool) -> Result<OpenFile, StatementFailure> {
        let path = &self.target.path;
        filesystem::check(path, writes)?;
        if self.target.may_create {
            filesystem::create_private(path);
        }
        let connection = SqliteConnection::connect_with(&self.target.options).await;
        let mut connection = connection.map_err(|error| self.failure(error, false))?;
        match self.prepare(&mut connection, writes).await {
            Ok(files) => Ok(OpenFile { connection, files }),
            Err(failure) => {
                // Before anything else is opened: closing the index of the log drops all locks that this process has on it.
                let _ = connection.close().await;
                Err(failure)
            }
        }
    }

    async fn prepare(
        &self,
        connection: &mut SqliteConnection,
        writes: bool,
    ) -> Result<OpenFiles, StatementFailure> {
        if writes {
            self.set_journal(connection).await?;
        }
        ensure(self, connection).await?;
        self.prove_writable(connection).await?;
        let has_log = self.text(connection, statements::JOURNAL).await? == "wal";
        let path = &self.target.path;
        let real = filesystem::resolved(path);
        let files = real.and_then(|real| OpenFiles::opened(path, &real, has_log));
        files.ok_or_else(|| self.removed(false))
    }

    /// `sent`: after a statement was.
    pub(super) fn removed(&self, sent: bool) -> StatementFailure {
        let text = format!(
            "{}, or a file that SQLite keeps next to it (-wal, -shm), was deleted or replaced while it was in use: the next call opens what is there then, once no connection of this process uses the deleted one",
            self.table.names.at
        );
        let error = Error::new(ErrorKind::Unavailable, text);
        let error = if sent { error.with_unknown_effect() } else { error };
        StatementFailure { remedy: FailureRemedy::Cut, damage: Damage::Connection, error }
    }

    /// Write-ahead logging: readers, as most waiters are, never block the writer. Switching
    /// briefly needs exclusive use of the file; SQLite does not wait for that, so we do.
    async fn set_journal(&self, connection: &mut SqliteConnection) -> Result<(), StatementFailure> {
        let mode = self.text(connection, statements::JOURNAL).await?;
        match mode.as_str() {
            "wal" => Ok(()),
            "memory" | "off" if !self.target.use_wal => Err(Error::config(format!(
                "the pool's journal mode is {mode}, which does not survive a crash (an in-memory database has no other): use a file with WAL or DELETE"
            ))
            .into()),
            _ if !self.target.use_wal => Ok(()),
            _ => {
                let mode = self.text(connection, statements::WAL).await?;
                if mode != "wal" {
                    tracing::warn!(target: "distlock", path = %self.table.names.at, mode, "write-ahead logging does not work on this file system: waiters slow holders down");
                }
                Ok(())
            }
        }
    }

    /// A file that another user is creating may be readable already. SQLite then opens it to read, and
    /// keeps it so for all connections of this process, as long as one is open.
    async fn prove_writable(
        &self,
        connection: &mut SqliteConnection,
    ) -> Result<(), StatementFailure> {
        match self.ask(connection, Query::new(statements::BEGIN_AND_ROLLBACK, Vec::new())).await {
            // Another client is writing; a file that is only readable is refused before that is looked at.
            Err(failure) if failure.remedy == FailureRemedy::Contended => Ok(()),
            proved => proved.map(drop),
        }
    }

    /// Whether a denial may be one for a moment: SQLite creates the files next to the database with the
    /// rights that the umask leaves, and gives them those of the database a moment later, before it
    /// writes to them.
    fn is_being_created(&self) -> bool {
        let path = self.real();
        let folder = path.parent().unwrap_or(Path::new("/"));
        usable(&path, Access::READ_OK | Access::WRITE_OK)
            && usable(folder, Access::WRITE_OK | Access::EXEC_OK)
            && self
                .forbidden()
                .all(|path| std::fs::metadata(path).is_ok_and(|file| file.len() == 0))
    }

    /// The single value that `sql` returns.
    async fn text(
        &self,
        connection: &mut SqliteConnection,
        sql: &str,
    ) -> Result<String, StatementFailure> {
        let rows = self.ask(connection, Query::new(sql, Vec::new())).await?;
        let text = rows.first().map(|row| row.text(0)).transpose()?;
        Ok(text.unwrap_or_default().to_owned())
    }

    /// The file that a symbolic link leads to. In a circle of links, the first one.
    fn real(&self) -> PathBuf {
        filesystem::followed(&self.target.path).unwrap_or_else(|| self.target.path.clone())
    }

    /// Those of the file and of what SQLite keeps next to it that this process may not use.
    fn forbidden(&self) -> impl Iterator<Item = PathBuf> {
        let real = self.real();
        let files = ["", "-wal", "-shm"].map(|end| beside(&real, end));
        files.into_iter().filter(|path| !usable(path, Access::READ_OK | Access::WRITE_OK))
    }

    /// SQLite says only that it cannot open the file: find out why.
    fn cannot_open(&self, error: sqlx::Error) -> StatementFailure {
        let (at, real) = (&self.table.names.at, self.real());
        let folder = real.parent().unwrap_or(Path::new("/"));
        let why = match (std::fs::metadata(&real), std::fs::metadata(folder)) {
            (Ok(file), _) if file.is_dir() => {
                Error::config(format!("{at} is a directory: name a file in it"))
            }
            (Err(file), _) if file.kind() == std::io::ErrorKind::PermissionDenied => Error::new(
                ErrorKind::Denied,
                format!("{at} is in a folder that this process may not enter: grant it the right"),
            ),
            (_, Err(missing)) if missing.kind() == std::io::ErrorKind::NotFound => {
                Error::config(format!(
                    "the folder {} does not exist: create it, or correct the path",
                    folder.display()
                ))
            }
            (_, Ok(parent)) if !parent.is_dir() => {
                Error::config(format!("{} is not a folder: correct the path", folder.display()))
            }
            (Err(file), _) if file.kind() == std::io::ErrorKind::NotADirectory => Error::config(
                format!("the path {at} passes through something that is not a folder: correct it"),
            ),
            (Err(file), Ok(_))
                if file.kind() == std::io::ErrorKind::NotFound && !self.target.may_create =>
            {
                Error::config(format!(
                    "{at} does not exist, and may not be created here (mode=rw, or a pool): create it, or use mode=rwc"
                ))
            }
            _ if [&*real, folder].iter().any(|path| !usable(path, Access::WRITE_OK)) => {
                return self.table.names.failure(Some(READONLY), error, false);
            }
            _ => match self.forbidden().next() {
                Some(path) => Error::new(
                    ErrorKind::Denied,
                    format!(
                        "{} is there, and this process may not read and write it: grant it the right. Users who share a file need a group, and a folder that gives its group to new files (chmod g+s)",
                        path.display()
                    ),
                ),
                None => Error::new(
                    ErrorKind::Unavailable,
                    format!("{at} cannot be opened: perhaps this process has too many open files"),
                ),
            },
        };
        why.with_source(error).into()
    }
}

#[async_trait]
impl SqlDriver for SqliteFile {
    type Connection = SqliteConnection;

    fn table(&self) -> &LockTable {
        &self.table
    }

    fn query<'v>(&'v self, statement: &SqlStatement, values: &Values<'v>) -> Query<'v> {
        let present = values
            .clone()
            .with("now", self.time.boot_us())
            .with("boot", self.time.boot_id())
            .with("wall", self.time.wall_us())
            .with("booted", self.time.booted_us());
        statement.bind(&present)
    }

    fn elsewhere(&self, boot: &str) -> Error {
        Error::new(
            ErrorKind::Store,
            format!(
                "this lock in {} was taken since this machine was started, but under another boot id ({boot}): by another machine or virtual machine, or in a container with its own boot id. SQLite's locks hold on one machine only: use a store with a server. If the clock was merely set back since, or is not set yet, wait until it is right, or release the lock by force",
                self.table.names.at
            ),
        )
        // A machine without a clock of its own asks others for the time after its start.
        .with_retryable(true)
    }

    /// An application may have linked a different SQLite from the one bundled with this crate.
    async fn check_server(
        &self,
        connection: &mut SqliteConnection,
    ) -> Result<(), StatementFailure> {
        Ok(SQLITE.check(&self.text(connection, statements::VERSION).await?)?)
    }

    /// Always to the end: SQLite commits after the last row of a RETURNING clause, so a reader that
    /// stops at the first row, as `fetch_optional` does, does not see a commit that fails.
    async fn run(
        &self,
        connection: &mut SqliteConnection,
        query: Query<'_>,
    ) -> sqlx::Result<StatementReply> {
        let mut bound = sqlx::query::<Sqlite>(AssertSqlSafe(query.sql));
        for value in query.values {
            bound = match value {
                SqlValue::Text(text) => bound.bind(text),
                SqlValue::Bytes(bytes) => bound.bind(bytes),
                SqlValue::Int(number) => bound.bind(number),
                SqlValue::Bool(flag) => bound.bind(flag),
                SqlValue::Null | SqlValue::List(_) => bound.bind(None::<String>),
            };
        }
        let rows = bound.fetch_all(connection).await?;
        StatementReply::of_rows(rows.iter().map(row))
    }

    async fn explain(
        &self,
        connection: &mut SqliteConnection,
        statement: &SqlStatement,
    ) -> sqlx::Result<()> {
        let text = sqlx::SqlSafeStr::into_sql_str(AssertSqlSafe(statement.bare().sql));
        connection.prepare(text).await.map(drop)
    }

    /// The primary code, which is the low byte; the full code where that says too little.
    fn code(&self, error: &sqlx::Error) -> Option<String> {
        code(error)
    }

    fn failure(&self, error: sqlx::Error, sent: bool) -> StatementFailure {
        match self.code(&error).as_deref() {
            Some(CANTOPEN) => self.cannot_open(error),
            code => self.table.names.failure(code, error, sent),
        }
    }
}

/// The primary result code, but for the one that needs more.
pub(crate) fn code(error: &sqlx::Error) -> Option<String> {
    let code: i32 = error.as_database_error()?.code()?.parse().ok()?;
    Some(if code == CONSTRAINT_DATATYPE { code } else { code & 0xff }.to_string())
}

/// The types that our statements can return; any other counts as NULL.
fn row(row: &SqliteRow) -> sqlx::Result<Row> {
    let value = |column: usize| {
        let raw = row.try_get_raw(column)?;
        // The type of a NULL is that of its column.
        if raw.is_null() {
            return Ok(SqlValue::Null);
        }
        Ok(match raw.type_info().name() {
            "INTEGER" => row.try_get::<i64, _>(column)?.into(),
            "TEXT" => row.try_get::<String, _>(column)?.into(),
            _ => SqlValue::Null,
        })
    };
    (0..row.len()).map(value).collect::<sqlx::Result<_>>().map(Row)
}

/// Whether this process may use `path` so, as far as the system tells without opening it. Opening
/// and closing the file would drop the locks that SQLite holds on it (fcntl(2)).
fn usable(path: &Path, way: Access) -> bool {
    match access(path, way) {
        Ok(()) => true,
        Err(error) => error == rustix::io::Errno::NOENT,
    }
}
