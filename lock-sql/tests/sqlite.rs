//! The backend under `lock_core::Locks`, on real files.

#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lock_core::{ErrorKind, LockBackend, Locks, Released};
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
async fn a_lock_is_taken_shown_and_released() {
    let folder = TempDir::new().unwrap();
    let (one, two) = (locks(&folder).await, locks(&folder).await);
    let guard = one.named("order:42").unwrap().label("me").acquire().await.unwrap();
    let fence = guard.token().unwrap();
    assert!(two.named("order:42").unwrap().try_acquire().await.unwrap().is_none());
    assert!(two.named("order:43").unwrap().try_acquire().await.unwrap().is_some());
    let holder = two.inspect("order:42").await.unwrap().unwrap().holder.unwrap();
    assert_eq!((holder.label.as_deref(), holder.fence), (Some("me"), Some(fence)));
    assert_eq!(guard.release().await.unwrap(), Released::Freed);
    assert!(two.inspect("order:42").await.unwrap().is_none());
    let next = two.named("order:42").unwrap().try_acquire().await.unwrap().unwrap();
    assert!(next.token().unwrap() > fence);
    next.release().await.unwrap();
    one.close(Duration::from_secs(5)).await.unwrap();
    two.close(Duration::from_secs(5)).await.unwrap();
}

#[tokio::test]
async fn a_hold_moves_to_another_client() {
    let folder = TempDir::new().unwrap();
    let (one, two) = (locks(&folder).await, locks(&folder).await);
    let guard = one.named("form").unwrap().acquire().await.unwrap();
    let fence = guard.token().unwrap();
    let token = guard.detach().await.unwrap();
    let lease = token.to_text().parse().unwrap();
    let guard = two.named("form").unwrap().attach(&lease).await.unwrap();
    assert_eq!(guard.token().unwrap(), fence);
    assert_eq!(guard.release().await.unwrap(), Released::Freed);
    let error = one.named("form").unwrap().attach(&token).await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Lost(_)), "{error}");
}

#[tokio::test]
async fn a_waiter_gets_the_lock_when_the_lease_of_a_silent_holder_ends() {
    let folder = TempDir::new().unwrap();
    let (one, two) = (locks(&folder).await, locks(&folder).await);
    let ttl = Duration::from_millis(400);
    let silent = one.named("x").unwrap().ttl(ttl).no_renew().acquire().await.unwrap();
    let (start, fence) = (one.clock().now(), silent.token().unwrap());
    let next = two.named("x").unwrap().acquire_timeout(Duration::from_secs(10)).await.unwrap();
    let waited = one.clock().now().since(start);
    assert!(silent.token().is_err(), "the silent holder was told before");
    assert!(next.token().unwrap() > fence);
    assert!(waited > ttl / 2 && waited < Duration::from_secs(3), "{waited:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_clients_open_a_new_file_at_once() {
    for round in 0..5 {
        let folder = TempDir::new().unwrap();
        let mut opening = tokio::task::JoinSet::new();
        for _ in 0..16 {
            let url = url(&folder, "");
            opening.spawn(async move {
                let locks = Locks::new(lock_sql::connect(&url).await?);
                locks.named("first")?.try_acquire().await
            });
        }
        let mut held = Vec::new();
        while let Some(result) = opening.join_next().await {
            held.extend(result.unwrap().unwrap_or_else(|error| panic!("round {round}: {error}")));
        }
        assert_eq!(held.len(), 1, "round {round}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_of_several_clients_exclude_each_other() {
    let folder = TempDir::new().unwrap();
    let inside = Arc::new(AtomicU64::new(0));
    let last = Arc::new(AtomicU64::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let locks = locks(&folder).await;
        for _ in 0..4 {
            let (locks, inside, last) = (locks.clone(), Arc::clone(&inside), Arc::clone(&last));
            tasks.spawn(async move {
                for _ in 0..10 {
                    let guard = locks.named("x").unwrap().acquire().await.unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two holders");
                    let fence = guard.token().unwrap().get();
                    assert!(last.swap(fence, Ordering::SeqCst) < fence, "the fence went back");
                    tokio::task::yield_now().await;
                    assert_eq!(inside.fetch_sub(1, Ordering::SeqCst), 1);
                    assert_eq!(guard.release().await.unwrap(), Released::Freed);
                }
            });
        }
    }
    while let Some(task) = tasks.join_next().await {
        task.unwrap();
    }
    assert!(locks(&folder).await.list("").await.unwrap().is_empty(), "nothing is left behind");
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

#[tokio::test]
async fn every_table_is_a_world_of_its_own() {
    let folder = TempDir::new().unwrap();
    let one = Locks::new(lock_sql::connect(&url(&folder, "?lock_table=one")).await.unwrap());
    let two = Locks::new(lock_sql::connect(&url(&folder, "?lock_table=two")).await.unwrap());
    let _held = one.named("x").unwrap().acquire().await.unwrap();
    assert!(two.named("x").unwrap().try_acquire().await.unwrap().is_some());
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
