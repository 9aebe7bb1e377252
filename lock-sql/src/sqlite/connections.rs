//! The connections: one that writes and one that reads, each used by one statement at a time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use lock_core::{Error, ErrorKind, Result, async_trait};
use sqlx::Connection;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot::error::TryRecvError;
use tokio::sync::{Mutex, oneshot};
use tokio::task::JoinHandle;

use crate::engine::table::lock_table::StatementName;
use crate::engine::wire::connections::{Connections, StatementClass, StatementLimits};
use crate::engine::wire::driver::SqlDriver as _;
use crate::engine::wire::errors::{FailureRemedy, StatementFailure, closed};
use crate::engine::wire::statement::{SqlStatement, StatementReply, Values};
use crate::sqlite::database::{OpenFile, Openings, SqliteFile};
use crate::sqlite::filesystem;

/// How long after a write the log is copied into the file. Together with others: each copy waits for
/// the disk twice.
const SAVING: Duration = Duration::from_millis(500);

/// Those of this process.
static CONNECTIONS: parking_lot::Mutex<Vec<Weak<FileConnection>>> =
    parking_lot::Mutex::new(Vec::new());

/// Both connections.
#[derive(Debug)]
pub(crate) struct FileConnections {
    /// For all writes.
    pub(super) writer: Arc<FileConnection>,
    /// Taken before `writer` by everything that can wait: at most one such statement is ahead of a
    /// renewal or a release, however many tasks want a lock.
    tries: Mutex<()>,
    /// For reads, which in WAL mode wait for no writer.
    reader: Arc<FileConnection>,
}

impl FileConnections {
    pub(super) fn new(file: &Arc<SqliteFile>) -> Self {
        let mut all = CONNECTIONS.lock();
        all.retain(|connection| connection.strong_count() > 0);
        let same = all.iter().filter_map(Weak::upgrade).find(|it| it.is_of(file));
        let openings = same.map(|connection| Arc::clone(&connection.openings)).unwrap_or_default();
        let connection =
            |writes| Arc::new(FileConnection::new(Arc::clone(file), writes, Arc::clone(&openings)));
        let connections =
            Self { writer: connection(true), tries: Mutex::default(), reader: connection(false) };
        all.extend([&connections.writer, &connections.reader].map(Arc::downgrade));
        connections
    }
}

#[async_trait]
impl Connections for FileConnections {
    async fn execute(
        &self,
        limits: StatementLimits,
        statement: &SqlStatement,
        values: &Values<'_>,
    ) -> Result<StatementReply, StatementFailure> {
        let _turn = match limits.class {
            StatementClass::Check | StatementClass::Look => {
                return self.reader.reply(statement, values).await;
            }
            StatementClass::Keep | StatementClass::Release => None,
            StatementClass::Try => Some(self.tries.lock().await),
        };
        let reply = self.writer.reply(statement, values).await?;
        self.writer.save_soon();
        Ok(reply)
    }

    async fn close(&self) -> Result<()> {
        self.reader.close().await?;
        self.writer.close().await
    }
}

/// A connection that its users share in order of arrival.
///
/// Not a pool, for two reasons. SQLite has one writer at a time anyway, and a second connection of
/// the same process would only poll for the write lock. And a statement that was given up
/// stays in the queue of its connection's thread: on the same connection it is executed before a
/// later release and not after it, so a late acquire leaves no lock behind.
#[derive(Debug)]
pub(super) struct FileConnection {
    file: Arc<SqliteFile>,
    /// See [`SqliteFile::open`].
    writes: bool,
    openings: Arc<Openings>,
    slot: Mutex<FileSlot>,
    /// What copies the log into the file, until it begins.
    saving: parking_lot::Mutex<Option<JoinHandle<()>>>,
    closed: AtomicBool,
}

#[derive(Debug, Default)]
pub(super) struct FileSlot {
    open: Option<OpenFile>,
    /// What the next caller waits for, too: it may take longer than one call lasts.
    opening: Option<FileOpening>,
}

type FileOpening = oneshot::Receiver<Result<OpenFile, StatementFailure>>;

impl FileSlot {
    async fn opened(
        &mut self,
        connection: &FileConnection,
    ) -> Result<&mut OpenFile, StatementFailure> {
        self.settle();
        let Self { open, opening } = self;
        match open {
            Some(open) => Ok(open),
            empty => {
                let begun = match opening.take() {
                    Some(under_way) => under_way,
                    None => connection.begin_opening()?,
                };
                let opened = opening.insert(begun).await;
                *opening = None;
                Ok(empty.insert(opened.unwrap_or_else(|_| Err(connection.not_opened()))?))
            }
        }
    }

    /// Takes what an opening has come to that a caller has left. A failure may be long ago.
    fn settle(&mut self) {
        match self.opening.as_mut().map(oneshot::Receiver::try_recv) {
            None | Some(Err(TryRecvError::Empty)) => {}
            Some(ended) => {
                self.opening = None;
                self.open = ended.ok().and_then(Result::ok);
            }
        }
    }

    async fn close(&mut self) -> sqlx::Result<()> {
        match self.open.take() {
            Some(open) => open.connection.close().await,
            None => Ok(()),
        }
    }
}

impl FileConnection {
    fn new(file: Arc<SqliteFile>, writes: bool, openings: Arc<Openings>) -> Self {
        let (slot, saving, closed) = <_>::default();
        Self { file, writes, openings, slot, saving, closed }
    }

    fn is_of(&self, file: &SqliteFile) -> bool {
        let [ours, other] = [&self.file, file].map(|file| filesystem::resolved(&file.target.path));
        ours == other
    }

    /// On a thread of its own, so that no opening stands still with a runtime and keeps the next ones waiting.
    fn begin_opening(&self) -> Result<FileOpening, StatementFailure> {
        let (file, writes) = (Arc::clone(&self.file), self.writes);
        let openings = Arc::clone(&self.openings);
        let (sender, receiver) = oneshot::channel();
        let open = async move {
            let opened = file.open(writes, &openings).await;
            if let Err(Ok(unwanted)) = sender.send(opened) {
                let _ = unwanted.connection.close().await;
            }
        };
        let runtime = Builder::new_current_thread().enable_time().build();
        let begun = runtime.and_then(|runtime| {
            let name = "distlock-sql-open".to_owned();
            std::thread::Builder::new().name(name).spawn(move || runtime.block_on(open))
        });
        begun.map(|_| receiver).map_err(|error| {
            let text = format!("{}: no thread can be started: {error}", self.file.table.names.at);
            Error::new(ErrorKind::Unavailable, text).into()
        })
    }

    fn not_opened(&self) -> StatementFailure {
        let text = format!("opening {} was given up", self.file.table.names.at);
        Error::new(ErrorKind::Unavailable, text).into()
    }

    async fn reply(
        &self,
        statement: &SqlStatement,
        values: &Values<'_>,
    ) -> Result<StatementReply, StatementFailure> {
        loop {
            let mut slot = self.slot.lock().await;
            if self.closed.load(Ordering::Acquire) {
                return Err(closed());
            }
            let open = match slot.opened(self).await {
                Ok(open) if open.files.are_current() => open,
                Ok(_) => {
                    drop(slot);
                    close_removed(&self.file).await;
                    continue;
                }
                Err(failure) => {
                    drop(slot);
                    if failure.remedy == FailureRemedy::Cut {
                        close_removed(&self.file).await;
                    }
                    return Err(failure);
                }
            };
            let query = self.file.query(statement, values);
            let reply = self.file.run(&mut open.connection, query).await;
            // Else nobody else may see it.
            if !open.files.are_current() {
                return Err(self.file.removed(true));
            }
            return reply.map_err(|error| {
                let failure = self.file.failure(error, true);
                if failure.remedy != FailureRemedy::Contended {
                    // In any case, a new connection checks the file and the table again.
                    slot.open = None;
                }
                failure
            });
        }
    }

    /// Copies what was written from the log into the file, where a client finds it that comes after
    /// the log was removed.
    fn save_soon(self: &Arc<Self>) {
        let mut saving = self.saving.lock();
        // The runtime may have ended before it.
        if !self.file.target.use_wal || saving.as_ref().is_some_and(|task| !task.is_finished()) {
            return;
        }
        let Ok(runtime) = Handle::try_current() else { return };
        let connection = Arc::downgrade(self);
        *saving = Some(runtime.spawn(async move {
            tokio::time::sleep(SAVING).await;
            let Some(connection) = connection.upgrade() else { return };
            // What is written from now on is for the next one.
            *connection.saving.lock() = None;
            let save = connection.file.table.statement(StatementName::Save);
            if let Err(failure) = connection.reply(save, &Values::default()).await {
                tracing::debug!(target: "distlock", error = %failure.error, "the log was not copied into the file");
            }
        }));
    }

    /// Keeps all other users waiting.
    #[cfg(test)]
    pub(super) async fn occupy(&self) -> tokio::sync::MutexGuard<'_, FileSlot> {
        self.slot.lock().await
    }

    /// Waits for the statement under way and closes the connection.
    async fn close(&self) -> Result<()> {
        self.closed.store(true, Ordering::Release);
        let mut slot = self.slot.lock().await;
        if let Some(opening) = slot.opening.take() {
            slot.open = opening.await.ok().and_then(Result::ok);
        }
        let done = slot.close().await;
        done.map_err(|error| self.file.failure(error, true).into())
    }
}

/// Closes all connections of this process whose files are no longer in their places. As long as one
/// is open, SQLite gives its removed index of the log to new ones.
async fn close_removed(file: &SqliteFile) {
    let all: Vec<_> = {
        let all = CONNECTIONS.lock();
        all.iter().filter_map(Weak::upgrade).collect()
    };
    for connection in all.iter().filter(|connection| connection.is_of(file)) {
        let mut slot = connection.slot.lock().await;
        slot.settle();
        if slot.open.as_ref().is_none_or(|open| open.files.are_current()) {
            continue;
        }
        tracing::warn!(target: "distlock", path = %file.table.names.at, "the database file, or a file that SQLite keeps next to it (-wal, -shm), was deleted or replaced while it was in use: opening what is there now");
        if let Err(error) = slot.close().await {
            tracing::debug!(target: "distlock", %error, "the removed file was not closed well");
        }
    }
}
