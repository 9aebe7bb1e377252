//! What the tests on MariaDB share.

#![allow(dead_code, unused_imports, reason = "each test target uses a part of it")]

use std::time::Duration;

pub(crate) use crate::common::{CALL, Hammer, TTL, assert_says, busy, granted};
use lock_core::{Claim, ErrorKind, LockBackend, Locks};
use lock_sql::SqlBackend;
use lock_testkit::servers::MariaDbServer;
use sqlx::MySqlPool;
use sqlx::mysql::MySqlPoolOptions;

/// A server of the test's own. A machine without one fails the test: it says which package is
/// missing, and a skip would look like a pass.
pub(crate) async fn server() -> MariaDbServer {
    MariaDbServer::builder().start().await.unwrap()
}

pub(crate) async fn backend(server: &MariaDbServer) -> SqlBackend {
    lock_sql::connect(server.url()).await.unwrap()
}

pub(crate) async fn locks(server: &MariaDbServer) -> Locks {
    Locks::new(backend(server).await)
}

/// An administrator.
pub(crate) async fn admin(server: &MariaDbServer) -> MySqlPool {
    MySqlPoolOptions::new().max_connections(4).connect(server.url()).await.unwrap()
}

pub(crate) async fn run(pool: &MySqlPool, sql: &'static str) {
    sqlx::raw_sql(sql).execute(pool).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
}

/// A look at a server that is read-only by now, as one that was the primary, is refused like a grant.
pub(crate) async fn looks_away_from_the_primary() -> Result<(), String> {
    let server = server().await;
    let admin = admin(&server).await;
    // An administrator may write whatever the server says.
    run(&admin, "CREATE USER app; GRANT CREATE, SELECT, INSERT, UPDATE, DELETE ON locks.* TO app")
        .await;
    let client = lock_sql::connect(&url_of(&server, "app")).await.unwrap();
    crate::looks::look(&client, "x").await;
    run(&admin, "SET GLOBAL read_only = 1").await;
    match client.look(&[crate::looks::key("x")]).await {
        Err(error) => assert_says(&error, ErrorKind::Unavailable, &["read-only"]),
        seen => return Err(format!("a server that is read-only shows {seen:?}")),
    }
    run(&admin, "SET GLOBAL read_only = 0").await;
    crate::looks::look(&client, "x").await;
    Ok(())
}

/// The server's URL with another user.
pub(crate) fn url_of(server: &MariaDbServer, user: &str) -> String {
    server.url().replace("root@", &format!("{user}@"))
}

pub(crate) fn claim(
    backend: &impl LockBackend,
    name: &str,
    ttl: Duration,
    call_timeout: Duration,
) -> Box<dyn Claim> {
    crate::common::claim_within(backend, name, (ttl, call_timeout), true)
}
