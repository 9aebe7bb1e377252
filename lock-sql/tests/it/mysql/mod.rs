//! The backend under `lock_core::Locks`, on MariaDB.

mod connecting;
mod faults;
mod locked_rows;
mod looks;
#[cfg(feature = "tls")]
mod tls;

use std::time::Duration;

use lock_core::{ErrorKind, LockBackend, Locks, Released};
use lock_sql::{SqlBackend, SqlConfig};
use lock_testkit::servers::MariaDbServer;
use sqlx::mysql::{MySqlConnectOptions, MySqlPoolOptions};

use crate::common::rows_go_by_themselves;
use crate::mysql_common::{Hammer, admin, locks, run, server, url_of};

/// The server's settings must not matter: isolation, time zone, modes, autocommit, character set,
/// time limits of connections.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_setting_of_the_server_or_of_a_pool_matters() {
    let settings: &[&[(&str, &str)]] = &[
        &[
            ("transaction-isolation", "SERIALIZABLE"),
            ("default-time-zone", "+09:00"),
            (
                "sql-mode",
                "ANSI,SIMULTANEOUS_ASSIGNMENT,NO_BACKSLASH_ESCAPES,PAD_CHAR_TO_FULL_LENGTH",
            ),
            ("autocommit", "0"),
            ("character-set-server", "latin1"),
        ],
        &[
            ("transaction-isolation", "READ-UNCOMMITTED"),
            ("sql-mode", ""),
            ("wait-timeout", "1"),
            ("innodb-rollback-on-timeout", "1"),
            ("init-connect", "SET time_zone = '-11:30'"),
        ],
        &[
            ("transaction-isolation", "READ-COMMITTED"),
            ("sql-mode", "ORACLE"),
            ("sysdate-is-now", "1"),
            ("innodb-snapshot-isolation", "1"),
            ("lower-case-table-names", "1"),
        ],
    ];
    for settings in settings {
        let mut builder = MariaDbServer::builder();
        for (name, value) in *settings {
            builder = builder.option(name, value);
        }
        let server = builder.start().await.unwrap();
        let admin = admin(&server).await;
        // The settings for connections are not for those who may do everything.
        run(&admin, "SET autocommit = 1; CREATE USER app; GRANT CREATE, SELECT, INSERT, UPDATE, DELETE ON locks.* TO app").await;
        let options: MySqlConnectOptions = url_of(&server, "app").parse().unwrap();
        let options =
            options.charset("latin1").timezone(String::from("+05:00")).pipes_as_concat(true);
        let pool = MySqlPoolOptions::new().connect_lazy_with(options);
        let one = Locks::new(SqlBackend::from_pool(pool, SqlConfig::default()).await.unwrap());
        let two = Locks::new(lock_sql::connect(&url_of(&server, "app")).await.unwrap());
        let ttl = Duration::from_secs(20);
        let guard = one.named("ünï 🔒").unwrap().ttl(ttl).label("wér 🔒").acquire().await.unwrap();
        assert!(
            two.named("ünï 🔒").unwrap().try_acquire().await.unwrap().is_none(),
            "{settings:?}"
        );
        let holder = two.inspect("ünï 🔒").await.unwrap().unwrap().holder.unwrap();
        assert_eq!(holder.label.as_deref(), Some("wér 🔒"));
        let left = holder.expires_in.unwrap();
        assert!(left > ttl / 2 && left <= ttl, "{left:?} under {settings:?}");
        // Longer than an idle connection lives in one of them.
        tokio::time::sleep(Duration::from_millis(2_100)).await;
        guard.renew().await.unwrap();
        assert_eq!(guard.release().await.unwrap(), Released::Freed);
        let hammer = Hammer::start(vec![one, two], Duration::from_secs(5));
        hammer.take(30).await;
        let errors = hammer.stop().await;
        assert!(errors.is_empty(), "{settings:?}: {errors:#?}");
    }
}

/// Deadlocks and serialisation failures are contention: no caller ever sees an error.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_four_clients_at_serializable_see_no_error() {
    let server = MariaDbServer::builder()
        .option("transaction-isolation", "SERIALIZABLE")
        .option("innodb-snapshot-isolation", "1")
        .start()
        .await
        .unwrap();
    let mut clients = Vec::new();
    for _ in 0..64 {
        clients.push(locks(&server).await);
    }
    let others = clients.clone();
    let hammer = Hammer::start(clients, Duration::from_secs(10));
    // New rows at the same time, in gaps of the index.
    let mut tasks = tokio::task::JoinSet::new();
    for (n, locks) in others.into_iter().enumerate() {
        tasks.spawn(async move {
            for round in 0..5 {
                let name = format!("{}-{n}", round * 7 % 5);
                let guard = locks.named(name).unwrap().acquire().await.unwrap();
                guard.release().await.unwrap();
            }
        });
    }
    while let Some(task) = tasks.join_next().await {
        task.unwrap();
    }
    hammer.take(200).await;
    let errors = hammer.stop().await;
    assert!(errors.is_empty(), "{errors:#?}");
    assert!(locks(&server).await.list("").await.unwrap().is_empty(), "nothing is left behind");
}

#[tokio::test]
async fn a_pool_lends_its_database_and_keeps_its_connections() {
    let server = server().await;
    let pool = MySqlPoolOptions::new().max_connections(1).connect(server.url()).await.unwrap();
    let config = SqlConfig::default().table("app_locks").unwrap();
    let backend = SqlBackend::from_pool(pool.clone(), config).await.unwrap();
    backend.ping().await.unwrap();
    let locks = Locks::new(backend);
    // Its only connection is in use: the locks do not need it.
    let busy = pool.acquire().await.unwrap();
    let guard = locks.named("x").unwrap().acquire().await.unwrap();
    guard.renew().await.unwrap();
    drop(busy);
    guard.release().await.unwrap();
    let rows: i64 =
        sqlx::query_scalar("SELECT COUNT(*) FROM app_locks").fetch_one(&pool).await.unwrap();
    assert_eq!(rows, 2, "the lock and the mark");
    locks.close(Duration::from_secs(5)).await.unwrap();
    sqlx::query("SELECT 1").execute(&pool).await.expect("the pool is not closed with the locks");

    let server_only = server.url().trim_end_matches("locks").to_owned();
    let pool = MySqlPoolOptions::new().connect(&server_only).await.unwrap();
    let error = SqlBackend::from_pool(pool, SqlConfig::default()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
}

#[tokio::test]
async fn rows_of_free_locks_go_by_themselves() {
    let server = server().await;
    let url = format!("{}?lock_retention=10ms", server.url());
    let locks = Locks::new(lock_sql::connect(&url).await.unwrap());
    let admin = admin(&server).await;
    let count = "SELECT count(*) FROM distlock";
    let rows = async || sqlx::query_scalar::<_, i64>(count).fetch_one(&admin).await.unwrap();
    rows_go_by_themselves(&locks, rows).await;
}

/// A program that takes one lock and ends does its share.
#[tokio::test]
async fn a_client_that_lives_for_a_moment_sweeps_at_its_end() {
    let server = server().await;
    let url = format!("{}?lock_retention=1ms", server.url());
    for _ in 0..2 {
        let locks = Locks::new(lock_sql::connect(&url).await.unwrap());
        for n in 0..20 {
            locks.named(format!("n{n}")).unwrap().acquire().await.unwrap().release().await.unwrap();
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
        locks.close(Duration::from_secs(5)).await.unwrap();
        let names: Vec<Vec<u8>> = sqlx::query_scalar("SELECT name FROM distlock")
            .fetch_all(&admin(&server).await)
            .await
            .unwrap();
        assert_eq!(names, [b"\x01fence"], "the mark only");
    }
}

/// A thousand held locks are renewed by a few statements on one or two connections.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_locks_are_renewed_by_few_statements() {
    let server = server().await;
    let locks = locks(&server).await;
    let admin = admin(&server).await;
    let ttl = Duration::from_secs(6);
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..1_000 {
        let lock = locks.named(format!("n{n}")).unwrap().ttl(ttl);
        tasks.spawn(async move { lock.acquire().await.unwrap() });
    }
    let guards = tasks.join_all().await;
    let statements = async || -> (u64, u64) {
        let rows: Vec<(String, String)> = sqlx::query_as(
            "SHOW GLOBAL STATUS WHERE variable_name IN ('Com_update', 'Com_select')",
        )
        .fetch_all(&admin)
        .await
        .unwrap();
        let of = |name: &str| -> u64 {
            rows.iter().find(|row| row.0.eq_ignore_ascii_case(name)).unwrap().1.parse().unwrap()
        };
        (of("Com_update"), of("Com_select"))
    };
    let before = statements().await;
    tokio::time::sleep(ttl * 3).await;
    let after = statements().await;
    assert!(guards.iter().all(|guard| guard.token().is_ok()), "all are still held");
    let (updates, selects) = (after.0 - before.0, after.1 - before.1);
    // About nine rounds, each of them one statement, or spread over some points of the grid; the first or the last may be
    // just outside.
    assert!((7..=900).contains(&updates), "{updates} updates for 9000 renewals");
    assert!(selects <= 900, "{selects} reads for 9000 renewals");
}
