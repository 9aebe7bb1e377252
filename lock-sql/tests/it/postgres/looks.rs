//! What a look shows, and when.

use std::time::Duration;

use lock_core::{ErrorKind, LockBackend, Seen};
use lock_testkit::servers::PgBouncer;
use tokio::time::timeout;

use crate::looks::{crossed_looks, key, look, looks, many_names};
use crate::postgres_common::{
    TTL, assert_says, backend, claim, granted, plain, proxied, run, server,
};
use crate::postgres_scenes::{floors_below_late_inserts, late_looks, looks_away_from_the_primary};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_look_shows_what_has_been_going_on() {
    let server = server().await;
    looks(server.url()).await.unwrap();
    crossed_looks(server.url()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_look_through_a_pooler_shows_what_has_been_going_on() {
    let server = server().await;
    let pooler = PgBouncer::start(server.address().unwrap(), "transaction", 3).await.unwrap();
    let url = format!("postgres://postgres@{}/postgres?sslmode=disable", pooler.address());
    looks(&url).await.unwrap();
    crossed_looks(&url).await.unwrap();
}

#[tokio::test]
async fn a_look_goes_to_the_primary() {
    looks_away_from_the_primary().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_look_that_takes_long_shows_no_lease_as_ended_that_was_renewed() {
    late_looks().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_floor_of_a_name_without_a_row_is_below_an_insert_under_way() {
    floors_below_late_inserts().await.unwrap();
}

/// As one that was the primary and is not any more.
#[tokio::test]
async fn a_server_that_is_read_only_by_now_shows_nothing() {
    let server = server().await;
    let mut admin = plain(&server).await;
    for mode in ["none", "transaction"] {
        let url = format!("{}?lock_pooler={mode}", server.url());
        let client = lock_sql::connect(&url).await.unwrap();
        for (setting, works) in [("off", true), ("on", false), ("off", true)] {
            let set = format!("ALTER SYSTEM SET default_transaction_read_only = {setting}");
            run(&mut admin, "SET default_transaction_read_only = off").await;
            run(&mut admin, &set).await;
            run(&mut admin, "SELECT pg_reload_conf()").await;
            // The sessions of the server hear of it a moment later.
            let mut tries = 0;
            loop {
                match client.look(&[key("x")]).await {
                    Ok(_) if works => break,
                    Err(error) if !works => {
                        assert_says(&error, ErrorKind::Unavailable, &["read-only"]);
                        break;
                    }
                    seen => assert!(tries < 100, "read-only {setting}: {seen:?}"),
                }
                tries += 1;
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

/// Under whatever isolation the role has, a look sees all that was committed, nothing else, and waits for
/// nobody.
#[tokio::test]
async fn no_isolation_level_makes_a_look_stale() {
    let server = server().await;
    let mut admin = plain(&server).await;
    let holder = backend(&server).await;
    for level in ["serializable", "repeatable read", "read committed"] {
        let set = format!("ALTER ROLE postgres SET default_transaction_isolation = '{level}'");
        run(&mut admin, &set).await;
        for mode in ["none", "transaction"] {
            let url = format!("{}?lock_pooler={mode}", server.url());
            let client = lock_sql::connect(&url).await.unwrap();
            for _ in 0..20 {
                let mut held = claim(&holder, "x", TTL, false);
                let fence = granted(&mut *held).await;
                let seen = Seen::Held { fence: Some(fence), label: None };
                assert_eq!(look(&client, "x").await, seen, "{level}, {mode}");
                held.release().await.unwrap();
                let seen = Seen::Free { floor: Some(fence) };
                assert_eq!(look(&client, "x").await, seen, "{level}, {mode}");
            }
            let mut held = claim(&holder, "x", TTL, false);
            let fence = granted(&mut *held).await;
            let keys = [key("x"), key("y")];
            let mut other = plain(&server).await;
            let undone = "BEGIN; UPDATE distlock SET owner = NULL, expires = now() WHERE name = 'x'; \
                 INSERT INTO distlock VALUES ('y', 'other', 7, now() + interval '1 h', now(), NULL, '{}')";
            run(&mut other, undone).await;
            let seen = timeout(Duration::from_millis(900), client.look(&keys)).await;
            let seen = seen.expect("a look waits for nobody").unwrap();
            assert_eq!(seen[0], Seen::Held { fence: Some(fence), label: None }, "{level}, {mode}");
            assert_eq!(seen[1], Seen::Free { floor: None }, "{level}, {mode}");
            run(&mut other, "ROLLBACK").await;
            held.release().await.unwrap();
        }
    }
}

#[tokio::test]
async fn many_names_are_one_statement() {
    let server = server().await;
    for mode in ["none", "transaction"] {
        let (proxy, url) = proxied(&server).await;
        let url = format!("{url}&lock_pooler={mode}&lock_table={mode}");
        let client = lock_sql::connect(&url).await.unwrap();
        many_names(&client, || proxy.requests()).await;
    }
}
