//! Rows that another client keeps locked.

use std::time::Duration;

use lock_core::{Attempt, ErrorKind, Locks, Released, Renewal};
use lock_testkit::servers::PgBouncer;
use sqlx::PgConnection;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::postgres_common::{TTL, backend, claim, granted, number, plain, run, server};

/// Well below the second for which a statement waits for a row.
const SOON: Duration = Duration::from_millis(800);

/// How many statements wait for a row.
const WAITING: &str = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";

/// Waits until a statement waits for a row.
async fn until_waiting(connection: &mut PgConnection) {
    let limit = Instant::now() + Duration::from_secs(10);
    while number(connection, WAITING).await == 0 {
        assert!(Instant::now() < limit, "no statement waits for the row");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn lock_row(connection: &mut PgConnection, name: &str) {
    run(connection, &format!("BEGIN; SELECT * FROM distlock WHERE name = '{name}' FOR UPDATE"))
        .await;
}

/// Somebody keeps one of many rows locked in a transaction that was left open.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_locked_row_stops_no_other_renewal() {
    let server = server().await;
    let locks =
        Locks::builder(backend(&server).await).default_ttl(Duration::from_secs(6)).build().unwrap();
    let mut guards = Vec::new();
    for n in 0..300 {
        guards.push(locks.named(format!("n{n:03}")).unwrap().acquire().await.unwrap());
    }
    let mut connection = plain(&server).await;
    for name in ["n007", "n100", "n101", "n102", "n103", "n104", "n250"] {
        if name == "n007" {
            lock_row(&mut connection, name).await;
        } else {
            let sql = format!("SELECT * FROM distlock WHERE name = '{name}' FOR UPDATE");
            run(&mut connection, &sql).await;
        }
    }
    tokio::time::sleep(Duration::from_secs(9)).await;
    let lost: Vec<_> = (0..300).filter(|n| guards[*n].token().is_err()).collect();
    assert_eq!(lost, [7, 100, 101, 102, 103, 104, 250], "the locked ones, and no others");
    run(&mut connection, "ROLLBACK").await;
}

/// Renewals and releases have connections of their own, and do not queue behind those who want a
/// lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewals_do_not_wait_behind_tries() {
    let server = server().await;
    let client = backend(&server).await;
    let mut blocked = claim(&client, "blocked", TTL, false);
    granted(&mut *blocked).await;
    // Nobody goes to the row of a lock that is held.
    blocked.release().await.unwrap();
    let mut held = claim(&client, "held", TTL, false);
    granted(&mut *held).await;
    let mut connection = plain(&server).await;
    lock_row(&mut connection, "blocked").await;
    // Each of these waits for the row, with its connection.
    let mut tries = JoinSet::new();
    for _ in 0..20 {
        let mut claim = claim(&client, "blocked", TTL, false);
        tries.spawn(async move { claim.try_acquire().await });
    }
    until_waiting(&mut connection).await;
    for _ in 0..5 {
        let start = Instant::now();
        assert!(matches!(held.renew().await.unwrap(), Renewal::Alive { .. }));
        assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    }
    assert_eq!(held.release().await.unwrap(), Released::Freed);
    run(&mut connection, "ROLLBACK").await;
    let mut granted = 0;
    while let Some(answer) = tries.join_next().await {
        // Contention is no error; who has waited too long says so.
        match answer.unwrap() {
            Ok(attempt) => granted += usize::from(matches!(attempt, Attempt::Granted { .. })),
            Err(error) => assert_eq!(error.kind(), ErrorKind::NoAnswer, "{error}"),
        }
    }
    assert!(granted <= 1, "{granted} of one lock");
}

/// So have renewals and releases: one that waits for a locked row keeps its connection meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewals_do_not_wait_behind_releases() {
    let server = server().await;
    let client = backend(&server).await;
    let mut blocked = Vec::new();
    for n in 0..20 {
        let mut claim = claim(&client, &format!("blocked{n}"), TTL, false);
        granted(&mut *claim).await;
        blocked.push(claim);
    }
    let mut held = claim(&client, "held", TTL, false);
    granted(&mut *held).await;
    let mut connection = plain(&server).await;
    let lock = "BEGIN; SELECT * FROM distlock WHERE name LIKE 'blocked%' FOR UPDATE";
    run(&mut connection, lock).await;
    let mut releases = JoinSet::new();
    for mut claim in blocked {
        releases.spawn(async move { claim.release().await });
    }
    until_waiting(&mut connection).await;
    for _ in 0..5 {
        let start = Instant::now();
        assert!(matches!(held.renew().await.unwrap(), Renewal::Alive { .. }));
        assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    }
    run(&mut connection, "ROLLBACK").await;
    while let Some(answer) = releases.join_next().await {
        match answer.unwrap() {
            Ok(released) => assert_eq!(released, Released::Freed),
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
    }
    assert_eq!(held.release().await.unwrap(), Released::Freed);
}

/// Statements that were being executed when their caller gave up end on their own, so that repeats
/// do not pile up on the server. Through a pooler, too, where the connections have no settings of
/// ours.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn given_up_statements_do_not_pile_up() {
    let server = server().await;
    let pooler = PgBouncer::start(server.address().unwrap(), "transaction", 60).await.unwrap();
    let pooled = format!("postgres://postgres@{}/postgres?sslmode=disable", pooler.address());
    for url in [server.url(), &pooled] {
        let client = lock_sql::connect(url).await.unwrap();
        let mut held = claim(&client, "x", TTL, false);
        granted(&mut *held).await;
        let mut wanted = claim(&client, "x", TTL, false);
        let mut connection = plain(&server).await;
        lock_row(&mut connection, "x").await;
        for _ in 0..30 {
            let _ = tokio::time::timeout(Duration::from_millis(20), held.release()).await;
        }
        let _ = tokio::time::timeout(Duration::from_millis(20), wanted.try_acquire()).await;
        until_waiting(&mut connection).await;
        let limit = Instant::now() + Duration::from_secs(10);
        while number(&mut connection, WAITING).await > 0 {
            assert!(Instant::now() < limit, "statements wait for the row without an end");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        run(&mut connection, "ROLLBACK").await;
        assert_eq!(held.release().await.unwrap(), Released::Freed);
        wanted.release().await.unwrap();
    }
}
