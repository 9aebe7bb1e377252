//! Lost replies, killed connections, and servers that are stopped.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod postgres_common;

use std::time::Duration;

use lock_core::{Attempt, ErrorKind, LockBackend, LockState, Locks, Released, Renewal};
use lock_testkit::servers::PostgresServer;
use postgres_common::{
    Hammer, TTL, backend, claim, granted, locks, number, plain, pushes_come_back, run, server,
};
use tokio::time::Instant;

/// A statement that is given up takes its connection with it: the next one does not read its answer.
#[tokio::test]
async fn a_statement_that_was_dropped_leaves_no_answer_to_the_next() {
    let server = server().await;
    let backend = backend(&server).await;
    for micros in (0..60).map(|n| n * 20) {
        let mut held = claim(&backend, "a", TTL, false);
        let limit = Duration::from_micros(micros);
        let _ = tokio::time::timeout(limit, held.try_acquire()).await;
        let _ = tokio::time::timeout(limit, held.check()).await;
        let mut other = claim(&backend, &format!("b{micros}"), TTL, false);
        granted(&mut *other).await;
        assert!(matches!(other.check().await.unwrap(), Renewal::Alive { .. }));
        assert_eq!(other.release().await.unwrap(), Released::Freed);
        // Late statements of the dropped calls may run until then.
        let freed = async {
            while !matches!(
                claim(&backend, "a", TTL, false).try_acquire().await,
                Ok(Attempt::Granted { .. })
            ) {
                held.release().await.unwrap();
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(5), freed).await.unwrap();
        run(
            &mut plain(&server).await,
            "UPDATE distlock SET owner = NULL, expires = now() WHERE name = 'a'",
        )
        .await;
    }
}

/// Row 16: an operator ends all connections, again and again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn terminated_connections_lose_no_update() {
    let server = server().await;
    let backends = [backend(&server).await, backend(&server).await];
    let clients = (0..8).map(|n| Locks::new(backends[n % 2].clone())).collect();
    let hammer = Hammer::start(clients, Duration::from_secs(10));
    let mut connection = plain(&server).await;
    let end = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
               WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
    let mut ended = 0;
    while hammer.rounds() < 190 && ended < 400 {
        ended += number(&mut connection, end).await;
        tokio::time::sleep(Duration::from_millis(60)).await;
    }
    hammer.take(10).await;
    hammer.stop().await;
    assert!(ended > 10, "only {ended} connections were ended");
    pushes_come_back(&backends[0], &backends[1]).await;
}

/// Row 36: 64 clients on a server whose transactions are serialisable, directly, where our connections
/// set their own level, and in one piece, where they cannot.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn serialisation_failures_are_contention() {
    let server = PostgresServer::builder()
        .option("default_transaction_isolation", "serializable")
        .option("max_connections", "400")
        .start()
        .await
        .unwrap();
    for mode in ["none", "transaction"] {
        let mut backends = Vec::new();
        for _ in 0..64 {
            let url = format!("{}?lock_pooler={mode}", server.url());
            backends.push(lock_sql::connect(&url).await.unwrap());
        }
        let clients = backends.iter().cloned().map(Locks::new).collect();
        let hammer = Hammer::start(clients, Duration::from_secs(10));
        hammer.take(256).await;
        assert_eq!(hammer.stop().await, 0, "{mode}");
        for backend in &backends {
            backend.close().await.unwrap();
        }
    }
}

/// Rows 17 and 18: frozen for a while, and killed and started again. The hold survives, and the
/// guard never says more than is true.
#[tokio::test]
async fn a_hold_survives_a_frozen_and_a_restarted_server() {
    let server = server().await;
    let locks = Locks::builder(backend(&server).await)
        .default_ttl(Duration::from_secs(12))
        .call_timeout(Duration::from_millis(1500))
        .build()
        .unwrap();
    let guard = locks.named("x").unwrap().acquire().await.unwrap();
    server.freeze().unwrap();
    let risk = async {
        while guard.state() == LockState::Secure {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(9), risk).await.expect("a renewal had no answer");
    server.thaw().unwrap();
    server.kill().unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    server.restart().await.unwrap();
    let renewed = async {
        while guard.renew().await.is_err() {
            assert!(!matches!(guard.state(), LockState::Lost(_)), "{:?}", guard.state());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), renewed).await.unwrap();
    assert_eq!(guard.state(), LockState::Secure);
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_stopped_server_is_an_error_in_time_and_its_waiters_come_back() {
    let server = server().await;
    let (a, b) = (locks(&server).await, locks(&server).await);
    let guard = a.named("x").unwrap().acquire().await.unwrap();
    let waiter = tokio::spawn(async move { b.named("x").unwrap().acquire().await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    server.stop().unwrap();
    let start = Instant::now();
    let error = a.named("y").unwrap().try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(start.elapsed() < Duration::from_secs(3));
    server.restart().await.unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    guard.release().await.unwrap();
    let guard = tokio::time::timeout(Duration::from_secs(5), waiter).await.unwrap().unwrap();
    guard.unwrap().release().await.unwrap();
}

/// Rows 33 and 34: read-only, rights taken away, and given back, all while a lock is held.
#[tokio::test]
async fn what_an_operator_takes_away_is_an_error_and_no_loss() {
    let server = server().await;
    backend(&server).await;
    let mut connection = plain(&server).await;
    run(
        &mut connection,
        "CREATE ROLE locker LOGIN; GRANT SELECT, INSERT, UPDATE, DELETE ON distlock TO locker",
    )
    .await;
    let url = server.url().replace("postgres@", "locker@");
    let client = lock_sql::connect(&url).await.unwrap();
    let mut held = claim(&client, "x", TTL, true);
    let token = granted(&mut *held).await;
    let end =
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename = 'locker'";
    for (take, give, kind, word) in [
        (
            "ALTER ROLE locker SET default_transaction_read_only = on",
            "ALTER ROLE locker RESET default_transaction_read_only",
            ErrorKind::Unavailable,
            "read-only",
        ),
        (
            "REVOKE UPDATE ON distlock FROM locker",
            "GRANT UPDATE ON distlock TO locker",
            ErrorKind::Denied,
            "GRANT",
        ),
    ] {
        run(&mut connection, take).await;
        // A setting of a role counts for new connections.
        number(&mut connection, end).await;
        for _ in 0..2 {
            let error = held.renew().await.unwrap_err();
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.to_string().contains(word), "{error}");
            let error = claim(&client, "y", TTL, false).try_acquire().await.unwrap_err();
            assert_eq!(error.kind(), kind, "{error}");
        }
        // A connection that was made read-only stays so, and must not be used again.
        run(&mut connection, give).await;
        assert!(matches!(held.renew().await.unwrap(), Renewal::Alive { .. }));
    }
    assert_eq!(granted(&mut *held).await, token);
    held.release().await.unwrap();
}

/// Row 20: the rows go under the holder. The next token is above the last one all the same, by the
/// clock.
#[tokio::test]
async fn a_truncated_or_dropped_table_is_a_loss_and_fences_rise() {
    let server = server().await;
    let client = backend(&server).await;
    for sql in ["TRUNCATE distlock", "DROP TABLE distlock"] {
        let mut held = claim(&client, "x", TTL, true);
        let token = granted(&mut *held).await;
        run(&mut plain(&server).await, sql).await;
        assert_eq!(held.renew().await.unwrap(), Renewal::Lost, "{sql}");
        assert_eq!(held.release().await.unwrap(), Released::AlreadyGone, "{sql}");
        let mut next = claim(&client, "x", TTL, true);
        assert!(granted(&mut *next).await > token, "{sql}");
        next.release().await.unwrap();
    }
}
