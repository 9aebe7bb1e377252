//! Locks that very many want: what their looks cost the one who holds it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use lock_core::Renewal;
use lock_sql::SqlBackend;
use lock_testkit::servers::PostgresServer;
use lock_testkit::warnings::Warnings;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::postgres_common::{TTL, backend, busy, claim, granted, plain, run, server};

#[tokio::test]
async fn a_look_at_a_lock_that_is_held_writes_nothing() {
    crate::postgres_scenes::looks_write_nothing().await.unwrap();
}

/// Commits take 5 ms, as on a slow disk.
async fn slow_server() -> PostgresServer {
    PostgresServer::builder()
        .option("fsync", "on")
        .option("commit_delay", "5000")
        .option("commit_siblings", "0")
        .start()
        .await
        .unwrap()
}

/// Renews `times` times, while others do `what` without a pause, and says how long the slowest took.
async fn renewed_among_others<F>(
    clients: &[SqlBackend],
    times: usize,
    what: impl Fn(SqlBackend, Arc<AtomicBool>) -> F,
) -> Duration
where
    F: Future<Output = ()> + Send + 'static,
{
    let mut held = claim(&clients[0], "hot", TTL, false);
    granted(&mut *held).await;
    let over = Arc::new(AtomicBool::new(false));
    let mut others = JoinSet::new();
    for client in &clients[1..] {
        for _ in 0..4 {
            others.spawn(what(client.clone(), Arc::clone(&over)));
        }
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    let mut slowest = Duration::ZERO;
    for _ in 0..times {
        let start = Instant::now();
        let renewal = held.renew().await;
        assert!(matches!(renewal, Ok(Renewal::Alive { .. })), "{renewal:?}");
        slowest = slowest.max(start.elapsed());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    over.store(true, SeqCst);
    while let Some(ended) = others.join_next().await {
        ended.unwrap();
    }
    slowest
}

async fn clients(server: &PostgresServer, number: usize) -> Vec<SqlBackend> {
    let mut clients = Vec::new();
    for _ in 0..number {
        clients.push(backend(server).await);
    }
    clients
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_that_look_do_not_starve_the_holder() {
    let server = slow_server().await;
    let clients = clients(&server, 9).await;
    renewed_among_others(&clients, 30, |client, over| async move {
        let mut waiter = claim(&client, "hot", TTL, true);
        while !over.load(SeqCst) {
            busy(&mut *waiter).await;
        }
    })
    .await;
}

/// Each that comes puts itself on the list, and each that goes takes itself off it. The row is never
/// free, so the holder queues for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_that_come_and_go_do_not_starve_the_holder() {
    let server = slow_server().await;
    let clients = clients(&server, 9).await;
    let slowest = renewed_among_others(&clients, 30, |client, over| async move {
        while !over.load(SeqCst) {
            let mut waiter = claim(&client, "hot", TTL, true);
            busy(&mut *waiter).await;
            let _ = waiter.release().await;
        }
    })
    .await;
    println!("the slowest renewal took {slowest:?}");
}

/// A transaction that has looked at something long ago keeps every version of every row since.
#[tokio::test]
async fn an_old_snapshot_is_warned_of() {
    let warnings = Warnings::keep();
    let server = server().await;
    // The server counts dead rows a moment late, so a second sweep, which sees them, is due soon.
    let separator = if server.url().contains('?') { '&' } else { '?' };
    let url = format!("{}{separator}lock_retention=4s", server.url());
    let client = lock_sql::connect(&url).await.unwrap();
    let mut old = plain(&server).await;
    run(&mut old, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM distlock").await;
    let mut connection = plain(&server).await;
    run(
        &mut connection,
        "INSERT INTO distlock SELECT 'n' || n, NULL, 1, now(), now(), NULL, '{}' \
         FROM generate_series(1, 30000) AS n; \
         UPDATE distlock SET fence = 2",
    )
    .await;
    let limit = Instant::now() + Duration::from_secs(60);
    let warning = loop {
        let warned = warnings.so_far();
        if let Some(text) = warned.iter().find(|text| text.contains("old snapshot")) {
            break text.clone();
        }
        assert!(Instant::now() < limit, "no warning: {warned:?}");
        // A grant starts a sweep if one is due.
        let mut other = claim(&client, "other", TTL, false);
        granted(&mut *other).await;
        other.release().await.unwrap();
        tokio::time::sleep(Duration::from_millis(200)).await;
    };
    assert!(warning.contains("at=") && warning.contains("number="), "{warning}");
}
