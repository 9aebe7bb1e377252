//! New quorums, clients with a different configuration, and the loss of more than a minority.

use std::net::SocketAddr;
use std::time::Duration;

use crate::redlock_common::common::{calls, requests, scenes_hold, until};
use crate::redlock_common::scenarios::{self, acquire};
use crate::redlock_common::{Masters, claim, granted};
use conformance_tests::server::Proxy;
use lock_core::{ErrorKind, LockBackend, LockKey, Locks};
use lock_redis::RedlockBackend;
use lock_testkit::assert_exactly;
use lock_testkit::servers::Data;
use tokio::time::{Instant, sleep};

scenes_hold! {
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    scenarios:
    a_seed_counts_for_every_lock
    fences_rise_over_a_loss_after_a_client_that_is_ahead
}

/// The masters' URL without `lock_bootstrap=now`.
fn waiting_url(masters: &Masters, parameters: &str) -> String {
    masters.url(parameters).replace("&lock_bootstrap=now", "")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_quorum_waits_and_says_why() {
    let masters = Masters::start().await.unwrap();
    let url = waiting_url(&masters, "&lock_max_ttl=2s");
    let begin = Instant::now();
    let backend = lock_redis::connect_redlock(&url).await.unwrap();
    let mut early = claim(&backend, "lock", Duration::from_secs(1));
    let error = early.try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.is_retryable());
    for part in ["not admitted", "the quorum is new", "lock_bootstrap=now"] {
        assert!(error.to_string().contains(part), "{part}: {error}");
    }
    let locks = Locks::builder(backend).default_ttl(Duration::from_secs(1)).build().unwrap();
    acquire(&locks, "lock", Duration::from_secs(10)).await;
    assert!(begin.elapsed() >= Duration::from_secs(2), "{:?}", begin.elapsed());
    // The next client need not wait.
    let next = lock_redis::connect_redlock(&url).await.unwrap();
    granted(&mut *claim(&next, "other", Duration::from_secs(1))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn old_nodes_that_were_never_flushed_begin_at_once() {
    let masters = Masters::start().await.unwrap();
    // Uptime counts in whole seconds, of which one is kept as a margin.
    sleep(Duration::from_millis(3500)).await;
    let url = waiting_url(&masters, "&lock_max_ttl=500ms");
    let backend = lock_redis::connect_redlock(&url).await.unwrap();
    granted(&mut *claim(&backend, "lock", Duration::from_millis(500))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn old_nodes_that_were_flushed_wait() {
    let masters = Masters::start().await.unwrap();
    sleep(Duration::from_millis(3500)).await;
    masters.command(1, &["FLUSHALL"]).await;
    let url = waiting_url(&masters, "&lock_max_ttl=500ms");
    let backend = lock_redis::connect_redlock(&url).await.unwrap();
    let seen = claim(&backend, "lock", Duration::from_millis(500)).try_acquire().await;
    assert!(seen.is_err(), "{seen:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bootstrap_whose_client_died_half_way_is_gone_on_with() {
    let masters = Masters::start().await.unwrap();
    let backend = masters.client("").await.unwrap();
    granted(&mut *claim(&backend, "a", Duration::from_secs(1))).await;
    drop(backend);
    // As it was before two of three nodes were admitted.
    for node in 1..3 {
        masters.command(node, &["HSET", "distlock\u{1e}quorum", "state", "boot"]).await;
    }
    let backend = masters.client("").await.unwrap();
    masters.0[0].freeze().unwrap();
    granted(&mut *claim(&backend, "b", Duration::from_secs(1))).await;
    masters.0[0].thaw().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_begin_together_all_get_in() {
    let masters = Masters::start().await.unwrap();
    let clients: Vec<_> = (0..8)
        .map(|_| {
            let url = masters.url("");
            tokio::spawn(async move { lock_redis::connect_redlock(&url).await })
        })
        .collect();
    for (number, client) in clients.into_iter().enumerate() {
        let locks = Locks::new(client.await.unwrap().unwrap());
        acquire(&locks, &format!("lock {number}"), Duration::from_secs(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_is_configured_otherwise_is_refused() {
    let masters = Masters::start().await.unwrap();
    let first = masters.client("").await.unwrap();
    let error = masters.client("&lock_max_ttl=5m").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(error.to_string().contains("lock_max_ttl 300000ms"), "{error}");
    let other_nodes = masters.url("").replace("lock_quorum_name=test", "lock_quorum_name=other");
    let error = lock_redis::connect_redlock(&other_nodes).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    // Without the check at connect, each node refuses by itself.
    let config = lock_redis::RedlockConfig::from_url(&other_nodes).unwrap();
    let unchecked = RedlockBackend::new(config).unwrap();
    let error = claim(&unchecked, "lock", Duration::from_secs(1)).try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    granted(&mut *claim(&first, "lock", Duration::from_secs(1))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ttl_above_the_longest_is_refused() {
    let masters = Masters::start().await.unwrap();
    let backend = masters.client("").await.unwrap();
    assert_eq!(backend.capabilities().max_ttl, Some(Duration::from_secs(30)));
    let error =
        Locks::new(backend).named("a").unwrap().ttl(Duration::from_secs(31)).acquire().await;
    assert_eq!(error.unwrap_err().kind(), ErrorKind::InvalidInput);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn evicting_nodes_are_refused() {
    let masters = Masters::start().await.unwrap();
    masters.command(1, &["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]).await;
    let error = masters.client("").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.to_string().contains("allkeys-lru"), "{error}");
    let warned = masters.client("&lock_eviction=warn").await.unwrap();
    assert_eq!(warned.capabilities().loses_data_on, [lock_core::DataLoss::Eviction]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_all_nodes_were_restarted_an_operator_lets_them_vote_again() {
    let masters = Masters::start().await.unwrap();
    let backend = masters.client("&lock_max_ttl=1s").await.unwrap();
    let fence = granted(&mut *claim(&backend, "lock", Duration::from_secs(1))).await;
    for server in &masters.0 {
        server.restart(Data::Keep).await.unwrap();
    }
    let backend = masters.client("&lock_max_ttl=1s&lock_recover=manual").await.unwrap();
    sleep(Duration::from_millis(1500)).await;
    let error = claim(&backend, "lock", Duration::from_secs(1)).try_acquire().await.unwrap_err();
    assert!(error.to_string().contains("RedlockBackend::recover"), "{error}");
    let error = backend.recover().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("repeat it in"), "{error}");
    sleep(Duration::from_millis(1200)).await;
    backend.recover().await.unwrap();
    let next = granted(&mut *claim(&backend, "lock", Duration::from_secs(1))).await;
    assert_exactly!(next > fence, "{next} after {fence}");
}

/// All nodes are restarted with their data: the clients that are there, and new ones, go on without an
/// operator, not before every older lock has ended, and with greater fences. The errors say what each
/// node waits for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_all_nodes_were_restarted_the_quorum_votes_again() {
    let masters = Masters::start().await.unwrap();
    let backend = masters.client("&lock_max_ttl=3s").await.unwrap();
    let fence = granted(&mut *claim(&backend, "lock", Duration::from_secs(2))).await;
    // As if another lock had been counted up beyond every clock.
    let ahead = scenarios::micros() + 3_600_000_000;
    masters.command(1, &["HSET", "distlock\u{1e}quorum", "mark", &ahead.to_string()]).await;
    for server in &masters.0 {
        server.restart(Data::Keep).await.unwrap();
    }
    let restarted = Instant::now();
    let newcomer = masters.client("&lock_max_ttl=3s").await.unwrap();
    for client in [&backend, &newcomer] {
        let error = claim(client, "a", Duration::from_secs(1)).try_acquire().await.unwrap_err();
        assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Unavailable, true));
        for server in &masters.0 {
            let address = server.address().unwrap();
            let says = format!("{address} was restarted or lost its data, and votes again when");
            assert!(error.to_string().contains(&says), "{says}: {error}");
        }
    }
    let next = nothing_is_granted_before(&newcomer, restarted + Duration::from_secs(3)).await;
    assert_exactly!(next > fence && next > ahead, "{next} after {fence} and {ahead}");
    let mut other = claim(&backend, "other", Duration::from_secs(1));
    assert!(granted(&mut *other).await > ahead);
}

/// It answers after those that vote, and nobody takes a lock meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_look_brings_back_a_node_that_answers_last() {
    let masters = Masters::start().await.unwrap();
    let links = masters.links().await.unwrap();
    let config = links.config().unwrap().max_ttl(Duration::from_secs(1));
    let backend = RedlockBackend::connect(config).await.unwrap();
    let mut used = claim(&backend, "lock", Duration::from_secs(1));
    granted(&mut *used).await;
    used.release().await.unwrap();
    let record = async |field| masters.command(0, &["HGET", "distlock\u{1e}quorum", field]).await;
    let before = record("nonce").await;
    masters.0[0].restart(Data::Keep).await.unwrap();
    links.0[0].delay(Duration::from_millis(20), Duration::ZERO);
    let admitted = redis::Value::BulkString(b"admitted".to_vec());
    let keys = [LockKey::new("", "lock").unwrap()];
    until("the node votes again", Duration::from_secs(20), async || {
        let _ = backend.look(&keys).await;
        record("nonce").await != before && record("state").await == admitted
    })
    .await;
}

/// The clock of a node is set forward while it waits: the client that has watched it counts by its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_is_set_forward_ends_no_wait() {
    let masters = Masters::start().await.unwrap();
    let backend = masters.client("&lock_max_ttl=5s").await.unwrap();
    for server in &masters.0 {
        server.restart(Data::Keep).await.unwrap();
    }
    let restarted = Instant::now();
    let mut waiting = claim(&backend, "a", Duration::from_secs(1));
    waiting.try_acquire().await.unwrap_err();
    // As it looks with a clock that is an hour ahead.
    let since = (scenarios::micros() - 3_600_000_000).to_string();
    masters.each(0..3, &["HSET", "distlock\u{1e}quorum", "since", &since]).await;
    nothing_is_granted_before(&backend, restarted + Duration::from_secs(5)).await;
}

/// Where one node does not come back, its marks are not known: no node votes before it is back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_recovery_needs_every_node() {
    let masters = Masters::start().await.unwrap();
    let backend = masters.client("&lock_max_ttl=2s").await.unwrap();
    granted(&mut *claim(&backend, "a", Duration::from_secs(1))).await;
    masters.0[2].kill().unwrap();
    for server in &masters.0[..2] {
        server.restart(Data::Keep).await.unwrap();
    }
    let restarted = Instant::now();
    while restarted.elapsed() < Duration::from_secs(6) {
        let error = claim(&backend, "a", Duration::from_secs(1)).try_acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        if restarted.elapsed() > Duration::from_secs(3) {
            let says = format!("{} does not answer", masters.0[2].address().unwrap());
            assert!(error.to_string().contains(&says), "{says}: {error}");
        }
        sleep(Duration::from_millis(100)).await;
    }
    masters.0[2].restart(Data::Keep).await.unwrap();
    let back = Instant::now();
    nothing_is_granted_before(&backend, back).await;
}

/// `lock_bootstrap=now` asserts that no client holds a lock. It does not hide that the nodes were
/// flushed, and the holder must not get a rival before its lease has ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flush_of_all_nodes_grants_nothing_too_early_and_the_fences_rise() {
    let masters = Masters::start().await.unwrap();
    let holder = masters.client("&lock_max_ttl=2s").await.unwrap();
    let fence = granted(&mut *claim(&holder, "lock", Duration::from_secs(2))).await;
    masters.each(0..3, &["FLUSHALL"]).await;
    let flushed = Instant::now();
    let other = masters.client("&lock_max_ttl=2s").await.unwrap();
    let next = nothing_is_granted_before(&other, flushed + Duration::from_secs(2)).await;
    assert_exactly!(next > fence, "{next} after {fence}");
}

/// A client that has seen the quorum vote is not made to believe that it is new.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_knows_the_quorum_sees_the_loss_of_everything() {
    let masters = Masters::start().await.unwrap();
    let backend = masters.client("&lock_max_ttl=2s").await.unwrap();
    let fence = granted(&mut *claim(&backend, "lock", Duration::from_secs(2))).await;
    for server in &masters.0 {
        server.restart(Data::Lose).await.unwrap();
    }
    let lost = Instant::now();
    let next = nothing_is_granted_before(&backend, lost + Duration::from_secs(2)).await;
    assert_exactly!(next > fence, "{next} after {fence}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fences_rise_over_a_loss_soon_after_a_restart() {
    scenarios::fences_rise_over_a_loss().await.unwrap();
}

/// Three addresses of one server have one vote, not three.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_server_under_several_addresses_is_refused() {
    let masters = Masters::start().await.unwrap();
    let server = masters.0[0].address().unwrap();
    let mut proxies = Vec::new();
    for _ in 0..2 {
        proxies.push(Proxy::start(server).await.unwrap());
    }
    let hosts = format!("{server},{},{}", proxies[0].address(), proxies[1].address());
    for name in ["", "&lock_quorum_name=test"] {
        let url = format!("redlock://{hosts}?lock_bootstrap=now{name}");
        let error = lock_redis::connect_redlock(&url).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        let text = error.to_string();
        let both = text.contains(&server.to_string()) && text.contains(" are one server");
        assert!(both, "{error}");
        // Without the check at connect, the first try makes it.
        let config = lock_redis::RedlockConfig::from_url(&url).unwrap();
        let unchecked = RedlockBackend::new(config).unwrap();
        let seen = claim(&unchecked, "lock", Duration::from_secs(1)).try_acquire().await;
        assert_eq!(seen.unwrap_err().kind(), ErrorKind::Config);
    }
}

/// The address of a server that has ended leads to another one, as after a change of names.
async fn lead(gone: SocketAddr, kept: SocketAddr) {
    let listener = tokio::net::TcpListener::bind(gone).await.unwrap();
    tokio::spawn(async move {
        loop {
            let (mut client, _) = listener.accept().await.unwrap();
            let mut server = tokio::net::TcpStream::connect(kept).await.unwrap();
            tokio::spawn(async move {
                let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
            });
        }
    });
}

/// The address of one member leads to another one: that one has one vote.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_that_leads_to_another_member_adds_no_vote() {
    let masters = Masters::start().await.unwrap();
    let url = masters.url("").replace("lock_quorum_name=test&", "");
    let backend = lock_redis::connect_redlock(&url).await.unwrap();
    granted(&mut *claim(&backend, "a", Duration::from_secs(1))).await;
    let [kept, gone] = [0, 2].map(|node: usize| masters.0[node].address().unwrap());
    masters.0[2].kill().unwrap();
    lead(gone, kept).await;
    masters.0[1].kill().unwrap();
    for _ in 0..20 {
        let seen = claim(&backend, "b", Duration::from_secs(1)).try_acquire().await;
        assert!(seen.is_err(), "one server of three has granted: {seen:?}");
        sleep(Duration::from_millis(50)).await;
    }
}

/// Where two members are one server, no node is let in: that is found out now and then, and not once more for each answer
/// of a node that waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_that_are_one_server_report_now_and_then() {
    let masters = Masters::start_number(5).await.unwrap();
    let url = masters.url("").replace("lock_quorum_name=test&", "");
    let backend = lock_redis::connect_redlock(&url).await.unwrap();
    granted(&mut *claim(&backend, "a", Duration::from_secs(1))).await;
    let [kept, gone] = [0, 4].map(|node: usize| masters.0[node].address().unwrap());
    masters.0[4].kill().unwrap();
    lead(gone, kept).await;
    masters.0[3].restart(Data::Lose).await.unwrap();
    let is_told = async || {
        granted(&mut *claim(&backend, "b", Duration::from_millis(100))).await;
        sleep(Duration::from_millis(150)).await;
        backend.not_voting().is_some_and(|why| why.contains(" are one server"))
    };
    until("it is found out", Duration::from_secs(20), is_told).await;
    let mut plain = masters.plain(1).await;
    // Five for each report.
    let info = |command: &str| command == "info";
    let before = calls(&mut plain, info).await;
    for round in 0..50 {
        granted(&mut *claim(&backend, &format!("c{round}"), Duration::from_secs(10))).await;
        sleep(Duration::from_millis(20)).await;
    }
    let asked = calls(&mut plain, info).await - before;
    assert!(asked < 20, "{asked} times INFO while 50 tries were granted");
}

/// Many locks that are tried while the quorum waits do not stand in line for the nodes' reports.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tries_while_the_quorum_waits_share_a_round() {
    let masters = Masters::start().await.unwrap();
    let backend = lock_redis::connect_redlock(&waiting_url(&masters, "")).await.unwrap();
    masters.0[2].freeze().unwrap();
    let backend = std::sync::Arc::new(backend);
    let started = Instant::now();
    let tries: Vec<_> = (0..12)
        .map(|number| {
            let backend = std::sync::Arc::clone(&backend);
            tokio::spawn(async move {
                let mut claim = claim(&*backend, &format!("{number}"), Duration::from_secs(5));
                claim.try_acquire().await.unwrap_err()
            })
        })
        .collect();
    for tried in tries {
        let error = tried.await.unwrap();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }
    // One after the other they take twelve seconds: a silent node costs each round one.
    let took = started.elapsed();
    assert!(took < Duration::from_secs(6), "{took:?}");
    masters.0[2].thaw().unwrap();
}

/// Of five nodes, one is configured otherwise, or may evict: one that was restarted is brought back all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_wrong_keeps_no_other_one_out() {
    let record = "distlock\u{1e}quorum";
    for (wrong, says) in [
        (["HSET", record, "quorum", "another"], "belongs to the quorum \"another\""),
        (["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"], "has maxmemory-policy allkeys-lru"),
    ] {
        let masters = Masters::start_number(5).await.unwrap();
        let backend = masters.client("&lock_max_ttl=1s").await.unwrap();
        granted(&mut *claim(&backend, "a", Duration::from_secs(1))).await;
        masters.command(0, &wrong).await;
        masters.0[4].restart(Data::Lose).await.unwrap();
        let is_back = async || {
            let _ = claim(&backend, "b", Duration::from_millis(300)).try_acquire().await;
            let state = masters.command(4, &["HGET", record, "state"]).await;
            state == redis::Value::BulkString(b"admitted".to_vec())
        };
        until("the restarted node votes", Duration::from_secs(15), is_back).await;
        // The call that admitted it may have ended before the answer: the next one hears of it.
        let address = masters.0[0].address().unwrap().to_string();
        let is_told = async || {
            let _ = claim(&backend, "b", Duration::from_millis(300)).try_acquire().await;
            let why = backend.not_voting().unwrap_or_default();
            why.starts_with(&address) && why.contains(says)
        };
        until("only the wrong node is named", Duration::from_secs(15), is_told).await;
    }
}

/// Tries until the lock is granted, which must not be before `end`, and returns the fence.
async fn nothing_is_granted_before(backend: &RedlockBackend, end: Instant) -> u64 {
    let mut rival = claim(backend, "lock", Duration::from_secs(2));
    let limit = end + Duration::from_secs(15);
    loop {
        let seen = rival.try_acquire().await;
        if let Ok(lock_core::Attempt::Granted { token, .. }) = seen {
            assert!(Instant::now() >= end, "a second holder, while the first one believes");
            return token.get();
        }
        assert!(Instant::now() < limit, "never granted: {seen:?}");
        sleep(Duration::from_millis(20)).await;
    }
}

/// While a node is away, it is looked for less and less often; when it is back, it need not wait for the next look.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_was_away_for_long_is_brought_back_at_once() {
    let masters = Masters::start().await.unwrap();
    let mut plain = masters.plain(0).await;
    let backend = masters.client("&lock_max_ttl=1s").await.unwrap();
    granted(&mut *claim(&backend, "a", Duration::from_secs(1))).await;
    drop(backend);
    masters.0[2].kill().unwrap();
    let begun = Instant::now();
    let backend = masters.client("&lock_max_ttl=1s").await.unwrap();
    sleep(Duration::from_secs(1)).await;
    let before = requests(&mut plain).await;
    let is_another = async || requests(&mut plain).await > before;
    until("another look", Duration::from_secs(15), is_another).await;
    let took = begun.elapsed();
    assert!(took > Duration::from_millis(3500), "4 s after the first one, and not 2: {took:?}");
    masters.0[2].restart(Data::Keep).await.unwrap();
    let back = Instant::now();
    let votes = async || {
        let mut claim = claim(&backend, "b", Duration::from_millis(500));
        granted(&mut *claim).await;
        sleep(Duration::from_millis(50)).await;
        let votes = masters.has(2, "b").await;
        claim.release().await.unwrap();
        votes
    };
    until("it votes", Duration::from_secs(15), votes).await;
    // The next look would be 6 s after that, and the node would wait for another second.
    let took = back.elapsed();
    assert!(took < Duration::from_secs(6), "{took:?}");
}

/// A node that refuses to be brought back is not asked forever, and its reason is reported.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_refuses_its_marker_is_asked_now_and_then() {
    let masters = Masters::start().await.unwrap();
    let backend = masters.client("").await.unwrap();
    masters.command(2, &["ACL", "SETUSER", "default", "-hset"]).await;
    masters.command(2, &["DEL", "distlock\u{1e}quorum"]).await;
    granted(&mut *claim(&backend, "a", Duration::from_secs(1))).await;
    let mut plain = masters.plain(2).await;
    let before = requests(&mut plain).await;
    let mut named = false;
    for round in 0..30 {
        sleep(Duration::from_millis(100)).await;
        granted(&mut *claim(&backend, &format!("b{round}"), Duration::from_secs(10))).await;
        named |= backend.not_voting().is_some_and(|why| why.contains("brought into the vote"));
    }
    let asked = requests(&mut plain).await - before;
    assert!(asked < 150, "{asked} requests in 3 s, of which 30 are the tries to acquire");
    assert!(named, "{:?}", backend.not_voting());
    masters.command(2, &["ACL", "SETUSER", "default", "+hset"]).await;
    let is_brought_back =
        async || backend.not_voting().is_some_and(|why| why.contains("votes again when"));
    until("the node is brought back", Duration::from_secs(10), is_brought_back).await;
}
