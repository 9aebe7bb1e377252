//! What a look at a quorum shows, what it costs, and when it fails.

use std::sync::Arc;
use std::time::Duration;

use crate::redlock_common::common::{look, looks, requests, scenes_hold};
use crate::redlock_common::scenarios;
use crate::redlock_common::{Masters, claim, granted};
use lock_core::{ErrorKind, LockBackend, Seen};
use lock_testkit::servers::Data;

const TTL: Duration = Duration::from_secs(20);

scenes_hold! {
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    scenarios:
    a_minority_shows_nothing
    a_floor_parts_fences_on_a_quorum
    a_look_shows_who_has_a_quorum
    what_may_be_held_is_held
    too_few_marks_are_no_floor
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn looks_beside_grants_are_right() {
    let masters = Masters::start().await.unwrap();
    let mut clients: Vec<Arc<dyn LockBackend>> = Vec::new();
    for _ in 0..3 {
        clients.push(Arc::new(masters.client("").await.unwrap()));
    }
    looks::looks_beside_grants_are_right(clients).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_look_at_64_names_is_one_request_to_each_node() {
    let masters = Masters::start().await.unwrap();
    let backend = masters.client("").await.unwrap();
    let names: Vec<_> = (0..64).map(|n| format!("lock{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut holder = claim(&backend, names[7], TTL);
    let fence = granted(&mut *holder).await;
    // The nodes know the script from then on.
    look(&backend, &names[..1]).await.unwrap();
    let asked = async || {
        let mut all = Vec::new();
        for node in 0..3 {
            all.push(requests(&mut masters.plain(node).await).await);
        }
        all
    };
    // What the calls before have left to the background is done.
    tokio::time::sleep(Duration::from_millis(500)).await;
    for number in [1, 64] {
        let before = asked().await;
        let seen = look(&backend, &names[..number]).await.unwrap();
        assert_eq!(seen.len(), number);
        let is_held = |seen: &Seen| matches!(seen, Seen::Held { fence: Some(_), .. });
        assert_eq!(seen.iter().position(is_held), (number == 64).then_some(7), "{fence}");
        tokio::time::sleep(Duration::from_millis(100)).await;
        let after: Vec<_> = before.iter().map(|requests| requests + 1).collect();
        assert_eq!(asked().await, after, "{number} names");
    }
    assert_eq!(look(&backend, &[]).await.unwrap(), []);
}

/// A node that has lost its data counts as silent: one is spared, and of two the error is that of a try.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_give_no_votes_show_nothing() {
    let masters = Masters::start().await.unwrap();
    let backend = masters.client("").await.unwrap();
    let mut holder = claim(&backend, "lock", TTL);
    let fence = granted(&mut *holder).await;
    masters.0[0].restart(Data::Lose).await.unwrap();
    let held = look(&backend, &["lock"]).await.unwrap().remove(0);
    assert!(
        matches!(held, Seen::Held { fence: Some(seen), .. } if seen.get() == fence),
        "{held:?}"
    );
    masters.0[1].restart(Data::Lose).await.unwrap();
    // The first one finds out that its connections are gone.
    let _ = look(&backend, &["lock"]).await;
    let seen = look(&backend, &["lock"]).await.unwrap_err();
    let tried = claim(&backend, "lock", TTL).try_acquire().await.unwrap_err();
    assert_eq!((seen.kind(), seen.effect()), (tried.kind(), tried.effect()), "{seen} and {tried}");
    assert_eq!(seen.kind(), ErrorKind::Unavailable);
    assert!(seen.to_string().contains("no quorum: 2 of 3 nodes must vote"), "{seen}");
    assert!(seen.to_string().contains("shows its votes"), "{seen}");
    backend.close().await.unwrap();
}
