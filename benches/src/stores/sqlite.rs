//! SQLite, in a file whose commits are on the disk when they return.

use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};
use sqlx::{ConnectOptions, SqliteConnection};
use tempfile::TempDir;
use tokio::time::Instant;

use super::{Floor, OWNER, Subject, Usage, own_name};
use crate::Done;

const TABLE: &str =
    "CREATE TABLE IF NOT EXISTS raw (name TEXT PRIMARY KEY, owner TEXT, fence INTEGER)";
const UPSERT: &str = "INSERT INTO raw (name, owner, fence) VALUES (?, ?, 1) \
     ON CONFLICT (name) DO UPDATE SET owner = excluded.owner, fence = raw.fence + 1 RETURNING fence";
const UPDATE: &str = "UPDATE raw SET owner = NULL WHERE name = ? AND owner = ? RETURNING fence";

pub(super) struct Sqlite {
    folder: TempDir,
    connection: SqliteConnection,
}

impl Sqlite {
    pub(super) async fn start() -> Done<Self> {
        let folder = tempfile::tempdir()?;
        let mut connection = connect(folder.path().join("locks.db")).await?;
        sqlx::query(TABLE).execute(&mut connection).await?;
        Ok(Self { folder, connection })
    }
}

/// With the settings that the store makes for its own file.
async fn connect(path: PathBuf) -> Done<SqliteConnection> {
    let options = SqliteConnectOptions::new()
        .filename(path)
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .busy_timeout(Duration::from_secs(10));
    Ok(options.connect().await?)
}

#[async_trait]
impl Subject for Sqlite {
    fn url(&self) -> String {
        format!("sqlite://{}", self.folder.path().join("locks.db").display())
    }

    async fn version(&mut self) -> Done<String> {
        let version: String =
            sqlx::query_scalar("SELECT sqlite_version()").fetch_one(&mut self.connection).await?;
        Ok(format!("SQLite {version}, synced"))
    }

    /// `iChange` in the header of the WAL index counts write transactions
    /// (<https://www.sqlite.org/walformat.html>, section 2.1). Without a server, the processor time
    /// is a part of the client's.
    async fn usage(&mut self) -> Done<Usage> {
        let index = std::fs::read(self.folder.path().join("locks.db-shm"))?;
        let counter = index.get(8..12).ok_or("no header")?.try_into()?;
        let sql = "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size";
        let bytes: i64 = sqlx::query_scalar(sql).fetch_one(&mut self.connection).await?;
        Ok(Usage {
            requests: Some(f64::from(u32::from_ne_bytes(counter))),
            cpu: None,
            bytes: Some(bytes as f64),
        })
    }
}

pub(super) struct SqliteFloor {
    first: SqliteConnection,
    second: SqliteConnection,
    name: String,
}

impl SqliteFloor {
    pub(super) async fn connect(url: &str) -> Done<Self> {
        let path = PathBuf::from(url.trim_start_matches("sqlite://"));
        let (first, second) = (connect(path.clone()).await?, connect(path).await?);
        Ok(Self { first, second, name: own_name() })
    }
}

async fn upsert(connection: &mut SqliteConnection, name: &str) -> Done {
    sqlx::query(UPSERT).bind(name).bind(OWNER).fetch_all(connection).await?;
    Ok(())
}

#[async_trait]
impl Floor for SqliteFloor {
    async fn acquire(&mut self) -> Done {
        upsert(&mut self.first, &self.name).await
    }

    async fn release(&mut self) -> Done {
        sqlx::query(UPDATE).bind(&self.name).bind(OWNER).fetch_all(&mut self.first).await?;
        Ok(())
    }

    /// Nothing is pushed from process to process: one statement of each client.
    async fn hand_over(&mut self) -> Done<Duration> {
        let start = Instant::now();
        self.release().await?;
        upsert(&mut self.second, &self.name).await?;
        Ok(start.elapsed())
    }
}
