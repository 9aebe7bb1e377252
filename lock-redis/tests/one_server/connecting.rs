//! Making a connection: rights, credentials, sockets, eviction.

use std::time::Duration;

use crate::common::{
    backend, claim, config, connections, floor, locks, plain, run, scenes, scenes_hold, server,
    until,
};
use conformance_tests::server::Port;
use lock_core::{Attempt, Effect, ErrorKind, LockBackend, Locks, Released, Renewal};
use lock_redis::{Eviction, RedisBackend, RedisConfig};
use lock_testkit::servers::RedisServer;
use lock_testkit::warnings::Warnings;
use tokio::time::Instant;

const SENTINEL: &str = "s3cr3t-sentinel";

scenes_hold! {
    #[tokio::test]
    scenes:
    a_full_memory_refuses_newcomers_to_a_queue
}

/// The rights that the README lists for this server, and no other. `app` is the prefix of all names.
async fn rights(server: &RedisServer) -> Vec<String> {
    let info: String =
        redis::cmd("INFO").arg("server").query_async(&mut plain(server).await).await.unwrap();
    let line = info.lines().find_map(|line| line.strip_prefix("redis_version:")).unwrap();
    let commands: Vec<_> = include_str!("../../README.md")
        .split("```text\n")
        .filter_map(|block| block.strip_prefix("ACL SETUSER locker ")?.split("```").next())
        .collect();
    let [all, since_6_2] = commands[..] else { panic!("{} commands", commands.len()) };
    let later = if line.starts_with("6.0.") { "" } else { since_6_2 };
    let words = all.split_whitespace().chain(later.split_whitespace());
    words.filter(|word| !["on", ">…"].contains(word)).map(str::to_owned).collect()
}

async fn user(server: &RedisServer, rights: &[&str]) -> String {
    let mut words = vec!["ACL", "SETUSER", "locker", "reset", "on"];
    let password = format!(">{SENTINEL}");
    words.push(&password);
    words.extend(rights);
    run(&mut plain(server).await, &words).await;
    server.url().replace("redis://", &format!("redis://locker:{SENTINEL}@"))
}

#[tokio::test]
async fn a_user_with_the_least_rights_can_lock() {
    let server = server().await;
    let acl = rights(&server).await;
    let url = user(&server, &acl.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let locks = |backend: RedisBackend| Locks::builder(backend).prefix("app").build().unwrap();
    let (a, b) = (
        locks(lock_redis::connect(&url).await.unwrap()),
        locks(lock_redis::connect(&url).await.unwrap()),
    );
    let mut shortest = Duration::MAX;
    for _ in 0..5 {
        let guard = a.named("x").unwrap().acquire().await.unwrap();
        let lock = b.named("x").unwrap();
        let waiter = tokio::spawn(async move { lock.acquire().await.unwrap() });
        tokio::time::sleep(Duration::from_millis(100)).await;
        guard.renew().await.unwrap();
        assert!(a.inspect("x").await.unwrap().is_some());
        let start = Instant::now();
        guard.release().await.unwrap();
        waiter.await.unwrap().release().await.unwrap();
        shortest = shortest.min(start.elapsed());
    }
    // By a push: a waiter that hears none looks after 0.9 s.
    assert!(shortest < Duration::from_millis(400), "{shortest:?}");
    let named = lock_redis::connect(&url).await.unwrap();
    assert!(floor(&named, "app:x").await.unwrap() > 0);
    // A name outside of the pattern.
    let outside = Locks::new(lock_redis::connect(&url).await.unwrap());
    let error = outside.named("other").unwrap().try_acquire().await.unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Denied, Effect::None), "{error}");
    assert!(error.to_string().contains("correct lock_prefix"), "{error}");
}

#[tokio::test]
async fn each_missing_right_is_found_when_connecting() {
    let server = server().await;
    let acl = rights(&server).await;
    for missing in [
        "+evalsha",
        "+publish",
        "+subscribe",
        "+zadd",
        "+zrange",
        "+hset",
        "+hdel",
        "+pexpire",
        "+set",
        "+del",
        "+time",
        "&distlock:*",
        "~distlock?fence",
    ] {
        // Redis 6.0 has no rights for channels.
        if missing.starts_with('&') && !acl.iter().any(|right| right == missing) {
            continue;
        }
        let rights: Vec<_> =
            acl.iter().map(String::as_str).filter(|right| *right != missing).collect();
        assert_eq!(rights.len(), acl.len() - 1, "{missing}");
        let url = user(&server, &rights).await;
        let error = lock_redis::connect(&url).await.expect_err(missing);
        assert_eq!(error.kind(), ErrorKind::Denied, "{missing}: {error}");
        assert!(!format!("{error} {error:?}").contains(SENTINEL), "{error}");
    }
}

/// A right that is taken away while a lock is held is an error. It is not a loss, and the lock does
/// not seem to be another client's.
#[tokio::test]
async fn a_right_that_is_taken_away_is_no_loss() {
    let server = server().await;
    let acl = rights(&server).await;
    let url = user(&server, &acl.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let mut plain = plain(&server).await;
    let backend = lock_redis::connect(&url).await.unwrap();
    let ttl = Duration::from_secs(30);
    let mut holder = claim(&backend, "app", ttl, false);
    assert!(matches!(holder.try_acquire().await.unwrap(), Attempt::Granted { .. }));
    run(&mut plain, &["ACL", "SETUSER", "locker", "-get", "-mget"]).await;
    for call in ["renew", "check", "release", "another"] {
        let error = match call {
            "renew" => holder.renew().await.map(|seen| format!("{seen:?}")),
            "check" => holder.check().await.map(|seen| format!("{seen:?}")),
            "release" => holder.release().await.map(|seen| format!("{seen:?}")),
            _ => {
                let mut other = claim(&backend, "app", ttl, true);
                other.try_acquire().await.map(|seen| format!("{seen:?}"))
            }
        };
        let error = error.expect_err(call);
        assert_eq!(error.kind(), ErrorKind::Denied, "{call}: {error}");
    }
    run(&mut plain, &["ACL", "SETUSER", "locker", "+get", "+mget"]).await;
    assert!(matches!(holder.renew().await.unwrap(), Renewal::Alive { .. }));
    assert_eq!(holder.release().await.unwrap(), Released::Freed);
}

/// A replica, or a server that cannot write to its disk, may recover in a moment, or its name may
/// lead elsewhere by then.
#[tokio::test]
async fn a_server_that_cannot_write_now_is_tried_again() {
    let (master, server) = (server().await, server().await);
    let backend = backend(&server).await;
    let mut plain = plain(&server).await;
    let port = master.address().unwrap().port().to_string();
    run(&mut plain, &["REPLICAOF", "127.0.0.1", &port]).await;
    let before = connections(&mut plain).await;
    // A connection that is new leads where the name does, and is kept.
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    for _ in 0..2 {
        let mut holder = claim(&backend, "app", Duration::from_secs(30), false);
        let error = holder.try_acquire().await.unwrap_err();
        assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Unavailable, true), "{error}");
    }
    assert!(connections(&mut plain).await > before, "the connection to the replica was kept");
    let error = lock_redis::connect(server.url()).await.unwrap_err();
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Unavailable, true), "{error}");
    run(&mut plain, &["REPLICAOF", "NO", "ONE"]).await;
    let mut holder = claim(&backend, "app", Duration::from_secs(30), false);
    assert!(matches!(holder.try_acquire().await.unwrap(), Attempt::Granted { .. }));
}

/// A new connection would lead to the same server, which sentinels alone could replace.
#[tokio::test]
async fn a_master_without_replicas_keeps_its_connections() {
    let server = server().await;
    let (backend, mut plain) = (backend(&server).await, plain(&server).await);
    run(&mut plain, &["CONFIG", "SET", "min-replicas-to-write", "1"]).await;
    let before = connections(&mut plain).await;
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    for _ in 0..2 {
        let mut holder = claim(&backend, "app", Duration::from_secs(30), false);
        let error = holder.try_acquire().await.unwrap_err();
        assert!(error.is_retryable() && error.to_string().contains("NOREPLICAS"), "{error}");
    }
    assert_eq!(connections(&mut plain).await, before, "the connection was given up");
}

/// The server was made a replica, and then a master again, as after a fail-over and back.
#[tokio::test]
async fn a_waiter_outlives_a_server_that_cannot_write_for_a_while() {
    let server = server().await;
    let (holder, waiting) = (locks(&server).await, locks(&server).await);
    let mut plain = plain(&server).await;
    let ttl = Duration::from_secs(2);
    let guard = holder.named("a").unwrap().ttl(ttl).acquire().await.unwrap();
    let waiter = tokio::spawn(async move {
        waiting.named("a").unwrap().acquire_timeout(Duration::from_secs(30)).await.map(drop)
    });
    tokio::time::sleep(Duration::from_millis(300)).await;
    // Of a master that is not there, so that the data stay.
    let nobody = Port::reserve().unwrap();
    run(&mut plain, &["REPLICAOF", "127.0.0.1", &nobody.to_string()]).await;
    // The holder cannot renew, and learns in time that it must stop.
    assert_eq!(guard.lost().wait().await, lock_core::LostReason::Expired);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!waiter.is_finished(), "{:?}", waiter.await.unwrap());
    run(&mut plain, &["REPLICAOF", "NO", "ONE"]).await;
    waiter.await.unwrap().unwrap();
}

/// Redis 5 and 4 do not know HELLO, and each says so differently. They are asked for their version
/// over the old protocol.
#[tokio::test]
async fn a_server_that_is_too_old_is_named_with_what_is_needed() {
    for (version, no_hello) in [
        ("5.0.14", "-ERR unknown command `HELLO`, with args beginning with: `3`, \r\n"),
        ("4.0.14", "-ERR unknown command 'HELLO'\r\n"),
    ] {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("redis://{}", listener.local_addr().unwrap());
        let server = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(old_server(stream, version, no_hello));
            }
        });
        let error = lock_redis::connect(&url).await.unwrap_err();
        assert_eq!(
            (error.kind(), error.is_retryable()),
            (ErrorKind::Unsupported, false),
            "{error}"
        );
        let text = error.to_string();
        assert!(text.contains(version) && text.contains("Redis 6.0 or newer"), "{text}");
        server.abort();
    }
}

async fn old_server(stream: tokio::net::TcpStream, version: &str, no_hello: &str) {
    use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
    let mut lines = BufReader::new(stream).lines();
    // A command is `*n`, and n times a length and a word.
    while let Ok(Some(head)) = lines.next_line().await {
        let words: usize = head.trim_start_matches('*').parse().unwrap();
        let mut command = Vec::new();
        for _ in 0..words {
            lines.next_line().await.unwrap();
            command.push(lines.next_line().await.unwrap().unwrap());
        }
        let answer = match command[0].as_str() {
            "HELLO" => no_hello.to_owned(),
            "INFO" => {
                let info = format!("# Server\r\nredis_version:{version}\r\n");
                format!("${}\r\n{info}\r\n", info.len())
            }
            _ => "+OK\r\n".to_owned(),
        };
        if lines.get_mut().get_mut().write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}

/// Version and eviction cannot be checked then, which is logged.
#[tokio::test]
async fn a_server_that_denies_info_is_used() {
    let server = server().await;
    let acl = rights(&server).await;
    let rights: Vec<_> = acl.iter().map(String::as_str).chain(["-info"]).collect();
    let url = user(&server, &rights).await;
    let backend = lock_redis::connect(&url).await.unwrap();
    let mut holder = claim(&backend, "app", Duration::from_secs(30), false);
    assert!(matches!(holder.try_acquire().await.unwrap(), Attempt::Granted { .. }));
}

#[tokio::test]
async fn a_wrong_password_is_denied_and_not_shown() {
    let server = RedisServer::builder().option("requirepass", "right").start().await.unwrap();
    for url in [
        server.url().replace("redis://", &format!("redis://:{SENTINEL}@")),
        server.url().replace("redis://", &format!("redis://{SENTINEL}:{SENTINEL}@")),
        server.url().to_owned(),
    ] {
        let error = lock_redis::connect(&url).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        assert!(!error.is_retryable());
        let mut shown = format!("{error} {error:?}");
        let mut source = std::error::Error::source(&error);
        while let Some(cause) = source {
            shown += &format!("{cause} {cause:?}");
            source = cause.source();
        }
        assert!(!shown.contains(SENTINEL), "{shown}");
    }
    let url = server.url().replace("redis://", "redis://:right@");
    let backend = lock_redis::connect(&url).await.unwrap();
    backend.ping().await.unwrap();
    let locks = Locks::new(backend.clone());
    let guard = locks.named("a").unwrap().acquire().await.unwrap();
    assert!(!format!("{backend:?} {locks:?} {guard:?}").contains("right"));
}

#[tokio::test]
async fn a_socket_and_a_database_number() {
    let server = server().await;
    let socket = server.socket().unwrap();
    let one = Locks::new(
        lock_redis::connect(&format!("redis+unix://{}?db=1", socket.display())).await.unwrap(),
    );
    let zero = locks(&server).await;
    let same = Locks::new(lock_redis::connect(&format!("{}/1", server.url())).await.unwrap());
    let _held = one.named("a").unwrap().acquire().await.unwrap();
    assert!(zero.named("a").unwrap().try_acquire().await.unwrap().is_some(), "another database");
    assert!(same.named("a").unwrap().try_acquire().await.unwrap().is_none(), "the same one");
}

#[tokio::test]
async fn a_server_that_evicts_is_refused() {
    for policy in ["allkeys-lru", "volatile-ttl", "volatile-random"] {
        let server =
            RedisServer::builder().option("maxmemory-policy", policy).start().await.unwrap();
        let error = lock_redis::connect(server.url()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(error.to_string().contains(policy), "{error}");
        let warned = RedisBackend::connect(config(&server).eviction(Eviction::Warn)).await.unwrap();
        assert!(warned.capabilities().loses_data_on.contains(&lock_core::DataLoss::Eviction));
        lock_redis::connect(&format!("{}?lock_eviction=warn", server.url())).await.unwrap();
    }
}

/// Its settings may have changed since, or it may be another server at the same address. What is held goes on.
#[tokio::test]
async fn a_server_that_evicts_by_now_is_reported() {
    let warnings = Warnings::keep();
    let server = server().await;
    let (backend, mut plain) = (backend(&server).await, plain(&server).await);
    let mut holder = claim(&backend, "app", Duration::from_secs(30), false);
    assert!(matches!(holder.try_acquire().await.unwrap(), Attempt::Granted { .. }));
    run(&mut plain, &["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]).await;
    run(&mut plain, &["CLIENT", "KILL", "TYPE", "pubsub"]).await;
    let address = server.address().unwrap().to_string();
    // Other tests use other servers.
    let is_named = |warning: &String| {
        [&address, "allkeys-lru", "Set it to noeviction"].iter().all(|part| warning.contains(*part))
    };
    until("a warning", Duration::from_secs(10), async || {
        let _ = holder.renew().await;
        warnings.so_far().iter().any(is_named)
    })
    .await;
    assert!(matches!(holder.renew().await.unwrap(), Renewal::Alive { .. }));
}

#[tokio::test]
async fn a_full_memory_refuses_new_locks_and_frees_old_ones() {
    let server = server().await;
    let (locks, mut plain) = (locks(&server).await, plain(&server).await);
    let guard = locks.named("a").unwrap().acquire().await.unwrap();
    run(&mut plain, &["SET", "ballast", &"x".repeat(1 << 20)]).await;
    run(&mut plain, &["CONFIG", "SET", "maxmemory", "100kb"]).await;
    let error = locks.named("b").unwrap().try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    guard.renew().await.unwrap();
    guard.release().await.unwrap();
    run(&mut plain, &["CONFIG", "SET", "maxmemory", "0"]).await;
    assert!(locks.named("a").unwrap().try_acquire().await.unwrap().is_some(), "it was released");
}

#[tokio::test]
async fn no_server_is_a_fast_and_clear_error() {
    let port = Port::reserve().unwrap();
    let start = Instant::now();
    let error = lock_redis::connect(&format!("redis://127.0.0.1:{port}")).await.unwrap_err();
    assert!(start.elapsed() < Duration::from_secs(2));
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains(&format!("127.0.0.1:{port}")), "{error}");
    // One that accepts and says nothing.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}?lock_connect_timeout=300ms", silent.local_addr().unwrap());
    let start = Instant::now();
    let error = lock_redis::connect(&url).await.unwrap_err();
    assert!(start.elapsed() < Duration::from_secs(2));
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}

/// What a first day brings. TLS is not named where nobody answers.
#[tokio::test]
async fn who_does_not_answer_is_told_apart_from_who_hangs_up() {
    let said = async |url: &str| {
        let error = lock_redis::connect(url).await.unwrap_err();
        assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::None));
        error.to_string()
    };
    let refused = Port::reserve().unwrap();
    let nowhere = "no-such-host.invalid";
    let mut urls = vec![
        (format!("redis://127.0.0.1:{refused}"), "cannot be reached: Connection refused"),
        (format!("redis://{nowhere}"), "cannot be reached: failed to lookup address"),
        ("redis+unix:///no/such/socket".to_owned(), "cannot be reached: No such file"),
    ];
    if cfg!(feature = "tls") {
        urls.push((
            format!("rediss://127.0.0.1:{refused}"),
            "cannot be reached: Connection refused",
        ));
        urls.push((format!("rediss://{nowhere}"), "cannot be reached: failed to lookup address"));
    }
    for (url, words) in urls {
        let text = said(&url).await;
        assert!(text.contains(words) && !text.contains("rediss"), "{url}: {text}");
    }
    let nodes: Vec<_> = (0..3).map(|_| Port::reserve().unwrap()).collect();
    let hosts: Vec<_> = nodes.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    let url = format!("redlock://{}?lock_quorum_name=q&lock_bootstrap=now", hosts.join(","));
    let text = lock_redis::connect_redlock(&url).await.unwrap_err().to_string();
    let told = text.matches("cannot be reached: Connection refused").count();
    assert!(told == 3 && !text.contains("redlocks"), "{told}: {text}");
    // One that is there, and closes the connection at once.
    let closing = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}", closing.local_addr().unwrap());
    tokio::spawn(async move { while closing.accept().await.is_ok() {} });
    assert!(said(&url).await.contains("because it closes the connection"));
}

/// Replies that no Redis sends: nothing panics, and nothing is believed.
#[tokio::test]
async fn a_server_that_talks_nonsense_is_an_error() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    for nonsense in [
        &b"HTTP/1.1 400 Bad Request\r\n\r\n"[..],
        b"*99999999\r\n",
        b"$-7\r\n",
        b"\0\0\0\0",
        b"+OK\r\n",
    ] {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut buffer = [0; 1024];
                while matches!(stream.read(&mut buffer).await, Ok(1..)) {
                    if stream.write_all(nonsense).await.is_err() {
                        break;
                    }
                }
            }
        });
        let config = RedisConfig::from_url(&format!("redis://{address}")).unwrap();
        let config = config
            .connect_timeout(Duration::from_millis(500))
            .response_timeout(Duration::from_millis(500));
        let start = Instant::now();
        RedisBackend::connect(config).await.unwrap_err();
        assert!(start.elapsed() < Duration::from_secs(4));
        server.abort();
    }
}

#[tokio::test]
async fn from_client_takes_the_users_client() {
    let server = server().await;
    let client = redis::Client::open(server.url()).unwrap();
    let locks = Locks::new(RedisBackend::connect(RedisConfig::from_client(client)).await.unwrap());
    locks.named("a").unwrap().acquire().await.unwrap().release().await.unwrap();
}
