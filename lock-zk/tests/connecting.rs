//! Connecting: limits, credentials, and error messages.

#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

mod common;

use std::time::Duration;

use common::{
    DEFAULT, SESSION, SLACK, behind_proxy, busy, children, claim, connect, granted, held, hosts,
    locks, make, plain, server, until,
};
use conformance_tests::server::Port;
use lock_core::{ErrorKind, LockBackend, Locks};
use lock_testkit::servers::ZooKeeper;
use lock_zk::{ZkBackend, ZkConfig};
use zookeeper_client as zk;

const SENTINEL: &str = "s3cr3t-sentinel";

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_cannot_be_reached_is_named() {
    let port = Port::reserve().unwrap();
    let url = format!("zookeeper://app:{SENTINEL}@127.0.0.1:{port}?lock_connect_timeout=2s");
    let started = tokio::time::Instant::now();
    let error = lock_zk::connect(&url).await.unwrap_err();
    assert!(started.elapsed() < SLACK);
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let text = format!("{error} {error:?}");
    assert!(text.contains(&port.to_string()) && !text.contains(SENTINEL), "{text}");
    // One that accepts connections and says nothing.
    let servers = server().await;
    servers.freeze().unwrap();
    let url = format!("{}?lock_connect_timeout=300ms", servers.url());
    let error = lock_zk::connect(&url).await.unwrap_err();
    servers.thaw().unwrap();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("300ms"), "{error}");
}

/// The server of the tests allows sessions of 0.5 s to 60 s.
#[tokio::test(flavor = "multi_thread")]
async fn the_limits_of_the_server_are_reported() {
    let servers = server().await;
    let too_long = format!("{}?lock_session_timeout=2m", servers.url());
    let error = lock_zk::connect(&too_long).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.to_string().contains("60s") && error.to_string().contains("120s"), "{error}");
    // A shorter one is raised, and the guard says so.
    let raised = connect(hosts(&servers), "lock_session_timeout=200ms").await;
    assert_eq!(raised.capabilities().min_ttl, Duration::from_millis(500));
    let raised = locks(raised, Duration::from_millis(200));
    let guard = raised.named("short").unwrap().acquire().await.unwrap();
    assert_eq!(guard.ttl(), Duration::from_millis(500));
    // A busy machine may lose so short a lock before it is released.
    drop(guard);
    // A longer ttl than the session's, or than the servers allow, is an error, and not a shorter
    // ttl.
    let ours = connect(hosts(&servers), "").await;
    let can = ours.capabilities();
    assert_eq!((can.min_ttl, can.max_ttl), (Duration::from_millis(500), Some(SESSION * 30)));
    for (locks, ttl, limit) in [(raised, SESSION, "500ms"), (Locks::new(ours), SESSION * 31, "60s")]
    {
        let error = locks.named("lock").unwrap().ttl(ttl).acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains(limit), "{error}");
    }
    // The default ttl is that of every store, or what a server with a short tick allows.
    let longest = Duration::from_secs(20);
    let servers = ZooKeeper::with_sessions(1, Duration::from_secs(1), longest).await.unwrap();
    let ours = connect(hosts(&servers), "").await;
    let guard = Locks::new(ours.clone()).named("lock").unwrap().acquire().await.unwrap();
    assert_eq!(guard.ttl(), longest);
    guard.release().await.unwrap();
    // The requested timeout is not shortened silently.
    let asked = Duration::from_secs(30);
    let error = Locks::builder(ours.clone()).default_ttl(asked).build().unwrap_err();
    assert!(error.to_string().contains("20s"), "{error}");
    let lock = Locks::new(ours).named("lock").unwrap().ttl(asked);
    let error = lock.acquire().await.unwrap_err();
    assert!(error.to_string().contains("20s"), "{error}");
}

/// The client's patience with a silent server follows the session that it got, not the one it asked
/// for.
#[tokio::test(flavor = "multi_thread")]
async fn a_raised_session_bears_a_slow_server() {
    let raised = Duration::from_secs(4);
    let servers = ZooKeeper::with_sessions(1, raised, raised * 2).await.unwrap();
    let parameters = "lock_session_timeout=200ms&lock_connect_timeout=30s";
    let (ours, proxy) = behind_proxy(&servers, parameters).await;
    assert_eq!(ours.capabilities().min_ttl, raised);
    proxy.delay(Duration::from_millis(150), Duration::ZERO);
    let mut holder = claim(&ours, "lock", true);
    common::acquired(&mut *holder).await;
    holder.release().await.unwrap();
}

/// A host that accepts connections and says nothing is no reason to fail while the others answer.
#[tokio::test(flavor = "multi_thread")]
async fn a_silent_host_does_not_keep_us_from_the_others() {
    let servers = ZooKeeper::ensemble().await.unwrap();
    let silent = (servers.leader().unwrap() + 1) % 3;
    servers.freeze_one(silent).unwrap();
    let mut attempts = tokio::task::JoinSet::new();
    for _ in 0..16 {
        let url = servers.url().to_owned();
        attempts.spawn(async move { lock_zk::connect(&url).await?.ping().await });
    }
    for answer in attempts.join_all().await {
        answer.unwrap();
    }
    servers.thaw_one(silent).unwrap();
}

/// The session is kept by requests that need no right to any node.
#[tokio::test(flavor = "multi_thread")]
async fn the_right_to_create_is_enough_on_the_root() {
    let servers = server().await;
    let plain = plain(&servers).await;
    let acls = [zk::Acl::new(zk::Permission::CREATE, zk::AuthId::anyone())];
    let mode = zk::CreateMode::Persistent.with_acls(zk::Acls::from(&acls[..]));
    plain.mkdir("/closed", &mode).await.unwrap();
    let ours = connect(format_args!("{}/closed", hosts(&servers)), DEFAULT).await;
    let locks = locks(ours, SESSION);
    tokio::time::sleep(SESSION * 5 / 4).await;
    let lock = locks.named("lock").unwrap();
    let guard = tokio::time::timeout(SLACK, lock.acquire()).await.expect("it is free").unwrap();
    tokio::time::sleep(SESSION * 3 / 2).await;
    guard.token().expect("it is renewed");
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn with_a_password_only_its_owner_touches_the_locks() {
    let servers = server().await;
    let guarded = |user: &str| format!("{user}{}/guarded", hosts(&servers));
    let app = guarded(&format!("app:{SENTINEL}@"));
    let ours = connect(&app, DEFAULT).await;
    assert!(!format!("{ours:?}").contains(SENTINEL));
    let mut holder = held(&ours, "lock").await;
    // The same user from another process.
    let same = connect(&app, DEFAULT).await;
    busy(&mut *claim(&same, "lock", false)).await;
    // Another client, with a different password and with none.
    for (user, acl) in [("app:wrong@", "creator"), ("other:wrong@", "open"), ("", "open")] {
        let stranger = connect(guarded(user), &format!("lock_acl={acl}")).await;
        let error = claim(&stranger, "lock", true).try_acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        assert!(!error.is_retryable() && !error.to_string().contains(SENTINEL), "{error}");
        assert!(error.to_string().contains("on the node /guarded/lock"), "{error}");
    }
    let plain = plain(&servers).await;
    let denied = plain.list_children("/guarded/lock").await;
    assert_eq!(denied.unwrap_err(), zk::Error::NoAuth);
    assert!(plain.delete("/guarded/lock", None).await.is_err());
    holder.release().await.unwrap();
    granted(&mut *claim(&same, "lock", true)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_given_connector_keeps_its_chroot() {
    let servers = server().await;
    let plain = plain(&servers).await;
    make(&plain, "/shop").await;
    let cluster = format!("{}/shop", hosts(&servers));
    let given = |cluster: &str| ZkConfig::from_connector(zk::Client::connector(), cluster);
    let config = given(&cluster).unwrap().root("/jobs");
    let ours = ZkBackend::connect(config).await.unwrap();
    let locks = locks(ours, SESSION);
    let guard = locks.named("lock").unwrap().acquire().await.unwrap();
    assert_eq!(plain.list_children("/shop/jobs/lock").await.unwrap().len(), 1);
    assert!(guard.remaining() > SESSION / 2, "{:?}", guard.remaining());
    tokio::time::sleep(SESSION * 2).await;
    guard.token().unwrap();
    guard.release().await.unwrap();
    let cluster = format!("{}/missing", hosts(&servers));
    let nowhere = ZkBackend::connect(given(&cluster).unwrap()).await.unwrap();
    let error = claim(&nowhere, "lock", true).try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.to_string().contains("the chroot"), "{error}");
    let error = given("a,,b").unwrap_err();
    assert!(error.to_string().contains("\"a,,b\""), "{error}");
}

/// A root that the server would refuse is refused before anything is asked, and no other one is.
#[tokio::test(flavor = "multi_thread")]
async fn a_root_is_what_the_server_takes_for_a_path() {
    let servers = server().await;
    let plain = plain(&servers).await;
    let mode = zk::CreateMode::Ephemeral.with_acls(zk::Acls::anyone_all());
    for (character, is_good) in [
        ('\u{1f}', false),
        ('\u{7f}', false),
        ('\u{9f}', false),
        ('\u{a0}', true),
        ('\u{d7ff}', true),
        ('\u{e000}', false),
        ('\u{f8ff}', false),
        ('\u{f900}', true),
        ('\u{ffef}', true),
        ('\u{fff0}', false),
        ('\u{ffff}', false),
        ('\u{10000}', false),
        ('\u{1f512}', false),
    ] {
        let root = format!("/root{character}");
        let made = plain.create(&root, &[], &mode).await;
        assert_eq!(made.is_ok(), is_good, "{root:?}: {made:?}");
        let config = ZkConfig::new(hosts(&servers)).unwrap().root(&root);
        let kind = ZkBackend::connect(config).await.err().map(|error| error.kind());
        assert_eq!(kind, (!is_good).then_some(ErrorKind::Config), "{root:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn closing_or_dropping_ends_the_session_at_once() {
    let servers = server().await;
    let plain = plain(&servers).await;
    for close in [true, false] {
        // A session so long that only its end can free the lock.
        let ours = connect(hosts(&servers), "lock_session_timeout=60s").await;
        let holder = held(&ours, "lock").await;
        assert_eq!(children(&plain, "lock").await.len(), 1);
        if close {
            ours.close().await.unwrap();
            assert!(children(&plain, "lock").await.is_empty(), "closing waits for the server");
            let error = claim(&ours, "lock", true).try_acquire().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Closed);
            ours.close().await.unwrap();
        } else {
            drop((ours, holder));
            until("the node is gone", SLACK, async || children(&plain, "lock").await.is_empty())
                .await;
        }
    }
}

/// What a server before 3.5 answers: it has no node with its configuration.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_too_old_is_refused() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("zookeeper://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            std::thread::spawn(move || old_server(stream.unwrap()));
        }
    });
    let error = lock_zk::connect(&url).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("3.4") && error.to_string().contains("3.5.5"), "{error}");
}

/// Grants a session, answers pings, and does not find anything else.
fn old_server(mut stream: std::net::TcpStream) {
    use std::io::{Read, Write};
    let mut next = move |answer: Option<Vec<u8>>| -> Option<Vec<u8>> {
        if let Some(answer) = answer {
            let length = u32::try_from(answer.len()).ok()?;
            stream.write_all(&length.to_be_bytes()).ok()?;
            stream.write_all(&answer).ok()?;
        }
        let mut length = [0; 4];
        stream.read_exact(&mut length).ok()?;
        let mut request = vec![0; usize::try_from(u32::from_be_bytes(length)).ok()?];
        stream.read_exact(&mut request).ok()?;
        Some(request)
    };
    let Some(connect) = next(None) else { return };
    // Version 0, the timeout that was asked for, a session, a password.
    let mut answer =
        [&[0; 4], &connect[12..16], &[0, 0, 0, 0, 0, 0, 0, 7], &[0, 0, 0, 16]].concat();
    answer.extend([1; 16]);
    while let Some(request) = next(Some(answer)) {
        let is_ping = request[4..8] == 11_u32.to_be_bytes();
        let error = if is_ping { 0 } else { -101_i32 };
        // The number of the request, that of a transaction, and the error.
        answer = [&request[..4], &[0; 8], &error.to_be_bytes()].concat();
    }
}

/// Near the end of the sequence numbers no client may enter; when the queue is empty they start
/// over.
#[tokio::test(flavor = "multi_thread")]
async fn a_used_up_queue_is_refused_and_begins_again() {
    let servers = server().await;
    let config = || {
        ZkConfig::new(hosts(&servers)).unwrap().session_timeout(SESSION).limits(
            usize::MAX,
            SESSION * 9,
            3,
        )
    };
    let (ours, other) =
        (ZkBackend::connect(config()).await.unwrap(), ZkBackend::connect(config()).await.unwrap());
    // A node that the server does not remove in between, or the numbers would start over.
    let plain = plain(&servers).await;
    make(&plain, "/locks/lock").await;
    let mut last = 0;
    let mut holder = claim(&ours, "lock", true);
    for _ in 0..3 {
        holder.release().await.unwrap();
        holder = claim(&ours, "lock", true);
        let fence = granted(&mut *holder).await.get();
        lock_testkit::assert_exactly!(fence > last, "{fence} after {last}");
        last = fence;
    }
    let mut late = claim(&other, "lock", true);
    for _ in 0..2 {
        let error = late.try_acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Store);
        assert!(error.is_retryable() && error.to_string().contains("sequence numbers"), "{error}");
    }
    assert_eq!(children(&plain, "lock").await.len(), 1, "the holder's alone");
    holder.release().await.unwrap();
    // The client that finds it empty removes it.
    let _ = late.try_acquire().await;
    assert!(common::acquired(&mut *late).await.get() > last);
    late.release().await.unwrap();
}
