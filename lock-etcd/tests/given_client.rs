//! A client of the crate `etcd-client`, which the user has connected.

#![allow(clippy::unwrap_used, reason = "a test fails by a panic")]

mod common;

use std::time::Duration;

use etcd_client::{Client, ConnectOptions};
use lock_core::{ErrorKind, Locks, Renewal};
use lock_etcd::{EtcdBackend, EtcdConfig};
use lock_testkit::servers::EtcdCluster;

use common::{
    LONG, PASSWORD, busy, claim, granted, guarded, keys, one, plain, quiet, renewed, soon, three,
    tokens_of_a_state, told,
};

fn options() -> ConnectOptions {
    ConnectOptions::new()
        .with_require_leader(true)
        .with_connect_timeout(Duration::from_secs(1))
        .with_keep_alive(Duration::from_secs(6), Duration::from_secs(3))
}

async fn client(cluster: &EtcdCluster, options: ConnectOptions) -> Client {
    let members = (0..cluster.members()).map(|member| cluster.address(member).unwrap().to_string());
    Client::connect(members.collect::<Vec<_>>(), Some(options)).await.unwrap()
}

async fn backend(cluster: &EtcdCluster) -> EtcdBackend {
    let client = client(cluster, options()).await;
    EtcdBackend::connect(EtcdConfig::from_client(client)).await.unwrap()
}

/// The user has rights to the keys of its prefix only, and its tokens are refused after each change of the users.
#[tokio::test]
async fn a_client_has_a_user_of_its_own() {
    let directory = tempfile::tempdir().unwrap();
    let tokens = tokens_of_a_state(directory.path());
    let (cluster, root, _) = guarded(&[("auth-token", &tokens)]).await;
    let client = client(&cluster, options().with_user("app", PASSWORD)).await;
    let config = EtcdConfig::from_client(client).prefix("jobs").unwrap();
    let backend = EtcdBackend::connect(config).await.unwrap();
    let mut holder = claim(&backend, "lock", false);
    granted(&mut *holder).await;
    assert_eq!(keys(&root, "jobs/lock/").await.len(), 1);
    let mut waiter = claim(&backend, "lock", true);
    busy(&mut *waiter).await;
    quiet(&mut *waiter).await;
    root.role_add("another").await;
    holder.renew().await.unwrap();
    let mut late = claim(&backend, "another lock", true);
    granted(&mut *late).await;
    holder.release().await.unwrap();
    told("the lock is free", &mut *waiter).await;
    granted(&mut *waiter).await;
}

#[tokio::test]
async fn a_second_user_is_refused() {
    let client = Client::connect(["127.0.0.1:1"], None).await.unwrap();
    let config = EtcdConfig::from_client(client).user("app", PASSWORD);
    let error = EtcdBackend::connect(config).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    let text = error.to_string();
    assert!(text.contains("signed in itself") && !text.contains(PASSWORD), "{text}");
}

/// The client says of the first keep-alive of a stream only that its lease is gone, and has no stream then.
#[tokio::test]
async fn a_lease_that_is_gone_ends_no_stream_but_its_lock() {
    let cluster = one().await;
    let (backend, other) = (backend(&cluster).await, plain(&cluster, 0));
    for at in 0..8 {
        let mut held = claim(&backend, &format!("lock{at}"), false);
        granted(&mut *held).await;
        let lease = keys(&other, &format!("lock{at}/")).await[0].1;
        other.lease_revoke(lease).await;
        assert_eq!(held.renew().await.unwrap(), Renewal::Lost);
    }
}

#[tokio::test]
async fn a_lock_outlives_a_restart_of_the_server() {
    let cluster = one().await;
    let locks = Locks::new(backend(&cluster).await);
    let held = locks.named("lock").unwrap().ttl(LONG).acquire().await.unwrap();
    let other = locks.named("lock").unwrap();
    let waiter = tokio::spawn(async move { other.acquire().await });
    tokio::time::sleep(Duration::from_millis(300)).await;
    cluster.kill(0).unwrap();
    let down = held.renew().await.unwrap_err();
    assert!(down.is_retryable(), "{down}");
    tokio::time::sleep(Duration::from_millis(500)).await;
    cluster.restart(0).await.unwrap();
    renewed(&held).await;
    held.release().await.unwrap();
    let next = soon("the next holder", waiter).await.unwrap().unwrap();
    next.release().await.unwrap();
}

/// The client spreads its calls over the members, and fails those that meet the dead one.
#[tokio::test]
async fn a_dead_member_costs_no_lock() {
    let cluster = three().await;
    let locks = Locks::new(backend(&cluster).await);
    let held = locks.named("held").unwrap().ttl(Duration::from_secs(4)).acquire().await.unwrap();
    let leader = cluster.leader().await.unwrap();
    cluster.kill((leader + 1) % 3).unwrap();
    for _ in 0..50 {
        let guard = locks.named("lock").unwrap().acquire().await.unwrap();
        guard.release().await.unwrap();
    }
    tokio::time::sleep(Duration::from_secs(6)).await;
    held.check().await.unwrap();
    held.release().await.unwrap();
}
