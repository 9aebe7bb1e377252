//! Fencing tokens that are compared in the transaction of the caller, on each database.

use std::time::Duration;

use lock_core::testing::MemoryBackend;
use lock_core::{Error, ErrorKind, Locks};
use lock_core::{Held, Released};
use lock_sql::fence::{
    FencedDatabase, admit, admit_token, commit, commit_in, create_table, forget,
};
use lock_testkit::servers::PgBouncer;
use sqlx::Executor;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};

use crate::fence_scenes::{LONG, key, refused, token};

/// Each scene of a database is a test.
macro_rules! play {
    ($database:ident: $($scene:ident,)*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $scene() {
            crate::fence_scenes::$database::$scene().await.unwrap();
        }
    )*};
}

/// What holds on every database.
macro_rules! fences {
    ($database:ident) => {
        use super::*;
        use crate::fence_scenes::$database::{
            admitted, begin, counted_by, locks, locks_url, n, pool, run, write,
        };

        with_common!(play! { $database: });

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
            write(&mut tx, 1, 1).await;
            tx.commit().await.unwrap();
            let mut tx = begin(&pool).await;
            refused(admit_token(&mut tx, &stock, old).await, &["stock"]).unwrap();
            drop(tx);
            next.release().await.unwrap();
            let mut tx = begin(&pool).await;
            let known = admit(&mut tx, &paused).await.unwrap_err();
            assert!(matches!(known.kind(), ErrorKind::Lost(_)), "{known}");
        }

        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn what_is_wrong_is_named() {
            let (_server, pool) = pool().await;
            let error = forget(&pool, Duration::from_secs(59)).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            run(&pool, "DROP TABLE distlock_fence").await;
            let error: Error = admitted(&pool, "a", 1).await.unwrap_err();
            let create = "CREATE TABLE IF NOT EXISTS distlock_fence";
            assert!(error.to_string().contains(create), "{error}");
        }

        /// What was released is not committed, and a table has to have a name.
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn a_commit_without_the_lock_is_rolled_back() {
            let (server, pool) = pool().await;
            let guard = locks(&server).await.named("x").unwrap().acquire().await.unwrap();
            let held = guard.held().clone();
            let mut tx = begin(&pool).await;
            write(&mut tx, 7, 7).await;
            let error = commit_in(tx, "no table", &held).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config, "{error}");
            guard.release().await.unwrap();
            let error = counted_by(&pool, &held).await.unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::Lost(_)), "{error}");
            assert_eq!(n(&pool).await, 0);
        }

        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn the_locks_may_be_in_another_table() {
            let (server, pool) = pool().await;
            let elsewhere = [&*locks_url(&server), "?lock_table=app_locks"].concat();
            let elsewhere = Locks::new(lock_sql::connect(&elsewhere).await.unwrap());
            let held = elsewhere.named("x").unwrap().acquire().await.unwrap();
            for table in ["app_locks", SCHEMA_AND_TABLE] {
                let mut tx = begin(&pool).await;
                write(&mut tx, 7, 7).await;
                commit_in(tx, table, &held).await.unwrap();
                assert_eq!(n(&pool).await, 7);
                run(&pool, "UPDATE data SET n = 0").await;
            }
            // There is none of the usual name, and then one that does not know of this hold.
            let error = counted_by(&pool, &held).await.unwrap_err();
            assert!(error.to_string().contains("distlock"), "{error}");
            let _same = locks(&server).await.named("x").unwrap().acquire().await.unwrap();
            refused(counted_by(&pool, &held).await, &["table distlock"]).unwrap();
            assert_eq!(n(&pool).await, 0);
        }
    };
}

/// Where writers do not wait for each other anyway: the text of the check, as it is sent by other drivers.
macro_rules! checks {
    ($bind:expr) => {
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn the_check_keeps_the_lock_until_the_transaction_ends() {
            let (server, pool) = pool().await;
            let here = locks(&server).await;
            let held = here.named("x").unwrap().acquire().await.unwrap();
            let check = |held: &Held| {
                let (name, owner) = (held.key().encode(), held.owner().to_hex());
                let fence = held.token().unwrap().as_i64();
                sqlx::query::<Database>(Database::CHECK)
                    .bind($bind(name))
                    .bind($bind(owner))
                    .bind(fence)
            };
            let mut tx = begin(&pool).await;
            check(&held).fetch_all(&mut *tx).await.unwrap();
            let there = locks(&server).await;
            let taken = tokio::spawn(async move {
                loop {
                    match there.force_release_any("x").await {
                        Err(error) if error.is_retryable() => continue,
                        released => break released.unwrap(),
                    }
                }
            });
            tokio::time::sleep(Duration::from_millis(2500)).await;
            lock_testkit::assert_exactly!(
                !taken.is_finished(),
                "it was taken away between check and commit"
            );
            tx.commit().await.unwrap();
            let taken = tokio::time::timeout(LONG, taken).await.unwrap().unwrap();
            assert_eq!(taken, Released::Freed);
            let mut tx = begin(&pool).await;
            if held.token().is_ok() {
                check(&held).fetch_all(&mut *tx).await.unwrap_err();
            }
        }
    };
}

mod postgres {
    use crate::fence_scenes::postgres::{Database, Server, connect, data, end_all_leases};

    const SCHEMA_AND_TABLE: &str = "public.app_locks";

    fences!(postgres);
    checks!(std::convert::identity);
    play! {
        postgres:
        transactions_of_one_holder_do_not_wait_for_each_other,
        a_snapshot_that_is_too_old_is_refused,
        nobody_is_granted_the_lock_while_it_commits,
    }

    /// A transaction that has read, and goes on after something has happened to its lock.
    async fn resumed(
        level: &str,
        happens: impl AsyncFnOnce(&sqlx::PgPool, &Server),
    ) -> (Result<(), Error>, i64) {
        let (server, pool) = pool().await;
        let held = locks(&server).await.named("x").unwrap().acquire().await.unwrap();
        let begin = format!("BEGIN ISOLATION LEVEL {level}");
        let mut tx = pool.begin_with(sqlx::AssertSqlSafe(begin)).await.unwrap();
        let (seen, fence) = data(&mut tx).await;
        write(&mut tx, seen + 1, fence).await;
        happens(&pool, &server).await;
        let committed = commit(tx, &held).await;
        (committed, n(&pool).await)
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_holder_commits_at_every_level() {
        for level in ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"] {
            let (committed, n) = resumed(level, async |_, _| {}).await;
            committed.unwrap();
            assert_eq!(n, 1, "{level}");
            // As by a renewal: then the snapshot is too old to tell.
            let (committed, n) = resumed(level, async |pool, _| {
                run(pool, "UPDATE distlock SET expires = expires + interval '1 s'").await;
            })
            .await;
            match level {
                "READ COMMITTED" => committed.unwrap(),
                _ => {
                    let error = committed.unwrap_err();
                    assert!(error.is_retryable(), "{error:?}");
                }
            }
            assert_eq!(n, i64::from(level == "READ COMMITTED"), "{level}");
        }
    }

    /// The holder was paused in the middle of its transaction.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn no_level_commits_after_a_later_grant() {
        for level in ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"] {
            let (committed, n) = resumed(level, async |pool, server| {
                end_all_leases(pool).await;
                let next = locks(server).await.named("x").unwrap();
                next.acquire_timeout(LONG).await.unwrap().release().await.unwrap();
            })
            .await;
            let error = committed.expect_err("violated: it was committed after a later grant");
            let is_lost = matches!(error.kind(), ErrorKind::Lost(_));
            assert!(is_lost || level != "READ COMMITTED" && error.is_retryable(), "{error:?}");
            assert_eq!(n, 0, "{level}");
        }
    }

    /// One connection to the server is enough for two clients: none of them keeps it.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_holder_commits_through_a_pooler() {
        let (server, direct) = pool().await;
        let pooler = PgBouncer::start(server.address().unwrap(), "transaction", 1).await.unwrap();
        let url = format!("postgres://postgres@{}/postgres?sslmode=disable", pooler.address());
        let options: PgConnectOptions = url.parse().unwrap();
        let options = options.extra_float_digits(None).statement_cache_capacity(0);
        let here = locks(&server).await;
        let mut clients = Vec::new();
        for name in ["a", "b"] {
            let client = PgPoolOptions::new().max_connections(1).acquire_timeout(LONG);
            let client = client.connect_with(options.clone()).await.unwrap();
            clients.push((client, here.named(name).unwrap().acquire().await.unwrap()));
        }
        for round in 1..=4 {
            for (client, held) in &clients {
                let mut tx = begin(client).await;
                write(&mut tx, round, round).await;
                tokio::time::timeout(LONG, commit(tx, held)).await.unwrap().unwrap();
            }
            assert_eq!(n(&direct).await, round);
        }
        end_all_leases(&direct).await;
        let next = here.named("other").unwrap().acquire().await.unwrap();
        let (client, held) = &clients[0];
        let there = locks(&server).await;
        let _next = there.named("a").unwrap().acquire_timeout(LONG).await.unwrap();
        refused(counted_by(client, held).await, &["rolled back"]).unwrap();
        // What was refused has ended as well.
        counted_by(client, &next).await.unwrap();
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_commit_needs_two_rights_on_the_locks() {
        let (server, pool) = pool().await;
        let held = locks(&server).await.named("x").unwrap().acquire().await.unwrap();
        run(&pool, "CREATE ROLE app LOGIN; GRANT SELECT, UPDATE ON data TO app").await;
        let app = connect(&server.url().replace("postgres@", "app@")).await;
        let error = counted_by(&app, &held).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied);
        assert!(error.to_string().contains("GRANT SELECT, UPDATE ON distlock"), "{error}");
        run(&pool, "GRANT SELECT, UPDATE ON distlock TO app").await;
        counted_by(&app, &held).await.unwrap();
        // What else the server says against a commit is passed on.
        run(
            &pool,
            "ALTER TABLE data ADD UNIQUE (n) DEFERRABLE INITIALLY DEFERRED; \
             INSERT INTO data VALUES (2, 0)",
        )
        .await;
        let mut tx = begin(&pool).await;
        write(&mut tx, 2, 0).await;
        let error = commit(tx, &held).await.unwrap_err();
        assert_eq!((error.kind(), error.effect()), (ErrorKind::Store, lock_core::Effect::None));
        assert!(format!("{error:?}").contains("data_n_key"), "{error:?}");
    }

    /// The table is there, and the role may not create tables.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_role_needs_three_rights() {
        let (server, pool) = pool().await;
        run(&pool, "CREATE ROLE app LOGIN; REVOKE CREATE ON SCHEMA public FROM PUBLIC").await;
        let url = server.url().replace("postgres@", "app@");
        assert_ne!(url, server.url());
        let app = connect(&url).await;
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
    use crate::fence_scenes::mysql::{Database, end_all_leases};

    const SCHEMA_AND_TABLE: &str = "locks.app_locks";

    fences!(mysql);
    checks!(String::into_bytes);

    /// The holder was paused in the middle of its transaction.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn no_level_commits_after_a_later_grant() {
        for level in ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"] {
            let (server, pool) = pool().await;
            run(&pool, &format!("SET GLOBAL TRANSACTION ISOLATION LEVEL {level}")).await;
            let pool = crate::fence_scenes::mysql::connect(server.url()).await;
            let held = locks(&server).await.named("x").unwrap().acquire().await.unwrap();
            let mut tx = begin(&pool).await;
            write(&mut tx, 1, 1).await;
            // As by a renewal.
            run(&pool, "UPDATE distlock SET expires = expires + 1").await;
            commit(tx, &held).await.unwrap();
            let mut tx = begin(&pool).await;
            write(&mut tx, 2, 2).await;
            end_all_leases(&pool).await;
            let next = locks(&server).await.named("x").unwrap();
            next.acquire_timeout(LONG).await.unwrap().release().await.unwrap();
            refused(commit(tx, &held).await, &["rolled back"]).unwrap();
            assert_eq!(n(&pool).await, 1, "{level}");
        }
    }

    play! {
        mysql:
        transactions_of_one_holder_do_not_wait_for_each_other,
        no_update_is_lost_at_read_committed,
    }
}

mod sqlite {
    use crate::fence_scenes::sqlite::data;

    const SCHEMA_AND_TABLE: &str = "main.app_locks";

    fences!(sqlite);
    /// A transaction that begins with a read has to be tried again if another has written since.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_snapshot_that_is_too_old_writes_nothing() {
        let (_folder, pool) = pool().await;
        run(&pool, "PRAGMA journal_mode = WAL").await;
        admitted(&pool, "a", 10).await.unwrap();
        let mut old = pool.begin().await.unwrap();
        admit_token(&mut old, &key("a"), token(10)).await.unwrap();
        admitted(&pool, "a", 11).await.unwrap();
        let written = old.execute("UPDATE data SET n = 10").await;
        lock_testkit::assert_exactly!(written.is_err(), "a holder that was overtaken has written");
        drop(old);
        let mut next = pool.begin().await.unwrap();
        assert_eq!(data(&mut next).await, (0, 0));
        admitted(&pool, "a", 12).await.unwrap();
        let error = admit_token(&mut next, &key("a"), token(13)).await.unwrap_err();
        assert!(error.is_retryable(), "{error}");
    }
}
