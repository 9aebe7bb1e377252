//! Connecting: errors are clear, and contain no secret.

#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

mod common;

use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use conformance_tests::server::{Port, Proxy};
use lock_core::{ErrorKind, LockBackend};
use lock_etcd::{EtcdBackend, EtcdConfig};
use lock_testkit::warnings::Warnings;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Builder;
use tokio::time::{Instant, timeout};
use tonic::transport::Channel;

use common::{
    PASSWORD, backend, busy, claim, granted, guarded, keys, metrics, one, plain, proxied, quiet,
    soon, three, tokens_of_a_state, told,
};

const SENTINEL: &str = "s3cr3t-sentinel";

#[tokio::test]
async fn a_port_where_nobody_listens_is_named() {
    let port = Port::reserve().unwrap();
    let url = format!("etcd://app:{SENTINEL}@127.0.0.1:{port}");
    let error = soon("the refusal", lock_etcd::connect(&url)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let shown = format!("{error} {error:?}");
    assert!(shown.contains(&port.to_string()) && !shown.contains(SENTINEL), "{shown}");
}

#[tokio::test]
async fn a_server_that_is_not_etcd_is_refused_in_time() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let accepting = tokio::spawn(async move {
        let mut open = Vec::new();
        while let Ok((stream, _)) = listener.accept().await {
            open.push(stream);
        }
    });
    let url =
        format!("etcd://127.0.0.1:{port}?lock_response_timeout=300ms&lock_connect_timeout=300ms");
    let error = soon("the refusal", lock_etcd::connect(&url)).await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::NoAnswer | ErrorKind::Unavailable), "{error}");
    accepting.abort();
}

/// The driver panics without a suitable runtime.
#[test]
fn a_runtime_without_what_is_needed_is_an_error() {
    let refused = |connected: lock_core::Result<EtcdBackend>, remedy: &str| {
        let error = connected.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        assert!(error.to_string().contains(remedy), "{error}");
    };
    let connecting = pin!(lock_etcd::connect("etcd://127.0.0.1:1"));
    let Poll::Ready(answer) = connecting.poll(&mut Context::from_waker(Waker::noop())) else {
        panic!("it waits for something")
    };
    refused(answer, "call from within one");
    let runtime = |builder: &mut Builder| builder.build().unwrap();
    let channel = {
        let whole = runtime(Builder::new_current_thread().enable_all());
        let _inside = whole.enter();
        Channel::from_static("http://127.0.0.1:1").connect_lazy()
    };
    let bare = runtime(&mut Builder::new_current_thread());
    refused(bare.block_on(lock_etcd::connect("etcd://127.0.0.1:1")), "without timers");
    refused(
        bare.block_on(EtcdBackend::connect(EtcdConfig::from_channel(channel))),
        "without timers",
    );
    let deaf = runtime(Builder::new_current_thread().enable_time());
    refused(deaf.block_on(lock_etcd::connect("etcd://127.0.0.1:1")), "without sockets");
}

/// Of three members two are dead: the driver alone would fail two calls of three.
#[tokio::test]
async fn dead_members_are_passed_over() {
    let cluster = one().await;
    let dead = [Port::reserve().unwrap(), Port::reserve().unwrap()];
    let url = format!(
        "etcd://127.0.0.1:{},127.0.0.1:{},{}",
        dead[0],
        dead[1],
        cluster.address(0).unwrap()
    );
    let backend = lock_etcd::connect(&url).await.unwrap();
    for _ in 0..20 {
        let mut claim = claim(&backend, "lock", false);
        granted(&mut *claim).await;
        claim.release().await.unwrap();
    }
}

/// A member that is stopping takes a request and ends the connection: connecting asks the next one, whichever
/// member it began with.
#[tokio::test]
async fn a_member_that_is_stopping_is_passed_over() {
    let cluster = one().await;
    let stopping = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = stopping.local_addr().unwrap();
    let (asked, mut was_asked) = tokio::sync::mpsc::unbounded_channel();
    let accepting = tokio::spawn(async move {
        while let Ok((mut stream, _)) = stopping.accept().await {
            // The settings of HTTP/2 without anything, and their confirmation: the client sends its request then.
            let _ = stream.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).await;
            let mut received = [0; 4096];
            for _ in 0..3 {
                let _ = timeout(Duration::from_millis(20), stream.read(&mut received)).await;
            }
            let _ = asked.send(());
        }
    });
    let url = format!("etcd://{address},{}", cluster.address(0).unwrap());
    // The first member is chosen at random.
    soon("a connection that began with the stopping member", async {
        while was_asked.try_recv().is_err() {
            lock_etcd::connect(&url).await.unwrap();
        }
    })
    .await;
    accepting.abort();
}

/// Nothing is waited for that a runtime which stands still would have to do.
#[test]
fn closing_beside_a_runtime_that_stands_still_takes_one_call() {
    let runtime = || Builder::new_current_thread().enable_all().build().unwrap();
    let (here, left_alone) = (runtime(), runtime());
    let cluster = here.block_on(one());
    let url = format!("{}?lock_response_timeout=1s", cluster.url());
    let backend = left_alone.block_on(async {
        let backend = lock_etcd::connect(&url).await.unwrap();
        let mut held = claim(&backend, "lock", false);
        granted(&mut *held).await;
        held.release().await.unwrap();
        // Until there is a spare lease.
        tokio::time::sleep(Duration::from_millis(200)).await;
        backend
    });
    let start = Instant::now();
    here.block_on(backend.close()).unwrap_err();
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
}

#[tokio::test]
async fn closing_gives_the_spare_leases_back() {
    let cluster = one().await;
    let backend = backend(&cluster).await;
    let other = plain(&cluster, 0);
    let mut held = claim(&backend, "lock", false);
    granted(&mut *held).await;
    held.release().await.unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!other.leases().await.is_empty(), "there is a spare lease");
    backend.close().await.unwrap();
    assert_eq!(other.leases().await, [0_i64; 0], "closing has left leases");
    backend.close().await.unwrap();
    let error = backend.ping().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
}

/// Replies are slow, so a spare lease is still being granted when the client is closed.
#[tokio::test]
async fn closing_waits_for_the_leases_that_are_coming() {
    let cluster = one().await;
    let proxy = Proxy::start_http2(cluster.address(0).unwrap()).await.unwrap();
    let other = plain(&cluster, 0);
    let backend = lock_etcd::connect(&format!("etcd://{}", proxy.address())).await.unwrap();
    let mut held = claim(&backend, "lock", false);
    proxy.delay(Duration::from_millis(100), Duration::ZERO);
    granted(&mut *held).await;
    // The request for it is on its way.
    tokio::time::sleep(Duration::from_millis(50)).await;
    backend.close().await.unwrap();
    held.release().await.unwrap_err();
    // All requests in flight have arrived.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let lease = keys(&other, "lock/").await[0].1;
    assert_eq!(other.leases().await, [lease], "more than the lease of the lock is left");
}

/// Two hundred leases and no server: the client tries to connect now and then, not once for each.
#[tokio::test]
async fn an_outage_costs_few_connections() {
    let cluster = one().await;
    let (proxy, backend) = proxied(&cluster).await;
    let mut holders = Vec::new();
    for at in 0..200 {
        let mut holder = claim(&backend, &format!("lock{at}"), false);
        granted(&mut *holder).await;
        holders.push(holder);
    }
    cluster.kill(0).unwrap();
    let before = proxy.connections();
    // As the core does it: each renewal is repeated after a pause.
    let time = Duration::from_secs(3);
    let end = Instant::now() + time;
    let mut renewing = tokio::task::JoinSet::new();
    for mut holder in holders {
        renewing.spawn(async move {
            while Instant::now() < end {
                assert!(holder.renew().await.is_err(), "there is no server");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        });
    }
    soon("the renewals", renewing.join_all()).await;
    // Four streams of keep-alives and one of watches, each with a few quick tries first.
    let refused = proxy.connections() - before;
    println!("{refused} tries to connect in {time:?}");
    assert!((1..=80).contains(&refused), "{refused} tries to connect in {time:?}");
}

#[tokio::test]
async fn a_missing_user_and_a_wrong_password_are_told_apart() {
    let (_cluster, _root, url) = guarded(&[]).await;
    let (scheme, rest) = url.split_once("://").unwrap();
    let (_, server) = rest.split_once('@').unwrap();
    for (user, words) in [("", "asks for a user"), ("root:wrong@", "refused the user")] {
        let error = lock_etcd::connect(&format!("{scheme}://{user}{server}")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        let text = error.to_string();
        assert!(text.contains(words) && !text.contains("wrong"), "{text}");
    }
}

/// A user, whose token is refused after a change of the users, and so is each new watch on a stream with it.
#[tokio::test]
async fn a_change_of_the_users_is_survived() {
    let directory = tempfile::tempdir().unwrap();
    let tokens = tokens_of_a_state(directory.path());
    let (cluster, root, url) = guarded(&[("auth-token", &tokens)]).await;
    let endpoint = format!("http://{}", cluster.address(0).unwrap());
    let channel = Channel::from_shared(endpoint).unwrap().connect_lazy();
    let config = EtcdConfig::from_channel(channel).user("root", PASSWORD).prefix("given").unwrap();
    let foreign = EtcdBackend::connect(config).await.unwrap();
    let ours = lock_etcd::connect(&url).await.unwrap();
    for (at, backend) in [foreign, ours].into_iter().enumerate() {
        let mut first = claim(&backend, "first", false);
        granted(&mut *first).await;
        let mut early = claim(&backend, "first", true);
        busy(&mut *early).await;
        quiet(&mut *early).await;
        root.role_add(&format!("role{at}")).await;
        let mut second = claim(&backend, "second", false);
        granted(&mut *second).await;
        let mut late = claim(&backend, "second", true);
        busy(&mut *late).await;
        quiet(&mut *late).await;
        root.role_add(&format!("another{at}")).await;
        second.release().await.unwrap();
        told("the second lock is free", &mut *late).await;
        granted(&mut *late).await;
        first.release().await.unwrap();
        told("the first lock is free", &mut *early).await;
        granted(&mut *early).await;
    }
}

/// A hundred requests are refused for their token at the same time: one of them signs in.
#[tokio::test]
async fn one_new_token_serves_all() {
    let directory = tempfile::tempdir().unwrap();
    let tokens = tokens_of_a_state(directory.path());
    let (cluster, root, url) = guarded(&[("auth-token", &tokens)]).await;
    let backend = lock_etcd::connect(&url).await.unwrap();
    let signed_in = || {
        let text = metrics(&cluster);
        let line = text.lines().find(|line| {
            line.starts_with("grpc_server_handled_total{")
                && line.contains("\"Authenticate\"")
                && line.contains("grpc_code=\"OK\"")
        });
        line.and_then(|line| line.rsplit(' ').next()?.parse::<u32>().ok()).unwrap()
    };
    let mut claims: Vec<_> =
        (0..100).map(|at| claim(&backend, &format!("lock{at}"), false)).collect();
    for claim in &mut claims {
        granted(&mut **claim).await;
    }
    root.role_add("another").await;
    let before = signed_in();
    let mut checks = tokio::task::JoinSet::new();
    for mut claim in claims {
        checks.spawn(async move { claim.check().await.unwrap() });
    }
    soon("the checks", checks.join_all()).await;
    assert_eq!(signed_in() - before, 1);
}

#[tokio::test]
async fn a_configuration_is_built_without_a_url() {
    let cluster = one().await;
    let config = EtcdConfig::new([cluster.address(0).unwrap().to_string()])
        .unwrap()
        .user("app", SENTINEL)
        .prefix("jobs")
        .unwrap();
    assert!(!format!("{config:?}").contains(SENTINEL));
    // The server asks for no user, as while its users are switched off, and refuses to sign one in.
    let backend = EtcdBackend::connect(config).await.unwrap();
    assert!(!format!("{backend:?}").contains(SENTINEL));
    granted(&mut *claim(&backend, "lock", false)).await;
}

/// The shortest lease is that of the server: a multiple of its election timeout.
#[tokio::test]
async fn the_shortest_lease_is_asked_for() {
    let (fast, slow) = tokio::join!(one(), three());
    assert_eq!(backend(&fast).await.capabilities().min_ttl, Duration::from_secs(1));
    let slow = lock_etcd::connect(slow.url()).await.unwrap();
    assert_eq!(slow.capabilities().min_ttl, Duration::from_secs(2));
}

/// Any member may become leader, so each is asked, and a defective one is named, with its version
/// and its defect. The crate's unit tests check which warnings each version gets.
#[tokio::test]
async fn every_member_is_asked_for_its_version() {
    let warnings = Warnings::keep();
    let cluster = three().await;
    let version = plain(&cluster, 0).status().await.0;
    let number = |at: usize| version.split('.').nth(at).and_then(|n| n.parse::<u32>().ok());
    let fixed = match number(1) {
        Some(4) => 38,
        Some(5) => 23,
        Some(6) => 5,
        _ => 0,
    };
    let is_old = number(2).unwrap() < fixed;
    let _backend = backend(&cluster).await;
    let warned = |member: usize| {
        let endpoint = &*cluster.address(member).unwrap().to_string();
        warnings.so_far().iter().any(|text| {
            [endpoint, &version, "reported as renewed"].iter().all(|it| text.contains(*it))
        })
    };
    if is_old {
        soon("a warning of each member", async {
            while !(0..3).all(warned) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
    } else {
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert!(!(0..3).any(warned), "version {version} is a good one");
    }
}
