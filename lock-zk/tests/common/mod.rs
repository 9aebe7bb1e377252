//! Shared by the tests of lock-zk.

#![allow(dead_code, unused_imports, unused_macros, reason = "each test target uses a part of it")]
#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

pub(crate) mod crossing;
pub(crate) mod look_scenes;
pub(crate) mod scenes;
pub(crate) mod session_scenes;

use std::fmt::Display;
use std::time::Duration;

use conformance_tests::server::Proxy;
use lock_core::{
    Attempt, Claim, ClaimRequest, FencingToken, LockBackend, LockKey, Locks, OsRng, OwnerId,
};
use lock_testkit::servers::ZooKeeper;
use lock_zk::ZkBackend;
use zookeeper_client as zk;

/// Every scene, for a macro that plays them.
macro_rules! all_scenes {
    ($play:ident) => {
        $play! {
            scenes::fences_rise_over_a_new_queue(),
            scenes::a_node_of_an_old_session_is_not_trusted(),
            scenes::a_hand_over_wakes_one_waiter(100),
            scenes::a_release_hands_the_lock_to_the_next(),
            scenes::a_release_proves_no_place_that_is_gone(),
            scenes::a_renewal_needs_the_leader(),
            scenes::a_server_that_is_behind_confirms_nothing(),
            scenes::a_server_that_is_behind_grants_nothing(),
            scenes::a_read_prolongs_nothing(),
            session_scenes::a_session_that_was_shortened_is_not_believed(),
            session_scenes::a_session_that_is_given_up_is_not_closed(),
            session_scenes::a_refused_sync_ends_no_session(),
            session_scenes::a_full_address_costs_no_session(),
            session_scenes::a_lock_of_a_silent_holder_is_free_after_its_own_ttl(),
            session_scenes::a_full_session_is_followed_by_another(),
            session_scenes::fences_rise_over_an_ensemble_without_its_data(),
            session_scenes::a_server_that_is_behind_shows_no_base(),
            session_scenes::a_hand_over_during_a_cut_is_not_missed(),
            session_scenes::a_check_after_a_lost_reply_asks(),
            look_scenes::a_look_shows_the_first_in_the_queue(),
            look_scenes::a_floor_lies_between_the_fences(),
            look_scenes::a_floor_stands_on_what_did_not_change(),
            look_scenes::a_look_at_an_old_server_reads_node_by_node(),
            look_scenes::a_lock_of_a_dead_client_becomes_free_for_a_look(),
            look_scenes::a_server_that_is_behind_shows_no_free_lock(),
            look_scenes::a_leader_that_was_deposed_shows_no_free_lock(),
        }
    };
}
pub(crate) use all_scenes;

/// The session timeout of the tests, and so the ttl of all locks.
pub(crate) const SESSION: Duration = Duration::from_secs(2);
pub(crate) const DEFAULT: &str = "lock_session_timeout=2s";
/// What a busy machine may add.
pub(crate) const SLACK: Duration = Duration::from_secs(5);
pub(crate) const CALL: Duration = Duration::from_secs(2);

/// A server for one test. Without one on the machine the test fails and names the missing package:
/// a skip would look like a pass.
pub(crate) async fn server() -> ZooKeeper {
    ZooKeeper::single().await.unwrap()
}

/// Hosts and ports of all servers.
pub(crate) fn hosts(servers: &ZooKeeper) -> &str {
    servers.url().trim_start_matches("zookeeper://")
}

/// A client with these parameters.
pub(crate) async fn connect(hosts: impl Display, parameters: &str) -> ZkBackend {
    lock_zk::connect(&format!("zookeeper://{hosts}?{parameters}")).await.unwrap()
}

/// A client of all servers.
pub(crate) async fn backend(servers: &ZooKeeper) -> ZkBackend {
    connect(hosts(servers), DEFAULT).await
}

/// A client of one server alone.
pub(crate) async fn backend_at(servers: &ZooKeeper, member: usize, parameters: &str) -> ZkBackend {
    connect(servers.address(member).unwrap(), parameters).await
}

/// A client behind a proxy.
pub(crate) async fn behind_proxy(servers: &ZooKeeper, parameters: &str) -> (ZkBackend, Proxy) {
    let proxy = Proxy::start(servers.address(0).unwrap()).await.unwrap();
    (connect(proxy.address(), parameters).await, proxy)
}

/// Locks with this ttl.
pub(crate) fn locks(backend: ZkBackend, ttl: Duration) -> Locks {
    Locks::builder(backend).default_ttl(ttl).build().unwrap()
}

/// A plain client of ZooKeeper, as a program in another language has one.
pub(crate) async fn plain(servers: &ZooKeeper) -> zk::Client {
    let connector = zk::Client::connector().with_session_timeout(SESSION * 5);
    connector.connect(hosts(servers)).await.unwrap()
}

/// Creates nodes that no server removes automatically.
pub(crate) async fn make(plain: &zk::Client, path: &str) {
    let mode = zk::CreateMode::Persistent.with_acls(zk::Acls::anyone_all());
    plain.mkdir(path, &mode).await.unwrap();
}

/// The nodes in a queue, in no order; none if there is no queue.
pub(crate) async fn children(plain: &zk::Client, name: &str) -> Vec<String> {
    let path = format!("/locks/{name}");
    plain.sync("/").await.unwrap();
    match plain.list_children(&path).await {
        Ok(children) => children,
        Err(zk::Error::NoNode) => Vec::new(),
        Err(error) => panic!("{error}"),
    }
}

pub(crate) fn claim(backend: &impl LockBackend, name: &str, wait: bool) -> Box<dyn Claim> {
    let key = LockKey::new("", name).unwrap();
    let owner = OwnerId::generate(&OsRng).unwrap();
    let ttl = backend.capabilities().min_ttl;
    let request = ClaimRequest::new(key, owner, ttl).with_wait(wait).with_call_timeout(CALL);
    backend.claim(request).unwrap()
}

pub(crate) async fn granted(claim: &mut dyn Claim) -> FencingToken {
    match claim.try_acquire().await.unwrap() {
        Attempt::Granted { token, .. } => token,
        other => panic!("the lock is free, and the answer is {other:?}"),
    }
}

/// A lock that is held.
pub(crate) async fn held(backend: &impl LockBackend, name: &str) -> Box<dyn Claim> {
    let mut holder = claim(backend, name, true);
    granted(&mut *holder).await;
    holder
}

pub(crate) async fn busy(claim: &mut dyn Claim) {
    let answer = claim.try_acquire().await.unwrap();
    assert!(matches!(answer, Attempt::Busy { .. }), "{answer:?}");
}

/// Tries as the core does, until the lock is granted.
pub(crate) async fn acquired(claim: &mut dyn Claim) -> FencingToken {
    let work = async {
        loop {
            match claim.try_acquire().await {
                Ok(Attempt::Granted { token, .. }) => return token,
                Ok(_) => {
                    let _ = tokio::time::timeout(Duration::from_millis(500), claim.changed()).await;
                }
                Err(error) => {
                    assert!(error.is_retryable(), "{error}");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
    };
    tokio::time::timeout(SESSION * 3 + SLACK, work).await.expect("the lock is granted in the end")
}

/// Waits until `done`, which is asked every few milliseconds.
pub(crate) async fn until(
    what: &str,
    limit: Duration,
    mut done: impl AsyncFnMut() -> bool,
) -> Duration {
    let start = tokio::time::Instant::now();
    while !done().await {
        assert!(start.elapsed() < limit, "{what}: not within {limit:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    start.elapsed()
}
