//! The harness of SQLite: a separate file for each case, and several processes on it.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use conformance_tests::{Client, Harness, Store, Unavailable};
use lock_core::{LockBackend, Result, async_trait};
use tempfile::TempDir;

/// A folder in memory, where the machine has one. The cases are about locks and not about the disk:
/// one that stalls for 200 ms, under all the other tests, would look like a store that does not
/// answer.
const IN_MEMORY: &str = "/dev/shm";

#[derive(Debug)]
struct SqliteHarness;

#[derive(Debug)]
struct SqliteFile(TempDir);

#[async_trait]
impl Harness for SqliteHarness {
    fn name(&self) -> &str {
        "sqlite"
    }

    async fn start(&self) -> Result<Box<dyn Store>, Unavailable> {
        let folder =
            if Path::new(IN_MEMORY).is_dir() { TempDir::new_in(IN_MEMORY) } else { TempDir::new() };
        Ok(Box::new(SqliteFile(folder.map_err(|error| Unavailable::broken(error.to_string()))?)))
    }

    async fn join(&self, uri: &str) -> Result<Arc<dyn LockBackend>> {
        Ok(Arc::new(lock_sql::connect(uri).await?))
    }
}

impl SqliteFile {
    fn url(&self) -> String {
        format!("sqlite://{}", self.0.path().join("locks.db").display())
    }
}

#[async_trait]
impl Store for SqliteFile {
    async fn client(&self) -> Result<Client> {
        Ok(Client::with_simulated_faults(lock_sql::connect(&self.url()).await?))
    }

    async fn freeze(&self) -> Result<(), Unavailable> {
        Err(Unavailable::missing("SQLite has no server that could be frozen"))
    }

    async fn thaw(&self) -> Result<(), Unavailable> {
        Err(Unavailable::missing("SQLite has no server that could be frozen"))
    }

    async fn restart(&self) -> Result<(), Unavailable> {
        Err(Unavailable::missing("SQLite has no server that could be restarted"))
    }

    fn uri(&self) -> Option<String> {
        Some(self.url())
    }
}

pub(crate) fn main() -> ExitCode {
    conformance_tests::main(SqliteHarness)
}
