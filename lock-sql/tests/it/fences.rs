//! Fencing tokens that are compared in the transaction of the caller, on each database.

use std::time::Duration;

use lock_core::testing::MemoryBackend;
use lock_core::{Error, ErrorKind, FencingToken, LockKey, Locks, LostReason};
use lock_sql::fence::{admit, admit_token, create_table, forget};
use sqlx::{AssertSqlSafe, Executor, Pool, Row};
use tokio::task::JoinSet;

const LONG: Duration = Duration::from_secs(60);

fn token(number: u64) -> FencingToken {
    FencingToken::new(number).unwrap()
}

fn key(name: &str) -> LockKey {
    LockKey::new("shop", name).unwrap()
}

#[track_caller]
fn assert_overtaken(answer: Result<(), Error>, words: &[&str]) {
    let error = answer.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost(LostReason::Taken), "{error}");
    for word in words {
        assert!(error.to_string().contains(word), "{word}: {error}");
    }
}

/// What holds on every database: `$start` makes a server and a pool, `$begin` begins a transaction.
macro_rules! fences {
    ($start:path, $begin:literal) => {
        async fn pool() -> (Server, Pool<Database>) {
            let (server, pool) = $start().await;
            create_table(&pool).await.unwrap();
            // Anyone may call it again.
            create_table(&pool).await.unwrap();
            run(&pool, "CREATE TABLE data (n BIGINT NOT NULL)").await;
            run(&pool, "INSERT INTO data VALUES (0)").await;
            (server, pool)
        }

        async fn run(pool: &Pool<Database>, sql: &str) {
            pool.execute(sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))).await.unwrap();
        }

        async fn begin(pool: &Pool<Database>) -> Transaction {
            pool.begin_with($begin).await.unwrap()
        }

        async fn n(tx: &mut Transaction) -> i64 {
            tx.fetch_one("SELECT n FROM data").await.unwrap().get(0)
        }

        /// One transaction that does nothing else.
        async fn admitted(pool: &Pool<Database>, name: &str, fence: u64) -> Result<(), Error> {
            let mut tx = begin(pool).await;
            let answer = admit_token(&mut tx, &key(name), token(fence)).await;
            match answer {
                Ok(()) => tx.commit().await.unwrap(),
                Err(_) => tx.rollback().await.unwrap(),
            }
            answer
        }

        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn whoever_was_overtaken_is_refused() {
            let (_server, pool) = pool().await;
            admitted(&pool, "a", 10).await.unwrap();
            admitted(&pool, "a", 10).await.unwrap();
            assert_overtaken(admitted(&pool, "a", 9).await, &["9", "10", "shop/a"]);
            admitted(&pool, "a", 12).await.unwrap();
            assert_overtaken(admitted(&pool, "a", 10).await, &["10", "12"]);
            admitted(&pool, "A", 1).await.unwrap();
            admitted(&pool, "a ", 1).await.unwrap();
            admitted(&pool, &"\u{1f512}".repeat(128), 1).await.unwrap();
            // What was rolled back has not been.
            let mut tx = begin(&pool).await;
            admit_token(&mut tx, &key("a"), token(20)).await.unwrap();
            tx.rollback().await.unwrap();
            admitted(&pool, "a", 12).await.unwrap();
        }

        /// The lock is in another store.
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn a_holder_that_was_paused_changes_nothing() {
            let (_server, pool) = pool().await;
            let locks = Locks::new(MemoryBackend::queued());
            let lock = locks.named("stock").unwrap();
            let paused = lock.acquire().await.unwrap();
            let (old, stock) = (paused.token().unwrap(), paused.key().clone());
            let mut tx = begin(&pool).await;
            admit(&mut tx, &paused).await.unwrap();
            tx.commit().await.unwrap();
            locks.force_release_any("stock").await.unwrap();
            let next = lock.acquire().await.unwrap();
            let mut tx = begin(&pool).await;
            admit(&mut tx, &next).await.unwrap();
            tx.execute("UPDATE data SET n = 1").await.unwrap();
            tx.commit().await.unwrap();
            let mut tx = begin(&pool).await;
            assert_overtaken(admit_token(&mut tx, &stock, old).await, &["stock"]);
            drop(tx);
            next.release().await.unwrap();
            let mut tx = begin(&pool).await;
            let known = admit(&mut tx, &paused).await.unwrap_err();
            assert!(matches!(known.kind(), ErrorKind::Lost(_)), "{known}");
        }

        /// Whether the holder before has raised the token in the same transaction, or in an earlier one.
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn the_next_holder_waits_and_sees_what_was_committed() {
            let (_server, pool) = pool().await;
            for (fence, has_raised) in [(10, false), (20, true)] {
                if has_raised {
                    admitted(&pool, "a", fence).await.unwrap();
                }
                let mut tx = begin(&pool).await;
                admit_token(&mut tx, &key("a"), token(fence)).await.unwrap();
                let next = tokio::spawn({
                    let pool = pool.clone();
                    async move {
                        let mut tx = begin(&pool).await;
                        admit_token(&mut tx, &key("a"), token(fence + 1)).await.unwrap();
                        let seen = n(&mut tx).await;
                        tx.commit().await.unwrap();
                        seen
                    }
                });
                tokio::time::sleep(Duration::from_millis(400)).await;
                assert!(
                    !next.is_finished(),
                    "violated: a later holder was admitted before the end of {fence}"
                );
                tx.execute(sqlx::raw_sql(AssertSqlSafe(format!("UPDATE data SET n = {fence}"))))
                    .await
                    .unwrap();
                tx.commit().await.unwrap();
                let seen = tokio::time::timeout(LONG, next).await.unwrap().unwrap();
                assert_eq!(seen, i64::try_from(fence).unwrap(), "violated: a stale read");
            }
        }

        /// Writes one more than it has read; answers whether it was admitted.
        async fn count(pool: Pool<Database>, fence: u64) -> bool {
            loop {
                let mut tx = begin(&pool).await;
                match admit_token(&mut tx, &key("a"), token(fence)).await {
                    Ok(()) => {}
                    Err(error) if error.is_retryable() => continue,
                    Err(error) => {
                        assert_overtaken(Err(error), &[]);
                        return false;
                    }
                }
                let seen = n(&mut tx).await;
                tokio::time::sleep(Duration::from_millis(3)).await;
                let write = format!("UPDATE data SET n = {}", seen + 1);
                tx.execute(sqlx::raw_sql(AssertSqlSafe(write))).await.unwrap();
                tx.commit().await.unwrap();
                return true;
            }
        }

        /// In any order, each of them reads and writes as if alone, or not at all.
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn no_update_of_a_holder_is_lost() {
            let (_server, pool) = pool().await;
            // Each number once, not in order.
            let mut holders = JoinSet::new();
            for number in 1..=32 {
                holders.spawn(count(pool.clone(), 1 + number * 19 % 32));
            }
            let done = tokio::time::timeout(LONG, holders.join_all()).await.unwrap();
            let admitted = done.iter().filter(|done| **done).count();
            let mut tx = begin(&pool).await;
            assert_eq!(
                n(&mut tx).await,
                i64::try_from(admitted).unwrap(),
                "violated: a lost update"
            );
            drop(tx);
            assert_overtaken(self::admitted(&pool, "a", 31).await, &["32"]);
        }

        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn old_tokens_can_be_forgotten_and_a_missing_table_is_named() {
            let (_server, pool) = pool().await;
            admitted(&pool, "a", 10).await.unwrap();
            admitted(&pool, "b", 10).await.unwrap();
            assert_eq!(forget(&pool, LONG).await.unwrap(), 0);
            run(&pool, &format!("UPDATE distlock_fence SET raised = {LONG_AGO} WHERE fence = 10"))
                .await;
            admitted(&pool, "b", 10).await.unwrap();
            admitted(&pool, "b", 11).await.unwrap();
            assert_eq!(forget(&pool, LONG).await.unwrap(), 1);
            assert_overtaken(admitted(&pool, "b", 10).await, &["11"]);
            admitted(&pool, "a", 1).await.unwrap();
            let error = forget(&pool, Duration::from_secs(59)).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            run(&pool, "DROP TABLE distlock_fence").await;
            let error = admitted(&pool, "a", 1).await.unwrap_err();
            assert!(
                error.to_string().contains("CREATE TABLE IF NOT EXISTS distlock_fence"),
                "{error}"
            );
        }
    };
}

mod postgres {
    use super::*;
    use crate::postgres_common::server;
    use lock_testkit::servers::PostgresServer;
    use sqlx::postgres::PgPoolOptions;

    type Database = sqlx::Postgres;
    type Server = PostgresServer;
    type Transaction = sqlx::Transaction<'static, Database>;
    const LONG_AGO: &str = "now() - interval '1 hour'";

    async fn start() -> (Server, Pool<Database>) {
        let server = server().await;
        let pool = PgPoolOptions::new().max_connections(8).acquire_timeout(LONG);
        let pool = pool.connect(server.url()).await.unwrap();
        (server, pool)
    }

    fences!(start, "BEGIN");

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn transactions_of_one_holder_do_not_wait_for_each_other() {
        let (_server, pool) = pool().await;
        admitted(&pool, "a", 10).await.unwrap();
        let mut open = begin(&pool).await;
        admit_token(&mut open, &key("a"), token(10)).await.unwrap();
        tokio::time::timeout(LONG, admitted(&pool, "a", 10)).await.unwrap().unwrap();
        open.commit().await.unwrap();
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_snapshot_that_is_too_old_is_refused() {
        let (_server, pool) = pool().await;
        let mut tx = pool.begin_with("BEGIN ISOLATION LEVEL REPEATABLE READ").await.unwrap();
        let error = admit_token(&mut tx, &key("a"), token(1)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(error.to_string().contains("READ COMMITTED"), "{error}");
        drop(tx);
        // At SERIALIZABLE the server finds out itself: the second reads what was there before the first.
        let serializable = "BEGIN ISOLATION LEVEL SERIALIZABLE";
        admitted(&pool, "a", 10).await.unwrap();
        let mut old = pool.begin_with(serializable).await.unwrap();
        admit_token(&mut old, &key("a"), token(10)).await.unwrap();
        let mut next = pool.begin_with(serializable).await.unwrap();
        assert_eq!(n(&mut next).await, 0);
        old.execute("UPDATE data SET n = 1").await.unwrap();
        old.commit().await.unwrap();
        let admitted = admit_token(&mut next, &key("a"), token(11)).await;
        let ended = match admitted {
            Ok(()) => next.commit().await.map_err(|error| error.to_string()),
            Err(error) => Err(format!("{error:?}")),
        };
        let error = ended.expect_err("violated: a stale read was committed");
        assert!(error.contains("40001") || error.contains("serialize"), "{error}");
    }

    /// The table is there, and the role may not create tables.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_role_needs_three_rights() {
        let (server, pool) = pool().await;
        run(&pool, "CREATE ROLE app LOGIN; REVOKE CREATE ON SCHEMA public FROM PUBLIC").await;
        let url = server.url().replace("postgres@", "app@");
        assert_ne!(url, server.url());
        let app = PgPoolOptions::new().connect(&url).await.unwrap();
        let error = admitted(&app, "a", 1).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied);
        assert!(error.to_string().contains("GRANT SELECT, INSERT, UPDATE"), "{error}");
        run(&pool, "GRANT SELECT, INSERT, UPDATE ON distlock_fence TO app").await;
        create_table(&app).await.unwrap();
        admitted(&app, "a", 1).await.unwrap();
        run(&pool, "DROP TABLE distlock_fence").await;
        assert_eq!(create_table(&app).await.unwrap_err().kind(), ErrorKind::Denied);
    }
}

mod mysql {
    use super::*;
    use crate::mysql_common::server;
    use lock_testkit::servers::MariaDbServer;
    use sqlx::mysql::MySqlPoolOptions;

    type Database = sqlx::MySql;
    type Server = MariaDbServer;
    type Transaction = sqlx::Transaction<'static, Database>;
    const LONG_AGO: &str = "CURRENT_TIMESTAMP - INTERVAL 1 HOUR";

    async fn start() -> (Server, Pool<Database>) {
        let server = server().await;
        let pool = MySqlPoolOptions::new().max_connections(8).acquire_timeout(LONG);
        let pool = pool.connect(server.url()).await.unwrap();
        (server, pool)
    }

    // At REPEATABLE READ, the server's own level.
    fences!(start, "BEGIN");

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn transactions_of_one_holder_do_not_wait_for_each_other() {
        let (_server, pool) = pool().await;
        admitted(&pool, "a", 10).await.unwrap();
        let mut open = begin(&pool).await;
        admit_token(&mut open, &key("a"), token(10)).await.unwrap();
        tokio::time::timeout(LONG, admitted(&pool, "a", 10)).await.unwrap().unwrap();
        open.commit().await.unwrap();
    }
}

mod sqlite {
    use super::*;
    use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions};

    type Database = sqlx::Sqlite;
    type Server = tempfile::TempDir;
    type Transaction = sqlx::Transaction<'static, Database>;
    const LONG_AGO: &str = "unixepoch() - 3600";

    async fn start() -> (Server, Pool<Database>) {
        let folder = tempfile::tempdir().unwrap();
        let file = SqliteConnectOptions::new().filename(folder.path().join("data.db"));
        let file = file.create_if_missing(true).busy_timeout(LONG);
        let pool = SqlitePoolOptions::new().max_connections(8).acquire_timeout(LONG);
        let pool = pool.connect_with(file).await.unwrap();
        (folder, pool)
    }

    fences!(start, "BEGIN IMMEDIATE");

    /// A transaction that begins with a read has to be tried again if another has written since.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_snapshot_that_is_too_old_writes_nothing() {
        let (_folder, pool) = pool().await;
        run(&pool, "PRAGMA journal_mode = WAL").await;
        admitted(&pool, "a", 10).await.unwrap();
        let mut old = pool.begin().await.unwrap();
        admit_token(&mut old, &key("a"), token(10)).await.unwrap();
        admitted(&pool, "a", 11).await.unwrap();
        let refused = old.execute("UPDATE data SET n = 10").await;
        assert!(refused.is_err(), "violated: a holder that was overtaken has written");
        drop(old);
        let mut next = pool.begin().await.unwrap();
        assert_eq!(n(&mut next).await, 0);
        admitted(&pool, "a", 12).await.unwrap();
        let error = admit_token(&mut next, &key("a"), token(13)).await.unwrap_err();
        assert!(error.is_retryable(), "{error}");
    }
}
