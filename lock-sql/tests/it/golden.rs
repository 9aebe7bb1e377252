//! What a held lock, waiters and locks that were released leave in each database: the table as the database shows it, and
//! its rows.

use std::time::Duration;

use lock_core::{Claim, LockGuard, Locks};
use lock_testkit::golden;
use lock_testkit::servers::PostgresServer;
use sqlx::PgConnection;
use sqlx::sqlite::SqlitePool;
use tempfile::TempDir;
use tokio::task::JoinHandle;

use crate::{mysql_common, postgres_common};

const TTL: Duration = Duration::from_secs(60);

/// A lock that is held, one that was released, one by force, and a waiter.
async fn used(a: &Locks, b: &Locks) -> (LockGuard, JoinHandle<()>) {
    let held = a.named("held").unwrap().label("a label").ttl(TTL).cohort(4);
    let held = held.acquire().await.unwrap();
    a.named("released").unwrap().acquire().await.unwrap().release().await.unwrap();
    let _forced = a.named("forced").unwrap().ttl(TTL).acquire().await.unwrap();
    a.force_release_any("forced").await.unwrap();
    let waiter = b.named("held").unwrap().ttl(TTL);
    let waiting = tokio::spawn(async move { drop(waiter.acquire().await) });
    (held, waiting)
}

fn check(name: &str, table: Vec<String>, rows: Vec<String>) {
    golden::check(env!("CARGO_MANIFEST_DIR"), name, &[table, rows].concat());
}

#[tokio::test]
async fn sqlite_stores_what_it_has_stored() {
    let folder = TempDir::new().unwrap();
    let url = format!("sqlite://{}", folder.path().join("locks.db").display());
    let locks = Locks::new(lock_sql::connect(&url).await.unwrap());
    let (held, waiting) = used(&locks, &locks).await;
    let pool = SqlitePool::connect(&url).await.unwrap();
    let table = "SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY name";
    let table = sqlx::query_scalar(table).fetch_all(&pool).await.unwrap();
    let rows = "SELECT concat_ws(' ', name, quote(owner), fence, boot, expires, acquired, quote(label)) \
         FROM distlock ORDER BY name";
    let rows: Vec<String> = sqlx::query_scalar(rows).fetch_all(&pool).await.unwrap();
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let rows = rows.into_iter().map(|row| row.replace(boot.trim(), "BOOT")).collect();
    check("sqlite", table, rows);
    waiting.abort();
    drop(held);
}

/// A lock that was released, whose next waiter has not heard of it.
async fn woken(server: &PostgresServer, plain: &mut PgConnection) -> Box<dyn Claim> {
    let (a, b) = (postgres_common::backend(server).await, postgres_common::backend(server).await);
    let mut holder = postgres_common::claim(&a, "woken", TTL, true);
    let mut next = postgres_common::claim(&b, "woken", TTL, true);
    postgres_common::granted(&mut *holder).await;
    let waits = "SELECT count(*) FROM distlock WHERE name = 'woken' AND waiters <> '{}'";
    // A client that does not listen yet is not told, and has no place.
    while postgres_common::number(plain, waits).await == 0 {
        postgres_common::busy(&mut *next).await;
    }
    holder.release().await.unwrap();
    next
}

#[tokio::test]
async fn postgres_stores_what_it_has_stored() {
    let server = postgres_common::server().await;
    let (a, b) = (postgres_common::locks(&server).await, postgres_common::locks(&server).await);
    let (held, waiting) = used(&a, &b).await;
    let mut plain = postgres_common::plain(&server).await;
    let waits = "SELECT count(*) FROM distlock WHERE waiters <> '{}'";
    postgres_common::until_number(&mut plain, waits, 1).await;
    let _woken = woken(&server, &mut plain).await;
    let table = "SELECT concat_ws(' ', column_name, data_type, collation_name, \
         CASE is_nullable WHEN 'NO' THEN 'NOT NULL' END, column_default) \
         FROM information_schema.columns WHERE table_name = 'distlock' ORDER BY ordinal_position";
    let mut table: Vec<String> = sqlx::query_scalar(table).fetch_all(&mut plain).await.unwrap();
    let indexes = "SELECT indexdef FROM pg_indexes WHERE tablename = 'distlock' ORDER BY indexname";
    let indexes: Vec<String> = sqlx::query_scalar(indexes).fetch_all(&mut plain).await.unwrap();
    table.extend(indexes);
    let rows = "SELECT format('%s %L %s %s %s %L %L %L', name, owner, fence, \
         (extract(epoch FROM expires) * 1000000)::bigint, \
         (extract(epoch FROM acquired) * 1000000)::bigint, label, waiters, woken) \
         FROM distlock ORDER BY name";
    let rows = sqlx::query_scalar(rows).fetch_all(&mut plain).await.unwrap();
    check("postgres", table, rows);
    waiting.abort();
    drop(held);
}

#[tokio::test]
async fn mysql_stores_what_it_has_stored() {
    let server = mysql_common::server().await;
    let locks = mysql_common::locks(&server).await;
    let (held, waiting) = used(&locks, &locks).await;
    let admin = mysql_common::admin(&server).await;
    // What `SHOW CREATE TABLE` prints differs between versions.
    let table = "SELECT concat_ws(' ', column_name, data_type, character_maximum_length, character_set_name, \
         if(is_nullable = 'NO', 'NOT NULL', NULL), nullif(column_key, '')) \
         FROM information_schema.columns WHERE table_name = 'distlock' ORDER BY ordinal_position";
    let table = sqlx::query_scalar(table).fetch_all(&admin).await.unwrap();
    let rows = "SELECT concat_ws(' ', convert(name USING utf8mb4), quote(convert(owner USING utf8mb4)), fence, \
         expires, acquired, quote(label)) FROM distlock ORDER BY name";
    let rows = sqlx::query_scalar(rows).fetch_all(&admin).await.unwrap();
    check("mysql", table, rows);
    waiting.abort();
    drop(held);
}
