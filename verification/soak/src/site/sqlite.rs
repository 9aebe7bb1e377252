//! SQLite: a file, and no server.

use std::net::SocketAddr;

use conformance_tests::Unavailable;
use distlock::backend::async_trait;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{ConnectOptions, Executor};
use tempfile::TempDir;
use tokio::sync::Mutex;

use super::{Data, Site, Switch, Verb, not_here};

#[derive(Debug)]
pub(super) struct Sqlite {
    folder: TempDir,
    /// The connection that has locked the file.
    locked: Mutex<Option<SqliteConnection>>,
}

impl Sqlite {
    pub(super) fn launch() -> Result<Self, Unavailable> {
        let folder = tempfile::Builder::new().prefix("soak").tempdir().map_err(broken)?;
        Ok(Self { folder, locked: Mutex::default() })
    }

    fn file(&self, end: &str) -> std::path::PathBuf {
        self.folder.path().join(format!("locks.db{end}"))
    }
}

fn broken(error: impl std::fmt::Display) -> Unavailable {
    Unavailable::broken(format!("SQLite: {error}"))
}

#[async_trait]
impl Site for Sqlite {
    fn addresses(&self) -> Vec<SocketAddr> {
        Vec::new()
    }

    fn url(&self, _: &str) -> String {
        format!("sqlite://{}", self.file("").display())
    }

    fn pids(&self) -> Vec<Option<u32>> {
        Vec::new()
    }

    fn freeze(&self, server: usize) -> Result<(), Unavailable> {
        Err(not_here(server))
    }

    fn thaw(&self, server: usize) -> Result<(), Unavailable> {
        Err(not_here(server))
    }

    fn kill(&self, server: usize) -> Result<(), Unavailable> {
        Err(not_here(server))
    }

    async fn start(&self, servers: &[usize], _: Data) -> Result<(), Unavailable> {
        if servers.is_empty() { Ok(()) } else { Err(not_here(servers)) }
    }

    async fn operate(&self, verb: Verb) -> Result<(), Unavailable> {
        match verb {
            Verb::LoseAll => {
                for end in ["", "-wal", "-shm"] {
                    match std::fs::remove_file(self.file(end)) {
                        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                            return Err(broken(error));
                        }
                        _ => {}
                    }
                }
                Ok(())
            }
            _ => Err(not_here(verb)),
        }
    }

    async fn switch(&self, switch: Switch, on: bool) -> Result<(), Unavailable> {
        let mut locked = self.locked.lock().await;
        match (switch, on) {
            (Switch::Exclusive, true) => {
                let options = SqliteConnectOptions::new().filename(self.file(""));
                let options = options.busy_timeout(std::time::Duration::from_secs(5));
                let mut connection = options.connect().await.map_err(broken)?;
                connection.execute(sqlx::raw_sql("BEGIN EXCLUSIVE")).await.map_err(broken)?;
                *locked = Some(connection);
                Ok(())
            }
            (Switch::Exclusive, false) => {
                if let Some(mut connection) = locked.take() {
                    connection.execute(sqlx::raw_sql("ROLLBACK")).await.map_err(broken)?;
                }
                Ok(())
            }
            _ => Err(not_here(switch)),
        }
    }
}
