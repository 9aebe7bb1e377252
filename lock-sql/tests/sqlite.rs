//! The backend under `lock_core::Locks`, on real files.

#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lock_core::{ErrorKind, LockBackend, Locks};
use lock_sql::{SqlBackend, SqlConfig};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions};
use tempfile::TempDir;

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
    for n in 0..100 {
        locks.named(format!("n{n}")).unwrap().acquire().await.unwrap().release().await.unwrap();
    }
    let pool = pool(&folder.path().join("locks.db")).await;
    for _ in 0..100 {
        locks.named("last").unwrap().acquire().await.unwrap().release().await.unwrap();
        let rows: i64 =
            sqlx::query_scalar("SELECT count(*) FROM distlock").fetch_one(&pool).await.unwrap();
        // The mark, the last one, and what came after the last sweep.
        if rows <= 3 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("the rows are still there after 10 s");
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
