//! Servers, users and tables that cannot be used, and what the errors say.

use std::time::Duration;

use conformance_tests::server::Port;
use lock_core::{Error, ErrorKind, LockBackend, Locks};
use lock_sql::{SqlBackend, SqlConfig};
use lock_testkit::servers::MariaDbServer;
use sqlx::mysql::MySqlPoolOptions;
use tokio::time::{Instant, timeout};

use crate::mysql_common::{
    admin, assert_says, backend, claim, granted, locks, run, server, url_of,
};

async fn refused(url: &str) -> Error {
    lock_sql::connect(url).await.expect_err("this cannot be opened")
}

#[tokio::test]
async fn nobody_listens_there() {
    let port = Port::reserve().unwrap();
    let start = Instant::now();
    let error = refused(&format!("mysql://me:hunter2@127.0.0.1:{port}/locks")).await;
    assert_says(&error, ErrorKind::Unavailable, &["connect", &format!("127.0.0.1:{port}/locks")]);
    assert!(error.is_retryable());
    assert!(start.elapsed() < Duration::from_secs(5));
    assert!(!format!("{error:?} {error}").contains("hunter2"));
    let error = refused("mysql://me:hunter2@host.invalid/locks").await;
    assert_says(&error, ErrorKind::Unavailable, &["host.invalid"]);
    let error = refused("mysql://me@localhost/locks?socket=/no/such.sock").await;
    assert_says(&error, ErrorKind::Unavailable, &["/no/such.sock"]);
}

/// What answers is not MySQL, or does not answer at all.
#[tokio::test]
async fn something_else_listens_there() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url =
        format!("mysql://me@{}/locks?lock_connect_timeout=700ms", listener.local_addr().unwrap());
    let start = Instant::now();
    let error = refused(&url).await;
    assert_says(&error, ErrorKind::NoAnswer, &["700"]);
    assert!(start.elapsed() < Duration::from_secs(5));
    let web = tokio::spawn(async move {
        use tokio::io::AsyncWriteExt;
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
        }
    });
    let error = refused(&url).await;
    assert!(
        matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::NoAnswer | ErrorKind::Config),
        "{error}"
    );
    web.abort();
}

/// Batched renewals need SKIP LOCKED: a server without it would take locks, and lose them.
#[tokio::test]
async fn a_server_that_is_too_old() {
    let version = "10.5.23-MariaDB-0+deb11u1";
    let server = MariaDbServer::builder().option("version", version).start().await.unwrap();
    let error = refused(server.url()).await;
    assert_says(&error, ErrorKind::Unsupported, &[version, "MariaDB 10.6", "connect"]);
    assert!(!error.is_retryable());
}

#[tokio::test]
async fn users_passwords_databases_and_rights() {
    let server = server().await;
    let admin = admin(&server).await;
    run(
        &admin,
        "CREATE TABLE other (id INT); CREATE USER reader; CREATE USER writer;
         CREATE USER app IDENTIFIED BY 'p@ss/w:rd#1'; GRANT SELECT ON locks.other TO app;
         CREATE USER locked ACCOUNT LOCK; GRANT ALL ON locks.* TO locked",
    )
    .await;
    let app = url_of(&server, "app:p%40ss%2Fw%3Ard%231");

    // A table that is not there.
    let error = refused(&app).await;
    assert_says(
        &error,
        ErrorKind::Config,
        &["may not create it", "CREATE TABLE IF NOT EXISTS `distlock`", "GRANT SELECT, INSERT"],
    );
    assert!(!error.is_retryable());
    let error = refused(&format!("{}?lock_create_table=false", server.url())).await;
    assert_says(&error, ErrorKind::Config, &["lock_create_table=false", "CREATE TABLE"]);

    // An administrator follows the advice, and these rights are enough.
    let text = error.to_string();
    let ddl = text.split_once("CREATE TABLE").unwrap().1.split_once(';').unwrap().0;
    let ddl = format!("CREATE TABLE{ddl}");
    sqlx::raw_sql(sqlx::AssertSqlSafe(ddl)).execute(&admin).await.unwrap();
    run(
        &admin,
        "GRANT SELECT, INSERT, UPDATE, DELETE ON `distlock` TO app;
         GRANT SELECT ON `distlock` TO reader; GRANT INSERT, UPDATE, SELECT ON `distlock` TO writer",
    )
    .await;
    let locks = Locks::new(lock_sql::connect(&app).await.unwrap());
    let guard = locks.named("x").unwrap().acquire().await.unwrap();
    guard.renew().await.unwrap();
    assert_eq!(locks.list("").await.unwrap().len(), 1);
    guard.release().await.unwrap();

    for (user, kind, words) in [
        ("app:wrong", ErrorKind::Denied, &["user", "password"][..]),
        ("nobody:wrong", ErrorKind::Denied, &["user", "password"]),
        ("locked", ErrorKind::Denied, &["user"]),
        ("reader", ErrorKind::Denied, &["GRANT SELECT, INSERT, UPDATE, DELETE ON `distlock`"]),
        ("writer", ErrorKind::Denied, &["GRANT SELECT, INSERT, UPDATE, DELETE ON `distlock`"]),
    ] {
        let error = refused(&url_of(&server, user)).await;
        assert_says(&error, kind, words);
        assert!(!error.is_retryable(), "{user}: {error}");
        assert!(!format!("{error:?} {error}").contains("wrong"), "{user}: {error}");
    }
    // A table without any right on it cannot be seen.
    run(&admin, "CREATE USER stranger; GRANT SELECT ON locks.other TO stranger").await;
    let error = refused(&url_of(&server, "stranger")).await;
    assert_says(&error, ErrorKind::Config, &["may not see it", "GRANT SELECT, INSERT"]);
    let error = refused(&server.url().replace("/locks", "/nothing")).await;
    assert_says(&error, ErrorKind::Config, &["no such database"]);
    // Without rights on the database at all.
    let error = refused(&app.replace("/locks", "/mysql")).await;
    assert_says(&error, ErrorKind::Denied, &["rights on the database"]);
}

#[tokio::test]
async fn a_table_of_another_shape_is_refused_with_the_right_statement() {
    let server = server().await;
    let admin = admin(&server).await;
    const GOOD: &str = "fence BIGINT NOT NULL, expires BIGINT NOT NULL, acquired BIGINT NOT NULL, label VARCHAR(512)";
    let name = "name VARBINARY(1025) NOT NULL PRIMARY KEY, owner VARBINARY(32)";
    for (table, ddl, what) in [
        ("t1", "TABLE t1 (id INT PRIMARY KEY)".to_owned(), "primary key"),
        ("t2", format!("TABLE t2 ({name})"), "fence"),
        (
            "t3",
            format!(
                "TABLE t3 (name VARCHAR(512) COLLATE utf8mb4_bin NOT NULL PRIMARY KEY, owner VARBINARY(32), {GOOD})"
            ),
            "byte by byte",
        ),
        (
            "t4",
            format!(
                "TABLE t4 (name VARBINARY(200) NOT NULL PRIMARY KEY, owner VARBINARY(32), {GOOD})"
            ),
            "1025 are needed",
        ),
        ("t5", format!("TABLE t5 ({name}, {GOOD}) ENGINE = Aria"), "engine is Aria"),
        ("t6", "VIEW t6 AS SELECT 1 AS name".to_owned(), "it is a view"),
        (
            "t7",
            format!(
                "TABLE t7 (name VARBINARY(1025) NOT NULL, owner VARBINARY(32), {GOOD}, PRIMARY KEY (name(100)))"
            ),
            "primary key",
        ),
        ("t8", format!("TABLE t8 ({name}, {GOOD}, UNIQUE (fence))"), "only unique key"),
        ("t9", format!("TABLE t9 ({name}, {GOOD}, x INT NOT NULL)"), "a column x"),
    ] {
        let ddl = format!("CREATE {ddl}");
        sqlx::raw_sql(sqlx::AssertSqlSafe(ddl)).execute(&admin).await.unwrap();
        let error = refused(&format!("{}?lock_table={table}", server.url())).await;
        assert_says(&error, ErrorKind::Store, &[what, "CREATE TABLE IF NOT EXISTS", table]);
    }
    let ddl = format!(
        "CREATE TABLE wide ({name}, {GOOD}, x INT, y INT NOT NULL DEFAULT 3, KEY (expires))"
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(ddl)).execute(&admin).await.unwrap();
    let wide =
        Locks::new(lock_sql::connect(&format!("{}?lock_table=wide", server.url())).await.unwrap());
    wide.named("x").unwrap().acquire().await.unwrap().release().await.unwrap();
    // An older version has made this column.
    let label = "n".repeat(512);
    let error = wide.named("x").unwrap().cohort(2).label(label).acquire().await.unwrap_err();
    let what = ["table `wide`", "'label'", "ALTER TABLE … MODIFY label VARCHAR(523)"];
    assert_says(&error, ErrorKind::Store, &what);
}

/// The password is changed while the store is in use: a pool that is told goes on.
#[tokio::test]
async fn a_pool_may_be_given_new_credentials() {
    let server = server().await;
    let admin = admin(&server).await;
    run(&admin, "CREATE USER app IDENTIFIED BY 'one'; GRANT ALL ON locks.* TO app").await;
    let pool = MySqlPoolOptions::new().connect(&url_of(&server, "app:one")).await.unwrap();
    let backend = SqlBackend::from_pool(pool.clone(), SqlConfig::default()).await.unwrap();
    run(&admin, "ALTER USER app IDENTIFIED BY 'two'").await;
    server.restart().await.unwrap();
    assert_says(&backend.ping().await.unwrap_err(), ErrorKind::Denied, &["password"]);
    pool.set_connect_options(url_of(&server, "app:two").parse().unwrap());
    backend.ping().await.unwrap();
}

#[tokio::test]
async fn a_server_that_is_full_is_not_available_for_now() {
    let server = MariaDbServer::builder().option("max-connections", "10").start().await.unwrap();
    let admin = admin(&server).await;
    run(&admin, "CREATE USER app; GRANT ALL ON locks.* TO app").await;
    let url = url_of(&server, "app");
    let backend = lock_sql::connect(&url).await.unwrap();
    let pool = MySqlPoolOptions::new().max_connections(10).connect(&url).await.unwrap();
    let mut taken = Vec::new();
    while let Ok(Ok(connection)) = timeout(Duration::from_secs(1), pool.acquire()).await {
        taken.push(connection);
    }
    let error = refused(&url).await;
    assert_says(&error, ErrorKind::Unavailable, &["too many connections"]);
    assert!(error.is_retryable());
    // The connection that there is works on.
    backend.ping().await.unwrap();
}

/// The caller's own limit is what counts, also where those of calls and of connecting are longer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_stopped_keeps_nobody_longer_than_the_caller_allows() {
    let server = server().await;
    let (locks, other) = (locks(&server).await, backend(&server).await);
    // With something to tidy up at its end.
    granted(&mut *claim(&other, "x", Duration::from_secs(30), Duration::from_secs(5))).await;
    server.freeze().unwrap();
    let (limit, generous) = (Duration::from_secs(1), Duration::from_secs(4));
    let start = Instant::now();
    let refused = locks.named("y").unwrap().acquire_timeout(limit).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NoAnswer, "{refused}");
    assert!(start.elapsed() < generous, "{:?}", start.elapsed());
    let start = Instant::now();
    assert!(timeout(limit, lock_sql::connect(server.url())).await.is_err());
    assert!(start.elapsed() < generous, "{:?}", start.elapsed());
    let start = Instant::now();
    other.close().await.unwrap();
    assert!(start.elapsed() < generous, "{:?}", start.elapsed());
    server.thaw().unwrap();
}
