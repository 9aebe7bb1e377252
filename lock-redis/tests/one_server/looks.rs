//! What a look at one server shows, what it costs, and when it fails.

use std::sync::Arc;
use std::time::Duration;

use crate::common::{
    self, backend, claim, floor, granted, keys, look, looks, plain, requests, run, scenes_hold,
    server,
};
use lock_core::LockBackend;
use redis::Value;
use redis::aio::MultiplexedConnection;

const TTL: Duration = Duration::from_secs(30);

scenes_hold! {
    #[tokio::test]
    looks:
    a_look_shows_whoever_has_a_lock
    a_floor_parts_earlier_fences_from_later_ones
    a_replica_shows_nothing
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn looks_beside_grants_are_right() {
    let server = server().await;
    let mut clients: Vec<Arc<dyn LockBackend>> = Vec::new();
    for _ in 0..3 {
        clients.push(Arc::new(backend(&server).await));
    }
    looks::looks_beside_grants_are_right(clients).await;
}

/// How many changes the server has made to its data.
async fn changes(plain: &mut MultiplexedConnection) -> u64 {
    let info: String = common::ask(plain, &["INFO", "persistence"]).await;
    let changes = info.lines().find_map(|line| line.strip_prefix("rdb_changes_since_last_save:"));
    changes.unwrap().trim().parse().unwrap()
}

#[tokio::test]
async fn a_look_at_64_names_is_one_request_and_changes_nothing() {
    let server = server().await;
    let (backend, mut plain) = (backend(&server).await, plain(&server).await);
    let names: Vec<_> = (0..64).map(|n| format!("lock{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut holder = claim(&backend, names[7], TTL, false);
    granted(&mut *holder).await;
    // The server knows the script from then on.
    look(&backend, &names[..1]).await.unwrap();
    for number in [1, 64] {
        let before =
            (requests(&mut plain).await, changes(&mut plain).await, keys(&mut plain).await);
        assert_eq!(look(&backend, &names[..number]).await.unwrap().len(), number);
        let after = (requests(&mut plain).await, changes(&mut plain).await, keys(&mut plain).await);
        assert_eq!(after, (before.0 + 1, before.1, before.2), "{number} names");
    }
    assert_eq!(look(&backend, &[]).await.unwrap(), []);
}

/// What was taken away is free, and its fence counts as given.
#[tokio::test]
async fn a_forced_release_is_seen_at_once() {
    let server = server().await;
    let backend = backend(&server).await;
    let mut holder = claim(&backend, "lock", TTL, false);
    let fence = granted(&mut *holder).await.get();
    let locks = common::locks(&server).await;
    locks.force_release_any("lock").await.unwrap();
    assert!(floor(&backend, "lock").await.unwrap() >= fence);
}

#[tokio::test]
async fn a_mark_that_was_spoilt_is_an_error_as_of_a_try() {
    let server = server().await;
    let (backend, mut plain) = (backend(&server).await, plain(&server).await);
    for spoilt in ["x", "-1", "9007199254740991"] {
        assert_eq!(run(&mut plain, &["SET", "distlock\u{1e}fence", spoilt]).await, Value::Okay);
        let tried = claim(&backend, "lock", TTL, false).try_acquire().await.unwrap_err();
        let seen = look(&backend, &["lock"]).await.unwrap_err();
        assert_eq!(seen.kind(), tried.kind(), "{spoilt}");
        assert!(seen.to_string().contains("fence mark"), "{seen}");
    }
}
