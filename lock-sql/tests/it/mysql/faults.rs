//! Lost replies, late requests, and servers that are killed, stopped or read-only.

use std::time::Duration;

use conformance_tests::server::{Cut, Proxy};
use lock_core::{ErrorKind, LockBackend, LockKey, LockState, Locks, LostReason, Released, Renewal};
use lock_sql::SqlBackend;
use lock_testkit::preload::FullDisk;
use lock_testkit::servers::MariaDbServer;
use tokio::time::timeout;

use crate::mysql_common::{CALL, Hammer, TTL, admin, claim, granted, locks, run, server, url_of};

async fn proxied(server: &MariaDbServer) -> (Proxy, SqlBackend) {
    let proxy = Proxy::start(server.address().unwrap()).await.unwrap();
    let backend = lock_sql::connect(&server.url_by(proxy.address()).unwrap()).await.unwrap();
    (proxy, backend)
}

/// A claim is dropped at every one of the awaits of its statement. No connection goes on with half a
/// conversation: every later answer belongs to its question.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_connection_is_used_with_half_a_conversation() {
    let server = server().await;
    let (_proxy, backend) = proxied(&server).await;
    let admin = backend.admin().unwrap();
    let mut held = Vec::new();
    for n in 0..4 {
        let mut claim = claim(&backend, &format!("held{n}"), TTL * 20, CALL);
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
        drop(dropped);
        let (key, fence) = &held[usize::try_from(round).unwrap() % held.len()];
        let seen = admin.inspect(key).await.unwrap().unwrap().holder.unwrap();
        assert_eq!(seen.fence, Some(*fence), "the answer to another question, in round {round}");
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

/// A disk that is full: what needs room is refused, and what has its place already goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_is_an_error_and_no_second_holder() {
    let disk = FullDisk::new().unwrap();
    // Asynchronous writes go past the C library.
    let server = MariaDbServer::builder().option("innodb-use-native-aio", "0");
    let server = disk.below(server).start().await.unwrap();
    let admin = admin(&server).await;
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(locks(&server).await);
    }
    let hammer = Hammer::start(clients, Duration::from_secs(3));
    hammer.take(10).await;
    disk.set_full(true);
    let large = "CREATE TABLE large AS SELECT REPEAT('x', 1000) AS x FROM seq_1_to_60000";
    let refused = sqlx::raw_sql(large).execute(&admin).await.unwrap_err();
    let words = ["full", "28", "No space left"];
    assert!(words.iter().any(|word| refused.to_string().contains(word)), "{refused}");
    tokio::time::sleep(Duration::from_secs(3)).await;
    disk.set_full(false);
    if server.pid().is_err() {
        server.restart().await.unwrap();
    }
    hammer.goes_on().await;
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
        lock_testkit::assert_exactly!(
            fence > last,
            "the clock carries the fence over a loss of the table"
        );
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

/// What proxies and the server say when something has failed for a while: no reason to stop waiting.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_that_pass_end_no_wait() {
    let server = server().await;
    let locks = locks(&server).await;
    let admin = admin(&server).await;
    for code in ["9001", "9012", "1105", "3032", "1461"] {
        for event in ["INSERT", "UPDATE"] {
            let failing = format!(
                "CREATE TRIGGER fail_{event} BEFORE {event} ON distlock FOR EACH ROW \
                 SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = {code}, MESSAGE_TEXT = 'for a while'"
            );
            sqlx::raw_sql(sqlx::AssertSqlSafe(failing)).execute(&admin).await.unwrap();
        }
        let lock = locks.named(code).unwrap();
        let error = lock.try_acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.is_retryable(), "{error}");
        let waiting = tokio::spawn(async move { lock.acquire().await });
        tokio::time::sleep(Duration::from_millis(300)).await;
        run(&admin, "DROP TRIGGER fail_INSERT; DROP TRIGGER fail_UPDATE").await;
        let waiting = timeout(Duration::from_secs(20), waiting).await.unwrap();
        waiting.unwrap().unwrap().release().await.unwrap();
    }
}
