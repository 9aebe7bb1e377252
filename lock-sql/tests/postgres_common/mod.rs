//! What the tests of PostgreSQL share.

#![allow(dead_code, unused_imports, reason = "each test target uses a part of it")]

pub(crate) mod splitter;

use std::time::Duration;

pub(crate) use crate::common::{CALL, Hammer, TTL, assert_says, busy, claim_within, granted};
use conformance_tests::server::Proxy;
use lock_core::{Attempt, Claim, LockBackend, Locks};
use lock_sql::SqlBackend;
use lock_testkit::servers::PostgresServer;
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, Row};
use tokio::time::Instant;

/// A server of the test's own. A machine without one fails the test: it says which package is
/// missing, and a skip would look like a pass.
pub(crate) async fn server() -> PostgresServer {
    PostgresServer::builder().start().await.unwrap()
}

pub(crate) async fn backend(server: &PostgresServer) -> SqlBackend {
    lock_sql::connect(server.url()).await.unwrap()
}

pub(crate) async fn locks(server: &PostgresServer) -> Locks {
    Locks::new(backend(server).await)
}

/// A plain connection of the superuser.
pub(crate) async fn plain(server: &PostgresServer) -> PgConnection {
    PgConnection::connect(server.url()).await.unwrap()
}

pub(crate) async fn run(connection: &mut PgConnection, sql: &str) {
    connection.execute(sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))).await.unwrap();
}

pub(crate) async fn number(connection: &mut PgConnection, sql: &str) -> i64 {
    let row = connection.fetch_one(sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))).await.unwrap();
    row.get(0)
}

/// Waits until the answer to `sql` is this number.
pub(crate) async fn until_number(connection: &mut PgConnection, sql: &str, wanted: i64) {
    let begun = Instant::now();
    while number(connection, sql).await != wanted {
        assert!(begun.elapsed() < Duration::from_secs(30), "{sql}: not {wanted}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

pub(crate) fn claim(
    backend: &impl LockBackend,
    name: &str,
    ttl: Duration,
    wait: bool,
) -> Box<dyn Claim> {
    claim_within(backend, name, (ttl, CALL), wait)
}

/// A proxy before the server, and the URL of what is behind it.
pub(crate) async fn proxied(server: &PostgresServer) -> (Proxy, String) {
    let proxy = Proxy::start(server.address().unwrap()).await.unwrap();
    let url = format!("postgres://postgres@{}/postgres?sslmode=disable", proxy.address());
    (proxy, url)
}

/// Pushes from `a` to `b` come, at once or after a while. A claim does not poll: what it hears is a push,
/// or, once, that pushes are back.
pub(crate) async fn pushes_come_back(a: &SqlBackend, b: &SqlBackend) {
    let limit = Instant::now() + Duration::from_secs(30);
    let (mut round, mut in_a_row) = (0, 0);
    while in_a_row < 3 {
        assert!(Instant::now() < limit, "no push comes any more");
        round += 1;
        let name = format!("push{round}");
        let (mut holder, mut waiter) = (claim(a, &name, TTL, true), claim(b, &name, TTL, true));
        // Connections that were cut may still be found out.
        let ready = matches!(holder.try_acquire().await, Ok(Attempt::Granted { .. }))
            && matches!(waiter.try_acquire().await, Ok(Attempt::Busy { .. }));
        let _ = holder.release().await;
        let heard = tokio::time::timeout(Duration::from_secs(2), waiter.changed()).await;
        in_a_row = if ready && matches!(heard, Ok(Ok(()))) { in_a_row + 1 } else { 0 };
        let _ = waiter.release().await;
        if in_a_row == 0 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}
