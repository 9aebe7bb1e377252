//! The statements, on real files, with clocks that the test sets.

mod admin;
mod contention;
mod leases;
mod sweep;

use std::future::Future;
use std::path::Path;
use std::sync::atomic::{AtomicI64, Ordering};
use std::task::Poll;

use lock_core::{ErrorKind, OsRng};
use sqlx::SqliteConnection;
use tempfile::TempDir;

use super::inner::{EntryRow, micros};
use super::*;
use crate::engine::operations::Secret;

const TTL: Duration = Duration::from_secs(10);
const FOREVER: Duration = Duration::from_secs(1_000_000);

/// One machine: its boot, and its two clocks.
#[derive(Debug)]
struct Machine {
    boot_id: &'static str,
    boot: AtomicI64,
    wall: AtomicI64,
}

impl Machine {
    fn new(boot_id: &'static str) -> Arc<Self> {
        Arc::new(Self { boot_id, boot: 1_000_000_000.into(), wall: 1_700_000_000_000_000.into() })
    }

    fn advance(&self, by: Duration) {
        self.boot.fetch_add(micros(by), Ordering::Relaxed);
    }
}

impl Time for Machine {
    fn boot_id(&self) -> &str {
        self.boot_id
    }

    fn boot_us(&self) -> i64 {
        self.boot.load(Ordering::Relaxed)
    }

    fn wall_us(&self) -> i64 {
        self.wall.load(Ordering::Relaxed)
    }
}

async fn store(folder: &TempDir, machine: &Arc<Machine>, retention: Duration) -> SqliteStore {
    let place = Place { path: folder.path().join("locks.db"), may_create: true };
    let config = SqlConfig::default().retention(retention);
    let time = Arc::clone(machine) as Arc<dyn Time>;
    let store = SqliteStore::open(place, &config, true, SqliteConnectOptions::new(), time)
        .await
        .expect("the store opens");
    // Sweeps happen only where a test asks for one.
    store.0.sweeper.stop();
    store
}

async fn other_connection(folder: &TempDir) -> SqliteConnection {
    let options = SqliteConnectOptions::new().filename(folder.path().join("locks.db"));
    sqlx::ConnectOptions::connect(&options).await.expect("a second connection")
}

fn entry(name: &str) -> Entry {
    Entry {
        name: LockKey::new("", name).unwrap().encode(),
        owner: Secret(OwnerId::generate(&OsRng).unwrap().to_hex()),
        ttl: TTL,
        call_timeout: Duration::from_secs(5),
        label: Some("somebody".into()),
        taken_over: None,
        waiter: None,
    }
}

fn granted(attempt: Result<Attempt>) -> u64 {
    match attempt.unwrap() {
        Attempt::Granted { token, valid_for: Some(TTL) } => token.get(),
        other => panic!("not granted: {other:?}"),
    }
}

fn is_busy(attempt: Result<Attempt>) -> Option<Duration> {
    match attempt.unwrap() {
        Attempt::Busy { valid_for: None, retry_after } => retry_after,
        other => panic!("not busy: {other:?}"),
    }
}

async fn row(store: &SqliteStore, name: &str) -> Option<EntryRow> {
    store.0.look(name, ADMIN_LIMIT).await.unwrap()
}

async fn renew(store: &SqliteStore, entry: &Entry, fence: Option<FencingToken>) -> Result<Renewal> {
    let found = store.renew(&[Due { entry, fence }], entry.call_timeout).await?;
    Ok(match found[..] {
        [Outcome::Renewed] => Renewal::Alive { valid_for: Some(entry.ttl) },
        [Outcome::Gone] => Renewal::Lost,
        ref other => panic!("one answer: {other:?}"),
    })
}
