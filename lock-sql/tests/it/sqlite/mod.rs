//! The backend under `lock_core::Locks`, on real files.

mod containers;
mod lost_files;
mod power;
mod processes;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lock_core::{
    ClaimRequest, Clock, ErrorKind, LockBackend, LockKey, Locks, OsRng, OwnerId, Seen, Severity,
    SystemClock,
};
use lock_sql::{SqlBackend, SqlConfig};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions};
use tempfile::TempDir;

use crate::common::rows_go_by_themselves;
use crate::looks::{crossed_looks, look, looks};

const TTL: Duration = Duration::from_secs(30);

fn url(folder: &TempDir, parameters: &str) -> String {
    format!("sqlite://{}{parameters}", folder.path().join("locks.db").display())
}

async fn locks(folder: &TempDir) -> Locks {
    Locks::new(lock_sql::connect(&url(folder, "")).await.unwrap())
}

async fn pool(path: &Path) -> SqlitePool {
    let options = SqliteConnectOptions::new().filename(path).create_if_missing(true);
    SqlitePoolOptions::new().max_connections(1).connect_with(options).await.unwrap()
}

#[tokio::test]
async fn rows_of_free_locks_go_by_themselves() {
    let folder = TempDir::new().unwrap();
    let locks = Locks::new(lock_sql::connect(&url(&folder, "?lock_retention=10ms")).await.unwrap());
    let pool = pool(&folder.path().join("locks.db")).await;
    let count = "SELECT count(*) FROM distlock";
    let rows = async || sqlx::query_scalar::<_, i64>(count).fetch_one(&pool).await.unwrap();
    rows_go_by_themselves(&locks, rows).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_look_shows_what_has_been_going_on() {
    let folder = TempDir::new().unwrap();
    looks(&url(&folder, "")).await.unwrap();
    crossed_looks(&url(&folder, "")).await.unwrap();
}

/// Another program reads on in what was there before; and one writes, and has committed nothing so far.
#[tokio::test]
async fn a_look_is_of_this_moment_whatever_others_read_and_write() {
    let folder = TempDir::new().unwrap();
    let backend = lock_sql::connect(&url(&folder, "")).await.unwrap();
    let held = Locks::new(backend.clone()).named("x").unwrap().ttl(TTL).acquire().await.unwrap();
    let path = folder.path().join("locks.db");
    let (reading, writing) = (pool(&path).await, pool(&path).await);
    let mut reader = reading.acquire().await.unwrap();
    sqlx::raw_sql("BEGIN; SELECT * FROM distlock").execute(&mut *reader).await.unwrap();
    let fence = held.token().unwrap();
    held.release().await.unwrap();
    let mut writer = writing.acquire().await.unwrap();
    let undone = "BEGIN IMMEDIATE; UPDATE distlock SET owner = 'other', fence = fence + 1, expires = 1 << 60";
    sqlx::raw_sql(undone).execute(&mut *writer).await.unwrap();
    assert_eq!(look(&backend, "x").await, Seen::Free { floor: Some(fence) });
}

#[tokio::test]
async fn a_pool_lends_its_database() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("app.db");
    let pool = pool(&file).await;
    sqlx::query("CREATE TABLE orders (id INTEGER)").execute(&pool).await.unwrap();
    let config = SqlConfig::default().table("app_locks").unwrap();
    let backend = SqlBackend::from_pool(pool.clone(), config).await.unwrap();
    backend.ping().await.unwrap();
    let locks = Locks::new(backend);
    // Its only connection is in use: the locks do not need it.
    let busy = pool.acquire().await.unwrap();
    let guard = locks.named("x").unwrap().acquire().await.unwrap();
    guard.renew().await.unwrap();
    drop(busy);
    let mode: String = sqlx::query_scalar("PRAGMA journal_mode").fetch_one(&pool).await.unwrap();
    assert_eq!(mode, "delete", "the mode of an application's file stays as it is");
    guard.release().await.unwrap();
    let rows: i64 =
        sqlx::query_scalar("SELECT count(*) FROM app_locks").fetch_one(&pool).await.unwrap();
    assert_eq!(rows, 1);
}

#[tokio::test]
async fn a_pool_in_memory_or_without_a_journal_is_refused() {
    let memory = SqlitePool::connect("sqlite::memory:").await.unwrap();
    let error = SqlBackend::from_pool(memory, SqlConfig::default()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    let folder = TempDir::new().unwrap();
    let options = SqliteConnectOptions::new()
        .filename(folder.path().join("x.db"))
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Off);
    let careless = SqlitePool::connect_with(options).await.unwrap();
    let error = SqlBackend::from_pool(careless, SqlConfig::default()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_work_without_a_write_ahead_log() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("app.db");
    let pool = pool(&path).await;
    let mut tasks = tokio::task::JoinSet::new();
    let counter = Arc::new(AtomicU64::new(0));
    for _ in 0..3 {
        let backend = SqlBackend::from_pool(pool.clone(), SqlConfig::default()).await.unwrap();
        let (locks, counter) = (Locks::new(backend), Arc::clone(&counter));
        tasks.spawn(async move {
            for _ in 0..20 {
                let guard = locks.named("x").unwrap().acquire().await.unwrap();
                let seen = counter.load(Ordering::SeqCst);
                tokio::task::yield_now().await;
                counter.store(seen + 1, Ordering::SeqCst);
                guard.release().await.unwrap();
            }
        });
    }
    while let Some(task) = tasks.join_next().await {
        task.unwrap();
    }
    assert_eq!(counter.load(Ordering::SeqCst), 60);
}

fn mode(folder: &Path, name: &str) -> u32 {
    let file = std::fs::metadata(folder.join(name)).unwrap();
    std::os::unix::fs::PermissionsExt::mode(&file.permissions()) & 0o777
}

/// Owner ids are in the file: who can read it can release locks.
#[tokio::test]
async fn what_is_created_is_for_its_owner_alone() {
    let folder = TempDir::new().unwrap();
    let one = locks(&folder).await;
    let _held = one.named("x").unwrap().acquire().await.unwrap();
    for name in ["locks.db", "locks.db-wal", "locks.db-shm"] {
        assert_eq!(mode(folder.path(), name), 0o600, "{name}");
    }
    // Through a link that leads nowhere yet.
    std::os::unix::fs::symlink("new.db", folder.path().join("link.db")).unwrap();
    let url = format!("sqlite://{}", folder.path().join("link.db").display());
    let two = Locks::new(lock_sql::connect(&url).await.unwrap());
    let _held = two.named("x").unwrap().acquire().await.unwrap();
    for name in ["new.db", "new.db-wal", "new.db-shm"] {
        assert_eq!(mode(folder.path(), name), 0o600, "{name}");
    }
}

#[tokio::test]
async fn what_is_there_keeps_its_rights() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("locks.db");
    std::fs::write(&file, "").unwrap();
    let shared = std::os::unix::fs::PermissionsExt::from_mode(0o660);
    std::fs::set_permissions(&file, shared).unwrap();
    let locks = locks(&folder).await;
    let _held = locks.named("x").unwrap().acquire().await.unwrap();
    for name in ["locks.db", "locks.db-wal", "locks.db-shm"] {
        assert_eq!(mode(folder.path(), name), 0o660, "{name}");
    }
}

#[tokio::test]
async fn the_key_of_an_encrypted_database_is_not_shown() {
    let folder = TempDir::new().unwrap();
    let options = SqliteConnectOptions::new()
        .filename(folder.path().join("x.db"))
        .create_if_missing(true)
        .pragma("key", "hunter2");
    let pool = SqlitePool::connect_with(options).await.unwrap();
    let backend = SqlBackend::from_pool(pool, SqlConfig::default()).await.unwrap();
    assert!(!format!("{backend:?}").contains("hunter2"));
}

async fn findings(folder: &TempDir) -> Vec<(Severity, String)> {
    let found = locks(folder).await.diagnose().await.unwrap();
    found.into_iter().map(|finding| (finding.severity, finding.what)).collect()
}

#[track_caller]
fn assert_says(findings: &[(Severity, String)], severity: Severity, words: &str) {
    let is_it = |(of, what): &(Severity, String)| *of == severity && what.contains(words);
    assert!(findings.iter().any(is_it), "{severity:?} {words:?} is missing in: {findings:#?}");
}

#[tokio::test]
async fn what_the_doctor_says_of_a_file() {
    // No target folder is cleaned while it is in use.
    let sound = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let found = findings(&sound).await;
    assert_says(&found, Severity::Info, "is a file of SQLite 3.");
    assert_says(&found, Severity::Info, "(-wal) has 0.");
    // Also that the SQLite that is linked here loses no commit.
    assert!(found.iter().all(|(severity, _)| *severity == Severity::Info), "{found:#?}");
    let cleaned = TempDir::new_in("/tmp").unwrap();
    assert_says(&findings(&cleaned).await, Severity::Warning, "is in /tmp, whose old files");
}

#[tokio::test]
async fn a_log_that_a_reader_keeps_from_being_written_back() {
    let folder = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let locks = locks(&folder).await;
    let pool = pool(&folder.path().join("locks.db")).await;
    let mut reader = pool.acquire().await.unwrap();
    sqlx::raw_sql("BEGIN; SELECT * FROM distlock").execute(&mut *reader).await.unwrap();
    let other = self::pool(&folder.path().join("locks.db")).await;
    sqlx::raw_sql("CREATE TABLE big (x); INSERT INTO big VALUES (zeroblob(70000000))")
        .execute(&other)
        .await
        .unwrap();
    let found = locks.diagnose().await.unwrap();
    let log = found.iter().find(|finding| finding.what.contains("(-wal) has")).unwrap();
    assert_eq!(log.severity, Severity::Warning, "{log:?}");
    assert!(log.remedy.as_deref().unwrap().contains("transaction"), "{log:?}");
    // It costs space, and no lock.
    locks.named("x").unwrap().acquire().await.unwrap().release().await.unwrap();
}

/// Where the locks are in the file of an application with many tables, all of which SQLite reads before
/// the first statement.
#[tokio::test]
async fn an_opening_that_takes_longer_than_a_call_goes_on_in_the_next_one() {
    let folder = TempDir::new().unwrap();
    let pool = pool(&folder.path().join("locks.db")).await;
    let columns: Vec<_> = (0..1900).map(|n| format!("column_{n}")).collect();
    let columns = columns.join(",");
    let tables: String = (0..100).map(|n| format!("CREATE TABLE t{n} ({columns});")).collect();
    let all = format!("BEGIN; {tables} COMMIT");
    sqlx::raw_sql(sqlx::AssertSqlSafe(all)).execute(&pool).await.unwrap();
    let backend = lock_sql::connect(&url(&folder, "")).await.unwrap();
    let owner = OwnerId::generate(&OsRng).unwrap();
    let request = ClaimRequest::new(LockKey::new("", "x").unwrap(), owner, TTL);
    let mut claim = backend.claim(request.with_call_timeout(Duration::from_millis(20))).unwrap();
    // Of its two connections, the store has opened the one that writes.
    let clock = SystemClock::default();
    let start = clock.now();
    let mut late = 0;
    while let Err(error) = claim.check().await {
        assert_eq!(error.kind(), ErrorKind::NoAnswer, "{error}");
        assert!(clock.now().since(start) < Duration::from_secs(30), "it never ends");
        late += 1;
    }
    assert!(late > 0, "the opening was too short to show anything");
}
