//! Opening a PostgreSQL database: rights, tables, pools, credentials.

mod faults;
mod hot_locks;
mod locked_rows;
mod looks;
mod promotion;
mod split_reads;
#[cfg(feature = "tls")]
mod tls;
mod waiters;

use std::time::Duration;

use lock_core::{Effect, ErrorKind, LockBackend, Locks, Wake};
use lock_sql::{SqlBackend, SqlConfig};
use lock_testkit::servers::{PgBouncer, PostgresServer};
use sqlx::postgres::PgPoolOptions;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::Instant;

use crate::looks::look;
use crate::postgres_common::{
    TTL, backend, busy, claim, claim_within, granted, locks, number, plain, proxied,
    pushes_come_back, run, server,
};

const SENTINEL: &str = "s3cr3t-sentinel";

/// The URL of a role that may do nothing but what `grants` says.
async fn role(server: &PostgresServer, grants: &str) -> String {
    let sql = format!(
        "CREATE ROLE locker LOGIN PASSWORD '{SENTINEL}'; REVOKE ALL ON SCHEMA public FROM PUBLIC; \
         GRANT USAGE ON SCHEMA public TO locker; {grants}"
    );
    run(&mut plain(server).await, &sql).await;
    server.url().replace("postgres@", &format!("locker:{SENTINEL}@"))
}

fn database(server: &PostgresServer, name: &str) -> String {
    let (base, _) = server.url().rsplit_once('/').unwrap();
    format!("{base}/{name}")
}

async fn refused(url: &str) -> lock_core::Error {
    let error = lock_sql::connect(url).await.unwrap_err();
    let text = format!("{error} {error:?}");
    assert!(!text.contains(SENTINEL), "{text}");
    error
}

#[tokio::test]
async fn rights_on_the_one_table_are_enough() {
    let server = server().await;
    // Somebody who may has created it.
    backend(&server).await.close().await.unwrap();
    let grants = "GRANT SELECT, INSERT, UPDATE, DELETE ON distlock TO locker";
    let url = role(&server, grants).await;
    let (first, second) =
        (lock_sql::connect(&url).await.unwrap(), lock_sql::connect(&url).await.unwrap());
    assert!(!format!("{first:?}").contains(SENTINEL), "{first:?}");
    pushes_come_back(&first, &second).await;
    look(&first, "x").await;
    let locks = Locks::new(first);
    let guard = locks.named("x").unwrap().acquire().await.unwrap();
    guard.renew().await.unwrap();
    assert_eq!(locks.list("").await.unwrap().len(), 1);
    locks.force_release_any("x").await.unwrap();
    assert!(guard.check().await.is_err());
}

#[tokio::test]
async fn missing_rights_are_named_with_their_remedy() {
    let server = server().await;
    let url = role(&server, "").await;
    let error = refused(&url).await;
    assert_eq!(error.kind(), ErrorKind::Config);
    let text = error.to_string();
    assert!(text.contains("CREATE TABLE") && text.contains("GRANT SELECT"), "{text}");
    // The statement in the message is the remedy.
    let ddl = &text[text.find("CREATE TABLE").unwrap()..text.find("GRANT").unwrap()];
    run(&mut plain(&server).await, ddl).await;
    let error = refused(&url).await;
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert!(error.to_string().contains("GRANT SELECT, INSERT, UPDATE, DELETE ON"), "{error}");
    run(&mut plain(&server).await, "GRANT SELECT, INSERT, UPDATE ON distlock TO locker").await;
    assert_eq!(refused(&url).await.kind(), ErrorKind::Denied, "DELETE is missing");
    run(&mut plain(&server).await, "GRANT DELETE ON distlock TO locker").await;
    lock_sql::connect(&url).await.unwrap();
    // A table in a schema that may not be entered cannot be seen.
    run(&mut plain(&server).await, "REVOKE USAGE ON SCHEMA public FROM locker, public").await;
    assert!(refused(&url).await.to_string().contains("may not see it"));
    run(&mut plain(&server).await, "ALTER ROLE locker NOLOGIN").await;
    assert_eq!(refused(&url).await.kind(), ErrorKind::Denied);
    let error = refused(&database(&server, "nothing")).await;
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    let error = refused(&format!("{}?lock_create_table=false&lock_table=t2", server.url())).await;
    assert!(error.to_string().contains("CREATE TABLE"), "{error}");
}

#[tokio::test]
async fn a_table_of_another_shape_is_refused() {
    let server = server().await;
    let mut connection = plain(&server).await;
    let columns = "owner text, fence bigint, expires timestamptz, acquired timestamptz, label text, waiters text[], woken text";
    run(
        &mut connection,
        &format!(
            "CREATE TABLE no_key (name text, {columns}); \
             CREATE TABLE partial (name text, {columns}); CREATE UNIQUE INDEX ON partial (name) WHERE fence > 0; \
             CREATE TABLE other (name text PRIMARY KEY); \
             CREATE TABLE strict (name text PRIMARY KEY, {columns}, more int NOT NULL); \
             CREATE TABLE padded (name char(200) PRIMARY KEY, {columns}); \
             CREATE TABLE numbers (name int PRIMARY KEY, {columns}); \
             CREATE COLLATION nocase (provider = icu, locale = 'und-u-ks-level2', deterministic = false); \
             CREATE TABLE folding (name text COLLATE nocase PRIMARY KEY, {columns}); \
             CREATE VIEW viewed AS SELECT 1 AS name; \
             CREATE TABLE fine (more int DEFAULT 1 NOT NULL, name text PRIMARY KEY, {columns})"
        ),
    )
    .await;
    for table in ["no_key", "partial", "other", "strict", "padded", "numbers", "folding", "viewed"]
    {
        let error = refused(&format!("{}?lock_table={table}", server.url())).await;
        assert_eq!(error.kind(), ErrorKind::Store, "{table}: {error}");
        assert!(error.to_string().contains("CREATE TABLE"), "{table}: {error}");
    }
    let fine = lock_sql::connect(&format!("{}?lock_table=fine", server.url())).await.unwrap();
    granted(&mut *claim(&fine, "x", TTL, false)).await;
    // Tables of different names are different stores.
    let upper = lock_sql::connect(&format!("{}?lock_table=Fine", server.url())).await.unwrap();
    granted(&mut *claim(&upper, "x", TTL, false)).await;
}

#[tokio::test]
async fn a_server_that_cannot_serve_is_refused() {
    let server = server().await;
    run(
        &mut plain(&server).await,
        "CREATE DATABASE narrow ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0",
    )
    .await;
    let error = refused(&database(&server, "narrow")).await;
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.to_string().contains("UTF8"), "{error}");
    run(
        &mut plain(&server).await,
        "ALTER DATABASE postgres SET default_transaction_read_only = on",
    )
    .await;
    let error = refused(server.url()).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("read-only"), "{error}");
    server.kill().unwrap();
    let error = refused(server.url()).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_given_up() {
    let server = server().await;
    server.freeze().unwrap();
    let start = Instant::now();
    let error = refused(&format!("{}?lock_connect_timeout=500ms", server.url())).await;
    assert_eq!(error.kind(), ErrorKind::NoAnswer, "{error}");
    assert!(start.elapsed() < Duration::from_secs(3));
    server.thaw().unwrap();
}

/// Nothing was sent that could have been executed.
#[tokio::test]
async fn a_server_that_is_starting_up_is_unavailable_and_nothing_is_unknown() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!(
        "postgres://postgres@{}/postgres?sslmode=disable&lock_pooler=none",
        listener.local_addr().unwrap()
    );
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut start = [0; 1024];
            let _ = stream.read(&mut start).await;
            let text = b"SFATAL\0VFATAL\0C57P03\0Mthe database system is starting up\0\0";
            let length = u32::try_from(text.len() + 4).unwrap();
            let message = [&b"E"[..], &length.to_be_bytes(), text].concat();
            let _ = stream.write_all(&message).await;
        }
    });
    let error = refused(&url).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("starting"), "{error}");
    assert_eq!((error.effect(), error.is_retryable()), (Effect::None, true), "{error}");
}

/// Neither an old server nor another database is installed: here functions of the same names say what this
/// one is.
#[tokio::test]
async fn old_servers_and_other_databases_are_refused_by_name() {
    let server = server().await;
    run(
        &mut plain(&server).await,
        "CREATE TABLE said (setting text, version text); \
         CREATE FUNCTION public.current_setting(name text) RETURNS text LANGUAGE sql AS \
         $$ SELECT CASE name WHEN 'server_version' THEN (SELECT setting FROM said) \
            ELSE pg_catalog.current_setting(name) END $$; \
         CREATE FUNCTION public.version() RETURNS text LANGUAGE sql AS 'SELECT version FROM said'; \
         ALTER DATABASE postgres SET search_path = public, pg_catalog",
    )
    .await;
    let cockroach = "CockroachDB CCL v24.1.0 (x86_64-pc-linux-gnu, built 2024/05/15, go1.22.2)";
    let yugabyte = "PostgreSQL 15.12-YB-2025.2.3.0-b0 on x86_64-pc-linux-gnu";
    for (setting, version, words) in [
        ("12.22 (Debian 12.22-1)", "PostgreSQL 12.22", ["12.22", "PostgreSQL 13.0"]),
        ("15.12-YB-2025.2.3.0-b0", yugabyte, ["YugabyteDB", "clocks"]),
        ("13.0.0", cockroach, ["CockroachDB", "clocks"]),
    ] {
        let said = format!("DELETE FROM said; INSERT INTO said VALUES ('{setting}', '{version}')");
        run(&mut plain(&server).await, &said).await;
        let error = refused(server.url()).await;
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        let text = error.to_string();
        assert!(words.iter().all(|word| text.contains(word)), "{text}");
    }
}

/// Without a word from outside, the table is where the role's own path leads.
#[tokio::test]
async fn the_schema_is_found_once_or_named() {
    let server = server().await;
    let mut admin = plain(&server).await;
    run(&mut admin, "CREATE SCHEMA \"my-app\"; ALTER ROLE postgres SET search_path = \"my-app\"")
        .await;
    let found = backend(&server).await;
    granted(&mut *claim(&found, "x", TTL, false)).await;
    let named = |schema: &str| format!("{}?lock_schema={schema}", server.url());
    busy(&mut *claim(&lock_sql::connect(&named("my-app")).await.unwrap(), "x", TTL, false)).await;
    let public = lock_sql::connect(&named("public")).await.unwrap();
    granted(&mut *claim(&public, "x", TTL, false)).await;
    let pool = PgPoolOptions::new().max_connections(1).connect(server.url()).await.unwrap();
    let config = SqlConfig::default().schema("public").unwrap();
    let pooled = SqlBackend::from_pool(pool, config).await.unwrap();
    busy(&mut *claim(&pooled, "x", TTL, false)).await;
    let said = Locks::new(found).diagnose().await.unwrap();
    let text = format!("{said:?}");
    assert!(text.contains("\\\"my-app\\\".\\\"distlock\\\""), "{text}");
    assert!(text.contains("in public"), "the other table of this name: {text}");
    let error = refused(&named("nowhere")).await;
    assert!(error.to_string().contains("CREATE TABLE"), "{error}");
}

/// As a program that takes one lock and ends does.
#[tokio::test]
async fn a_client_opens_few_connections_and_they_are_kept_alive() {
    let server = server().await;
    let (proxy, url) = proxied(&server).await;
    let client = lock_sql::connect(&url).await.unwrap();
    let mut held = claim(&client, "x", TTL, true);
    granted(&mut *held).await;
    held.renew().await.unwrap();
    held.release().await.unwrap();
    assert_eq!(proxy.connections(), 3, "two, and one that listens");
    let limit = Instant::now() + Duration::from_secs(10);
    loop {
        let timers = timers(server.address().unwrap().port());
        // Kind 2 is the one that keeps alive; the time is in hundredths of a second. Others may still
        // be running.
        if timers.len() == 3 && timers.iter().all(|(kind, when)| *kind == 2 && *when <= 30 * 100) {
            return;
        }
        assert!(Instant::now() < limit, "{timers:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The timer of each connection at its end where the port is `port`: its kind, and how long it has to go.
fn timers(port: u16) -> Vec<(u8, i64)> {
    // Local address, remote address, state (1: established), queues, timer.
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let fields = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let ours =
        fields.filter(|fields| fields[1].ends_with(&format!(":{port:04X}")) && fields[3] == "01");
    ours.map(|fields| {
        let (kind, when) = fields[5].split_once(':').unwrap();
        (kind.parse().unwrap(), i64::from_str_radix(when, 16).unwrap())
    })
    .collect()
}

/// What is between us has forgotten a connection without a word. It is tested while it rests, for a
/// second at most.
#[tokio::test]
async fn a_silent_connection_does_not_cost_a_try() {
    let server = server().await;
    let (proxy, url) = proxied(&server).await;
    // Nobody listens there, who would notice.
    let client = lock_sql::connect(&format!("{url}&lock_pooler=transaction")).await.unwrap();
    granted(&mut *claim(&client, "x", TTL, false)).await;
    proxy.stall_present();
    tokio::time::sleep(Duration::from_millis(1100)).await;
    // Its limit is 2 s.
    granted(&mut *claim(&client, "y", TTL, false)).await;
}

#[tokio::test]
async fn a_try_after_a_rest_does_not_wait_for_a_test_of_its_connection() {
    let server = server().await;
    let (proxy, url) = proxied(&server).await;
    let client = lock_sql::connect(&format!("{url}&lock_pooler=transaction")).await.unwrap();
    let mut seen = Vec::new();
    // A test in the background may come at the very moment of a try.
    while seen.last() != Some(&1) {
        assert!(seen.len() < 5, "requests of each try: {seen:?}");
        let mut first = claim(&client, "x", TTL, false);
        granted(&mut *first).await;
        first.release().await.unwrap();
        let before = proxy.requests();
        tokio::time::sleep(Duration::from_millis(1600)).await;
        let rested = proxy.requests();
        assert!(rested > before, "it is tested while it rests");
        let mut next = claim(&client, "x", TTL, false);
        granted(&mut *next).await;
        seen.push(proxy.requests() - rested);
        next.release().await.unwrap();
    }
}

#[tokio::test]
async fn renewals_do_not_wait_for_the_application_to_return_its_connections() {
    let server = server().await;
    let pool = PgPoolOptions::new().max_connections(1).connect(server.url()).await.unwrap();
    let backend = SqlBackend::from_pool(pool.clone(), SqlConfig::default()).await.unwrap();
    let _in_use = pool.acquire().await.unwrap();
    let mut held = claim(&backend, "x", TTL, false);
    granted(&mut *held).await;
    held.renew().await.unwrap();
    held.release().await.unwrap();
}

#[tokio::test]
async fn nothing_works_after_close_and_no_connection_stays() {
    let server = server().await;
    let mut connection = plain(&server).await;
    let count = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'";
    let before = number(&mut connection, count).await;
    let backend = backend(&server).await;
    let mut held = claim(&backend, "x", TTL, true);
    granted(&mut *held).await;
    assert!(number(&mut connection, count).await > before);
    let named = format!("{count} AND application_name = 'distlock'");
    assert!(number(&mut connection, &named).await > 0);
    backend.close().await.unwrap();
    assert_eq!(held.renew().await.unwrap_err().kind(), ErrorKind::Closed);
    backend.close().await.unwrap();
    for _ in 0..200 {
        // The launcher's own question may have been among them.
        if number(&mut connection, count).await <= before {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("connections were left open");
}

#[tokio::test]
async fn the_url_names_the_application() {
    let server = server().await;
    let separator = if server.url().contains('?') { '&' } else { '?' };
    let url = format!("{}{separator}application_name=till%207", server.url());
    let backend = lock_sql::connect(&url).await.unwrap();
    let named =
        |name| format!("SELECT count(*) FROM pg_stat_activity WHERE application_name = '{name}'");
    let mut connection = plain(&server).await;
    assert!(number(&mut connection, &named("till 7")).await > 0);
    assert_eq!(number(&mut connection, &named("distlock")).await, 0);
    backend.close().await.unwrap();
}

/// One statement takes longer than closing may: the connections that rest are closed all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_connections_are_closed_whatever_is_under_way() {
    let server = server().await;
    let backend = backend(&server).await;
    let mut connection = plain(&server).await;
    let slow = "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
         PERFORM pg_sleep(30); RETURN NEW; END $$; \
         CREATE TRIGGER slow BEFORE INSERT ON distlock FOR EACH ROW \
         WHEN (NEW.name = 'slow') EXECUTE FUNCTION slow()";
    run(&mut connection, slow).await;
    let minute = Duration::from_secs(60);
    let mut stuck = claim_within(&backend, "slow", (minute, minute), false);
    let stuck = tokio::spawn(async move { stuck.try_acquire().await });
    let resting = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' \
                   AND state = 'idle' AND query NOT LIKE 'LISTEN%' AND query <> 'SELECT 1'";
    let limit = Instant::now() + Duration::from_secs(10);
    let asleep = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
    while number(&mut connection, asleep).await == 0 {
        assert!(Instant::now() < limit, "no statement is under way");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(number(&mut connection, resting).await > 0);
    backend.close().await.unwrap();
    let limit = Instant::now() + Duration::from_secs(10);
    while number(&mut connection, resting).await > 0 {
        assert!(Instant::now() < limit, "connections that rest were left open");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    stuck.abort();
}

/// An operator's thread has a runtime of its own, which ends, or is never driven again. What it has asked for
/// leaves no connection of that runtime to those who hold locks.
#[test]
fn an_operator_with_another_runtime_leaves_no_connection_of_it() {
    let home = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let home = home.unwrap();
    let (server, locks) = home.block_on(async {
        let server = server().await;
        let locks = locks(&server).await;
        (server, locks)
    });
    let mut kept = Vec::new();
    for ends in [true, false] {
        home.block_on(async {
            let end = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
                       WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
            number(&mut plain(&server).await, end).await;
        });
        let other = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let asking = locks.clone();
        let other = std::thread::spawn(move || {
            other.block_on(asking.list("")).unwrap();
            other
        });
        let other = other.join().unwrap();
        if ends {
            drop(other)
        } else {
            kept.push(other)
        }
        home.block_on(async {
            for name in ["x", "y"] {
                let guard = locks.named(name).unwrap().try_acquire().await.unwrap().unwrap();
                guard.renew().await.unwrap();
                guard.release().await.unwrap();
            }
        });
    }
    home.block_on(locks.close(Duration::from_secs(5))).unwrap();
}

#[tokio::test]
async fn a_pooler_is_noticed_and_its_kind_is_declared() {
    let server = server().await;
    assert_eq!(backend(&server).await.capabilities().wake, Wake::Hint);
    for (mode, wake) in [("transaction", Wake::Poll), ("session", Wake::Hint)] {
        let pooler = PgBouncer::start(server.address().unwrap(), mode, 12).await.unwrap();
        let url = format!("postgres://postgres@{}/postgres?sslmode=disable", pooler.address());
        let (a, b) =
            (lock_sql::connect(&url).await.unwrap(), lock_sql::connect(&url).await.unwrap());
        assert_eq!(a.capabilities().wake, wake, "{mode}");
        let mut held = claim(&a, mode, TTL, false);
        granted(&mut *held).await;
        busy(&mut *claim(&b, mode, TTL, true)).await;
        // The same lock, whichever way one comes to it.
        busy(&mut *claim(&backend(&server).await, mode, TTL, true)).await;
        held.release().await.unwrap();
        let told = format!("{url}&lock_pooler=transaction");
        let told = lock_sql::connect(&told).await.unwrap();
        assert_eq!(told.capabilities().wake, Wake::Poll);
        granted(&mut *claim(&told, mode, TTL, false)).await;
    }
    // One or two connections of the server are too few for a transaction that keeps one of them.
    for size in [1, 2] {
        let pooler =
            PgBouncer::start(server.address().unwrap(), "transaction", size).await.unwrap();
        let url = format!("postgres://postgres@{}/postgres?sslmode=disable", pooler.address());
        let client = lock_sql::connect(&url).await.unwrap();
        assert_eq!(client.capabilities().wake, Wake::Poll, "{size}");
    }
}

#[tokio::test]
async fn released_rows_are_swept_and_fences_go_on_rising() {
    let server = server().await;
    let backend =
        lock_sql::connect(&format!("{}?lock_retention=100ms", server.url())).await.unwrap();
    let mut connection = plain(&server).await;
    let mut old = claim(&backend, "old", TTL, false);
    granted(&mut *old).await;
    old.release().await.unwrap();
    // As if the clock of the server had been far ahead.
    let far = 3_000_000_000_000_000_i64;
    run(&mut connection, &format!("UPDATE distlock SET fence = {far} WHERE name = 'old'")).await;
    let mut kept = claim(&backend, "kept", TTL, false);
    granted(&mut *kept).await;
    let rows = "SELECT count(*) FROM distlock WHERE name = 'old'";
    let limit = Instant::now() + Duration::from_secs(20);
    while number(&mut connection, rows).await > 0 {
        assert!(Instant::now() < limit, "the row was not swept");
        // A grant starts a sweep if one is due.
        let mut other = claim(&backend, "other", TTL, false);
        granted(&mut *other).await;
        other.release().await.unwrap();
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let mut again = claim(&backend, "old", TTL, false);
    assert!(granted(&mut *again).await.as_i64() > far);
    kept.renew().await.unwrap();
    assert_eq!(
        number(&mut connection, "SELECT count(*) FROM distlock WHERE name = 'kept'").await,
        1
    );
}

#[tokio::test]
async fn hostile_names_are_bound_and_never_read_as_sql() {
    let server = server().await;
    let direct = locks(&server).await;
    let pooled = Locks::new(
        lock_sql::connect(&format!("{}?lock_pooler=transaction", server.url())).await.unwrap(),
    );
    for name in ["'; DROP TABLE distlock; --", "\\'", "$1", "$$", "a%_", "🔒", "x' OR '1'='1"] {
        let guard = direct.named(name).unwrap().acquire().await.unwrap();
        assert!(pooled.named(name).unwrap().try_acquire().await.unwrap().is_none(), "{name}");
        assert!(pooled.inspect(name).await.unwrap().is_some(), "{name}");
        guard.release().await.unwrap();
        let guard = pooled.named(name).unwrap().label("it's\\").acquire().await.unwrap();
        let info = direct.inspect(name).await.unwrap().unwrap();
        assert_eq!(info.holder.unwrap().label.as_deref(), Some("it's\\"));
        guard.release().await.unwrap();
    }
}
