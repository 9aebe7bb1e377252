//! Lost replies, killed connections, and servers that are stopped.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use lock_core::{Effect, ErrorKind, LockBackend, LockState, Locks, Released, Renewal};
use lock_testkit::preload::FullDisk;
use lock_testkit::servers::PostgresServer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

use crate::postgres_common::{
    Hammer, TTL, backend, claim, granted, locks, number, plain, pushes_come_back, run, server,
};

/// A claim that is dropped in the middle of a statement takes the connection with it: the next one does not read
/// its answer.
#[tokio::test]
async fn a_claim_that_was_dropped_leaves_no_answer_to_the_next() {
    let server = server().await;
    let backend = backend(&server).await;
    for micros in (0..60).map(|n| n * 20) {
        let limit = Duration::from_micros(micros);
        let mut tries = claim(&backend, "a", TTL, false);
        let _ = tokio::time::timeout(limit, tries.try_acquire()).await;
        drop(tries);
        let mut checks = claim(&backend, "a", TTL, false);
        let _ = tokio::time::timeout(limit, checks.check()).await;
        drop(checks);
        let mut other = claim(&backend, &format!("b{micros}"), TTL, false);
        granted(&mut *other).await;
        assert!(matches!(other.check().await.unwrap(), Renewal::Alive { .. }));
        assert_eq!(other.release().await.unwrap(), Released::Freed);
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
    // No statement of ours is executed at that level.
    backend(&server).await;
    let checked = "CREATE FUNCTION level() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
         IF current_setting('transaction_isolation') <> 'read committed' THEN RAISE EXCEPTION 'level'; END IF; \
         RETURN NEW; END $$; \
         CREATE TRIGGER level BEFORE INSERT OR UPDATE ON distlock FOR EACH ROW EXECUTE FUNCTION level()";
    run(&mut plain(&server).await, checked).await;
    for mode in ["none", "transaction"] {
        let mut backends = Vec::new();
        for _ in 0..64 {
            let url = format!("{}?lock_pooler={mode}", server.url());
            backends.push(lock_sql::connect(&url).await.unwrap());
        }
        let clients = backends.iter().cloned().map(Locks::new).collect();
        let hammer = Hammer::start(clients, Duration::from_secs(10));
        hammer.take(100).await;
        let errors = hammer.stop().await;
        assert!(errors.is_empty(), "{mode}: {errors:#?}");
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

/// A disk that is full: the server refuses what needs room, or stops. No lock has two holders then, and when there is
/// room again, all goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_is_an_error_and_no_second_holder() {
    let disk = FullDisk::new().unwrap();
    let server = disk.below(PostgresServer::builder()).start().await.unwrap();
    let backends = [backend(&server).await, backend(&server).await];
    let clients = (0..4).map(|n| Locks::new(backends[n % 2].clone())).collect();
    let hammer = Hammer::start(clients, Duration::from_secs(3));
    hammer.take(10).await;
    let mut connection = plain(&server).await;
    disk.set_full(true);
    let large = "CREATE TABLE large AS SELECT repeat(md5(i::text), 200) AS x FROM generate_series(1, 20000) AS i";
    let refused = sqlx::raw_sql(large).execute(&mut connection).await.unwrap_err();
    assert!(refused.to_string().contains("No space left"), "{refused}");
    // The log of transactions has no room either, sooner or later: the server then ends, and does not come up.
    tokio::time::sleep(Duration::from_secs(3)).await;
    disk.set_full(false);
    if server.pid().is_err() {
        server.restart().await.unwrap();
    }
    hammer.goes_on().await;
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
        if sql != "TRUNCATE distlock" {
            // Somebody may be about to restore it: it is not made anew behind his back.
            for error in [
                held.renew().await.unwrap_err(),
                claim(&client, "x", TTL, true).try_acquire().await.unwrap_err(),
            ] {
                assert!(error.is_retryable() && error.to_string().contains("dropped"), "{error}");
            }
            lock_sql::connect(server.url()).await.unwrap();
        }
        assert_eq!(held.renew().await.unwrap(), Renewal::Lost, "{sql}");
        assert_eq!(held.release().await.unwrap(), Released::AlreadyGone, "{sql}");
        let mut next = claim(&client, "x", TTL, true);
        lock_testkit::assert_exactly!(granted(&mut *next).await > token, "a fence falls: {sql}");
        next.release().await.unwrap();
    }
}

/// A row is swept while a server is stopped in the middle of an insert of its name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_insert_that_took_long_starts_below_no_fence() {
    crate::postgres_scenes::late_inserts().await.unwrap();
}

/// What poolers and the server say when something has failed for a while: no reason to stop waiting.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_that_pass_end_no_wait() {
    let server = server().await;
    let locks = locks(&server).await;
    let client = backend(&server).await;
    let mut connection = plain(&server).await;
    for code in ["XX000", "58000", "58030", "25P02"] {
        let failing = format!(
            "CREATE OR REPLACE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
             RAISE EXCEPTION 'for a while' USING ERRCODE = '{code}'; END $$; \
             CREATE TRIGGER fail BEFORE INSERT OR UPDATE ON distlock FOR EACH ROW EXECUTE FUNCTION fail()"
        );
        run(&mut connection, &failing).await;
        let error = claim(&client, code, TTL, false).try_acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert_eq!((error.effect(), error.is_retryable()), (Effect::Unknown, true), "{error}");
        let lock = locks.named(code).unwrap();
        let waiting = tokio::spawn(async move { lock.acquire().await });
        tokio::time::sleep(Duration::from_millis(300)).await;
        run(&mut connection, "DROP TRIGGER fail ON distlock").await;
        let waiting = tokio::time::timeout(Duration::from_secs(20), waiting).await.unwrap();
        waiting.unwrap().unwrap().release().await.unwrap();
    }
    // What the server cannot do is no contention.
    let lacking = "CREATE OR REPLACE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
         RAISE EXCEPTION 'not built' USING ERRCODE = '0A000'; END $$; \
         CREATE TRIGGER fail BEFORE INSERT OR UPDATE ON distlock FOR EACH ROW EXECUTE FUNCTION fail()";
    run(&mut connection, lacking).await;
    let error = claim(&client, "y", TTL, false).try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    run(&mut connection, "DROP TRIGGER fail ON distlock").await;
    // A plan that is out of date is made anew.
    let mut held = claim(&client, "z", TTL, false);
    granted(&mut *held).await;
    held.check().await.unwrap();
    run(&mut connection, "ALTER TABLE distlock ALTER COLUMN label TYPE varchar(300)").await;
    assert!(matches!(held.check().await.unwrap(), Renewal::Alive { .. }));
    held.release().await.unwrap();
}

/// An error that ends its connection, whatever its code: the next statement has another one.
#[tokio::test]
async fn a_fatal_error_leaves_no_dead_connection_behind() {
    let server = server().await;
    let (address, armed) = ending(server.address().unwrap()).await;
    let url =
        format!("postgres://postgres@{address}/postgres?sslmode=disable&lock_pooler=transaction");
    let client = lock_sql::connect(&url).await.unwrap();
    let mut held = claim(&client, "x", TTL, false);
    granted(&mut *held).await;
    armed.store(true, SeqCst);
    let mut other = claim(&client, "y", TTL, false);
    let error = other.try_acquire().await.unwrap_err();
    assert_eq!(
        (error.kind(), error.effect()),
        (ErrorKind::Unavailable, Effect::Unknown),
        "{error}"
    );
    assert!(error.is_retryable(), "{error}");
    granted(&mut *other).await;
    armed.store(true, SeqCst);
    assert!(matches!(held.renew().await.unwrap(), Renewal::Alive { .. }), "it is sent again");
}

/// Passes all on, but when it is armed answers a request as a server does whose `transaction_timeout` is over.
async fn ending(upstream: SocketAddr) -> (SocketAddr, Arc<AtomicBool>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, armed) = (listener.local_addr().unwrap(), Arc::<AtomicBool>::default());
    let shared = Arc::clone(&armed);
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let Ok(server) = TcpStream::connect(upstream).await else { return };
            let armed = Arc::clone(&shared);
            tokio::spawn(async move {
                let ((mut from, mut to), (mut answers, mut requests)) =
                    (client.into_split(), server.into_split());
                let mut bytes = vec![0; 1 << 16];
                let mut more = vec![0; 1 << 16];
                loop {
                    tokio::select! {
                        read = from.read(&mut bytes) => {
                            let Ok(size @ 1..) = read else { return };
                            if armed.swap(false, SeqCst) {
                                let text = b"SFATAL\0VFATAL\0C25P04\0Mterminating connection\0\0";
                                let length = u32::try_from(text.len() + 4).unwrap();
                                let message = [&b"E"[..], &length.to_be_bytes(), text].concat();
                                let _ = to.write_all(&message).await;
                                return;
                            }
                            let _ = requests.write_all(&bytes[..size]).await;
                        }
                        read = answers.read(&mut more) => {
                            let Ok(size @ 1..) = read else { return };
                            let _ = to.write_all(&more[..size]).await;
                        }
                    }
                }
            });
        }
    });
    (address, armed)
}
