//! Lost replies, late requests, and servers that are killed, stopped or read-only.

#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

mod mysql_common;

use std::time::Duration;

use conformance_tests::Faults;
use conformance_tests::{Client, Fault};
use lock_core::{
    Attempt, Effect, ErrorKind, LockBackend, LockKey, LockState, Locks, LostReason, Released,
    Renewal,
};
use lock_sql::SqlBackend;
use lock_testkit::proxy::{Cut, Proxy};
use lock_testkit::servers::MariaDbServer;
use mysql_common::{Hammer, admin, backend, claim, granted, locks, run, server, url_of};
use tokio::time::{Instant, timeout};

const TTL: Duration = Duration::from_secs(30);
const CALL: Duration = Duration::from_secs(2);

async fn proxied(server: &MariaDbServer) -> (Proxy, SqlBackend) {
    let proxy = Proxy::start(server.address().unwrap()).await.unwrap();
    let backend = lock_sql::connect(&server.url_by(proxy.address()).unwrap()).await.unwrap();
    (proxy, backend)
}

/// Repeats a call until it is answered, as the core does.
macro_rules! until_answered {
    ($call:expr) => {{
        let mut failures = 0;
        loop {
            match $call.await {
                Ok(answer) => break answer,
                Err(error) => {
                    assert!(error.is_retryable(), "{error}");
                    assert_eq!(error.effect(), Effect::Unknown, "{error}");
                    failures += 1;
                    assert!(failures < 20, "{error}");
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            }
        }
    }};
}

/// The connection breaks after each request, or before each reply, of a whole life of a claim. Every
/// effect is found again, and nothing is left behind.
#[tokio::test]
async fn every_request_and_every_reply_can_be_lost() {
    let server = server().await;
    let observer = backend(&server).await;
    let (mut last, mut connections) = (0, 0);
    for lost_reply in [false, true] {
        for k in 1..=6 {
            let (proxy, client) = proxied(&server).await;
            match lost_reply {
                true => proxy.cut_before_reply(k),
                false => proxy.cut_after_request(k),
            }
            let before = proxy.connections();
            let name = format!("n{lost_reply}{k}");
            let mut claim = claim(&client, &name, TTL, CALL);
            let first = until_answered!(claim.try_acquire());
            let Attempt::Granted { token, .. } = first else { panic!("{first:?}") };
            let again = until_answered!(claim.try_acquire());
            let Attempt::Granted { token: same, .. } = again else { panic!("{again:?}") };
            assert_eq!(token, same, "a repeated call returns the same token");
            assert!(token.get() > last);
            last = token.get();
            let alive = until_answered!(claim.renew());
            assert!(matches!(alive, Renewal::Alive { .. }), "{alive:?}");
            let alive = until_answered!(claim.check());
            assert!(matches!(alive, Renewal::Alive { .. }), "{alive:?}");
            until_answered!(claim.release());
            connections += u64::from(proxy.connections() > before);
            let mut next = mysql_common::claim(&observer, &name, TTL, CALL);
            assert!(granted(&mut *next).await.get() > last, "the lock is free, and fences rise");
        }
    }
    assert!(connections >= 10, "the proxy broke the connection only {connections} times");
}

/// A release whose first copy was executed and whose answer was lost is not reported as "taken by
/// somebody else".
#[tokio::test]
async fn a_release_whose_answer_is_lost_is_unknown_and_not_a_loss() {
    let server = server().await;
    let (proxy, client) = proxied(&server).await;
    let mut lost = None;
    // A connection that has rested is asked first whether it still works, and then that answer is lost.
    for n in 0..50 {
        let mut claim = claim(&client, &format!("n{n}"), TTL, CALL);
        granted(&mut *claim).await;
        proxy.inject(Fault::LoseNextReply).await.unwrap();
        match claim.release().await {
            Ok(released) => assert_eq!(released, Released::Freed, "its own release"),
            Err(error) => {
                lost = Some((claim, error));
                break;
            }
        }
    }
    let (mut claim, error) = lost.expect("an answer is lost");
    assert_eq!((error.effect(), error.is_retryable()), (Effect::Unknown, true), "{error}");
    assert_eq!(claim.release().await.unwrap(), Released::AlreadyGone);
}

/// A try that was cut off may still be executed, also after a release. The core must know of it, so it
/// is not repeated in silence.
#[tokio::test]
async fn a_try_whose_answer_is_lost_is_unknown() {
    let server = server().await;
    let (proxy, client) = proxied(&server).await;
    let mut lost = None;
    // A connection that has rested is asked first whether it still works, and then that answer is lost.
    for _ in 0..50 {
        // The row is there, and the statement prepared.
        let mut warm = claim(&client, "x", TTL, CALL);
        granted(&mut *warm).await;
        assert_eq!(warm.release().await.unwrap(), Released::Freed);
        let mut claim = claim(&client, "x", TTL, CALL);
        proxy.inject(Fault::LoseNextReply).await.unwrap();
        match claim.try_acquire().await {
            Ok(attempt) => {
                assert!(matches!(attempt, Attempt::Granted { .. }), "{attempt:?}");
                assert_eq!(claim.release().await.unwrap(), Released::Freed);
            }
            Err(error) => {
                lost = Some((claim, error));
                break;
            }
        }
    }
    let (mut claim, error) = lost.expect("a try was repeated in silence");
    assert_eq!((error.effect(), error.is_retryable()), (Effect::Unknown, true), "{error}");
    let fence = granted(&mut *claim).await;
    assert_eq!(granted(&mut *claim).await, fence);
    assert_eq!(claim.release().await.unwrap(), Released::Freed);
}

/// A statement is dropped at every one of its awaits. No connection goes on with half a
/// conversation: every later answer belongs to its question.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_connection_is_used_with_half_a_conversation() {
    let server = server().await;
    let (_proxy, backend) = proxied(&server).await;
    let admin = backend.admin().unwrap();
    let mut held = Vec::new();
    for n in 0..4 {
        let mut claim = claim(&backend, &format!("held{n}"), TTL, CALL);
        held.push((LockKey::new("", format!("held{n}")).unwrap(), granted(&mut *claim).await));
    }
    for round in 0..400_u64 {
        let limit = Duration::from_micros(round % 40 * 25);
        let mut dropped = claim(&backend, &format!("d{round}"), TTL, CALL);
        match round % 4 {
            0 => drop(timeout(limit, dropped.try_acquire()).await),
            1 => drop(timeout(limit, admin.list("", "")).await),
            2 => drop(timeout(limit, dropped.check()).await),
            _ => drop(timeout(limit, dropped.renew()).await),
        }
        let (key, fence) = &held[usize::try_from(round).unwrap() % held.len()];
        let seen = admin.inspect(key).await.unwrap().unwrap().holder.unwrap();
        assert_eq!(seen.fence, Some(*fence), "the answer to another question, in round {round}");
        if round % 4 == 0 {
            // One release is enough also after a try that was dropped.
            dropped.release().await.unwrap();
            let key = LockKey::new("", format!("d{round}")).unwrap();
            assert_eq!(admin.inspect(&key).await.unwrap(), None, "round {round}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_an_administrator_kills() {
    let server = server().await;
    let admin = admin(&server).await;
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(locks(&server).await);
    }
    let keeper = locks(&server).await;
    let ttl = Duration::from_secs(2);
    let mut held = Vec::new();
    for n in 0..20 {
        held.push(keeper.named(format!("held{n}")).unwrap().ttl(ttl).acquire().await.unwrap());
    }
    let hammer = Hammer::start(clients, Duration::from_secs(3));
    for soft in [false, true] {
        for _ in 0..15 {
            let ids: Vec<i64> = sqlx::query_scalar(
                "SELECT CAST(id AS SIGNED) FROM information_schema.processlist WHERE command <> 'Daemon' AND id <> CONNECTION_ID()",
            )
            .fetch_all(&admin)
            .await
            .unwrap();
            for id in ids {
                let kill = match soft {
                    true => format!("KILL QUERY {id}"),
                    false => format!("KILL {id}"),
                };
                // It may have ended meanwhile; and it may have been this pool's own.
                let _ = sqlx::raw_sql(sqlx::AssertSqlSafe(kill)).execute(&admin).await;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
    hammer.take(20).await;
    hammer.stop().await;
    for guard in held {
        assert_eq!(guard.state(), LockState::Secure);
        guard.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_killed_and_comes_back() {
    let server = server().await;
    let keeper = locks(&server).await;
    let held = keeper.named("held").unwrap().ttl(Duration::from_secs(20)).acquire().await.unwrap();
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(locks(&server).await);
    }
    let hammer = Hammer::start(clients, Duration::from_secs(2));
    for order in [false, true, false] {
        hammer.take(10).await;
        match order {
            true => server.stop().unwrap(),
            false => server.kill().unwrap(),
        }
        let error = held.renew().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert_eq!(held.state(), LockState::AtRisk);
        tokio::time::sleep(Duration::from_millis(300)).await;
        server.restart().await.unwrap();
        hammer.take(10).await;
        held.renew().await.unwrap();
        assert_eq!(held.state(), LockState::Secure);
    }
    hammer.stop().await;
    assert_eq!(held.release().await.unwrap(), Released::Freed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_stopped_keeps_nobody_waiting() {
    let server = server().await;
    let backend = backend(&server).await;
    let limit = Duration::from_millis(700);
    let mut holder = claim(&backend, "x", TTL, limit);
    let fence = granted(&mut *holder).await;
    server.freeze().unwrap();
    let start = Instant::now();
    let mut other = claim(&backend, "y", TTL, limit);
    let (renewed, checked) = (holder.renew().await, holder.check().await);
    let tried = other.try_acquire().await;
    for error in [renewed.unwrap_err(), checked.unwrap_err(), tried.unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::NoAnswer, "{error}");
        assert_eq!(error.effect(), Effect::Unknown);
    }
    assert!(start.elapsed() < limit * 3 + Duration::from_secs(3), "{:?}", start.elapsed());
    server.thaw().unwrap();
    assert!(matches!(until_answered!(holder.renew()), Renewal::Alive { .. }));
    assert_eq!(granted(&mut *holder).await, fence);
    assert_eq!(until_answered!(holder.release()), Released::Freed);
    until_answered!(other.release());
}

/// A network that forgets the connections without a word: new ones work.
#[tokio::test]
async fn connections_that_have_become_silent_are_replaced() {
    let server = server().await;
    let (proxy, backend) = proxied(&server).await;
    let limit = Duration::from_millis(500);
    let mut claim = claim(&backend, "x", TTL, limit);
    granted(&mut *claim).await;
    proxy.stall_present();
    let error = claim.renew().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoAnswer, "{error}");
    assert!(matches!(claim.renew().await.unwrap(), Renewal::Alive { .. }));
    proxy.cut(Cut::Reset);
    assert_eq!(claim.release().await.unwrap(), Released::Freed);
}

#[tokio::test]
async fn a_server_that_is_made_read_only() {
    let server = server().await;
    let admin = admin(&server).await;
    let url = url_of(&server, "app");
    run(&admin, "CREATE USER app; GRANT ALL ON locks.* TO app").await;
    let locks = Locks::new(lock_sql::connect(&url).await.unwrap());
    let guard = locks.named("x").unwrap().ttl(TTL).acquire().await.unwrap();
    run(&admin, "SET GLOBAL read_only = 1").await;
    for error in [
        guard.renew().await.unwrap_err(),
        locks.named("y").unwrap().try_acquire().await.unwrap_err(),
        lock_sql::connect(&url).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.is_retryable() && error.to_string().contains("read-only"), "{error}");
    }
    assert_eq!(guard.state(), LockState::AtRisk);
    run(&admin, "SET GLOBAL read_only = 0").await;
    guard.renew().await.unwrap();
    assert_eq!(guard.state(), LockState::Secure);
    assert_eq!(guard.release().await.unwrap(), Released::Freed);
}

#[tokio::test]
async fn rights_that_are_taken_away() {
    let server = server().await;
    let admin = admin(&server).await;
    run(&admin, "CREATE USER app; GRANT ALL ON locks.* TO app").await;
    let locks = Locks::new(lock_sql::connect(&url_of(&server, "app")).await.unwrap());
    let guard = locks.named("x").unwrap().acquire().await.unwrap();
    run(&admin, "REVOKE UPDATE ON locks.* FROM app").await;
    // Connections look at the rights on a database when they are made.
    let ids: Vec<i64> = sqlx::query_scalar(
        "SELECT CAST(id AS SIGNED) FROM information_schema.processlist WHERE user = 'app'",
    )
    .fetch_all(&admin)
    .await
    .unwrap();
    for id in ids {
        let kill = sqlx::AssertSqlSafe(format!("KILL {id}"));
        sqlx::raw_sql(kill).execute(&admin).await.unwrap();
    }
    for error in
        [guard.renew().await.unwrap_err(), locks.named("y").unwrap().acquire().await.unwrap_err()]
    {
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        assert!(error.to_string().contains("GRANT SELECT, INSERT, UPDATE, DELETE"), "{error}");
    }
    assert_eq!(guard.state(), LockState::AtRisk, "an error is no loss");
    run(&admin, "GRANT UPDATE ON locks.* TO app").await;
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_table_that_is_emptied_or_dropped_under_the_holder() {
    let server = server().await;
    let admin = admin(&server).await;
    let (one, two) = (locks(&server).await, locks(&server).await);
    let mut last = 0;
    for sql in ["TRUNCATE distlock", "DELETE FROM distlock", "DROP TABLE distlock"] {
        let guard = one.named("x").unwrap().ttl(TTL).acquire().await.unwrap();
        let fence = guard.token().unwrap().get();
        assert!(fence > last, "the clock carries the fence over a loss of the table");
        run(&admin, sql).await;
        let next = two.named("x").unwrap().try_acquire().await.unwrap().expect("it is free");
        last = next.token().unwrap().get();
        assert!(last > fence);
        let error = guard.renew().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Lost(LostReason::Taken), "{sql}: {error}");
        assert_eq!(guard.state(), LockState::Lost(LostReason::Taken));
        assert_eq!(next.release().await.unwrap(), Released::Freed);
    }
    run(&admin, "ALTER TABLE distlock DROP COLUMN label").await;
    let error = one.named("x").unwrap().try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Store, "{error}");
}

/// The links of the harness reach the server: a fault that nothing notices would prove nothing.
#[tokio::test]
async fn a_client_behind_a_partition_is_told_in_time() {
    let server = server().await;
    let (proxy, backend) = proxied(&server).await;
    let client = Client::new(backend);
    let locks = Locks::new(client.backend);
    let ttl = Duration::from_secs(2);
    let guard = locks.named("x").unwrap().ttl(ttl).acquire().await.unwrap();
    proxy.stall();
    let other = mysql_common::locks(&server).await;
    let next = other.named("x").unwrap().acquire_timeout(ttl * 5).await.unwrap();
    assert!(guard.token().is_err(), "two holders");
    next.release().await.unwrap();
}
