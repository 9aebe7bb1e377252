//! What a look shows, and when.

use std::time::Duration;

use conformance_tests::server::Proxy;
use lock_core::{LockBackend, Seen};
use lock_testkit::servers::MariaDbServer;
use tokio::time::timeout;

use crate::looks::{crossed_looks, key, look, looks, many_names};
use crate::mysql_common::{
    CALL, TTL, admin, claim, granted, looks_away_from_the_primary, run, server, url_of,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_look_shows_what_has_been_going_on() {
    let server = server().await;
    looks(server.url()).await.unwrap();
    crossed_looks(server.url()).await.unwrap();
}

/// As one that was the primary and is not any more.
#[tokio::test]
async fn a_server_that_is_read_only_by_now_shows_nothing() {
    looks_away_from_the_primary().await.unwrap();
}

/// Under whatever isolation the server gives, a look sees all that was committed, nothing else, and waits for
/// nobody.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_isolation_level_makes_a_look_stale() {
    for level in ["SERIALIZABLE", "REPEATABLE-READ", "READ-COMMITTED", "READ-UNCOMMITTED"] {
        let builder = MariaDbServer::builder().option("transaction-isolation", level);
        let server = builder.option("autocommit", "0").start().await.unwrap();
        let admin = admin(&server).await;
        let rights = "SET autocommit = 1; CREATE USER app; \
             GRANT CREATE, SELECT, INSERT, UPDATE, DELETE ON locks.* TO app";
        run(&admin, rights).await;
        let url = url_of(&server, "app");
        let holder = lock_sql::connect(&url).await.unwrap();
        let client = lock_sql::connect(&url).await.unwrap();
        for _ in 0..20 {
            let mut held = claim(&holder, "x", TTL, CALL);
            let fence = granted(&mut *held).await;
            let seen = Seen::Held { fence: Some(fence), label: None };
            assert_eq!(look(&client, "x").await, seen, "{level}");
            held.release().await.unwrap();
            assert_eq!(look(&client, "x").await, Seen::Free { floor: Some(fence) }, "{level}");
        }
        let mut held = claim(&holder, "x", TTL, CALL);
        let fence = granted(&mut *held).await;
        let mut other = admin.begin().await.unwrap();
        for undone in [
            "UPDATE distlock SET owner = NULL, expires = 0 WHERE name = 'x'",
            "INSERT INTO distlock VALUES ('y', 'other', 7, 9000000000000000, 0, NULL)",
        ] {
            sqlx::query(undone).execute(&mut *other).await.unwrap();
        }
        let keys = [key("x"), key("y")];
        let seen = timeout(Duration::from_millis(900), client.look(&keys)).await;
        let seen = seen.expect("a look waits for nobody").unwrap();
        assert_eq!(seen[0], Seen::Held { fence: Some(fence), label: None }, "{level}");
        assert_eq!(seen[1], Seen::Free { floor: None }, "{level}");
        other.rollback().await.unwrap();
    }
}

#[tokio::test]
async fn many_names_are_one_statement() {
    let server = server().await;
    let proxy = Proxy::start(server.address().unwrap()).await.unwrap();
    let client = lock_sql::connect(&server.url_by(proxy.address()).unwrap()).await.unwrap();
    many_names(&client, || proxy.requests()).await;
}
