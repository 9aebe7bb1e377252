//! The statements, on real files, with clocks that the test sets.

mod admin;
mod contention;
mod leases;
mod sweep;

use std::future::Future;
use std::path::Path;
use std::sync::atomic::{AtomicI64, Ordering};
use std::task::Poll;

use lock_core::{LockKey, OsRng, OwnerId, Released, Renewal};
use sqlx::SqliteConnection;
use tempfile::TempDir;

use super::*;
use crate::engine::entry::Secret;
use crate::engine::operations::Operations;
use crate::engine::renewals::{BATCH as LARGEST_BATCH, Renew};
use crate::engine::store::ADMIN_LIMIT;

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
    let path = folder.path().join("locks.db");
    let location = Location { path, may_create: true, use_wal: true };
    let config = SqlConfig::default().retention(retention);
    let time = Arc::clone(machine) as Arc<dyn Time>;
    let store =
        open(location, &config, SqliteConnectOptions::new(), time).await.expect("the store opens");
    // Sweeps happen only where a test asks for one.
    store.sweeper.stop();
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

struct Stored {
    owner: Option<String>,
    expires: i64,
}

async fn row(store: &SqliteStore, name: &str) -> Option<Stored> {
    let sql = "SELECT owner, expires FROM distlock WHERE name = ?1".into();
    let make = || Query::new(&sql).bind(name);
    let reply = store.patiently(Turn::Look, ADMIN_LIMIT, make).await.unwrap();
    let row = reply.rows.first()?;
    let owner = row.optional_text(0).unwrap().map(str::to_owned);
    Some(Stored { owner, expires: row.int(1).unwrap() })
}

async fn renew(store: &SqliteStore, entry: &Entry, fence: Option<FencingToken>) -> Result<Renewal> {
    let found = store.renew(&[Due { entry, fence }], entry.call_timeout).await?;
    Ok(match found[..] {
        [Outcome::Renewed] => Renewal::Alive { valid_for: Some(entry.ttl) },
        [Outcome::Gone] => Renewal::Lost,
        ref other => panic!("one answer: {other:?}"),
    })
}
