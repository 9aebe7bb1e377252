//! Turns: waiters that miss theirs, that are dead, that poll for their client, or whose places
//! lapse.

use std::time::Duration;

use crate::common::{
    self, backend, busy, claim, is_granted, plain, queued, run, scenes, scenes_hold, server,
};
use lock_core::Released;
use redis::Value;
use tokio::time::Instant;

const NAME: &str = "line";
const GRACE: Duration = Duration::from_millis(500);

scenes_hold! {
    #[tokio::test]
    scenes:
    a_lock_that_is_handed_to_nobody_is_declined
    whoever_speaks_first_tells_all_of_lost_places
    a_process_that_died_with_lock_and_waiters_costs_one_grace
    many_stopped_processes_cost_one_grace_each
}

/// A waiter whose client does not listen is passed over, keeps its ticket, and comes back to it.
#[tokio::test]
async fn a_lost_turn_does_not_cost_the_place() {
    let server = server().await;
    let (a, b, c) = (backend(&server).await, backend(&server).await, backend(&server).await);
    let mut plain = plain(&server).await;
    let ttl = Duration::from_secs(30);
    let mut holder = claim(&a, NAME, ttl, false);
    assert!(is_granted(&mut *holder).await);
    let (mut first, mut second, mut third) =
        (claim(&b, NAME, ttl, true), claim(&c, NAME, ttl, true), claim(&c, NAME, ttl, true));
    for waiter in [&mut first, &mut second, &mut third] {
        busy(&mut **waiter).await;
    }
    let order = queued(&mut plain, NAME).await;
    // The first one is chosen and does not answer within its grace.
    holder.release().await.unwrap();
    tokio::time::sleep(GRACE + Duration::from_millis(200)).await;
    assert!(is_granted(&mut *second).await, "the second one was not chosen after the grace");
    busy(&mut *first).await;
    assert_eq!(
        queued(&mut plain, NAME).await,
        [order[0], order[2]],
        "its old ticket is before the third one's"
    );
    assert_eq!(second.release().await.unwrap(), Released::Freed);
    tokio::time::timeout(Duration::from_secs(1), first.changed()).await.unwrap().unwrap();
    assert!(is_granted(&mut *first).await);
}

/// A waiter that is always too late costs all others a grace at each hand-over, so it is waited for longer.
#[tokio::test]
async fn a_missed_turn_doubles_the_grace() {
    let server = server().await;
    let (a, slow, mut plain) =
        (backend(&server).await, backend(&server).await, plain(&server).await);
    let ttl = Duration::from_secs(30);
    let mut holder = claim(&a, NAME, ttl, false);
    assert!(is_granted(&mut *holder).await);
    let mut late = claim(&slow, NAME, ttl, true);
    busy(&mut *late).await;
    let late_owner = queued(&mut plain, NAME).await[0].to_hex();
    for grace in [500, 1_000, 2_000] {
        let place: String = redis::cmd("HGET")
            .arg(format!("{{{NAME}}}\u{1e}waiters"))
            .arg(&late_owner)
            .query_async(&mut plain)
            .await
            .unwrap();
        assert_eq!(place.split('|').nth(2), Some(&*grace.to_string()), "{place}");
        let mut next = claim(&a, NAME, ttl, true);
        busy(&mut *next).await;
        holder.release().await.unwrap();
        tokio::time::timeout(Duration::from_secs(5), late.changed()).await.unwrap().unwrap();
        tokio::time::sleep(Duration::from_millis(grace + 300)).await;
        assert!(is_granted(&mut *next).await, "it was not chosen after the grace");
        busy(&mut *late).await;
        holder = next;
    }
    holder.release().await.unwrap();
    assert!(is_granted(&mut *late).await, "it keeps its ticket");
}

/// A client whose pushes reach no receiver is passed over within the same script.
#[tokio::test]
async fn nobody_waits_for_a_client_that_is_gone() {
    let server = server().await;
    let (a, gone, c) = (backend(&server).await, backend(&server).await, backend(&server).await);
    let ttl = Duration::from_secs(30);
    let mut holder = claim(&a, NAME, ttl, false);
    assert!(is_granted(&mut *holder).await);
    for _ in 0..300 {
        busy(&mut *claim(&gone, NAME, ttl, true)).await;
    }
    let mut living = claim(&c, NAME, ttl, true);
    busy(&mut *living).await;
    lock_core::LockBackend::close(&gone).await.unwrap();
    drop(gone);
    tokio::time::sleep(Duration::from_millis(100)).await;
    let start = Instant::now();
    holder.release().await.unwrap();
    // More than 128 are skipped: the releaser goes on by itself.
    tokio::time::timeout(Duration::from_secs(2), living.changed()).await.unwrap().unwrap();
    assert!(is_granted(&mut *living).await);
    println!("300 dead places were skipped within {:?}", start.elapsed());
    assert!(start.elapsed() < Duration::from_secs(1));
}

/// One waiter of each of the first few clients polls, whatever its rank: the others of its client
/// need not, and the clients behind do so rarely.
#[tokio::test]
async fn one_waiter_of_each_of_the_first_clients_polls() {
    let server = server().await;
    let ttl = Duration::from_secs(30);
    let a = backend(&server).await;
    let mut holder = claim(&a, NAME, ttl, false);
    assert!(is_granted(&mut *holder).await);
    let (poll, rarely) = (Some(Duration::from_secs(1)), Some(Duration::from_secs(10)));
    let lease = Some(Duration::from_secs(25));
    let mut waiting = Vec::new();
    for client in 0..6 {
        let backend = backend(&server).await;
        for waiter in 0..40 {
            let mut claim = claim(&backend, NAME, ttl, true);
            let look = busy(&mut *claim).await;
            waiting.push(claim);
            match (waiter, client) {
                (0, 0..4) => assert!(look < poll, "the first waiter of client {client}: {look:?}"),
                (0, _) => assert_eq!(look, rarely, "the first waiter of client {client}"),
                _ => assert!(look > lease, "waiter {waiter} of client {client}: {look:?}"),
            }
        }
    }
}

/// When the waiter that polls for its client gives up, the client's next waiter polls instead.
#[tokio::test]
async fn the_next_waiter_of_a_client_goes_on_looking() {
    let server = server().await;
    let (a, b, mut plain) = (backend(&server).await, backend(&server).await, plain(&server).await);
    let ttl = Duration::from_secs(30);
    let mut holder = claim(&a, NAME, ttl, false);
    assert!(is_granted(&mut *holder).await);
    let (mut first, mut second) = (claim(&b, NAME, ttl, true), claim(&b, NAME, ttl, true));
    busy(&mut *first).await;
    assert!(busy(&mut *second).await > Some(Duration::from_secs(25)));
    first.release().await.unwrap();
    tokio::time::timeout(Duration::from_secs(2), second.changed()).await.unwrap().unwrap();
    assert!(busy(&mut *second).await < Some(Duration::from_secs(1)));
    assert_eq!(queued(&mut plain, NAME).await.len(), 1);
}

/// A place that is not renewed lapses, and a queue leaves no keys behind for long.
#[tokio::test]
async fn places_lapse_and_queues_leave_nothing() {
    let server = server().await;
    let (a, mut plain) = (backend(&server).await, plain(&server).await);
    let mut holder = claim(&a, NAME, Duration::from_secs(30), false);
    assert!(is_granted(&mut *holder).await);
    let mut waiter = claim(&a, NAME, Duration::from_millis(300), true);
    busy(&mut *waiter).await;
    drop(waiter);
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    assert_eq!(
        run(&mut plain, &["EXISTS", "{line}\u{1e}queue", "{line}\u{1e}waiters"]).await,
        Value::Int(0)
    );
    holder.release().await.unwrap();
    let left = common::keys(&mut plain).await;
    assert_eq!(left, ["distlock\u{1e}fence"], "{left:?}");
}
